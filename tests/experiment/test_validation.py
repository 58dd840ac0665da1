"""What a training looks at, computed another way."""

import math
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import jiwer
import matplotlib.image
import pytest
import sacrebleu
import soundfile
import torch
import torch.nn.functional as F

import transduce as td
from tests.data.conftest import speech_pairs
from tests.runs import ENGLISH, GERMAN, RATE, random_speech_run, record, sentences
from transduce.data.audio import read_audio
from transduce.data.batch import Batch
from transduce.data.features import FeatureCache, FeatureExtractor
from transduce.data.frame_reader import FrameReader
from transduce.data.manifest import Recording
from transduce.data.parallel_text import ParallelText
from transduce.data.sentencepiece_bpe import BOS, EOS, train_tokenizer_pair
from transduce.data.text_batches import TextPairs
from transduce.experiment.config import ValidateBy, with_vocabularies
from transduce.experiment.validation import draw_attention, held_out_loss, speech_validator, translation_validator
from transduce.model.transformer import Transformer, cross_attention
from transduce.plot import attention_map
from transduce.score.measures import LIBRARIES, MEASURES
from transduce.tasks.search import GREEDY


@pytest.fixture(scope="module")
def loaded(translator):
    return td.load(translator)


@pytest.fixture(scope="module")
def pairs(loaded):
    text = ParallelText(ENGLISH[:6], GERMAN[:6])
    return TextPairs(text, loaded.source_tokenizer, loaded.tokenizer, tokens_per_batch=60)


def test_held_out_loss_is_the_mean_over_tokens(loaded, pairs):
    total, n_tokens = 0.0, 0
    with torch.no_grad():
        for source, target in zip(ENGLISH[:6], GERMAN[:6], strict=True):
            (s,), (t,) = loaded.source_tokenizer.encode([source]), loaded.tokenizer.encode([target])
            logits = loaded.model(source=torch.tensor([[*s, EOS]]), target_in=torch.tensor([[BOS, *t]]))
            total += F.cross_entropy(logits[0], torch.tensor([*t, EOS]), reduction="sum").item()
            n_tokens += len(t) + 1
    assert held_out_loss(loaded.model, pairs.epoch(0)) == pytest.approx(total / n_tokens, rel=1e-5)


def test_held_out_loss_keeps_one_batch_in_memory(loaded, pairs):
    alive: list[weakref.ref] = []

    class Made(Sequence):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, i: int) -> Batch:
            batch = replace(pairs.epoch(0)[0])
            assert sum(each() is not None for each in alive) <= 1  # the one before
            alive.append(weakref.ref(batch))
            return batch

    assert math.isfinite(held_out_loss(loaded.model, Made())) and len(alive) >= 9


def test_validation_has_loss_and_bleu_of_greedy_search(loaded, pairs):
    validate = translation_validator(loaded, ParallelText(ENGLISH[:6], GERMAN[:6]), pairs.epoch(0))
    first, again = validate(loaded.model), validate(loaded.model)
    outputs = loaded(ENGLISH[:6], GREEDY)
    bleu = sacrebleu.corpus_bleu(outputs, [GERMAN[:6]]).score
    loss = held_out_loss(loaded.model, pairs.epoch(0))
    assert first.metrics == {"loss": loss, "perplexity": math.exp(loss), "bleu": bleu}
    assert first.score == bleu
    assert first.samples == again.samples == [(ENGLISH[i], GERMAN[i], outputs[i]) for i in (0, 2, 5)]


def test_samples_have_no_tabs_and_line_ends_which_separate_them_in_a_table(loaded, pairs):
    validate = translation_validator(loaded, ParallelText(["a\tb"], ["c\\d\r"]), pairs.epoch(0))
    ((source, reference, output),) = validate(loaded.model).samples
    assert (source, reference) == ("a\\tb", "c\\\\d\\r") and "\t" not in output


def test_a_model_with_non_finite_loss_is_not_decoded(loaded, pairs):
    """Its logits are NaN, among which a search finds nothing."""
    broken = Transformer(loaded.model.config)
    with torch.no_grad():
        next(broken.parameters()).fill_(1e38)
    got = translation_validator(loaded, ParallelText(ENGLISH[:6], GERMAN[:6]), pairs.epoch(0))(broken)
    assert got.metrics.keys() == {"loss"} and math.isnan(got.metrics["loss"]) and math.isnan(got.score)
    assert got.by == "bleu"


@pytest.mark.parametrize(("by", "want"), [
    ("chrf", lambda outputs: sacrebleu.corpus_chrf(outputs, [GERMAN[:6]]).score),
    ("bleu.lowercase", lambda outputs: sacrebleu.corpus_bleu(outputs, [GERMAN[:6]], lowercase=True).score),
    ("ter", lambda outputs: -sacrebleu.corpus_ter(outputs, [GERMAN[:6]], case_sensitive=True).score),
    ("wer", lambda outputs: -100 * jiwer.wer(GERMAN[:6], outputs)),
])  # fmt: skip
def test_any_measure_can_be_the_validation_score(loaded, pairs, by, want):
    """Higher is better, so error rates count as negative; BLEU is told all the same."""
    validate = translation_validator(loaded, ParallelText(ENGLISH[:6], GERMAN[:6]), pairs.epoch(0), by=by)
    got = validate(loaded.model)
    assert got.score == pytest.approx(want(loaded(ENGLISH[:6], GREEDY)))
    assert list(got.metrics) == ["loss", "perplexity", "bleu", by]


def test_loss_can_be_the_score_and_unknown_metrics_are_refused(loaded, pairs):
    text = ParallelText(ENGLISH[:6], GERMAN[:6])
    got = translation_validator(loaded, text, pairs.epoch(0), by="loss")(loaded.model)
    assert got.score == -got.metrics["loss"]
    with pytest.raises(ValueError, match="blue"):
        translation_validator(loaded, text, pairs.epoch(0), by="blue")


def test_a_missing_library_of_the_tokenization_is_named_before_training(loaded, monkeypatch):
    """Not at the first validation, where the updates before it would be lost."""
    monkeypatch.setitem(sys.modules, LIBRARIES["ja-mecab"], None)
    with pytest.raises(ValueError) as error:
        translation_validator(loaded, ParallelText(["a"], ["東京です。"]), [], tokenize="ja-mecab")
    assert str(error.value) == (
        "--tokenize ja-mecab needs the library MeCab, but it is not installed; in a clone of transduce: "
        "pip install '.[mecab]', or name --tokenize char"
    )


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """A transcriber in float32 and five recordings as held-out data."""
    folder = tmp_path_factory.mktemp("speech")
    transcriber = td.load(random_speech_run(folder / "run"))
    recordings = record(folder, sentences(5))
    reader = FrameReader(transcriber.feature_extractor, FeatureCache(folder / "cache"))
    return transcriber, speech_pairs(recordings, reader, transcriber.tokenizer, frames_per_batch=300)


def test_speech_validation_has_loss_error_rates_and_samples(speech):
    transcriber, pairs = speech
    decoding = replace(GREEDY, length_ratio=0.2, length_extra=5)
    got = speech_validator(transcriber, pairs, search=decoding)(transcriber.model)
    references = [r.text for r in pairs.recordings]
    outputs = transcriber([r.audio for r in pairs.recordings], decoding)
    assert got.metrics["wer"] == pytest.approx(100 * jiwer.wer(references, outputs))
    assert got.metrics["cer"] == pytest.approx(100 * jiwer.cer(references, outputs))
    assert got.score == -got.metrics["wer"]
    assert [(name, text, output.strip()) for name, text, output in got.samples] == [
        (pairs.recordings[i].id, references[i], outputs[i]) for i in (0, 2, 4)
    ]
    total, n_tokens = 0.0, 0
    with torch.no_grad():
        for r in pairs.recordings:
            (ids,) = transcriber.tokenizer.encode([r.text])
            frames = transcriber.feature_extractor(read_audio(r.audio, RATE))
            logits = transcriber.model(source=frames[None], target_in=torch.tensor([[BOS, *ids]]))
            total += F.cross_entropy(logits[0], torch.tensor([*ids, EOS]), reduction="sum").item()
            n_tokens += len(ids) + 1
    assert got.metrics["loss"] == pytest.approx(total / n_tokens, rel=1e-5)


def test_speech_validation_cuts_recordings_longer_than_the_segments_of_the_search(speech, tmp_path, monkeypatch):
    """A model fails on sound that is much longer than in its training; transcribe cuts it, too."""
    transcriber, pairs = speech
    sounds = [read_audio(r.audio, RATE) for r in pairs.recordings]
    pause = torch.zeros(RATE // 2)
    waveform = torch.cat([part for sound in sounds for part in (sound, pause)])
    soundfile.write(tmp_path / "long.wav", waveform.numpy(), RATE, subtype="FLOAT")
    texts = [r.text for r in pairs.recordings]
    long = Recording("long", tmp_path / "long.wav", len(waveform) / RATE, "A", " ".join(texts))
    decoding = replace(GREEDY, max_seconds=3.0, length_ratio=0.2, length_extra=5)
    assert long.seconds > decoding.max_seconds > max(r.seconds for r in pairs.recordings)
    (transcript,) = transcriber.transcribe([long.audio], decoding)
    outputs = [*transcriber([r.audio for r in pairs.recordings], decoding), transcript.text]

    def not_in_autocast(self, waveform):
        assert not torch.is_autocast_enabled("cpu")
        return self.mfcc(self.log_mel(waveform))

    monkeypatch.setattr(FeatureExtractor, "__call__", not_in_autocast)
    validate = speech_validator(transcriber, pairs, search=decoding, recordings=[*pairs.recordings, long])
    with torch.autocast("cpu", torch.bfloat16, enabled=True):
        validate(transcriber.model)
    got = validate(transcriber.model).metrics["cer"]
    assert len(transcript.segments) > 1 and got == pytest.approx(100 * jiwer.cer([*texts, long.text], outputs))


def test_a_canary_is_scored_without_changing_the_score(speech):
    transcriber, pairs = speech
    decoding = replace(GREEDY, length_ratio=0.2, length_extra=5)
    canary = [replace(r, text=f"{r.text} red red") for r in pairs.recordings[3:]]
    plain, both = (
        speech_validator(transcriber, pairs, search=decoding, canary=each)(transcriber.model) for each in ([], canary)
    )
    outputs, references = transcriber([r.audio for r in canary], decoding), [r.text for r in canary]
    assert both.metrics.pop("canary.wer") == pytest.approx(100 * jiwer.wer(references, outputs))
    assert both.metrics.pop("canary.cer") == pytest.approx(100 * jiwer.cer(references, outputs))
    assert both == plain and both.metrics["wer"] != 100 * jiwer.wer(references, outputs)


def test_unusable_canary_recordings_are_reported_before_training(speech, caplog):
    """Else its error rate would be that of blank transcripts, or end the first validation."""
    transcriber, pairs = speech
    gone = [replace(r, audio=r.audio.with_name(f"gone_{r.audio.name}")) for r in pairs.recordings]
    speech_validator(transcriber, pairs, canary=[pairs.recordings[0], gone[1]])
    assert [record.args[0] for record in caplog.records if record.args] == [
        f"{gone[1].audio} cannot be read: No such file or directory; check the path"
    ]
    for canary, reason in ((gone, "unusable sound"), ([replace(r, text=" ") for r in gone], "blank text")):
        with pytest.raises(ValueError, match=f"of {len(gone)} none is left: .*{len(gone)} {reason}"):
            speech_validator(transcriber, pairs, canary=canary)


def test_speech_validation_keeps_few_features_in_memory(speech, monkeypatch):
    transcriber, pairs = speech
    features, read, most = [], FrameReader.__call__, 0

    def look(*parts, **named):
        nonlocal most
        frames = read(*parts, **named)
        features.append(weakref.ref(frames))
        most = max(most, sum(each() is not None for each in features))
        return frames

    monkeypatch.setattr(FrameReader, "__call__", look)
    recordings = [r for r in pairs.recordings for _ in range(4)]
    monkeypatch.setattr("transduce.experiment.validation.CHUNK", 2 * max(r.seconds for r in recordings))
    speech_validator(transcriber, pairs, search=replace(GREEDY, length_extra=2), recordings=recordings)(
        transcriber.model
    )
    assert len(features) > 20 and most <= 10  # two chunks of two to five, or a batch, or the samples


def test_speech_can_be_validated_by_bleu(speech):
    transcriber, pairs = speech
    short = replace(GREEDY, length_ratio=0.0, length_extra=4)
    got = speech_validator(transcriber, pairs, by="bleu", search=short)(transcriber.model)
    assert got.score == got.metrics["bleu"] and "wer" not in got.metrics


@pytest.mark.parametrize("by", ["wer", "cer"])
def test_validating_chinese_by_wer_gives_a_warning(speech, by, caplog):
    transcriber, pairs = speech
    chinese = [replace(each, text="我今天去学校，你呢？") for each in pairs.recordings]
    speech_validator(transcriber, pairs, by=by, recordings=chinese)
    assert ("--validate-by cer" in caplog.text) is (by == "wer")


@pytest.fixture
def drawn(monkeypatch):
    """The arguments of every picture of attention, none of which is drawn."""
    pictures = []
    monkeypatch.setattr("transduce.tasks.seq2seq.attention_map", lambda *parts: pictures.append(parts))
    return pictures


def test_attention_to_audio_is_drawn_over_seconds(speech, tmp_path, drawn):
    """On the first sample, of one batch of one row."""
    transcriber, pairs = speech
    recording = pairs.recordings[0]
    draw_attention(transcriber, speech_validator(transcriber, pairs).example, tmp_path / "a.png")
    frames = transcriber.feature_extractor(read_audio(recording.audio, RATE))
    memory = transcriber.model.encode(frames[None], torch.tensor([len(frames)]))
    want = cross_attention(transcriber.model, memory, torch.tensor([[BOS, *pairs.target[0][:-1]]]))[-2, 0].mean(dim=0)
    ((weights, pieces, seconds, title, path),) = drawn
    n_layers = len(transcriber.model.decoder.layers)
    torch.testing.assert_close(weights, want, rtol=0, atol=1e-5)
    assert "".join(pieces[:-1]).replace("▁", " ").strip() == recording.text and pieces[-1] == "</s>"
    assert seconds == pytest.approx(0.02) and path == tmp_path / "a.png"
    assert title == f"layer {n_layers - 1} of {n_layers}, mean over heads"


def test_attention_of_a_translation_is_drawn_on_the_shortest_sample(loaded, pairs, tmp_path, drawn):
    text = ParallelText(ENGLISH[3:6], GERMAN[3:6])
    validator = translation_validator(loaded, text, pairs.epoch(0))
    draw_attention(loaded, validator.example, tmp_path / "a.png")
    ((weights, target, source, title, path),) = drawn
    (s,), (t,) = loaded.source_tokenizer.encode(["Print it."]), loaded.tokenizer.encode(["Druck es aus."])
    memory = loaded.model.encode(torch.tensor([[*s, EOS]]))
    want = cross_attention(loaded.model, memory, torch.tensor([[BOS, *t]]))[:, 0].mean(dim=1)
    layer = int(title.split()[1])  # the one that the words are aligned by
    assert title == f"layer {layer} of {len(want)}, mean over heads"
    torch.testing.assert_close(weights, want[layer - 1], rtol=0, atol=1e-6)
    assert (source, target) == (loaded.source_tokenizer.tokens([*s, EOS]), loaded.tokenizer.tokens([*t, EOS]))
    assert path == tmp_path / "a.png"


def test_too_long_examples_have_no_attention_plot(tmp_path, drawn):
    source, target = train_tokenizer_pair(ENGLISH, GERMAN, vocab_size=330, joint=True)
    config = replace(td.transformer_tiny(), positions="learned", max_positions=6)
    model = td.Transformer(with_vocabularies(config, 330, 330, joint=True))
    draw_attention(td.Translator(model, source, target), (ENGLISH[0], GERMAN[0]), tmp_path / "a.png")
    assert not drawn


STRANGE = ["▁$", "x$", "\\$_{", "<0x0A>", "語", "üहूँ", "</s>"]


def check_height(path, inches):
    """At 120 dots an inch; and something is drawn."""
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] == pytest.approx(inches * 120, abs=1) and picture.std() > 0


def test_attention_plots_of_unusual_characters(tmp_path):
    """No formula in dollars, no script that the font lacks, no length stops a training."""
    attention_map(torch.rand(7, 30), STRANGE, 0.04, "a$b_語$: layer 1", tmp_path / "a.png")
    check_height(tmp_path / "a.png", 2.9)
    attention_map(torch.rand(7, 300), STRANGE, STRANGE[:3] * 100, "two texts", tmp_path / "b.png")
    check_height(tmp_path / "b.png", 3.9)


@pytest.mark.long
def test_attention_plots_of_long_texts_have_limited_height(tmp_path):
    attention_map(torch.rand(700, 3), ["a"] * 700, 0.04, "long", tmp_path / "a.png")
    check_height(tmp_path / "a.png", 22)


def test_every_measure_can_be_chosen_for_validation():
    assert set(get_args(ValidateBy)) == {"loss", *MEASURES}
