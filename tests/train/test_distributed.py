"""One training in several processes: they have the same losses and weights and stop together."""

import math
import time
from contextlib import redirect_stderr
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import toy
from tests.train.processes import check_same, stopped, together, train
from transduce.errors import exit_code
from transduce.train.config import LossConfig
from transduce.train.distributed import world
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig
from transduce.train.trainer import Trainer

pytestmark = pytest.mark.process

LONG = {"max_updates": 200, "validate_every": 60, "optim": OptimConfig(peak_rate=3e-4, warmup_steps=50)}
"""An error that grows has time to."""
nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("size", "settings"),
    [(2, {}), (3, {}), pytest.param(2, LONG, marks=nightly), pytest.param(3, LONG, marks=nightly)],
    ids=["2", "3", "2 for long", "3 for long"],
)
def test_several_processes_give_the_losses_of_one(tmp_path, monkeypatch, size, settings):
    """The last batches of an epoch are fewer than the processes; the weights are equal in all of them, bit for bit."""
    assert len(toy.Backwards(n=80, tokens_per_batch=64).epoch(0)) % 3 == 1
    want = train(tmp_path / "one", **settings)
    assert len(want.losses) == settings.get("max_updates", 12) and want.losses[-1] < 0.98 * want.losses[0]
    check_same(together(size, train, tmp_path / "more", **settings), want)
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "more")]
    assert len(lines[0]) == len(lines[1]) > 1
    # the comparison can fail: with the dropout of another batch, the losses differ
    monkeypatch.setattr("transduce.train.trainer.seed_of_batch", lambda seed, update, index: torch.manual_seed(update))
    other = train(tmp_path / "other", **settings).losses
    assert max(abs(a - b) for a, b in zip(other, want.losses, strict=True)) > 1e-3


@pytest.mark.parametrize(
    "objective",
    [
        partial(CrossEntropy, losses=LossConfig(consistency=2.0)),
        partial(CrossEntropy, losses=LossConfig(teachers=(toy.model(d_model=24),))),
    ],
    ids=["two passes", "a teacher"],
)
@pytest.mark.parametrize("shard", [False, True])
def test_other_objectives_in_two_processes(tmp_path, objective, shard):
    settings = {"max_updates": 4, "validate_every": 4, "objective": objective}
    want = train(tmp_path / "one", **settings)
    check_same(together(2, train, tmp_path / "two", **settings, shard=shard), want)


@pytest.mark.parametrize("shard", [False, True])
def test_a_process_that_dies_ends_the_others(tmp_path, monkeypatch, shard):
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=2))
    first, second = together(2, dying, tmp_path, shard)
    assert first.startswith("TimeoutError: process 0 of 2 waits in vain: no answer from process 1, ")
    assert second == "ValueError: dead"


def dying(directory: Path, shard: bool) -> None:
    """The second process ends in the middle."""
    update = Trainer._update

    def interrupted(self: Trainer, *args: Any, **more: Any) -> None:
        if self.world.rank == 1 and self.progress.update == 2:
            raise ValueError("dead")
        update(self, *args, **more)

    Trainer._update = interrupted  # type: ignore[method-assign]
    train(directory, shard=shard)


@pytest.mark.long
@pytest.mark.parametrize("hung", [0, 1])
def test_a_process_that_hangs_is_named(tmp_path, monkeypatch, hung):
    """With a limit of three seconds. The process that hung wakes up later, when the other has ended."""
    monkeypatch.setenv("TRANSDUCE_HANG_MINUTES", "0.05")
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=2))
    code, output = together(2, hanging, tmp_path, hung)[1 - hung]
    assert code == 2
    assert f"transduce: process {1 - hung} of 2 waits in vain: no answer from process {hung}, which hangs" in output
    assert output.endswith(" set TRANSDUCE_HANG_MINUTES to more than 0.05\n")


def hanging(directory: Path, hung: int) -> tuple[int, str]:
    """Exit code and stderr of a process of two, of which one sleeps in the middle."""
    update = Trainer._update

    def sleepy(self: Trainer, *args: Any, **more: Any) -> None:
        if self.world.rank == hung and self.progress.update == 5:
            time.sleep(8)
        update(self, *args, **more)

    Trainer._update = sleepy  # type: ignore[method-assign]
    with redirect_stderr(StringIO()) as stderr:
        return exit_code(lambda: train(directory), interrupted=""), stderr.getvalue()


def test_work_is_shared_round_robin_and_gathered_in_order():
    assert together(3, shared) == [([0, 1, 4, 9, 16, 25, 36], [3.0, 1.5], "by 0")] * 3


def shared() -> tuple[list[int], list[float], str]:
    """Squares of seven numbers, sums, and a value that the first process broadcasts."""
    mine = world()
    return (
        mine.gather([i * i for i in mine.share(range(7))]),
        mine.all_reduce_sum(mine.rank, 0.5),
        mine.broadcast(f"by {mine.rank}"),
    )


def train_with_an_overflow(directory: Path) -> tuple[list[float], Any, Any, int]:
    """Losses, weights, scale and skips of 12 updates in float16; in update 5 the gradient of the last batch overflows."""
    config = toy.config(precision="fp16", accumulate=2, max_updates=12, validate_every=12)
    trainer, losses = toy.trainer(directory, config=config), []
    trainer.scaler.set_growth_interval(4)
    update = trainer.log.update
    trainer.log.update = lambda progress, parts, **how: (losses.append(parts["loss"]), update(progress, parts, **how))

    def look(gradient: torch.Tensor) -> torch.Tensor:
        last = trainer.world.rank == trainer.world.size - 1
        return gradient * math.inf if last and trainer.progress.update == 4 else gradient

    trainer.model.decoder.layers[0].feed_forward.wide.weight.register_hook(look)
    progress = trainer.run()
    weights = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return losses, weights, progress.loss_scale, progress.skipped


def test_fp16_in_two_processes_equals_one_and_skips_together(tmp_path):
    """Only the second process's gradient overflows. Sums in another order round differently in float16."""
    alone = train_with_an_overflow(tmp_path / "one")
    first, second = together(2, train_with_an_overflow, tmp_path / "two")
    assert first == second and first[2:] == alone[2:] == ((2.0**17, 3), 1)
    torch.testing.assert_close(first[0], alone[0], rtol=2e-3, atol=0)


@pytest.mark.parametrize("shard", [False, True])
def test_resume_with_another_number_of_processes(tmp_path, shard):
    """Two processes, then one, then three have the losses of one process; a stop is noticed an update later."""
    settings = {"max_updates": 9, "validate_every": 5}
    want = train(tmp_path / "one", **settings).losses
    for size, at in ((2, 3), (1, 6)):
        ends = together(size, stopped, tmp_path / "run", at, shard=shard and size > 1, **settings)
        assert all(each.startswith("KeyboardInterrupt") for each in ends), ends
    assert (tmp_path / "run/checkpoints/00000006/optimizer.safetensors").is_file()
    for got in together(3, train, tmp_path / "run", shard=shard, **settings):
        assert not isinstance(got, str), got
        torch.testing.assert_close(got.losses, want[6:], rtol=0, atol=1e-5)
