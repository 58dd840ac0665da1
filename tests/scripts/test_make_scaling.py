"""scripts/make_scaling.py counts what is exchanged and computed, and predicts by the formula of a ring."""

from pathlib import Path

import pytest
import torch

from scripts import make_scaling
from scripts.make_scaling import EXTRA, Cluster, jobs
from tests.train import toy
from tests.train.processes import together
from transduce.model.transformer import Transformer
from transduce.train import distributed
from transduce.train.flops import flops_per_token

GPT2 = [job for job in jobs() if job.config.encoder is None]


@pytest.mark.long
@pytest.mark.parametrize("job", GPT2, ids=lambda job: job.name)
def test_operations_are_those_of_the_formula(job):
    """Counted by torch, against 6 N + 12 L d T."""
    with torch.device("meta"):
        want = flops_per_token(Transformer(job.config))
    assert job.flops_per_token() == pytest.approx(want, rel=0.002)


def test_the_papers_models_have_its_sizes():
    """65 and 213 million parameters, table 3 of Vaswani et al. (2017), which says neither vocabulary exactly."""
    base, big, *_ = (job.n_bytes() / 4e6 for job in jobs())
    assert base == pytest.approx(65, rel=0.04) and big == pytest.approx(213, rel=0.02)


def exchanged(directory: Path) -> tuple[int, int]:
    """Numbers in the exchange of an update, and of the model."""
    found, all_reduce = [], distributed.World.all_reduce

    def counting(self, numbers):
        found.append(numbers.numel())
        all_reduce(self, numbers)

    distributed.World.all_reduce = counting
    trainer = toy.trainer(directory, config=toy.config(accumulate=2, max_updates=1, validate_every=1))
    trainer.run()
    return max(found), sum(1 + p.numel() for p in trainer.model.parameters())


@pytest.mark.process
def test_an_exchange_has_so_many_numbers_beside_the_gradient(tmp_path):
    for numbers, parameters in together(2, exchanged, tmp_path):
        assert numbers == parameters + EXTRA


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_formula_is_that_of_a_ring(n):
    """Process r sends chunk after chunk to its neighbour, which adds it, and then the sums go round."""
    values = torch.arange(n * n * 2.0).view(n, n, 2)  # of each process, n chunks
    want, sent = values.sum(0), 0
    for turn in range(2 * (n - 1)):
        before = values.clone()
        for r in range(n):
            chunk = (r - turn) % n if turn < n - 1 else (r + 1 - (turn - n + 1)) % n
            if turn < n - 1:
                values[(r + 1) % n, chunk] += before[r, chunk]
            else:
                values[(r + 1) % n, chunk] = before[r, chunk]
            sent += 4 * 2 if r == 0 else 0
    assert all(torch.equal(each, want) for each in values)
    n_bytes, cluster = 4 * n * 2, Cluster(latency=0.0, used=1.0, nvlink=1.0)
    assert cluster.exchange(n_bytes, n) == pytest.approx(sent)


def test_overlap_hides_the_exchange_as_far_as_the_backward_pass_lasts():
    cluster = Cluster()
    for n_gpus in (8, 64, 512):
        alone, hidden = (
            cluster.efficiency(1.0, 10**9, n_gpus, batches=2, overlap=overlap) for overlap in (False, True)
        )
        assert alone == pytest.approx(1 / (1 + cluster.exchange(10**9, n_gpus))) and alone < hidden < 1
    assert cluster.efficiency(1.0, 10**9, 1, batches=1, overlap=False) == 1


@pytest.mark.long
def test_it_measures_and_writes(tmp_path, monkeypatch):
    output = tmp_path / "scaling.md"
    words = ["make_scaling.py", "--output", str(output), "--rows", "1", "0", "0", "0", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", words)
    make_scaling.main()
    text = output.read_text()
    assert "| Transformer base | 252 MB | 0.38 | " in text and text.count("not measured |") == 3 and "nan" not in text
