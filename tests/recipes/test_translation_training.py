"""Trainings of the translation recipe that go on: from a break, from another run, with a few of its weights."""

import json
from dataclasses import replace

import pytest
from safetensors.numpy import load_file

import transduce as td
from recipes.translation import run
from tests.recipes.small import translator as small
from transduce.train.config import LoRAConfig
from transduce.train.trainer import Trainer

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("no_pictures")]


def newest(directory):
    """The weights at the end of a training; the finished model may be the one that it started from."""
    return load_file(max(directory.glob("checkpoints/*")) / "model.safetensors")


def test_training_from_pools_resumes_bitwise(parallel_text, tmp_path, monkeypatch):
    """Pools of sixty pairs; the power goes in the second one, and nobody reads the text again."""
    for name in ("parallel_text", "text_batches"):
        monkeypatch.setattr(f"transduce.data.{name}.POOL", 60)
    straight, cut = (
        small(tmp_path / name, parallel_text, cache=tmp_path / "cache", tokens_per_batch=1024)
        for name in ("straight", "cut")
    )
    straight, cut = (replace(x, training=replace(x.training, max_updates=6, validate_every=5)) for x in (straight, cut))
    scores = run(straight)
    update = Trainer._update

    def power_cut(trainer, *group, **more):
        if trainer.progress.update == 5:
            raise InterruptedError
        update(trainer, *group, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", power_cut)
        with pytest.raises(InterruptedError):
            run(cut)
    state = json.loads((cut.run / "checkpoints" / "00000005" / "state.json").read_text())
    assert state["epoch"] > 0
    monkeypatch.setattr("transduce.data.parallel_text._survey", lambda *_: pytest.fail("the text was read again"))
    assert run(cut) == scores
    first, second = (folder / "model.safetensors" for folder in (straight.run, cut.run))
    assert first.read_bytes() == second.read_bytes()


def test_start_from_keeps_frozen_weights_and_the_source_run(translation_run, parallel_text, tmp_path):
    """What is frozen stays, the rest goes on, and the source is left alone."""
    source = translation_run.run
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    x = small(tmp_path / "tuned", parallel_text, start_from=source)
    run(replace(x, training=replace(x.training, freeze=("encoder", "target_input"))))
    old, new = load_file(source / "model.safetensors"), newest(tmp_path / "tuned")
    assert old.keys() == new.keys()
    frozen = {name for name in old if name.startswith("encoder.")} | {"output"}  # the table that all share
    assert {name for name in old if (old[name] == new[name]).all()} == frozen
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_lora_is_merged_into_the_finished_model(translation_run, parallel_text, tmp_path, capsys):
    """It loads like any other; the same command again finds it finished, and a third run starts from it."""
    source = translation_run.run
    x = small(tmp_path / "tuned", parallel_text, start_from=source)
    x = replace(x, training=replace(x.training, lora=LoRAConfig(rank=2, maps=("q", "wide"))))
    scores = run(x)
    layers = 2 * x.model.encoder.n_layers  # of both sides, each with q and wide, the decoder's with cross.q too
    trained = layers * (2 * (16 + 16) + 2 * (16 + 32)) + layers // 2 * 2 * (16 + 16)
    old, new = load_file(source / "model.safetensors"), newest(tmp_path / "tuned")
    frozen = sum(weight.size for weight in old.values())
    assert f"trained: {trained:,} parameters; frozen: {frozen:,}\n" in capsys.readouterr().out
    assert old.keys() == new.keys()
    changed = {name for name in old if (old[name] != new[name]).any()}
    assert {name.split(".", 3)[3] for name in changed} == {
        "attention.qkv.weight", "cross.q.weight", "feed_forward.wide.weight",
    }  # fmt: skip
    kv = "decoder.layers.0.attention.qkv.weight"
    assert (old[kv][16:] == new[kv][16:]).all() and (old[kv][:16] != new[kv][:16]).any()
    assert run(x) == scores
    assert len(td.load(tmp_path / "tuned")(["Open the letter."])) == 1
    run(small(tmp_path / "third", parallel_text, start_from=tmp_path / "tuned"))
    assert f"starts from {tmp_path / 'tuned'}: {len(new)} of {len(new)} tensors; new: none\n" in capsys.readouterr().out
