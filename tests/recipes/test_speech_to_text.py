"""The speech recipe: one training from end to end, and what its fields become; tones for words."""

import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

import transduce as td
from recipes.speech_to_text import SETTINGS, run
from tests.recipes.small import loss_parts, metrics, transcriber as small
from tests.runs import FEATURES, RATE, SPEECH, library_tokenizer, sentences
from transduce.data.audio import read_audio
from transduce.data.config import Augmentation
from transduce.data.features import FeatureExtractor, VectorConfig
from transduce.data.manifest import Manifests, Recording, read_manifest, write_manifest
from transduce.experiment.command import choose
from transduce.experiment.config import with_frames
from transduce.model.layers import Layer
from transduce.run import load_run


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and matplotlib.image.imread(path).std() > 0


def test_run_directory_is_complete(speech_run, recordings):
    directory, printed = speech_run.run, speech_run.printed
    searches = ("greedy", "beam2", "beam2.ctc")
    assert set(speech_run.scores) == {f"{measure}.{search}" for measure in ("wer", "cer") for search in searches}
    assert {path.name for path in directory.glob("[!.]*")} == {
        "MODEL_CARD.md", "target.model", "config.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "test.json", "test.errors.txt", "report.html", "lexicon.txt",
        *(f"test.{search}.txt" for search in searches),
    }  # fmt: skip
    said = {word for r in read_manifest(recordings / "train.tsv") for word in r.text.split()}
    assert (directory / "lexicon.txt").read_text().splitlines() == sorted(said)
    samples = {path.name for path in (directory / "samples").glob("[!.]*")}
    assert samples == {"00000002.tsv", "00000002.attention.png"}
    assert is_picture(directory / "learning_curve.png") and is_picture(directory / "samples/00000002.attention.png")
    (valid,) = metrics(directory, "valid")
    assert valid["update"] == 2 and {"loss", "wer", "cer"} <= set(valid)
    assert "10 features x 2 frames = 20 numbers per position = d_model: straight in" in printed
    assert "train: 12 recordings, " in printed and "valid: 3 recordings, " in printed
    assert printed.count("left out: 1 unusable sound") == 2
    assert f"{recordings / 'test.wav'} cannot be read as sound: it is damaged" in printed
    samples = (directory / "samples" / "00000002.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in samples] == ["valid00", "valid01", "valid02"]


def test_moved_run_transcribes_like_its_report(speech_run, recordings, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.json", "model.safetensors", "target.model"):
        (moved / name).write_bytes((speech_run.run / name).read_bytes())
    transcriber = td.load(moved)
    paths = [recordings / f"test{i:02d}.wav" for i in range(4)]
    own = transcriber.decoding  # the run says how to search, and in segments of which lengths
    assert own == replace(speech_run.x.decoding, min_seconds=own.min_seconds, max_seconds=own.max_seconds)
    seconds = [r.seconds for r in read_manifest(recordings / "train.tsv") if r.id != "broken"]
    assert own.max_seconds == pytest.approx(max(1.0, 1.2 * max(seconds))) and own.min_seconds == min(seconds)
    got = transcriber.transcribe(paths)
    kept = (speech_run.run / "test.beam2.ctc.txt").read_text().removesuffix("\n").split("\n")
    assert [t.text for t in got] == kept[:4] and kept[4] == ""  # the broken one counts as blank
    waveform = read_audio(paths[0], RATE)
    assert torch.equal(transcriber.feature_extractor(waveform), FeatureExtractor(FEATURES)(waveform))


def test_resume_with_other_features_is_refused(speech_run, recordings, tmp_path):
    x = replace(speech_run.x, run=shutil.copytree(speech_run.run, tmp_path / "run"))
    with pytest.raises(ValueError, match=r"features\.n_mels: 20 -> 21; features\.normalize: utterance -> none\. Name"):
        run(replace(x, features=replace(FEATURES, n_mels=21, normalize="none")))


def test_augmentation_changes_the_batches(recordings, tmp_path, untrained):
    plain = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)
    first = {}
    for name, changes in (
        ("none", {}),
        ("speeds", {"speeds": (0.9, 1.1)}),
        ("time", {"n_time_masks": 1}),
        ("frequency", {"n_frequency_masks": 1, "frequency_mask_width": 4}),
        ("vocal tract", {"vtlp": 0.2}),
    ):
        x = small(tmp_path / name, recordings, augmentation=replace(plain, **changes))
        data = untrained(run, replace(x, corpus=replace(x.corpus, test=None))).data
        first[name] = torch.cat([data.epoch(0)[i].source.flatten(0, 1) for i in range(len(data.epoch(0)))])
    for name, frames in first.items():
        assert frames.shape != first["none"].shape or torch.equal(frames, first["none"]) == (name == "none"), name


def test_tokenizers_json_instead_of_sentencepiece(recordings, tmp_path, untrained):
    """The batches hold its ids, CTC's blank is its padding, and the run directory transcribes with it alone.

    How the ids come out of the search is proved in tests/tasks/test_search.py.
    """
    library = library_tokenizer("unigram", sentences(24))
    library.save(str(tmp_path / "my.json"))
    unk, eos, pad, bos = map(library.token_to_id, ("<unk>", "</s>", "<pad>", "<s>"))
    x = small(tmp_path / "run", recordings, tokenizer=tmp_path / "my.json")
    x = replace(x, corpus=replace(x.corpus, test=None))
    trainer = untrained(run, x)
    assert (x.run / "target.json").is_file() and trainer.objective.losses.blank_id == pad
    batches = trainer.data.epoch(0)
    rows = [
        row[:n].tolist()
        for batch in (batches[i] for i in range(len(batches)))
        for row, n in zip(batch.target_out, batch.target_lengths.tolist(), strict=True)
    ]
    texts = [r.text for r in read_manifest(recordings / "train.tsv") if r.id != "broken"]
    assert sorted(rows) == sorted([*library.encode(text).ids, eos] for text in texts)
    (tmp_path / "my.json").unlink()
    transcriber = td.load(x.run)
    paths = [recordings / f"test{i:02d}.wav" for i in range(4)]
    got = transcriber.transcribe(paths)
    outputs = [segment.outputs[0] for t in got for segment in t.segments]
    assert [o.text for o in outputs] == [library.decode(o.tokens) for o in outputs] and any(o.tokens for o in outputs)
    assert not {unk, eos, pad, bos} & {i for o in outputs for i in o.tokens}


def test_pronunciations_make_phone_tokens_and_known_words(speech_run, recordings, tmp_path, untrained):
    """The directory alone transcribes, goes on and says when words are said; every word is one of the training's."""
    said = {word for r in read_manifest(recordings / "train.tsv") for word in r.text.split()}
    dictionary = tmp_path / "words.dict"
    dictionary.write_text("".join(f"{word} {' '.join(word.upper())}\n" for word in sorted(said)))
    how = td.SearchConfig(beam_size=2, length_ratio=1.0, ctc_weight=0.5, words="known")
    x = small(tmp_path / "run", recordings, pronunciations=dictionary, decoding=how)
    untrained(run, x)
    assert (
        "\n- It only writes words that are both in its training texts and in words.dict.\n"
        in (x.run / "MODEL_CARD.md").read_text()
    )
    more = replace(x, run=tmp_path / "more", start_from=speech_run.run, corpus=replace(x.corpus, test=None))
    untrained(run, more)  # which has phones, whatever that run spells with
    assert load_run(more.run).target_tokenizer.model == load_run(x.run).target_tokenizer.model
    dictionary.unlink()
    untrained(run, replace(x, corpus=replace(x.corpus, test=None)))  # the run holds what it needs of it
    transcriber = td.load(x.run)
    tokenizer = transcriber.tokenizer
    assert tokenizer.tokens(range(5, tokenizer.vocab_size)) == sorted({*"".join(said).upper()})
    assert (x.run / "target.pronunciations.json").is_file() and not (x.run / "target.model").exists()
    paths = [recordings / f"test{i:02d}.wav" for i in range(4)]
    got = transcriber.transcribe(paths, word_times=True)
    assert [t.text for t in got] == (x.run / "test.beam2.ctc.txt").read_text().split("\n")[:4]
    assert all({*t.text.split()} <= said for t in got) and any(t.text for t in got)
    assert all([w.text for s in t.segments for w in s.outputs[0].words] == t.text.split() for t in got)
    for fields, reason in (
        ({"symbols": "<a>"}, "symbols=<a>"),
        ({"corpus": replace(x.corpus, target_column="german")}, "corpus.target_column=german"),
    ):
        with pytest.raises(ValueError) as error:
            run(replace(x, run=tmp_path / "other", **fields))
        assert str(error.value) == (
            f"pronunciations are for tokens of what is said only, but {reason}; leave one of them out "
            "(--pronunciations None)"
        )


def test_recordings_too_long_or_with_too_many_tokens_are_left_out(recordings, tmp_path, untrained, capsys):
    """With 2 frames to a position; alone they would be enough."""
    got = Manifests(data=recordings, valid=Path("valid.tsv")).read(1)[0][:4]
    frames = len(FeatureExtractor(FEATURES)(read_audio(got[0].audio, RATE)))
    letters = np.random.default_rng(1).choice(list("abcdefghijklmnopqrstuvwxyz"), size=round(0.8 * frames))
    wordy = replace(got[0], text="".join(letters))
    long = replace(got[1], seconds=7.5)
    write_manifest(tmp_path / "train.tsv", [wordy, long, *got[2:]])
    x = small(
        tmp_path / "run",
        recordings,
        corpus=Manifests(data=recordings, train=tmp_path / "train.tsv", valid=Path("valid.tsv"), test=None),
        augmentation=Augmentation(speeds=(1.0,)),
        max_seconds=7.0,
    )
    untrained(run, x)
    assert "left out: 1 longer than 7 s, 1 fewer positions than tokens" in capsys.readouterr().out


def test_target_column_trains_speech_translation(recordings, tmp_path, untrained):
    """And normalization by all training data, which the run directory keeps."""
    x = small(
        tmp_path / "run",
        recordings,
        corpus=Manifests(data=recordings, valid=Path("valid.tsv"), target_column="german"),
        features=replace(FEATURES, normalize="global"),
        ctc_weight=0.0,
    )
    scores = {}
    ours = untrained(lambda x: scores.update(run(x)), x).validation()
    assert set(scores) == {f"{measure}.{search}" for measure in ("bleu", "chrf") for search in ("greedy", "beam2")}
    assert {"loss", "bleu"} <= set(ours.metrics) and "wer" not in ours.metrics
    assert {reference.split()[0] for _, reference, _ in ours.samples} <= {"rot", "grün", "blau", "schwarz"}
    plain = FeatureExtractor(replace(FEATURES, normalize="none"))
    paths = sorted(recordings.glob("train[0-9]*.wav"))
    frames = [plain(read_audio(path, RATE)) for path in paths]
    feature_extractor = load_run(x.run).feature_extractor
    everything = torch.cat(frames).double()
    torch.testing.assert_close(feature_extractor.mean.double(), everything.mean(dim=0), rtol=1e-5, atol=1e-5)
    want = (frames[0].double() - everything.mean(dim=0)) / everything.std(dim=0, correction=0)
    got = feature_extractor(read_audio(paths[0], RATE))
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)
    few = [r for r in read_manifest(recordings / "train.tsv") if r.id != "broken"][:3]
    write_manifest(tmp_path / "few.tsv", few)
    brief = replace(x.corpus, train=tmp_path / "few.tsv", test=None)
    more = replace(x, run=tmp_path / "more", start_from=x.run, corpus=brief)
    untrained(run, more)
    same = load_run(more.run).feature_extractor  # the numbers that the weights know
    assert same.mean.equal(feature_extractor.mean) and same.std.equal(feature_extractor.std)
    with pytest.raises(ValueError, match=r"differs: corpus\.target_column: german -> text"):
        run(replace(x, corpus=replace(x.corpus, target_column="text"), ctc_weight=0.0))


def test_german_setting_has_the_same_audio_with_german_text():
    commands, german = (SETTINGS[name][1].corpus.read(1) for name in ("commands", "commands_german"))
    for english, written in zip(commands, german, strict=True):
        assert [r.audio for r in english] == [r.audio for r in written]
        assert [r.columns["german"] for r in english] == [r.text for r in written]
        assert [r.text for r in english] == [r.columns["text"] for r in written]  # what CTC learns


@pytest.mark.parametrize(
    ("named", "where"), [(None, "runs/speech_german"), (Path("runs/speech"), "runs/speech")], ids=["by itself", "named"]
)
def test_default_run_directory_follows_the_target_column(recordings, tmp_path, monkeypatch, untrained, named, where):
    """So that one flag is enough after the setting's own run, and --run is taken at its word."""
    monkeypatch.chdir(tmp_path)
    german = Manifests(data=recordings, valid=Path("valid.tsv"), test=None, target_column="german")
    untrained(run, small(named, recordings, corpus=german))
    assert [str(path.parent) for path in Path("runs").glob("*/model.safetensors")] == [where]


def test_training_on_precomputed_vectors(tmp_path, untrained):
    """A .npy of floats (frames, features) for every line of the manifest: here 5 features, 4 of them stacked."""
    rng = np.random.default_rng(1)
    for split, n in (("train", 8), ("valid", 2), ("test", 2)):
        lines = []
        for i, text in enumerate(sentences(n)):
            vectors = rng.normal(size=(20 * len(text.split()), 5))
            np.save(tmp_path / f"{split}{i}.npy", vectors.astype(np.float32))
            lines.append(Recording(f"{i}", tmp_path / f"{split}{i}.npy", 0.01 * len(vectors), "A", text))
        write_manifest(tmp_path / f"{split}.tsv", lines)
    encoder = replace(SPEECH.encoder, input=td.Frames(n_features=5, stack=4))
    x = small(
        tmp_path / "run",
        tmp_path,
        features=VectorConfig(n_features=5),
        model=replace(SPEECH, encoder=encoder),
        cache=tmp_path / "cache",
    )
    scores = {}
    trainer = untrained(lambda x: scores.update(run(x)), x)
    assert set(scores) >= {"wer.greedy", "wer.beam2"} and loss_parts(trainer)["loss"] > 0
    transcriber = td.load(x.run)
    assert transcriber.feature_extractor.config == VectorConfig(n_features=5) and not list(
        transcriber.model.source_input.parameters()
    )
    assert len(transcriber([tmp_path / "test0.npy", tmp_path / "test1.npy"], x.decoding)) == 2
    assert not x.cache.exists()


def test_convolutional_front_end_by_flags(recordings, tmp_path, monkeypatch, untrained, capsys):
    """They have gradients, and the run hears a position for every four frames."""
    flags = ["--model.encoder.input.stack", "1", "--model.encoder.input.conv-strides", "2", "2"]
    frames = choose(SETTINGS, ["commands", *flags], default="commands").model.frames
    assert frames == replace(SETTINGS["commands"][1].model.frames, stack=1, conv_strides=(2, 2))
    model = replace(SPEECH, encoder=replace(SPEECH.encoder, input=replace(frames, n_features=10)))
    x = small(tmp_path / "run", recordings, model=model)
    trainer = untrained(run, replace(x, corpus=replace(x.corpus, test=None)))
    assert "10 features, convolutions with strides 2 and 2: a position for 4 frames" in capsys.readouterr().out
    trainer.objective(trainer.data.epoch(0)[0].to(trainer.device)).total.backward()
    assert all(parameter.grad.any() for parameter in trainer.model.source_input.parameters())
    transcriber = td.load_transcriber(x.run)
    (sound, *_) = read_manifest(recordings / "valid.tsv")
    ((states,), seconds) = transcriber.encode([sound.audio]), transcriber.position_seconds
    assert seconds == 4 * FEATURES.hop and len(states) == -(
        -int((sound.seconds - FEATURES.frame) / FEATURES.hop + 1) // 4
    )


def test_conformer_encoder_by_flags(monkeypatch):
    """With rotary positions in this half alone; that it trains and transcribes is in test_speech_training.py."""
    flags = "--model.conformer-kernel 5 --model.activation silu --model.encoder.positions rotary"
    model, plain = (
        choose(SETTINGS, ["commands", *flags.split()], default="commands").model,
        SETTINGS["commands"][1].model,
    )
    encoder = replace(plain.encoder, positions="rotary")
    assert model == replace(plain, conformer_kernel=5, activation="silu", encoder=encoder)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_builds_a_model(name):
    x = SETTINGS[name][1]
    config = with_frames(x.model, x.features.n_features, x.vocab_size)
    with torch.device("meta"):
        td.Transformer(config)
    if name != "vectors":  # 80 numbers for a vector by themselves
        assert config.encoder.input.width == config.d_model
        assert not config.encoder.input.project  # straight in


def test_paper_setting_has_the_papers_layers_in_both_stacks(monkeypatch):
    """Those of translation: post-norm, sinusoids, ReLU, nothing between frames and encoder; a field reaches both halves."""
    model = SETTINGS["paper"][1].model
    plain = td.transformer_base(n_layers=model.encoder.n_layers)
    for field in ("norm", "norm_position", "positions", "activation", "gated", "attention", "bias", "conformer_kernel"):
        assert getattr(model, field) == getattr(plain, field), field
    with torch.device("meta"):
        built = td.Transformer(with_frames(model, 40, 320))
    assert {type(layer) for half in (built.encoder, built.decoder) for layer in half.layers} == {Layer}
    assert not list(built.source_input.parameters())
    flags = "--model.positions learned --model.n-experts 2 --model.attention linear"
    chosen = choose(SETTINGS, ["paper", *flags.split()], default="commands").model
    assert {chosen.for_stack(half).positions for half in (chosen.encoder, chosen.decoder)} == {"learned"}


def test_positions_flag_sets_both_stacks(monkeypatch):
    model = choose(SETTINGS, ["commands", "--model.positions", "sinusoidal"], default="commands").model
    assert {model.for_stack(half).positions for half in (model.encoder, model.decoder)} == {"sinusoidal"}
