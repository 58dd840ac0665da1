"""Trainings of the speech recipe that are stopped, and those of other encoders."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import transduce as td
from recipes.speech_to_text import run
from tests.recipes.interrupt import interrupt
from tests.recipes.small import metrics, transcriber as small
from tests.runs import SPEECH

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("no_pictures")]


def test_resumed_run_equals_an_uninterrupted_one(recordings, tmp_path, monkeypatch):
    """Stopped between two validations, and again right at one; dropout, speeds, masks, and another cache."""
    training = replace(small(None, recordings).training, max_updates=6, validate_every=3, keep_last=2)
    straight, x = (small(tmp_path / name, recordings, training=training) for name in ("straight", "run"))
    scores = run(straight)
    calls = []
    for batch in (2, 1):  # the second time there is one update until the validation
        with monkeypatch.context() as patch:
            calls += interrupt(patch, batch)
            with pytest.raises(KeyboardInterrupt):
                run(x)
        assert not (x.run / "model.safetensors").exists()
    (line,) = metrics(x.run, "valid")
    assert line["update"] == 3 and 'by update" src="data:image/svg+xml' in (x.run / "report.html").read_text()
    assert run(replace(x, cache=tmp_path / "another cache")) == scores
    for name in ("model.safetensors", "checkpoints/00000006/optimizer.safetensors"):
        one, other = load_file(x.run / name), load_file(straight.run / name)
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    assert metrics(x.run, "valid") == metrics(straight.run, "valid")
    assert run(x) == scores  # and there is nothing left to do


def test_conformer_layers_behind_convolutions_train_in_bf16(recordings, tmp_path):
    """With rotary positions in this half alone; the run directory transcribes with them."""
    convolved = replace(SPEECH.encoder.input, stack=1, conv_strides=(2, 2))
    encoder = replace(SPEECH.encoder, input=convolved, positions="rotary")
    x = small(tmp_path / "run", recordings, model=replace(SPEECH, conformer_kernel=5, encoder=encoder))
    run(replace(x, training=replace(x.training, precision="bf16")))
    kept = (x.run / "test.beam2.ctc.txt").read_text().split("\n")
    paths = [recordings / f"test{i:02d}.wav" for i in range(4)]
    assert [t.text for t in td.load(x.run).transcribe(paths)] == kept[:4]
