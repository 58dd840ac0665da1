"""Trainings of language models and masked ones that are stopped or go on for longer."""

import json
import math
from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from recipes import language_model, masked_language_model
from tests.recipes import small
from tests.recipes.interrupt import interrupt
from tests.recipes.small import metrics

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("no_pictures")]


@pytest.mark.parametrize(
    ("run", "experiment"), [(language_model.run, small.generator), (masked_language_model.run, small.fill_mask)],
    ids=["language", "masked"],
)  # fmt: skip
def test_resumed_run_equals_an_uninterrupted_one(running_text, tmp_path, monkeypatch, run, experiment):
    training = replace(experiment(tmp_path, running_text).training, max_updates=4, validate_every=2)
    straight, x = (experiment(tmp_path / name, running_text, training=training) for name in ("straight", "again"))
    scores = run(straight)
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            run(x)
    assert not (x.run / "model.safetensors").exists()
    assert (x.run / "checkpoints" / "00000003").is_dir()
    assert run(x) == scores
    one, other = (load_file(each.run / "model.safetensors") for each in (straight, x))
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def test_resume_with_more_updates_extends_the_schedule(running_text, tmp_path, capsys, monkeypatch):
    """A cosine that has ended goes up to where a longer one would be; in a run that starts from it, it begins anew."""
    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    peak, last, warmup = 2e-3, 1e-4, 2
    training = language_model.SHAKESPEARE_CPU.training
    optim = replace(training.optim, peak_rate=peak, final_rate=last, warmup_steps=warmup)

    def rates(name, updates, **more):
        x = small.generator(tmp_path / name, running_text, **more)
        training = replace(x.training, optim=optim, max_updates=updates, validate_every=100)
        language_model.run(replace(x, training=training))
        return [line["rate"] for line in metrics(x.run, "train")]

    def formula(update, updates):
        done = (update - warmup) / (updates - warmup)
        cosine = last + (peak - last) * (1 + math.cos(math.pi * done)) / 2
        return peak * update / warmup if update < warmup else cosine

    short = [formula(update, 4) for update in range(1, 5)]
    assert rates("run", 4) == pytest.approx(short)
    assert "goes on" not in capsys.readouterr().out
    assert rates("new", 4, start_from=tmp_path / "run") == pytest.approx(short)
    assert f"starts from {tmp_path / 'run'}: " in capsys.readouterr().out
    assert rates("run", 6) == pytest.approx(short + [formula(update, 6) for update in range(5, 7)])
    assert (
        f"resumes after update 4, in a schedule of 6 updates: the rate was 0.0001 and is now {formula(5, 6):.3g}; for a "
        f"new schedule: --start-from {tmp_path / 'run'} --run NEW\n"
    ) in capsys.readouterr().out
    plain = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [plain[name]["training"]["max_updates"] for name in ("experiment", "specified")] == [6, 6]
    rates("run", 3)  # the updates that are done
    plain = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [plain[name]["training"]["max_updates"] for name in ("experiment", "specified")] == [6, 6]
    (tmp_path / "run" / "config.json").write_text(json.dumps(plain | {"experiment": {}}))  # as an imported model
    with pytest.raises(ValueError, match="a run must be resumed with the configuration that it began with, but in"):
        rates("run", 8)
