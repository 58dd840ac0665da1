"""Sharding in a group of one process that holds all; tests/train/test_shard_processes.py starts several."""

import importlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.train import toy
from tests.train.threads import in_threads
from transduce.files import read_json_lines
from transduce.train.config import LoRAConfig, OptimConfig, TrainingConfig
from transduce.train.data_parallel import ShardedDataParallel
from transduce.train.distributed import World
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Store, Validation, gathered, local, parts_like


class OfOne(ShardedDataParallel):
    """A group of one process, in which each update has one more pass that counts zero."""

    def share(self, group):
        """As if another process had one batch more."""
        return [*group, group[0]]

    def exchange(self, names, numbers, more):
        """Without the numbers that a trainer of one process does not read: whether to stop, and the seconds."""
        names, numbers = super().exchange(names, numbers, more)
        *numbers, stopping, seconds = numbers
        assert stopping == more[0] and seconds > 0
        return names, torch.stack(numbers)


@pytest.fixture
def group_of_one(monkeypatch) -> Iterator[None]:
    """A real group of processes with a single one, in which a training may be sharded."""
    importlib.import_module("torch.distributed.fsdp")  # imported here, outside the tests' time
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(TrainingConfig, "check_processes", lambda self, n: None)
    monkeypatch.setattr("transduce.train.trainer.ShardedDataParallel", OfOne)
    yield
    dist.destroy_process_group()


def loss_of(model) -> Validation:
    """The loss on a batch, with all weights; and steps of decoding."""
    batch = toy.Backwards(letters=7).epoch(0)[0]
    memory, cache = model.encode(batch.source, batch.source_lengths), model.new_cache()
    model.decode(batch.target_in[:, :1], memory=memory, cache=cache)
    assert not any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    loss = CrossEntropy(model)(batch).total.item()
    return Validation({"loss": loss}, -loss)


@pytest.mark.usefixtures("group_of_one")
def test_sharded_training_equals_unsharded_also_when_resumed(tmp_path, monkeypatch):
    """Begun sharded and ended unsharded, and the other way round; the files of checkpoints are alike."""
    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    ends = {}
    for name, shards in (("plain", [False]), ("sharded", [True]), ("one", [True, False]), ("other", [False, True])):
        for updates, shard in zip((2, 4)[-len(shards) :], shards, strict=True):
            optim = OptimConfig(peak_rate=1e-2, clip_norm=0.5)
            config = toy.config(shard=shard, max_updates=updates, validate_every=2, accumulate=2, optim=optim)
            objective = CrossEntropy(toy.model().double())
            training = toy.trainer(tmp_path / name, objective=objective, config=config, validate=loss_of)
            progress = training.run()
            assert hasattr(training.model.output, "full_tensor") == shard
        checkpoint = tmp_path / name / "checkpoints" / "00000004"
        files = {path.name: load_file(path) for path in checkpoint.glob("*.safetensors")}
        assert len(files) == 2
        lines = [x for x in read_json_lines(tmp_path / name / "metrics.jsonl") if x["kind"] == "train"]
        log = [number for line in lines for number in (line["loss"], line["gradient_norm"])]
        ends[name] = progress.validations, files, log
    (scores, wanted, logged), *others = ends.values()
    assert len(logged) == 8
    assert len(scores) == 2 and scores[0][1] != scores[1][1]
    for got, files, log in others:
        assert log == pytest.approx(logged, rel=1e-5)
        assert [score for _, score in got] == pytest.approx([score for _, score in scores], rel=1e-9)
        assert files.keys() == wanted.keys()
        for name, tensors in wanted.items():
            assert files[name].keys() == tensors.keys()
            for key, tensor in tensors.items():
                torch.testing.assert_close(files[name][key], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("group_of_one")
def test_clipping_uses_the_norm_of_the_whole_gradient(tmp_path):
    training = toy.trainer(tmp_path, config=toy.config(shard=True))
    training.objective(toy.Backwards().epoch(0)[0]).total.backward()
    gradients = [local(parameter.grad) for parameter in training.model.parameters()]
    before = [gradient.clone() for gradient in gradients]
    norm = sum(gradient.double().square().sum() for gradient in before).sqrt().item()
    assert training.parallel.clip(0.0).item() == pytest.approx(norm, rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients, strict=True))
    assert training.parallel.clip(norm / 4).item() == pytest.approx(norm, rel=1e-6)
    for one, other in zip(before, gradients, strict=True):
        torch.testing.assert_close(other, one / 4)


@pytest.mark.usefixtures("group_of_one")
def test_gathering_and_splitting_keep_unsharded_tensors(tmp_path):
    model = toy.trainer(tmp_path, config=toy.config(shard=True)).model
    plain = toy.weights(toy.model())
    weights = dict(model.named_parameters())
    assert gathered(weights, keep=False) == {} and toy.same(gathered(weights), plain)
    own = torch.ones(2)
    assert gathered({"own": own})["own"] is own and local(own) is own
    # another shape is an error later
    parts = parts_like(weights, {**plain, "other": own, "output": plain["output"][:-1]})
    assert parts["other"] is own and parts["output"].shape == plain["output"][:-1].shape
    name = "decoder.layers.0.feed_forward.wide.weight"
    assert hasattr(parts[name], "full_tensor") and torch.equal(parts[name].full_tensor(), plain[name])


@pytest.mark.usefixtures("group_of_one")
def test_non_writing_process_does_not_touch_the_disk(tmp_path):
    training = toy.trainer(tmp_path, config=toy.config(shard=True, max_updates=1))
    training.run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = Store(tmp_path, keep_last=1, keep_best=1, writes=False)
    other.save(training.model, training.optimizer, replace(training.progress, update=2))
    assert other.resume(training.model, training.optimizer).update == 1
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_missing_batches_are_filled_with_the_first_one():
    """All processes run equally many passes."""
    shares = []
    for rank in range(3):
        parallel = object.__new__(ShardedDataParallel)
        parallel.world = World(rank, 3)
        shares.append(
            [list(parallel.share(group)) for group in (range(5, 8), range(8, 12), range(12, 14), range(14, 15))]
        )
    assert shares == [
        [[5], [8, 11], [12], [14]],
        [[6], [9, 8], [13], [14]],
        [[7], [10, 8], [12], [14]],
    ]


def test_exchange_sums_over_processes():
    """Two threads stand for two processes; norms are in tests/train/processes.py."""

    def work(rank: int) -> tuple[list[str], list[float], float]:
        parallel = object.__new__(ShardedDataParallel)
        parallel.world = World(rank, 2)
        names, numbers = parallel.exchange(["loss"], torch.tensor([10.0 + rank, 0.5]), [float(rank), 7.0])
        return names, numbers.tolist(), parallel.divisor(10 + rank)

    assert in_threads(2, work) == [(["loss"], [21.0, 1.0, 1.0, 14.0], 21.0)] * 2


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        (
            {"optim": OptimConfig(optimizer="muon")},
            "optim.optimizer=muon, lora.rank=0, compile=False and precision=fp32",
        ),
        ({"lora": LoRAConfig(rank=2)}, "optim.optimizer=adamw, lora.rank=2, compile=False and precision=fp32"),
        ({"compile": True}, "optim.optimizer=adamw, lora.rank=0, compile=True and precision=fp32"),
        ({"precision": "fp16"}, "optim.optimizer=adamw, lora.rank=0, compile=False and precision=fp16"),
    ],
)
def test_incompatible_settings_are_refused(other, settings):
    with pytest.raises(ValueError, match="shard") as error:
        TrainingConfig(shard=True, **other)
    assert str(error.value) == (
        "shard needs AdamW over all weights, without compile and fp16, but shard=True, "
        f"{settings}; leave out shard or what excludes it"
    )


def test_sharding_with_one_process_is_refused():
    with pytest.raises(ValueError, match="shard") as error:
        TrainingConfig(shard=True).check_processes(1)
    assert str(error.value) == (
        "weights are sharded among several processes, but shard=True and there is 1 process; start the same command with "
        "torchrun --nproc-per-node 2 --, or leave out --training.shard"
    )
    TrainingConfig(shard=True, accumulate=2).check_processes(2)
