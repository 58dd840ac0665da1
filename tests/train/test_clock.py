"""When a training ends, validates and saves by the clock."""

import math

import pytest

from tests.train import toy
from transduce.files import read_json_lines
from transduce.train.objectives import CrossEntropy, Loss
from transduce.train.optim import OptimConfig


class Clock:
    """A clock that the test controls."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("transduce.train.trainer.time", self)

    def monotonic(self) -> float:
        return self.now

    def passing(self, call, seconds: float):
        """The same function, but each call takes so many seconds."""

        def slow(*args, **kwargs):
            self.now += seconds
            return call(*args, **kwargs)

        return slow

    def objective(self) -> CrossEntropy:
        """An objective that takes a second in each update."""
        objective = CrossEntropy(toy.model())
        loss = self.passing(lambda batch: Loss(objective.model.output.square().sum(), {}), 1.0)
        objective.forward = loss
        return objective


def rates_of(training) -> list[float]:
    """The learning rates of its steps; the list grows."""
    rates, own = [], training.optimizer.step
    training.optimizer.step = lambda: (rates.append(training.optimizer.param_groups[0]["lr"]), own())
    return rates


@pytest.mark.parametrize("how", [{"schedule": "cosine"}, {"schedule": "constant", "cooldown": 0.5}])
def test_training_limited_by_minutes_cools_down(tmp_path, monkeypatch, how):
    """An update takes a second, so a minute makes 60 of five hundred updates."""
    clock = Clock(monkeypatch)
    optim = OptimConfig(peak_rate=1e-2, warmup_steps=2, **how)
    config = toy.config(optim=optim, max_updates=500, validate_every=500, max_minutes=1.0)
    training = toy.trainer(tmp_path, objective=clock.objective(), config=config)
    rates = rates_of(training)
    progress = training.run()
    assert progress.update == 60 and progress.seconds == pytest.approx(60)
    assert max(rates) == pytest.approx(1e-2, rel=5e-3) and rates[-1] < 1e-2 * (1 - 59 / 60) / 0.5 * 1.001
    assert rates[2:] == sorted(rates[2:], reverse=True)
    middle = 1.0 if "cooldown" in how else (1 + math.cos(math.pi * (250 - 2) / (500 - 2))) / 2
    assert rates[29] == pytest.approx(1e-2 * middle, rel=1e-6)


def test_seconds_include_data_validation_and_saving(tmp_path, monkeypatch):
    """Waiting for data, validating and saving, also before an interruption."""
    clock, data = Clock(monkeypatch), toy.Backwards(n=14, tokens_per_batch=12)
    assert len(data.epoch(0)) == 6
    monkeypatch.setattr(toy.Backwards, "epoch", clock.passing(toy.Backwards.epoch, 10.0))
    config = toy.config(max_updates=9, validate_every=5)
    training = toy.trainer(tmp_path, data=data, config=config, validate=clock.passing(toy.Scores(), 100.0))
    training.store.save = clock.passing(training.store.save, 1000.0)
    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    assert training.run().seconds == 2 * (10 + 100 + 1000)
    lines = [line["seconds"] for line in read_json_lines(tmp_path / "metrics.jsonl") if line["kind"] == "train"]
    assert lines == [10] * 5 + [10 + 1100] + [10 + 1100 + 10] * 3  # nine updates in two epochs, one validation amid


def test_checkpoints_are_saved_every_so_many_minutes(tmp_path, monkeypatch):
    """At a second per update: six seconds after the last save, including validations; also in a resumed training."""
    clock, saved = Clock(monkeypatch), []
    for updates in (13, 30):
        config = toy.config(max_updates=updates, save_every_minutes=0.1)
        training = toy.trainer(tmp_path, objective=clock.objective(), config=config)
        save = training.store.save
        training.store.save = lambda *parts, save=save: (saved.append(parts[2].update), save(*parts))
        training.run()
    assert saved == [6, 10, 13, 19, 20, 26, 30]


def test_validations_too_late_for_the_limit_are_postponed(tmp_path, monkeypatch):
    """An update takes a second, a validation ten: at update 36, 8 of 54 seconds are left."""
    clock = Clock(monkeypatch)
    config = toy.config(max_updates=500, validate_every=18, max_minutes=0.9)
    validate = clock.passing(toy.Scores(), 10.0)
    progress = toy.trainer(tmp_path, objective=clock.objective(), config=config, validate=validate).run()
    assert [update for update, _ in progress.validations] == [18, 54 - 10]


def test_unreached_time_limit_does_not_change_rates(tmp_path, monkeypatch):
    rates = []
    for minutes in (None, 1000.0):
        config = toy.config(
            optim=OptimConfig(schedule="cosine", warmup_steps=3, cooldown=0.3), max_minutes=minutes, max_updates=15
        )
        training = toy.trainer(tmp_path / str(minutes), config=config)
        rates.append(rates_of(training))
        training.run()
    assert len(rates[0]) == 15 and rates[0] == rates[1]


def test_raised_max_minutes_print_how_the_rate_rises(tmp_path, monkeypatch, capsys):
    """An update takes a second: six seconds end at rate 0, which are half of twelve seconds."""
    clock, printed = Clock(monkeypatch), []
    optim = OptimConfig(peak_rate=1e-2, warmup_steps=2, schedule="cosine")
    for updates, minutes in ((3, 0.1), (50, 0.1), (50, 0.1), (50, 0.2)):
        config = toy.config(optim=optim, max_updates=updates, validate_every=50, max_minutes=minutes)
        toy.trainer(tmp_path, objective=clock.objective(), config=config).run()
        printed.append(capsys.readouterr().out)
    assert "resumes after update 3, in a schedule of 50 updates or 0.1 minutes" in printed[1]
    rate = 1e-2 * (1 + math.cos(math.pi * (25 - 2) / (50 - 2))) / 2
    assert printed[2:] == [
        "",
        f"resumes after update 6, in a schedule of 50 updates or 0.2 minutes: the rate was 0 and is now {rate:.3g}; "
        f"for a new schedule: --start-from {tmp_path} --run NEW\n",
    ]
