"""The speech recipe from end to end: tones for words, a model too small to be good."""

import json
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from make_manifest import write_manifest
from safetensors.torch import load_file, save_file

import transduce as td
from recipes.speech_to_text import SETTINGS, Experiment, run
from tests.recipes.interrupt import interrupt
from tests.runs import FEATURES, RATE, SPEECH, library_tokenizer, record, sentences
from transduce.data.speech.audio import read_audio
from transduce.data.speech.config import Augmentation
from transduce.data.speech.features import FeatureExtractor
from transduce.data.speech.manifest import Manifests, Recording, read_manifest
from transduce.data.speech.vectors import VectorConfig
from transduce.data.text.tokenizers import train_tokenizer
from transduce.experiment.command import choose
from transduce.experiment.run import with_frames
from transduce.train import objectives
from transduce.train.optim import OptimConfig
from transduce.train.trainer import TrainingConfig

UPDATES = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Train, valid and test manifests; one recording of each is no sound."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed, (split, n) in enumerate((("train", 24), ("valid", 5), ("test", 4))):
        recordings = record(folder, sentences(n, seed=seed), name=split)
        (folder / f"{split}.wav").write_text("no sound")
        broken = Recording("broken", folder / f"{split}.wav", 1.0, "A", "red", {"german": "rot"})
        write_manifest(folder / f"{split}.tsv", [*recordings, broken])
    return folder


def small(run: Path, folder: Path, **fields) -> Experiment:
    """Two layers of width 20, the frames straight in; dropout, speeds and masks on."""
    given = {
        "corpus": Manifests(data=folder, valid=Path("valid.tsv")),
        "features": FEATURES,
        "augmentation": Augmentation(n_time_masks=1, n_frequency_masks=1, frequency_mask_width=4),
        "cache": folder / "cache",
        "workers": 0,
        "vocab_size": 290,
        "frames_per_batch": 300,
        "model": SPEECH,
        "training": TrainingConfig(
            optim=OptimConfig(peak_rate=3e-3, warmup_steps=5), max_updates=UPDATES, validate_every=6, keep_last=2
        ),
        "decoding": td.SearchConfig(beam_size=2, length_ratio=0.2, length_extra=5, ctc_weight=0.5),
        "device": "cpu",
    }
    return Experiment(run=run, **(given | fields))


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory) -> tuple[Path, dict[str, float], str]:
    """A run without a break, its scores, and what it printed."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        scores = run(small(directory, corpus))
    return directory, scores, "\n".join(printed)


def metrics(directory: Path, kind: str) -> list[dict[str, float]]:
    """Without what the clock says."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines if line["kind"] == kind]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and matplotlib.image.imread(path).std() > 0


def test_a_run_directory_is_whole(straight, corpus):
    directory, scores, printed = straight
    searches = ("greedy", "beam2", "beam2.ctc")
    assert set(scores) == {f"{measure}.{search}" for measure in ("wer", "cer") for search in searches}
    assert {path.name for path in directory.glob("[!.]*")} == {
        "MODEL_CARD.md", "target.model", "config.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "test.json", "test.errors.txt", "report.html", "lexicon.txt",
        *(f"test.{search}.txt" for search in searches),
    }  # fmt: skip
    said = {word for r in read_manifest(corpus / "train.tsv") for word in r.text.split()}
    assert (directory / "lexicon.txt").read_text().splitlines() == sorted(said)
    assert {path.name for path in (directory / "samples").glob("[!.]*")} == {
        f"{update:08d}.{what}" for update in (6, 12) for what in ("tsv", "attention.png")
    }  # fmt: skip
    pictures = [directory / "learning_curve.png", *(directory / "samples").glob("*.png")]
    assert len(pictures) == 3 and all(map(is_picture, pictures))
    valid = metrics(directory, "valid")
    assert [line["update"] for line in valid] == [6, 12]
    assert all({"loss", "wer", "cer", "diagonality"} <= set(line) and -1 <= line["diagonality"] <= 1 for line in valid)
    assert "10 features x 2 frames = 20 numbers per position = d_model: straight in" in printed
    assert "train: 24 recordings, " in printed and "valid: 5 recordings, " in printed
    assert printed.count("left out: 1 unusable sound") == 2
    assert f"{corpus / 'test.wav'} cannot be read as sound: it is damaged" in printed
    samples = (directory / "samples" / "00000012.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in samples] == ["valid00", "valid01", "valid02"]


def test_the_directory_alone_transcribes_as_the_report_did(straight, corpus, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.json", "model.safetensors", "target.model"):
        (moved / name).write_bytes((straight[0] / name).read_bytes())
    transcriber = td.load(moved)
    paths = [corpus / f"test{i:02d}.wav" for i in range(4)]
    own = transcriber.decoding  # the run says how to search, and in segments of which lengths
    assert own == replace(small(moved, corpus).decoding, min_seconds=own.min_seconds, max_seconds=own.max_seconds)
    heard = [r.seconds for r in read_manifest(corpus / "train.tsv") if r.id != "broken"]
    assert own.max_seconds == pytest.approx(max(1.0, 1.2 * max(heard))) and own.min_seconds == min(heard)
    got = transcriber.transcribe(paths)
    kept = (straight[0] / "test.beam2.ctc.txt").read_text().removesuffix("\n").split("\n")
    assert [t.text for t in got] == kept[:4] and kept[4] == ""  # the broken one counts as blank
    waveform = read_audio(paths[0], RATE)
    assert torch.equal(transcriber.feature_extractor(waveform), FeatureExtractor(FEATURES)(waveform))


def test_ctc_has_taught_its_head(straight):
    """Without its loss no gradient would reach it."""
    model = td.load_model(straight[0])
    torch.manual_seed(TrainingConfig().seed)
    assert not torch.equal(td.Transformer(model.config).ctc.weight, model.ctc.weight)


def dot(*parts) -> None:
    """A picture that takes no time."""
    matplotlib.image.imsave(parts[-1], np.zeros((1, 1, 3)))


@pytest.fixture
def no_pictures(monkeypatch):
    """They take longer than the training."""
    monkeypatch.setattr("transduce.train.log.learning_curve", lambda metrics, path: None)
    monkeypatch.setattr("transduce.experiment.validation.attention_map", dot)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("update", [4, 6])
def test_a_run_that_was_stopped_ends_with_the_same_bits(straight, corpus, tmp_path, monkeypatch, update):
    x = small(tmp_path / "run", corpus)
    calls = interrupt(monkeypatch, update)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    assert not (x.run / "model.safetensors").exists()
    if update == 6:  # has been validated
        (line,) = metrics(x.run, "valid")
        assert f"update 6: {line['wer']:.4g}" in (x.run / "report.html").read_text()
    assert run(replace(x, cache=tmp_path / "another cache")) == straight[1]
    assert len(calls) == UPDATES
    for name in ("model.safetensors", "checkpoints/00000012/optimizer.safetensors"):
        one, other = load_file(x.run / name), load_file(straight[0] / name)
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    assert metrics(x.run, "valid") == metrics(straight[0], "valid")


@pytest.mark.usefixtures("no_pictures")
def test_the_comparison_can_fail(straight, corpus, tmp_path):
    """Speeds and masks do matter."""
    x = small(
        tmp_path / "run",
        corpus,
        augmentation=Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0),
    )
    run(replace(x, corpus=replace(x.corpus, test=None), training=replace(x.training, max_updates=6)))
    one, other = (load_file(p / "checkpoints/00000006/model.safetensors") for p in (x.run, straight[0]))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_same_command_again_changes_nothing_and_another_feature_is_refused(straight, corpus):
    directory, scores, _ = straight
    weights = (directory / "model.safetensors").read_bytes()
    x = small(directory, corpus)
    assert run(x) == scores
    assert (directory / "model.safetensors").read_bytes() == weights
    with pytest.raises(ValueError) as error:
        run(replace(x, features=replace(FEATURES, n_mels=21, normalize="none")))
    assert str(error.value) == (
        f"a run goes on with the configuration it began with, but in {directory} this differs: "
        "features.n_mels: 20 -> 21; features.normalize: utterance -> none. "
        f"Name another directory with --run, and --start-from {directory} to go on from its weights"
    )


@pytest.mark.usefixtures("no_pictures")
def test_json_of_the_library_tokenizers_in_place_of_sentencepiece(corpus, tmp_path, monkeypatch):
    """The batches hold its ids, CTC's blank is its padding, and the run directory transcribes with it alone.

    How the ids come out of the search is proved in tests/tasks/test_search.py.
    """
    library = library_tokenizer("unigram", sentences(24))
    library.save(str(tmp_path / "my.json"))
    unk, eos, pad, bos = map(library.token_to_id, ("<unk>", "</s>", "<pad>", "<s>"))
    blanks, rows, plain = [], [], objectives.ctc_loss

    def spy(logits, source_lengths, target_out, target_lengths, *, blank_id):
        blanks.append(blank_id)
        rows.extend(row[:n].tolist() for row, n in zip(target_out, target_lengths.tolist(), strict=True))
        return plain(logits, source_lengths, target_out, target_lengths, blank_id=blank_id)

    monkeypatch.setattr(objectives, "ctc_loss", spy)
    x = small(
        tmp_path / "run",
        corpus,
        tokenizer=tmp_path / "my.json",
        training=TrainingConfig(optim=OptimConfig(peak_rate=3e-3, warmup_steps=5), max_updates=4, validate_every=4),
    )
    run(x)
    assert (x.run / "target.json").is_file() and set(blanks) == {pad}
    texts = [r.text for r in read_manifest(corpus / "train.tsv") if r.id != "broken"]
    assert {tuple(row) for row in rows} <= {(*library.encode(text).ids, eos) for text in texts}
    (tmp_path / "my.json").unlink()
    transcriber = td.load(x.run)
    paths = [corpus / f"test{i:02d}.wav" for i in range(4)]
    kept = (x.run / "test.beam2.ctc.txt").read_text().split("\n")
    found = transcriber.transcribe(paths)
    assert [t.text for t in found] == kept[:4]
    outputs = [segment.outputs[0] for t in found for segment in t.segments]
    assert [o.text for o in outputs] == [library.decode(o.tokens) for o in outputs] and any(o.tokens for o in outputs)
    assert not {unk, eos, pad, bos} & {i for o in outputs for i in o.tokens}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("ctc_weight", [0.5, 0.0])
def test_ctc_needs_padding_that_the_tokenizer_may_lack(corpus, tmp_path, ctc_weight):
    """As GPT-2's does. Without CTC, its one special token begins and ends every text."""
    train_tokenizer("byte_bpe", sentences(24), vocab_size=270).save(tmp_path / "my.json")
    training = TrainingConfig(max_updates=1, validate_every=1)
    x = small(tmp_path / "run", corpus, tokenizer=tmp_path / "my.json", ctc_weight=ctc_weight, training=training)
    if ctc_weight:
        with pytest.raises(ValueError, match=rf"^{tmp_path / 'my.json'}: .* has none for pad_id .*--symbols '<pad>'"):
            run(x)
        x = replace(x, symbols="<pad>")
    assert run(x) and len(td.load(x.run)([corpus / "test00.wav"])) == 1


@pytest.mark.usefixtures("no_pictures")
def test_two_views_are_compared_where_they_have_a_weight(corpus, tmp_path, monkeypatch):
    """In what the decoder gives, in what CTC gives, or in both; the views have other masks and vocal tracts."""
    monkeypatch.setattr("transduce.train.log.EVERY", 2)
    for name, alpha, ctc_alpha in (("decoder", 0.5, 0.0), ("ctc", 0.0, 0.2)):
        training = TrainingConfig(max_updates=2, validate_every=2, consistency=alpha)
        x = small(tmp_path / name, corpus, training=training, ctc_consistency=ctc_alpha)
        x = replace(x, model=replace(SPEECH, dropout=0.0), corpus=replace(x.corpus, test=None))
        run(x)
        (line,) = metrics(x.run, "train")
        both = {"consistency": alpha, "ctc_consistency": ctc_alpha}
        assert all((weight > 0) == (line.get(part, 0.0) > 1e-6) for part, weight in both.items())
    with pytest.raises(ValueError) as error:
        run(small(tmp_path / "other", corpus, ctc_weight=0.0, ctc_consistency=0.2))
    assert str(error.value) == "ctc_consistency is for CTC, but ctc_weight=0; leave one of them out"


@pytest.mark.usefixtures("no_pictures")
def test_ctc_inside_the_encoder_is_learned_and_conditions_what_is_transcribed(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.train.log.EVERY", 2)
    monkeypatch.setattr(
        "sys.argv",
        ["speech_to_text.py", "commands", "--model.ctc-layers", "1", "3"],
    )
    chosen = choose(SETTINGS, default="commands", description=None).model
    assert chosen == replace(SETTINGS["commands"][1].model, ctc_layers=(1, 3))
    training = TrainingConfig(max_updates=2, validate_every=2)
    model = replace(SPEECH, ctc_layers=(1,), ctc_conditioning=True, dropout=0.0)
    x = small(tmp_path / "run", corpus, model=model, training=training, ctc_weight=0.4, interctc_weight=0.3)
    run(x)
    (line,) = metrics(x.run, "train")
    ctc = 0.7 * line["ctc"] + 0.3 * line["interctc"]
    assert line["loss"] == pytest.approx(0.6 * line["cross_entropy"] + 0.4 * ctc, rel=1e-5)
    transcriber, paths = td.load(x.run), [corpus / f"test{i:02d}.wav" for i in range(4)]
    assert transcriber.model.config.ctc_conditioning
    kept = (x.run / "test.beam2.ctc.txt").read_text().split("\n")
    assert [t.text for t in transcriber.transcribe(paths)] == kept[:4]
    alone = replace(x, run=tmp_path / "other", ctc_weight=0.0)
    run(alone)
    config = td.load(alone.run).model.config
    assert not config.ctc_conditioning and not config.ctc_layers, "nobody learns what they would say"


@pytest.mark.usefixtures("no_pictures")
def test_ctc_inside_the_encoder_may_learn_phones(corpus, tmp_path):
    """Each is one token that is heard and never written; how sure the model may be of it makes no difference."""
    manifests = Manifests(data=corpus, valid=Path("valid.tsv"))
    said = {}
    for split, recordings in zip(("train", "valid", "test"), manifests.read(1), strict=True):
        with_phones = [
            replace(r, columns={**r.columns, "phones": " ".join(r.text.replace(" ", "").upper())}) for r in recordings
        ]
        said |= {r.id: r.columns["phones"] for r in with_phones}
        write_manifest(tmp_path / f"{split}.tsv", with_phones)
    x = small(
        tmp_path / "run",
        tmp_path,
        corpus=Manifests(data=tmp_path, valid=Path("valid.tsv")),
        model=replace(SPEECH, ctc_layers=(1,)),
        interctc_column="phones",
        augmentation=Augmentation(speeds=(1.0,)),
    )
    run(x)
    transcriber = td.load(x.run)
    tokenizer, letters = transcriber.tokenizer, sorted({*"".join(said.values())} - {" "})
    symbols = [tokenizer.encode([f"<{letter}>"])[0][-1] for letter in letters]
    assert tokenizer.tokens(symbols) == [f"<{letter}>" for letter in letters]
    assert tokenizer.vocab_size == x.vocab_size + len(letters)
    assert transcriber.decoding.suppress == tuple(symbols)
    weights = load_file(x.run / "model.safetensors")
    for name in ("output", "ctc.weight"):
        weights[name][symbols] = 1e3 * weights[name][symbols].abs()
    save_file(weights, x.run / "model.safetensors")
    transcriber = td.load(x.run)
    out = transcriber([corpus / f"test{i:02d}.wav" for i in range(4)])
    assert not any("<" in text for text in out)
    named = replace(x, run=tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"with the text at its end, but model\.ctc_layers=\(\); leave one of them out"
    ):
        run(replace(named, model=SPEECH))
    with pytest.raises(ValueError, match="with the text at its end, but ctc_column=german; leave one of them out"):
        run(replace(named, ctc_column="german"))
    with pytest.raises(ValueError, match="interctc_column is what CTC learns, but ctc_weight=0; leave one of them out"):
        run(replace(named, ctc_weight=0.0))
    (tmp_path / "valid.tsv").write_text((tmp_path / "valid.tsv").read_text().replace(" E", " X"))
    with pytest.raises(ValueError, match="there is none for 'X'; name it with --symbols '<X>', or correct the column"):
        run(named)


@pytest.mark.usefixtures("no_pictures")
def test_with_pronunciations_tokens_are_phones_and_words_come_out(corpus, tmp_path):
    """The directory alone transcribes, resumes and says when words are said; every word is one of the training's."""
    said = {word for r in read_manifest(corpus / "train.tsv") for word in r.text.split()}
    dictionary = tmp_path / "words.dict"
    dictionary.write_text("".join(f"{word} {' '.join(word.upper())}\n" for word in sorted(said)))
    how = td.SearchConfig(beam_size=2, length_ratio=1.0, ctc_weight=0.5, words="known")
    x = small(tmp_path / "run", corpus, pronunciations=dictionary, decoding=how)
    scores = run(x)
    assert (
        "\n- It writes words that its training's texts and words.dict had, and no others.\n"
        in (x.run / "MODEL_CARD.md").read_text()
    )
    spelled = small(tmp_path / "spelled", corpus)
    run(spelled)
    more = replace(x, run=tmp_path / "more", start_from=spelled.run)
    run(more)  # which has phones, whatever that run spells with
    assert td.load(more.run).tokenizer.model == td.load(x.run).tokenizer.model
    dictionary.unlink()
    assert run(x) == scores  # the run holds what it needs of it
    transcriber = td.load(x.run)
    tokenizer = transcriber.tokenizer
    assert tokenizer.tokens(range(5, tokenizer.vocab_size)) == sorted({*"".join(said).upper()})
    assert (x.run / "target.pronunciations.json").is_file() and not (x.run / "target.model").exists()
    paths = [corpus / f"test{i:02d}.wav" for i in range(4)]
    found = transcriber.transcribe(paths, word_times=True)
    assert [t.text for t in found] == (x.run / "test.beam2.ctc.txt").read_text().split("\n")[:4]
    assert all({*t.text.split()} <= said for t in found)
    assert all([w.text for s in t.segments for w in s.outputs[0].words] == t.text.split() for t in found)
    for fields, told in (
        ({"symbols": "<a>"}, "symbols=<a>"),
        ({"corpus": replace(x.corpus, target_column="german")}, "corpus.target_column=german"),
    ):
        with pytest.raises(ValueError) as error:
            run(replace(x, run=tmp_path / "other", **fields))
        assert str(error.value) == (
            f"pronunciations make the tokens of what is said, and no others, but {told}; leave one of them out "
            "(--pronunciations None)"
        )


@pytest.mark.usefixtures("no_pictures")
def test_what_is_too_long_or_has_fewer_positions_than_tokens_is_left_out(corpus, tmp_path, capsys):
    """With 2 frames to a position; alone they would be enough."""
    recordings = Manifests(data=corpus, valid=Path("valid.tsv")).read(1)[0][:4]
    frames = len(FeatureExtractor(FEATURES)(read_audio(recordings[0].audio, RATE)))
    letters = np.random.default_rng(1).choice(list("abcdefghijklmnopqrstuvwxyz"), size=round(0.8 * frames))
    wordy = replace(recordings[0], text="".join(letters))
    long = replace(recordings[1], seconds=7.5)
    write_manifest(tmp_path / "train.tsv", [wordy, long, *recordings[2:]])
    x = small(
        tmp_path / "run",
        corpus,
        corpus=Manifests(data=corpus, train=tmp_path / "train.tsv", valid=Path("valid.tsv"), test=None),
        augmentation=Augmentation(speeds=(1.0,)),
        max_seconds=7.0,
        training=TrainingConfig(max_updates=1, validate_every=1),
    )
    assert run(x) == {}
    assert "left out: 1 longer than 7 s, 1 fewer positions than tokens" in capsys.readouterr().out


@pytest.mark.usefixtures("no_pictures")
def test_another_column_makes_it_speech_translation(corpus, tmp_path):
    """And normalization by all training data, which the run directory keeps."""
    x = small(
        tmp_path / "run",
        corpus,
        corpus=Manifests(data=corpus, valid=Path("valid.tsv"), target_column="german"),
        features=replace(FEATURES, normalize="global"),
        ctc_weight=0.0,
        training=TrainingConfig(optim=OptimConfig(peak_rate=3e-3, warmup_steps=5), max_updates=4, validate_every=4),
    )
    assert set(run(x)) == {f"{measure}.{search}" for measure in ("bleu", "chrf") for search in ("greedy", "beam2")}
    (valid,) = metrics(x.run, "valid")
    assert {"loss", "bleu", "diagonality"} <= set(valid) and "wer" not in valid
    assert (x.run / "samples" / "00000004.tsv").read_text().split("\t")[1].split()[0] in {
        "rot", "grün", "blau", "schwarz",
    }  # fmt: skip
    plain = FeatureExtractor(replace(FEATURES, normalize="none"))
    frames = [plain(read_audio(path, RATE)) for path in sorted(corpus.glob("train[0-9]*.wav"))]
    feature_extractor = td.load(x.run).feature_extractor
    everything = torch.cat(frames).double()
    torch.testing.assert_close(feature_extractor.mean.double(), everything.mean(dim=0), rtol=1e-5, atol=1e-5)
    want = (frames[0].double() - everything.mean(dim=0)) / everything.std(dim=0, correction=0)
    got = feature_extractor(read_audio(sorted(corpus.glob("train[0-9]*.wav"))[0], RATE))
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"differs: corpus\.target_column: german -> text"):
        run(replace(x, corpus=replace(x.corpus, target_column="text"), ctc_weight=0.0))


@pytest.mark.usefixtures("no_pictures")
def test_ctc_may_learn_what_is_said_under_a_decoder_that_translates(corpus, tmp_path):
    """The head serves training alone: a search with it would weigh one language by the other."""
    german = Manifests(data=corpus, valid=Path("valid.tsv"), target_column="german")
    # the column text, by itself; inside the encoder, too
    x = small(tmp_path / "run", corpus, corpus=german, model=replace(SPEECH, ctc_layers=(1,)))
    x = replace(x, decoding=replace(x.decoding, ctc_weight=0.5))
    assert {"bleu.greedy", "chrf.greedy"} <= set(run(x))
    transcriber = td.load(x.run)
    assert transcriber.decoding.ctc_weight == 0 and not transcriber.model.config.ctc
    (sound, *_) = sorted(corpus.glob("test[0-9]*.wav"))
    assert transcriber([sound])
    with pytest.raises(ValueError, match="CTC head"):
        transcriber([sound], ctc_weight=0.5)
    with pytest.raises(ValueError, match="ctc_column is what CTC learns, but ctc_weight=0; leave one of them out"):
        run(replace(x, ctc_column="text", ctc_weight=0.0))
    conditioned = replace(x, run=tmp_path / "other", model=replace(SPEECH, ctc_layers=(1,), ctc_conditioning=True))
    run(conditioned)
    assert td.load(conditioned.run).model.ctc_condition is None, "the head is gone when it is loaded"
    with pytest.raises(ValueError, match=r"another column of the manifests, but it is 'english', and there are text"):
        run(replace(x, run=tmp_path / "third", ctc_column="english"))


def test_the_german_setting_has_the_same_sound_with_the_other_column():
    commands, german = (SETTINGS[name][1].corpus.read(1) for name in ("commands", "commands_german"))
    for heard, written in zip(commands, german, strict=True):
        assert [r.audio for r in heard] == [r.audio for r in written]
        assert [r.columns["german"] for r in heard] == [r.text for r in written]
        assert [r.text for r in heard] == [r.columns["text"] for r in written]  # what CTC learns


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("named", "where"), [(None, "runs/speech_german"), (Path("runs/speech"), "runs/speech")], ids=["by itself", "named"]
)
def test_another_column_has_a_directory_of_its_own_unless_one_is_named(corpus, tmp_path, monkeypatch, named, where):
    """So that one flag is enough after the setting's own run, and --run is taken at its word."""
    monkeypatch.chdir(tmp_path)
    german = Manifests(data=corpus, valid=Path("valid.tsv"), test=None, target_column="german")
    run(small(named, corpus, corpus=german, training=TrainingConfig(max_updates=1, validate_every=1)))
    assert [str(path.parent) for path in Path("runs").glob("*/model.safetensors")] == [where]


@pytest.mark.usefixtures("no_pictures")
def test_vectors_flow_in_where_sound_did(tmp_path):
    """A .npy of floats (frames, features) for every line of the manifest: here 5 features, 4 of them stacked."""
    rng = np.random.default_rng(1)
    for split, n in (("train", 8), ("valid", 2), ("test", 2)):
        recordings = []
        for i, text in enumerate(sentences(n)):
            vectors = rng.normal(size=(20 * len(text.split()), 5))
            np.save(tmp_path / f"{split}{i}.npy", vectors.astype(np.float32))
            recordings.append(Recording(f"{i}", tmp_path / f"{split}{i}.npy", 0.01 * len(vectors), "A", text))
        write_manifest(tmp_path / f"{split}.tsv", recordings)
    encoder = replace(SPEECH.encoder, input=td.Frames(n_features=5, stack=4))
    x = small(
        tmp_path / "run",
        tmp_path,
        features=VectorConfig(n_features=5),
        model=replace(SPEECH, encoder=encoder),
        training=TrainingConfig(max_updates=2, validate_every=2),
    )
    assert set(run(x)) >= {"wer.greedy", "wer.beam2"}
    transcriber = td.load(x.run)
    assert (
        transcriber.feature_extractor.config == VectorConfig(n_features=5)
        and transcriber.model.source_input.projection is None
    )
    assert len(transcriber([tmp_path / "test0.npy", tmp_path / "test1.npy"], x.decoding)) == 2
    assert not x.cache.exists()


@pytest.mark.parametrize("dims", [1, 2])
def test_convolutions_before_the_encoder_are_one_flag(corpus, tmp_path, monkeypatch, capsys, dims):
    """They train, and the run hears a position for every four frames."""
    flags = ["--model.encoder.input.stack", "1", "--model.encoder.input.conv-strides", "2", "2"]
    flags += ["--model.encoder.input.conv-dims", str(dims)]
    monkeypatch.setattr("sys.argv", ["speech_to_text.py", "commands", *flags])
    frames = choose(SETTINGS, default="commands", description=None).model.frames
    assert frames == replace(SETTINGS["commands"][1].model.frames, stack=1, conv_strides=(2, 2), conv_dims=dims)
    model = replace(SPEECH, encoder=replace(SPEECH.encoder, input=replace(frames, n_features=10)))
    x = small(tmp_path / "run", corpus, model=model)
    brief = replace(x, corpus=replace(x.corpus, test=None), training=replace(x.training, max_updates=2))
    run(brief)
    over = " over time and features" * (dims == 2)
    assert f"10 features, convolutions{over} with strides 2 and 2: a position for 4 frames" in capsys.readouterr().out
    transcriber = td.load_transcriber(tmp_path / "run")
    (sound, *_) = read_manifest(corpus / "valid.tsv")
    ((states,), seconds) = transcriber.encode([sound.audio]), transcriber.position_seconds
    assert seconds == 4 * FEATURES.hop and len(states) == -(
        -int((sound.seconds - FEATURES.frame) / FEATURES.hop + 1) // 4
    )


@pytest.mark.usefixtures("no_pictures")
def test_an_encoder_of_conformer_layers_is_a_flag(corpus, tmp_path, monkeypatch):
    """With rotary positions in this half alone; it trains, in bf16 too, and the run directory transcribes with it."""
    flags = "--model.conformer-kernel 5 --model.activation silu --model.encoder.positions rotary"
    monkeypatch.setattr("sys.argv", ["speech_to_text.py", "commands", *flags.split()])
    model, plain = choose(SETTINGS, default="commands", description=None).model, SETTINGS["commands"][1].model
    encoder = replace(plain.encoder, positions="rotary")
    assert model == replace(plain, conformer_kernel=5, activation="silu", encoder=encoder)
    model = replace(SPEECH, conformer_kernel=5, encoder=replace(SPEECH.encoder, positions="rotary"))
    training = TrainingConfig(max_updates=2, validate_every=2, precision="bf16")
    x = small(tmp_path / "run", corpus, model=model, training=training)
    run(x)
    kept = (x.run / "test.beam2.ctc.txt").read_text().split("\n")
    paths = [corpus / f"test{i:02d}.wav" for i in range(4)]
    assert [t.text for t in td.load(x.run).transcribe(paths)] == kept[:4]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_describes_a_model_that_can_be_built(name):
    x = SETTINGS[name][1]
    config = with_frames(x.model, x.features.n_features, x.vocab_size)
    td.Transformer(replace(config, d_ff=8))
    if name == "commands":
        assert config.encoder.input.width == config.d_model  # straight in
