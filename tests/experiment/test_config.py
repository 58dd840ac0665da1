"""What follows for an experiment from its data, and nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import transduce as td
from recipes import language_model, speech_to_text, translation
from transduce.config import differences, to_dict, with_fields
from transduce.data.corpus import Directions
from transduce.experiment.config import SpeechExperiment, TranslationExperiment, resolved
from transduce.model.presets import conformer_tiny

TEXT = {"text", "german"}
CTC = td.SearchConfig(ctc_weight=0.5, no_speech_threshold=0.3)


def speech(column: str = "text", **fields) -> SpeechExperiment:
    x = SpeechExperiment(
        model=replace(conformer_tiny(), ctc_layers=(2,), ctc_conditioning=True), decoding=CTC, **fields
    )
    return replace(x, corpus=replace(x.corpus, target_column=column))


def changes(x, **facts) -> list[str]:
    """The fields that facts change, a line each."""
    return differences(to_dict(x), to_dict(resolved(x, **facts)))


@pytest.mark.parametrize("x", [translation.COMMANDS, language_model.COMMANDS])
def test_resolving_without_facts_changes_nothing(x):
    assert resolved(x) == x


def test_vocabulary_sizes_come_from_the_data():
    sizes = ["model.encoder.input.vocab_size: 10000 -> {}", "model.decoder.input.vocab_size: 10000 -> {}"]
    one = changes(translation.COMMANDS, vocab_sizes=[300])
    assert one == [size.format(300) for size in sizes]
    two = changes(translation.COMMANDS, vocab_sizes=[300, 400])
    assert two == [sizes[0].format(300), sizes[1].format(400), "model.tie: all -> output"]
    (decoder,) = changes(language_model.COMMANDS, vocab_sizes=[65])
    assert re.fullmatch(r"model.decoder.input.vocab_size: \d+ -> 65", decoder)
    with_frames = changes(speech_to_text.COMMANDS, n_features=80, vocab_sizes=[400])
    assert "model.encoder.input.n_features: 40 -> 80" in with_frames


def test_split_length_defaults_to_the_usual_length():
    assert changes(translation.COMMANDS, usual_length=31) == ["decoding.split_length: 0 -> 31"]
    x = replace(translation.COMMANDS, decoding=td.SearchConfig(split_length=7))
    assert changes(x, usual_length=31) == []


@pytest.mark.parametrize(("by", "want"), [("bleu", "bleu.lowercase"), ("chrf", "chrf"), ("loss", "loss")])
def test_lowercase_models_are_validated_by_lowercase_bleu(by, want):
    x = replace(translation.COMMANDS, lowercase=True, validate_by=by)
    assert resolved(x).validate_by == want


def test_target_language_conflicts_with_a_tagged_corpus():
    corpus = Directions(languages=("en", "de"))
    x = TranslationExperiment(run=Path("a"), corpus=corpus, decoding=td.SearchConfig(target_language="de"))
    with pytest.raises(ValueError) as error:
        resolved(x)
    assert str(error.value) == (
        "the lines of this corpus say which language to write, but decoding.target_language=de; leave it out, and name "
        "one when you translate"
    )


def test_a_transcriber_is_scored_by_wer_and_a_speech_translator_by_bleu():
    assert changes(speech(name="a"), columns=TEXT) == ["run: none -> runs/a", "validate_by: none -> wer"]
    x = resolved(speech("german", name="a"), columns=TEXT)
    assert (x.run, x.validate_by, x.measures) == (Path("runs/a_german"), "bleu", ("bleu", "chrf"))
    named = resolved(speech("german", run=Path("b"), validate_by="loss"), columns=TEXT)
    assert (named.run, named.validate_by) == (Path("b"), "loss")


@pytest.mark.parametrize(
    ("column", "fields", "columns", "ctc_text", "in_search"),
    [
        ("text", {}, TEXT, "", True),
        ("german", {}, TEXT, "text", False),
        ("german", {}, {"german"}, "", True),  # nobody wrote down what is said
        ("german", {"ctc_column": "german"}, TEXT, "", True),
        ("text", {"ctc_column": "german"}, TEXT, "german", False),
        ("german", {"ctc_weight": 0.0}, TEXT, "", False),
    ],
)
def test_ctc_targets_and_their_use_in_search_follow_the_columns(column, fields, columns, ctc_text, in_search):
    x = speech(column, **fields)
    got = resolved(x, columns=columns)
    assert got.ctc_text == ctc_text
    assert (got.decoding == x.decoding) == in_search == got.model.ctc_conditioning
    assert in_search or (got.decoding.ctc_weight, got.decoding.no_speech_threshold) == (0.0, 0.0)
    assert got.model.ctc_layers == (() if x.ctc_weight == 0 else (2,))
    assert resolved(got, columns=columns) == got


@pytest.mark.parametrize(
    ("seconds", "fields", "bounds"),
    [
        ((2.0, 10.0), {}, (2.0, 12.0)),  # a fifth beyond the longest one
        ((0.2, 0.5), {}, (0.2, 1.0)),
        ((3.0, 30.0), {}, (3.0, 20.0)),  # as the search says
        ((3.0, 30.0), {"max_seconds": 60.0}, (3.0, 36.0)),  # unless the training has longer ones
        ((9.0, 30.0), {"max_seconds": 60.0, "decoding": td.SearchConfig(max_seconds=5.0)}, (5.0, 5.0)),
        ((9.0, 30.0), {"decoding": td.SearchConfig(max_seconds=5.0)}, (5.0, 5.0)),
    ],
)
def test_segment_lengths_follow_the_training_recordings(seconds, fields, bounds):
    x = replace(speech_to_text.COMMANDS, **fields)
    got = resolved(replace(x, augmentation=replace(x.augmentation, silence=0.3)), seconds=seconds).decoding
    assert (got.min_seconds, got.max_seconds) == pytest.approx(bounds) and got.margin == 0.15


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ctc_column": "a", "ctc_weight": 0.0}, "ctc_column is for CTC, but ctc_weight=0; leave one of them out"),
        (
            {"ctc_consistency": 0.2, "ctc_weight": 0.0},
            "ctc_consistency is for CTC, but ctc_weight=0; leave one of them",
        ),
        (
            {"pronunciations": Path("d"), "symbols": "<a>"},
            "of what is said only, but symbols=<a>; leave one of them out",
        ),
    ],
)
def test_contradicting_fields_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        resolved(speech(**fields))
    assert message in str(error.value)


def test_ctc_needs_a_head():
    with pytest.raises(
        ValueError, match=r"^CTC needs a head, but ctc_weight=0\.5 and the model has none; give --ctc-w"
    ):
        resolved(replace(speech(), model=td.transformer_tiny()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"ctc": True}}, "no CTC head, but this model has others: encoder=True, decoder=True, ctc=True"),
        ({"model": {"decoder": None}}, "but this model has others: encoder=True, decoder=False, ctc=False"),
        ({"transcripts": True, "symbols": "<2de> <DE>"}, "but transcripts=True and symbols=<2de> <DE>; leave one"),
    ],
)
def test_invalid_translation_experiments_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        resolved(with_fields(translation.COMMANDS, **fields))
    assert message in str(error.value)
