"""A training with weights, gradients and moments sharded among processes gives the same result as without."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.train import toy
from tests.train.processes import check_same, together, train
from tests.train.sometimes import Sometimes, count
from transduce.data.batch import Batch
from transduce.experiment.validation import held_out_loss
from transduce.model.transformer import Transformer
from transduce.train.distributed import world
from transduce.train.objectives import CrossEntropy, Loss
from transduce.train.optim import OptimConfig
from transduce.train.state import Validation, gathered, local

pytestmark = pytest.mark.process


@torch.no_grad()
def validate_with_decoding(model: nn.Module) -> Validation:
    """The loss on a batch, which the first process has, and steps of decoding; the others compute nothing."""
    batch = toy.Backwards(letters=7).epoch(0)[0]
    loss = held_out_loss(model, [batch])
    if world().first:
        memory, cache = model.encode(batch.source, batch.source_lengths), model.new_cache()
        for t in range(4):
            model.decode(batch.target_in[:, t : t + 1], memory=memory, cache=cache)
    return Validation({"loss": loss}, -loss)


VALIDATION = {"validate": validate_with_decoding, "pretrained": True}
"""A validation before the first update, too."""


@pytest.mark.parametrize(
    ("size", "updates"), [(2, 7), (3, 7), *(pytest.param(n, 200, marks=pytest.mark.nightly) for n in (2, 3))]
)
def test_sharded_losses_and_validations_equal_one_process(tmp_path, size, updates):
    """Three batches make an update, the last one of an epoch has one: then a process runs one that counts zero."""
    assert len(toy.Backwards(n=80, tokens_per_batch=64).epoch(0)) % 3 == 1
    settings = {"max_updates": updates, "validate_every": updates // 3, "parts": VALIDATION}
    want = train(tmp_path / "one", **settings)
    assert len(want.losses) == updates and len(want.scores) == 5
    check_same(together(size, train, tmp_path / "shards", shard=True, **settings), want)
    one, shards = (tensors(tmp_path / name, updates) for name in ("one", "shards"))
    assert len(one) == 2 and one.keys() == shards.keys()
    for name, file in one.items():  # whole, in the same files, by the same names
        assert [(n, t.shape, t.dtype) for n, t in file.items()] == [
            (n, t.shape, t.dtype) for n, t in shards[name].items()
        ]


def tensors(directory: Path, update: int) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of a checkpoint, by file."""
    return {path.name: load_file(path) for path in (directory / f"checkpoints/{update:08d}").glob("*.safetensors")}


def experts() -> Transformer:
    """Layers with a router, whose balance is in the loss."""
    torch.manual_seed(0)
    return Transformer(replace(toy.model(dropout=0.3).config, n_experts=3, experts_per_token=1, balance_weight=1.0))


def recomputing() -> Transformer:
    """Layers that compute once more in the backward pass."""
    torch.manual_seed(0)
    return Transformer(replace(toy.model(dropout=0.3).config, recompute=True, tie="none"))


@pytest.mark.parametrize(
    "settings", [{"model": experts}, {"model": recomputing, "freeze": ("encoder",), "precision": "bf16"}]
)
def test_sharding_of_other_models_and_settings(tmp_path, settings):
    settings = {"max_updates": 3, "validate_every": 2, "parts": VALIDATION, **settings}
    want = train(tmp_path / "one", **settings)
    check_same(together(2, train, tmp_path / "two", shard=True, **settings), want)


class OneBad(CrossEntropy):
    """In the third update, the gradient of one of the second process's two batches is not finite."""

    calls = 0

    def forward(self, batch: Batch) -> Loss:
        """Nats, summed."""
        self.calls += 1
        loss = super().forward(batch)
        if self.calls == 5 and world().rank == 1:
            loss.total.register_hook(lambda gradient: gradient * math.nan)
        return loss


def test_non_finite_gradient_in_one_process_skips_the_update_in_all(tmp_path):
    updates = together(2, skipping, tmp_path)
    assert updates == [[True, True, False, True]] * 2


def skipping(directory: Path) -> list[bool]:
    """Whether each update changed the weights of this process."""
    trainer = toy.trainer(
        directory,
        objective=OneBad(toy.model()),
        data=toy.Backwards(tokens_per_batch=64),
        config=toy.config(accumulate=4, max_updates=4, shard=True),
    )
    changed: list[bool] = []
    update = trainer._update

    def watched(*args: Any, **more: Any) -> None:
        before = [local(p).clone() for p in trainer.model.parameters()]
        update(*args, **more)
        changed.append(
            any(not torch.equal(a, local(b)) for a, b in zip(before, trainer.model.parameters(), strict=True))
        )

    trainer._update = watched  # type: ignore[method-assign]
    trainer.run()
    return changed


def test_a_process_holds_its_part_of_weights_gradients_and_moments(tmp_path):
    whole = sum(p.numel() for p in toy.model(d_model=48).parameters())
    for held in together(3, holding, tmp_path):
        assert sorted(held) == ["gradients", "moments", "weights"]
        for name, n_bytes in held.items():  # all sizes are multiples of three
            assert 3 * n_bytes == 4 * whole * (2 if name == "moments" else 1)


def holding(directory: Path) -> dict[str, int]:
    """How many bytes this process holds when it is about to step."""
    trainer = toy.trainer(
        directory,
        objective=CrossEntropy(toy.model(d_model=48)),
        config=toy.config(accumulate=3, max_updates=2, shard=True),
    )
    held, clip = {}, trainer.parallel.clip

    def watched(limit: float) -> torch.Tensor:
        weights = list(trainer.model.parameters())
        moments = [m for state in trainer.optimizer.state.values() for m in state.values() if m.dim()]
        for name, some in (("weights", weights), ("gradients", [p.grad for p in weights]), ("moments", moments)):
            storages = {part.data_ptr(): part.nbytes() for part in (local(t).untyped_storage() for t in some)}
            held[name] = sum(storages.values())
        return clip(limit)

    trainer.parallel.clip = watched  # type: ignore[method-assign]
    trainer.run()
    return held


def sometimes(directory: Path, uses: str, shard: bool) -> tuple[list[float], dict[str, list]]:
    """Losses and weights of a training whose updates do not all use all weights."""
    optim = OptimConfig(peak_rate=1e-2, warmup_steps=2, weight_decay=0.5)
    config = toy.config(accumulate=3, max_updates=6, validate_every=6, optim=optim, shard=shard)
    data, losses = toy.Backwards(n=80, tokens_per_batch=64), []
    trainer = toy.trainer(directory, objective=Sometimes(uses), data=data, config=config)
    count(trainer)
    update = trainer.log.update
    trainer.log.update = lambda progress, parts, **how: (losses.append(parts["loss"]), update(progress, parts, **how))
    trainer.run()
    return losses, {name: w.tolist() for name, w in gathered(dict(trainer.model.named_parameters())).items()}


@pytest.mark.parametrize("uses", ["later", "at first", "never"])
def test_partially_used_weights_train_as_in_one_process(tmp_path, uses):
    want = sometimes(tmp_path / "one", uses, shard=False)
    for got in together(2, sometimes, tmp_path / "two", uses, shard=True):
        assert not isinstance(got, str), got
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)
