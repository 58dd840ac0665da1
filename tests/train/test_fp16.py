"""Training in float16 with a loss scale: near float32, equal to a loop with torch's GradScaler, and exact when resumed."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train import toy
from transduce.train.optim import OptimConfig, scale_of, set_scale
from transduce.train.state import Progress
from transduce.train.trainer import Trainer


def training(directory: Path, *, scale: float = 2.0**16, interval: int = 5, **changes: Any) -> Trainer:
    """The toy's training in float16, whose scale grows after `interval` good updates."""
    trainer = toy.trainer(directory, config=toy.config(**{"precision": "fp16"} | changes))
    set_scale(trainer.scaler, (scale, 0))
    trainer.scaler.set_growth_interval(interval)
    return trainer


def losses_of(trainer: Trainer) -> list[float]:
    """The losses of its updates; the list grows."""
    losses, update = [], trainer.log.update
    trainer.log.update = lambda progress, parts, **how: (losses.append(parts["loss"]), update(progress, parts, **how))
    return losses


@pytest.mark.train
def test_losses_are_near_those_of_float32(tmp_path):
    """Rounding is 2^-11 relative, 0.05 %; some twenty roundings between ids and loss, whose errors add up as their root
    or worse, and 20 updates that follow them stay below 1 %. The losses themselves fall by more than ten times that."""
    got = []
    for precision in ("fp32", "fp16"):
        trainer = training(tmp_path / precision, precision=precision, interval=2000, max_updates=20)
        got.append(losses_of(trainer))
        assert trainer.run().skipped == 0
    assert got[0] != got[1] and got[0][-1] < 0.9 * got[0][0]
    torch.testing.assert_close(got[1], got[0], rtol=0.01, atol=0)


def test_weights_equal_a_plain_loop_with_grad_scaler(tmp_path):
    """From a scale that is too large, over several that it grows to."""
    trainer = training(tmp_path, scale=2.0**24, max_updates=24, max_skipped=3)
    progress = trainer.run()
    objective, config = toy.CrossEntropy(toy.model()), trainer.config.optim
    plain = torch.optim.AdamW(objective.parameters(), betas=config.betas, eps=config.eps, weight_decay=0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=5)
    batches = [batch for epoch in range(8) for batch in toy.Backwards().epoch(epoch)]
    scales = [2.0**24]
    for update, batch in enumerate(batches[:24], start=1):
        with torch.autocast("cpu", torch.float16):
            loss = objective(batch).total / batch.n_tokens
        plain.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(plain)
        nn.utils.clip_grad_norm_(objective.parameters(), config.clip_norm)
        plain.param_groups[0]["lr"] = config.rate(update, 24)
        scaler.step(plain)
        scaler.update()
        scales.append(scaler.get_scale())
    steps = list(pairwise(scales))
    halved, doubled = (sum(after == factor * before for before, after in steps) for factor in (0.5, 2))
    assert halved > 3 and doubled > 1
    assert (progress.skipped, progress.skipped_in_a_row) == (halved, 0)
    assert scale_of(trainer.scaler) == (scales[-1], scaler.state_dict()["_growth_tracker"])
    assert toy.same(toy.weights(trainer.model), toy.weights(objective.model))


def test_overflows_halve_the_scale_without_ending_training(tmp_path, capsys):
    trainer = training(tmp_path, scale=2.0**40, max_updates=6, max_skipped=3)
    before, losses = toy.weights(trainer.model), losses_of(trainer)
    progress = trainer.run()
    assert toy.same(before, toy.weights(trainer.model)) and all(map(math.isfinite, losses))
    assert (progress.skipped, progress.skipped_in_a_row, progress.loss_scale) == (6, 0, (2.0**34, 0))
    assert " at loss scale 1.09951e+12 (1 so far)" in capsys.readouterr().err


def test_logged_gradient_norm_is_unscaled(tmp_path):
    norms: list[float] = []
    trainer = training(tmp_path, max_updates=2, optim=OptimConfig(clip_norm=0.0))
    trainer.log.update = lambda *_, norm, **more: norms.append(norm)
    step, seen = trainer.optimizer.step, []
    trainer.optimizer.step = lambda: (
        seen.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in trainer.model.parameters()))),
        step(),
    )
    trainer.run()
    assert norms == pytest.approx(seen, rel=1e-5) and 0.01 < norms[0] < 100


def test_training_ends_if_no_scale_helps(tmp_path):
    """At scales 4, 2 and 1 the scale may be too large; three skips below 1 are too many."""
    trainer = training(tmp_path, scale=4.0, max_skipped=3)
    trainer.model.output.register_hook(lambda gradient: gradient * math.inf)
    message = r"^loss and gradient must be finite, but 3 updates in a row had loss \d\.\d* or gradient norm (inf|nan);"
    with pytest.raises(FloatingPointError, match=message):
        trainer.run()
    assert trainer.progress.update == 6


def test_resumed_training_is_bitwise_equal(tmp_path):
    """It stops after skipped updates, and between those after which the scale grows."""
    ends: list[tuple[Trainer, Progress]] = []
    for name, parts in (("straight", [15]), ("in parts", [4, 11, 15])):
        for updates in parts:
            trainer = training(tmp_path / name, scale=2.0**24, max_updates=updates, validate_every=100)
            progress = trainer.run()
        ends.append((trainer, replace(progress, seconds=0.0, validations=[], losses=[])))
    assert toy.same(toy.weights(ends[0][0].model), toy.weights(ends[1][0].model))
    assert ends[0][1] == ends[1][1] and 4 < ends[0][1].skipped < 11
    assert scale_of(ends[0][0].scaler) == scale_of(ends[1][0].scaler)
