"""The recipe of masked language models: one training from end to end, and what its fields become."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import transduce as td
from recipes.masked_language_model import COMMANDS, SETTINGS, TEXT, run
from tests.recipes.small import fill_mask as small, loss_parts, metrics
from transduce.data.batch import IGNORE
from transduce.data.language import OneText, TextFiles
from transduce.data.text_batches import HeldOutWindows, MaskedBatches, MaskingConfig
from transduce.experiment.config import with_vocabularies
from transduce.tasks.fill_mask import FillMask


def scores_by_hand(fill_mask, text):
    """Loss and accuracy, a token at a time, from logits of the model alone."""
    tokenizer = fill_mask.tokenizer
    stream = OneText(data=text.parent, name=text.name, valid_share=0.3).read("characters", 0).valid
    nats, right, n = 0.0, 0, 0
    for batch in MaskedBatches(HeldOutWindows(stream, context=11, batch_size=4), MaskingConfig(), tokenizer):
        for row in range(len(batch.source)):
            logits = fill_mask.model(source=batch.source[row : row + 1])[0].double()
            for t, wanted in enumerate(batch.target_out[row].tolist()):
                if wanted != IGNORE:
                    nats -= F.log_softmax(logits[t], dim=0)[wanted].item()
                    right += int(logits[t, : tokenizer.vocab_size].argmax()) == wanted
                    n += 1
    return nats / n, 100 * right / n, n


def test_run_directory_is_complete_and_consistent(masked_run, running_text, tmp_path):
    directory, scores, printed = masked_run.run, masked_run.scores, masked_run.printed
    kept = json.loads((directory / "validation.json").read_text())
    assert {path.name for path in directory.glob("[!.]*")} == {
        "MODEL_CARD.md", "config.json", "characters.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "validation.json", "report.html",
    }  # fmt: skip
    assert f"  neighbours {scores['neighbours.loss']:.4f} nats per token, accuracy " in printed
    assert scores["neighbours.loss"] < scores["loss"]
    losses = [line["loss"] for line in metrics(directory, "valid")]
    assert len(losses) == 2 and scores["loss"] == min(losses)  # the best checkpoint alone; the masking is fixed
    fill_mask = td.load(shutil.copytree(directory, tmp_path / "moved"), device="cpu")
    assert isinstance(fill_mask, FillMask)
    with torch.no_grad():
        loss, accuracy, n_tokens = scores_by_hand(fill_mask, running_text / "input.txt")
    assert kept == {**scores, "tokens": n_tokens}
    assert (scores["loss"], scores["accuracy"]) == pytest.approx((loss, accuracy), rel=1e-4)

    text = (running_text / "input.txt").read_text()
    cut = text[int(len(text) * 0.7) :].replace("\n", "\\n")
    samples = (directory / "samples" / "00000002.tsv").read_text().splitlines()
    assert len(samples) == 3
    gaps, true, got = samples[0].split("\t")
    assert cut[1:].startswith(true) and "_" in gaps
    assert "_" not in got and len(gaps.replace("\\n", "n")) == 11
    outputs = fill_mask(["To _e", "", "no gap"])
    assert len(outputs) == 3 and outputs[1:] == ["", "no gap"]
    assert outputs[0][:3] == "To " and len(outputs[0]) == 5 and outputs[0] != "To _e"


def test_resume_allows_another_test_file_but_no_other_masking(masked_run, running_text, tmp_path):
    x = replace(masked_run.x, run=shutil.copytree(masked_run.run, tmp_path / "run"))
    tested = run(replace(x, test=(running_text / "input.txt",)))
    assert tested.keys() == masked_run.scores.keys()
    with pytest.raises(ValueError, match=r"in .* this differs: masking\.mask_probability: 0\.15 -> 0\.3"):
        run(replace(x, masking=MaskingConfig(mask_probability=0.3)))


def test_consistency_loss_is_added(running_text, tmp_path, untrained):
    """Dropout makes their predictions differ."""
    x = small(tmp_path / "run", running_text)
    parts = loss_parts(untrained(run, replace(x, training=replace(x.training, consistency=2.0))))
    assert parts["consistency"] > 1e-6
    assert parts["loss"] == pytest.approx(parts["cross_entropy"] + 2 * parts["consistency"], rel=1e-4)


@pytest.mark.parametrize(("setting", "kind"), [(TEXT, "byte_bpe"), (COMMANDS, "sentencepiece")])
def test_text_files_with_bpe_and_a_test_file(tmp_path, running_text, untrained, setting, kind, capsys):
    path, scores = running_text / "input.txt", {}
    x = small(tmp_path / "run", running_text, setting, corpus=TextFiles(train=(path,), valid=(path,)), vocab_size=300)
    x = replace(x, test=(path,), neighbour_tokens=50)
    untrained(lambda x: scores.update(run(x)), x)
    assert x.tokenizer == kind and all(math.isfinite(value) for value in scores.values())
    assert "test: " in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "test.json").read_text())["loss"] == scores["loss"]
    fill_mask = td.load(tmp_path / "run", device="cpu")
    assert fill_mask.model.config.encoder.input.vocab_size == fill_mask.tokenizer.vocab_size + 1
    (filled,) = fill_mask(["To be, or _ to be: that is the question."])
    assert filled.startswith("To be, or") and filled.endswith(" to be: that is the question.") and "_" not in filled


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_builds_a_model(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 300, joint=True)
    assert config.decoder is None and config.encoder.input.vocab_size == 300
    assert SETTINGS[name][1].masking == MaskingConfig(
        mask_probability=0.15, mask_replace_probability=0.8, random_replace_probability=0.1
    )
    with torch.device("meta"):
        td.Transformer(config)
