"""The speech recipe's CTC: what its head learns, inside the encoder and after it, and which searches use it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import transduce as td
from recipes.speech_to_text import SETTINGS, run
from tests.recipes.small import loss_parts, transcriber as small
from tests.runs import SPEECH, sentences
from transduce.data.manifest import Manifests
from transduce.data.tokenizer_files import train_tokenizer
from transduce.experiment.command import choose


def test_ctc_head_is_trained(speech_run):
    """Without its loss no gradient would reach it."""
    model = td.load_model(speech_run.run)
    torch.manual_seed(speech_run.x.training.seed)
    assert not torch.equal(td.Transformer(model.config).ctc.weight, model.ctc.weight)


@pytest.mark.parametrize("ctc_weight", [0.5, 0.0])
def test_ctc_needs_a_tokenizer_with_padding(recordings, tmp_path, untrained, ctc_weight):
    """As GPT-2's does. Without CTC, its one special token begins and ends every text."""
    train_tokenizer("byte_bpe", sentences(24), vocab_size=270).save(tmp_path / "my.json")
    x = small(tmp_path / "run", recordings, tokenizer=tmp_path / "my.json", ctc_weight=ctc_weight)
    x = replace(x, corpus=replace(x.corpus, test=None))
    if ctc_weight:
        with pytest.raises(ValueError, match=rf"^{tmp_path / 'my.json'}: .* has none for pad_id .*--symbols '<pad>'"):
            run(x)
        x = replace(x, symbols="<pad>")
    parts = loss_parts(untrained(run, x))
    assert parts["loss"] > 0 and ("ctc" in parts) == (ctc_weight > 0)
    assert len(td.load(x.run)([recordings / "test00.wav"])) == 1


def test_consistency_losses_follow_their_weights(recordings, tmp_path, untrained):
    """In what the decoder gives, in what CTC gives, or in both; the views have other masks and vocal tracts."""
    for name, alpha, ctc_alpha in (("decoder", 0.5, 0.0), ("ctc", 0.0, 0.2)):
        x = small(tmp_path / name, recordings, ctc_consistency=ctc_alpha, model=replace(SPEECH, dropout=0.0))
        x = replace(x, training=replace(x.training, consistency=alpha), corpus=replace(x.corpus, test=None))
        parts = loss_parts(untrained(run, x))
        both = {"consistency": alpha, "ctc_consistency": ctc_alpha}
        assert all((weight > 0) == (parts.get(part, 0.0) > 1e-6) for part, weight in both.items())
    with pytest.raises(ValueError) as error:
        run(small(tmp_path / "other", recordings, ctc_weight=0.0, ctc_consistency=0.2))
    assert str(error.value) == "ctc_consistency is for CTC, but ctc_weight=0; leave one of them out"


def test_intermediate_ctc_is_trained_and_conditions_transcripts(recordings, tmp_path, monkeypatch, untrained):
    flags = ["--model.ctc-layers", "1", "3"]
    chosen = choose(SETTINGS, ["commands", *flags], default="commands").model
    assert chosen == replace(SETTINGS["commands"][1].model, ctc_layers=(1, 3))
    model = replace(SPEECH, ctc_layers=(1,), ctc_conditioning=True, dropout=0.0)
    x = small(tmp_path / "run", recordings, model=model, ctc_weight=0.4, interctc_weight=0.3)
    parts = loss_parts(untrained(run, x))
    ctc = 0.7 * parts["ctc"] + 0.3 * parts["interctc"]
    assert parts["loss"] == pytest.approx(0.6 * parts["cross_entropy"] + 0.4 * ctc, rel=1e-5)
    transcriber, paths = td.load(x.run), [recordings / f"test{i:02d}.wav" for i in range(4)]
    assert transcriber.model.config.ctc_conditioning
    kept = (x.run / "test.beam2.ctc.txt").read_text().split("\n")
    assert [t.text for t in transcriber.transcribe(paths)] == kept[:4]
    alone = replace(x, run=tmp_path / "other", ctc_weight=0.0, corpus=replace(x.corpus, test=None))
    untrained(run, alone)
    config = td.load(alone.run).model.config
    assert not config.ctc_conditioning and not config.ctc_layers, "nobody learns what they would say"


def test_ctc_learns_transcripts_beside_a_translating_decoder(recordings, tmp_path, untrained):
    """The head serves training alone: a search with it would weigh one language by the other."""
    german = Manifests(data=recordings, valid=Path("valid.tsv"), target_column="german")
    # the column text, by itself; inside the encoder, too
    x = small(tmp_path / "run", recordings, corpus=german, model=replace(SPEECH, ctc_layers=(1,)))
    x = replace(x, decoding=replace(x.decoding, ctc_weight=0.5))
    scores = {}
    trainer = untrained(lambda x: scores.update(run(x)), x)
    assert {"bleu.greedy", "chrf.greedy"} <= set(scores) and not any(".ctc" in name for name in scores)
    batch, tokenizer = trainer.data.epoch(0)[0], td.load(x.run).tokenizer
    rows = zip(
        batch.ctc_targets,
        batch.ctc_target_lengths.tolist(),
        batch.target_out,
        batch.target_lengths.tolist(),
        strict=True,
    )
    for spoken, n, written, m in rows:
        words = dict(
            zip(*(tokenizer.decode([row.tolist()])[0].split() for row in (spoken[:n], written[: m - 1])), strict=True)
        )
        assert words.items() <= {"red": "rot", "green": "grün", "blue": "blau", "black": "schwarz"}.items() and words
    transcriber = td.load(x.run)
    assert transcriber.decoding.ctc_weight == 0 and not transcriber.model.config.ctc
    (sound, *_) = sorted(recordings.glob("test[0-9]*.wav"))
    assert isinstance(transcriber([sound])[0], str)
    with pytest.raises(ValueError, match="CTC head"):
        transcriber([sound], ctc_weight=0.5)
    with pytest.raises(ValueError, match="ctc_column is for CTC, but ctc_weight=0; leave one of them out"):
        run(replace(x, ctc_column="text", ctc_weight=0.0))
    x = replace(x, corpus=replace(german, test=None))
    conditioned = replace(x, run=tmp_path / "other", model=replace(SPEECH, ctc_layers=(1,), ctc_conditioning=True))
    untrained(run, conditioned)
    assert td.load(conditioned.run).model.ctc_condition is None, "the head is gone when it is loaded"
    with pytest.raises(ValueError, match=r"another column of the manifests, but it is 'english', and there are text"):
        run(replace(x, run=tmp_path / "third", ctc_column="english"))
