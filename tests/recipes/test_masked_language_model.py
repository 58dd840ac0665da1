"""The recipe from end to end, with a model too small to be good."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file

import transduce as td
from recipes.masked_language_model import COMMANDS, SETTINGS, SHAKESPEARE, TEXT, run
from tests.recipes.interrupt import interrupt
from transduce.data.batch import IGNORE
from transduce.data.text.language import OneText, TextFiles
from transduce.data.text.masking import MaskedBatches, MaskingConfig
from transduce.data.text.stream import HeldOut
from transduce.experiment.run import with_vocabularies
from transduce.tasks.fill_mask import FillMask

LINES = ["To be, or not to be: that is the question.", "", "Whether 'tis nobler in the mind to suffer"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 6))
    return tmp_path / "data"


def small(run, data, setting=SHAKESPEARE, **fields):
    training = replace(COMMANDS.training, max_updates=8, validate_every=4, precision="fp32")
    model = replace(COMMANDS.model, d_model=16, d_ff=32, n_heads=2, max_positions=11, dropout=0.2)
    changes = {"corpus": OneText(data=data, valid_share=0.3), "training": training} | fields
    return replace(setting, run=run, batch_size=4, model=model, device="cpu", **changes)


def scores_by_hand(fill_mask, text):
    """Loss and accuracy, a token at a time, from logits of the model alone."""
    tokenizer = fill_mask.tokenizer
    stream = OneText(data=text.parent, name=text.name, valid_share=0.3).read("characters", 0).valid
    nats, right, n = 0.0, 0, 0
    for batch in MaskedBatches(HeldOut(stream, context=11, batch_size=4), MaskingConfig(), tokenizer):
        for row in range(len(batch.source)):
            logits = fill_mask.model(source=batch.source[row : row + 1])[0].double()
            for t, wanted in enumerate(batch.target_out[row].tolist()):
                if wanted != IGNORE:
                    nats -= F.log_softmax(logits[t], dim=0)[wanted].item()
                    right += int(logits[t, : tokenizer.vocab_size].argmax()) == wanted
                    n += 1
    return nats / n, 100 * right / n, n


def test_a_run_directory_is_whole_and_its_parts_agree(tmp_path, data, capsys):
    scores = run(small(tmp_path / "run", data))
    out = capsys.readouterr().out
    kept = json.loads((tmp_path / "run" / "validation.json").read_text())
    assert {path.name for path in (tmp_path / "run").glob("[!.]*")} == {
        "MODEL_CARD.md", "config.json", "characters.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "validation.json", "report.html",
    }  # fmt: skip
    assert (
        f"  neighbours {scores['neighbours.loss']:.4f} nats per token, accuracy " in out
        and scores["neighbours.loss"] < scores["loss"]
    )
    valid = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in valid if line["kind"] == "valid"]
    assert len(losses) == 2 and scores["loss"] == min(losses)  # the best checkpoint alone; the masking is fixed
    (tmp_path / "run").rename(tmp_path / "moved")
    fill_mask = td.load(tmp_path / "moved", device="cpu")
    assert isinstance(fill_mask, FillMask)
    with torch.no_grad():
        loss, accuracy, n_tokens = scores_by_hand(fill_mask, data / "input.txt")
    assert kept == {**scores, "tokens": n_tokens}
    assert (scores["loss"], scores["accuracy"]) == pytest.approx((loss, accuracy), rel=1e-4)

    text = (data / "input.txt").read_text()
    cut = text[int(len(text) * 0.7) :].replace("\n", "\\n")
    samples = (tmp_path / "moved" / "samples" / "00000008.tsv").read_text().splitlines()
    assert len(samples) == 3
    gaps, true, found = samples[0].split("\t")
    assert cut[1:].startswith(true) and "_" in gaps
    assert "_" not in found and len(gaps.replace("\\n", "n")) == 11
    outputs = fill_mask(["To _e", "", "no gap"])
    assert len(outputs) == 3 and outputs[1:] == ["", "no gap"]
    assert outputs[0][:3] == "To " and len(outputs[0]) == 5 and outputs[0] != "To _e"


def test_two_passes_of_a_batch_may_be_compared(tmp_path, data, monkeypatch):
    """Dropout makes their predictions differ, and the log has by how much."""
    monkeypatch.setattr("transduce.train.log.EVERY", 4)
    x = small(tmp_path / "run", data)
    run(replace(x, training=replace(x.training, consistency=2.0)))
    lines = [json.loads(line) for line in (x.run / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["kind"] == "train"):
        assert line["consistency"] > 1e-6
        assert line["loss"] == pytest.approx(line["cross_entropy"] + 2 * line["consistency"], rel=1e-4)
    assert {line["kind"] for line in lines} == {"train", "valid"}


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, data, monkeypatch):
    straight = run(small(tmp_path / "straight", data))
    with monkeypatch.context() as patch:
        interrupt(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            run(small(tmp_path / "again", data))
    assert not (tmp_path / "again" / "model.safetensors").exists()
    assert (tmp_path / "again" / "checkpoints" / "00000006").is_dir()
    assert run(small(tmp_path / "again", data)) == straight
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "again"))
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    assert run(small(tmp_path / "again", data, test=(data / "input.txt",))).keys() == straight.keys()  # may change
    with pytest.raises(ValueError, match=r"in .* this differs: masking\.mask_probability: 0\.15 -> 0\.3"):
        run(small(tmp_path / "again", data, masking=MaskingConfig(mask_probability=0.3)))


@pytest.mark.parametrize(("setting", "kind"), [(TEXT, "byte_bpe"), (COMMANDS, "sentencepiece")])
def test_text_files_with_bpe_and_a_test(tmp_path, data, setting, kind, capsys):
    path = data / "input.txt"
    x = small(tmp_path / "run", data, setting, corpus=TextFiles(train=(path,), valid=(path,)), vocab_size=300)
    x = replace(x, test=(path,), neighbour_tokens=50)
    scores = run(x)
    assert x.tokenizer == kind and all(math.isfinite(value) for value in scores.values())
    assert "test: " in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "test.json").read_text())["loss"] == scores["loss"]
    fill_mask = td.load(tmp_path / "run", device="cpu")
    assert fill_mask.model.config.encoder.input.vocab_size == fill_mask.tokenizer.vocab_size + 1
    (filled,) = fill_mask(["To be, or _ to be: that is the question."])
    assert filled.startswith("To be, or") and filled.endswith(" to be: that is the question.") and "_" not in filled


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_describes_a_model_that_can_be_built(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 300, joint=True)
    assert config.decoder is None and config.encoder.input.vocab_size == 300
    assert SETTINGS[name][1].masking == MaskingConfig(
        mask_probability=0.15, mask_replace_probability=0.8, random_replace_probability=0.1
    )
    td.Transformer(replace(config, d_model=48, d_ff=8))
