"""Sound in, text out: whatever shares the batch, however long the file, and no loop without an end."""

import io
import logging
import random
from collections import Counter
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import FEATURES, RATE, SPEECH, random_run, random_speech_run, record, sentences, sound
from transduce.data.speech.audio import read_audio
from transduce.data.speech.features import FeatureExtractor
from transduce.data.speech.vectors import VectorConfig, VectorReader
from transduce.data.text.sentencepiece_bpe import BOS, EOS
from transduce.decode.hypothesis import Hypothesis, loops
from transduce.run import load_run
from transduce.tasks.load import load_as
from transduce.tasks.search import Output
from transduce.tasks.transcript import Segment

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, no_repeat_ngram=4)  # no second search


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory) -> td.Transcriber:
    """In float64, so that no batch moves a near tie."""
    found = td.load(random_speech_run(tmp_path_factory.mktemp("run") / "run"), dtype=torch.float64)
    assert isinstance(found, td.Transcriber)
    return found


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return record(tmp_path_factory.mktemp("sound"), sentences(8))


@pytest.mark.parametrize(
    "decoding", [SHORT, replace(SHORT, beam_size=1), replace(SHORT, ctc_weight=0.3)], ids=["beam", "greedy", "ctc"]
)
def test_batch_size_order_and_neighbours_change_no_transcript(transcriber, recordings, decoding):
    frames = [transcriber.feature_extractor(read_audio(r.audio, RATE)) for r in recordings[:4]]
    frames.append(
        transcriber.feature_extractor(torch.from_numpy(np.tile(sound("red blue"), 5)).float())
    )  # a long neighbour
    alone = [transcriber.decode([each], decoding)[0] for each in frames]
    assert len({outputs[0].text for outputs in alone}) > 2  # it does depend on the sound
    order = random.Random(5).sample(range(len(frames)), len(frames))
    for batch_tokens, rows in ((60, range(len(frames))), (60, order), (100_000, order)):
        together = transcriber.decode([frames[i] for i in rows], replace(decoding, batch_tokens=batch_tokens))
        for row, outputs in zip(rows, together, strict=True):
            assert [o.text for o in outputs] == [o.text for o in alone[row]]
            assert outputs[0].score == pytest.approx(alone[row][0].score, abs=1e-5)


def test_greedy_takes_the_likeliest_token_of_the_whole_model_each_time(transcriber, recordings):
    frames = transcriber.feature_extractor(read_audio(recordings[0].audio, RATE)).double()
    target = [BOS]
    with torch.no_grad():
        while len(target) < 8 and target[-1] != EOS:
            logits = transcriber.model(source=frames[None], target_in=torch.tensor([target]))[0, -1]
            logits[:3] = -torch.inf
            target.append(int(logits.argmax()))
    want = transcriber.tokenizer.decode([[i for i in target[1:] if i != EOS]])[0]
    assert transcriber([recordings[0].audio], replace(SHORT, beam_size=1)) == [want.strip()]


def test_files_come_back_in_order_and_bad_ones_alone_are_refused(transcriber, recordings, tmp_path):
    (tmp_path / "text.wav").write_text("no sound")
    paths = [recordings[0].audio, tmp_path / "text.wav", str(recordings[1].audio), tmp_path / "none.wav"]
    done = []
    got = transcriber.transcribe(paths, SHORT, progress=lambda n, total: done.append((n, total)))
    assert [str(t.path) for t in got] == [str(path) for path in paths]
    assert sum(n for n, _ in done) == 2 and {total for _, total in done} == {2}
    assert [t.text for t in got] == [*transcriber([paths[0]], SHORT), "", *transcriber([paths[2]], SHORT), ""]
    assert [bool(t.error) for t in got] == [False, True, False, True]
    assert got[3].error == f"{tmp_path / 'none.wav'} cannot be read: No such file or directory; check the path"
    with pytest.raises(ValueError) as error:
        transcriber(paths, SHORT)
    assert str(error.value) == got[1].error
    assert transcriber([], SHORT) == []


def test_a_batch_is_bounded_by_what_the_encoder_sees(transcriber, monkeypatch):
    """Of two frames each, where 5 frames are 3 positions: 2 rows of them are 6 positions, and 3 are 9."""
    sizes, search = [], td.Transcriber._search
    assert transcriber.model.config.encoder.input.stack == 2
    monkeypatch.setattr(
        td.Transcriber, "_search", lambda self, *parts: sizes.append(len(parts[0])) or search(self, *parts)
    )
    transcriber.decode([torch.randn(5, 10)] * 3, replace(SHORT, batch_tokens=8))
    assert sizes == [1, 2]


def test_a_stream_gives_every_segment_once(transcriber, recordings, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "long.wav", np.concatenate([sound("red blue green", seed=i) for i in range(4)]), RATE)
    paths = [tmp_path / "long.wav", tmp_path / "none.wav", tmp_path / "silent.wav", *(r.audio for r in recordings[:3])]
    config = replace(SHORT, n_best=2, batch_tokens=20)
    found = list(transcriber.stream(list(transcriber.read(paths, replace(config, max_seconds=1.0))), config))
    whole = transcriber.transcribe(paths, replace(config, max_seconds=1.0))
    assert found[0] == (2, Segment(0.0, 1.0, [Output("")] * 2))
    for i, transcript in enumerate(whole):
        segments = sorted((segment for j, segment in found if j == i), key=lambda segment: segment.start)
        assert segments == transcript.segments
    assert max(len(transcript.segments) for transcript in whole) > 1


def test_samples_are_transcribed_as_a_file_of_them_is(transcriber, tmp_path, caplog):
    """At the model's own rate, at another one, louder than full scale, as integers, as an array or as a tensor."""
    for rate, gain, kind in ((RATE, 1.0, np.float32), (2 * RATE, 1.0, np.int16), (11025, 5.0, np.float32)):
        wave = gain * sound("red blue", rate=rate)
        samples = wave.astype(kind) if kind is np.float32 else (wave * 32767).astype(kind)
        soundfile.write(tmp_path / "a.wav", samples, rate, subtype="FLOAT" if kind is np.float32 else "PCM_16")
        (want,) = transcriber.transcribe([tmp_path / "a.wav"], SHORT)
        for given in (samples, torch.from_numpy(samples)):
            (got,) = transcriber.transcribe([(given, rate)], SHORT)
            assert (got.path, got.error, got.segments) == ("sound 1", "", want.segments)
    assert transcriber([(np.zeros(RATE), RATE)], SHORT) == [""]
    assert [r.getMessage() for r in caplog.records] == [
        "sound 1 is silent, every sample being 0, so its text is blank; if its channels cancel out, take one"
    ]


SAMPLES = "samples must be floats, or integers of 16 or 32 bits, of shape (n,), but"
GIVE = "average the channels, and give (samples, rate)"


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros((2, 9)), RATE, f"{SAMPLES} they are torch.float64 of shape (2, 9); {GIVE}"),
        (np.zeros(9, np.uint8), RATE, f"{SAMPLES} they are torch.uint8 of shape (9,); {GIVE}"),
        (torch.zeros(0), RATE, f"{SAMPLES} they are torch.float32 of shape (0,); {GIVE}"),
        (np.zeros(RATE), 8, "its sample rate must lie in 1000 ... 768000 Hz, but it is 8; give (samples, rate)"),
        (np.full(RATE, np.inf), RATE, "it has NaN or infinite samples; convert it again or leave it out"),
    ],
    ids=["channels", "bytes", "nothing", "rate", "infinite"],
)  # fmt: skip
def test_samples_that_cannot_be_used_are_refused_alone(transcriber, recordings, samples, rate, message):
    got = transcriber.transcribe([recordings[0].audio, (samples, rate)], SHORT)
    assert [t.error for t in got] == ["", f"sound 2 cannot be used: {message}"]


@pytest.mark.parametrize("given", [np.zeros(RATE), torch.zeros(RATE), (np.zeros(RATE), RATE, 2)], ids=type)
def test_what_is_no_sound_is_refused_alone(transcriber, given):
    jaxtyping.config.update("jaxtyping_disable", True)  # the type is wrong on purpose
    (got,) = transcriber.transcribe([given], SHORT)
    assert got.error == (
        "sound 1 cannot be used: a sound must be a file or (samples, rate), but it is of the type "
        f"{type(given).__name__}; give a list such as [(samples, rate)]"
    )


def test_rate_and_samples_in_the_wrong_order_are_refused(transcriber):
    """As scipy.io.wavfile gives them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    (got,) = transcriber.transcribe([(RATE, np.zeros(9))], SHORT)
    assert got.error == f"sound 1 cannot be used: {SAMPLES} they are torch.int64 of shape (); {GIVE}"


def test_an_open_file_is_transcribed_as_its_path_is(transcriber, recordings):
    """Messages name it, by its own name where it has one."""
    path = recordings[0].audio
    (want,) = transcriber.transcribe([path], SHORT)
    with path.open("rb") as file:
        got, broken = transcriber.transcribe([file, io.BytesIO(b"no sound")], SHORT)
    assert (got.path, got.segments) == (str(path), want.segments)
    assert transcriber([io.BytesIO(path.read_bytes())], SHORT) == [want.text]
    assert broken.error.startswith("sound 2 cannot be read as sound: it is damaged or of an unknown format (libsndfile")


def test_one_name_is_no_list(transcriber):
    with pytest.raises(ValueError) as error:
        transcriber("a.wav")
    assert str(error.value) == "transcribe takes a list of files, but got one string; use ['a.wav']"


def test_a_long_file_is_cut_in_its_pauses(transcriber, tmp_path):
    texts = [np.concatenate([sound("red blue green", seed=i), np.zeros(RATE // 2)]) for i in range(12)]
    waveform, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts[:-1])]) / RATE
    soundfile.write(tmp_path / "long.wav", waveform, RATE)
    (transcript,) = transcriber.transcribe([tmp_path / "long.wav"], replace(SHORT, max_seconds=3.0))
    segments = transcript.segments
    for segment, start in zip(segments, starts, strict=True):  # a segment for every text
        assert segment.start <= start + 0.05 and segment.stop >= start + 0.6 and segment.stop - segment.start <= 1.2
    assert transcript.text == " ".join(text for p in segments if (text := p.outputs[0].text.strip()))
    for segment in (segments[0], segments[-1]):  # each is what a file of its own would give
        part = read_audio(tmp_path / "long.wav", RATE)[round(segment.start * RATE) : round(segment.stop * RATE)]
        assert transcriber.decode([transcriber.feature_extractor(part)], SHORT)[0][0].text == segment.outputs[0].text


def test_digital_silence_is_blank_and_named(transcriber, recordings, tmp_path, caplog):
    """Whatever the model would hear in it; the sides of the FLAC cancel out."""
    tone = sound("red blue")
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "opposite.flac", np.stack([tone, -tone], axis=1), RATE)
    silent = [tmp_path / "silent.wav", tmp_path / "opposite.flac"]
    assert transcriber.decode([transcriber.feature_extractor(torch.zeros(RATE))], SHORT)[0][0].text.strip()
    paths = [recordings[0].audio, *silent, recordings[1].audio]
    done = []
    got = transcriber.transcribe(paths, replace(SHORT, n_best=2), progress=lambda n, total: done.append((n, total)))
    first, last = transcriber([paths[0], paths[3]], SHORT)
    assert [t.text for t in got] == [first, "", "", last] and first and last
    assert [t.error for t in got] == [""] * 4 and {len(t.segments[0].outputs) for t in got} == {2}
    assert done == [(1, 4)] * 4
    assert [r.getMessage() for r in caplog.records] == [
        f"{path} is silent, every sample being 0, so its text is blank; if its channels cancel out, take one"
        for path in silent
    ]


def test_the_silence_of_a_long_file_is_left_out(transcriber, tmp_path, caplog):
    first, last = sound("red blue green"), sound("black red")
    soundfile.write(tmp_path / "long.wav", np.concatenate([first, np.zeros(8 * RATE), last]), RATE)
    (transcript,) = transcriber.transcribe([tmp_path / "long.wav"], replace(SHORT, max_seconds=2.0))
    before, after = transcript.segments
    assert before.start >= 0 and before.stop <= len(first) / RATE + 0.2
    assert len(first) / RATE + 7.8 <= after.start and after.stop <= (len(first) + len(last)) / RATE + 8
    assert transcript.text and not caplog.records


def test_what_lies_outside_of_what_the_run_knows_is_named(transcriber, recordings, caplog):
    known = replace(SHORT, min_seconds=1.0, max_seconds=3.0)
    own = td.Transcriber(transcriber.model, transcriber.tokenizer, transcriber.feature_extractor, known)
    short = (np.resize(sound("red"), RATE // 4), RATE)
    assert own([recordings[0].audio, short]) == transcriber([recordings[0].audio, short], SHORT)
    own([recordings[0].audio], max_seconds=2.5, min_seconds=0.0)
    assert [r.getMessage() for r in caplog.records] == [
        "sound 2 lasts 0.25 s, but the shortest recording that the run was trained on 1.00; expect errors"
    ]
    caplog.clear()
    own([recordings[0].audio], max_seconds=20.0)
    assert [r.getMessage() for r in caplog.records] == [
        "segments of up to 20 s are longer than what the run was trained on, 3 s with some reserve; expect errors, or "
        "leave out max_seconds"
    ]


def test_n_best_is_sorted_and_as_many_as_asked(transcriber, recordings):
    for transcript in transcriber.transcribe([r.audio for r in recordings[:2]], replace(SHORT, n_best=4)):
        scores = [output.score for output in transcript.segments[0].outputs]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


# Loops


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ([], False),
        ([4], False),
        ([4] * 23, False),  # a long number may be said
        ([4] * 24, True),
        ([7, 8, 4, 5, 6, *[1, 2, 3] * 8, 9], True),
        ([1, 2, 3] * 7, False),
        (list(range(11)) * 2, False),
        (list(range(11)) * 3, True),
        (list(range(40)) * 2 + list(range(39)), False),  # not quite three times
        (list(range(40)) * 3, True),
        (list(range(100)), False),
    ],
)
def test_a_loop_is_a_span_three_times_in_a_row(tokens, loop):
    assert loops(Hypothesis(tokens, -1.0, -1.0, True)) == loop
    assert loops(Hypothesis(tokens, -1.0, -1.0, False))  # without an end


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_repeats_itself_is_cut_and_said(transcriber, recordings, caplog, monkeypatch, beam_size):
    """Every position of the decoder gives the same state, so that one token is always the likeliest."""
    model = td.Transformer(transcriber.model.config).double().eval()
    with torch.no_grad():
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.copy_(torch.arange(20.0))
        model.output.copy_(model.output.abs() * -1.0)
        model.output[270] = 0.5  # always best, and EOS never
        model.output[EOS] = -99.0
        model.output[271] = 0.25
    rigged = td.Transcriber(model, transcriber.tokenizer, transcriber.feature_extractor)
    decoding = td.SearchConfig(beam_size=beam_size, length_ratio=1.0, length_extra=5)
    frames = [rigged.feature_extractor(read_audio(r.audio, RATE)) for r in recordings]
    found, decode = [], transcriber.tokenizer.decode
    monkeypatch.setattr(transcriber.tokenizer, "decode", lambda rows: found.extend(rows) or decode(rows))
    with caplog.at_level(logging.WARNING):
        rigged.transcribe([r.audio for r in recordings], decoding)
    first = f"{recordings[0].audio} from 0.0 s, {recordings[1].audio} from 0.0 s, "
    (told,) = [r.getMessage() for r in caplog.records if r.name == "transduce"]
    assert told.startswith(
        "8 of 8 utterances came out as a loop, or without an end, and were searched again with repetition blocked: "
        + first
    )
    assert told.endswith(f"{recordings[4].audio} from 0.0 s, ...")
    bounds = [-(-len(each) // 2) + 5 for each in frames]
    assert len(found) >= 8 and all(0 < len(row) <= max(bounds) for row in found)
    for row in found:
        assert max(Counter(zip(row, row[1:], row[2:], row[3:], strict=False)).values()) == 1


def test_what_ends_by_itself_is_not_searched_twice(transcriber, recordings, monkeypatch, caplog):
    calls = []
    search = td.Transcriber._search

    def ended(self, heard, decoding):
        calls.append(decoding.no_repeat_ngram)
        return [[replace(each, finished=True) for each in found] for found in search(self, heard, decoding)]

    monkeypatch.setattr(td.Transcriber, "_search", ended)
    transcriber([recordings[0].audio], replace(SHORT, no_repeat_ngram=0))
    assert calls == [0] and caplog.records == []


# What a run directory holds


@pytest.mark.parametrize("normalize", ["utterance", "none", "global"])
def test_the_front_end_of_a_run_is_the_one_it_was_saved_with(tmp_path, recordings, normalize):
    config = replace(FEATURES, n_mels=17, n_coefficients=10, deltas=1, hop=0.0125, normalize=normalize)
    numbers = {"mean": torch.randn(20), "std": torch.rand(20) + 0.5} if normalize == "global" else {}
    feature_extractor = FeatureExtractor(config, **numbers)
    loaded = td.load(random_speech_run(tmp_path / "run", feature_extractor)).feature_extractor
    assert loaded.config == config
    waveform = read_audio(recordings[0].audio, RATE)
    assert torch.equal(loaded(waveform), feature_extractor(waveform))
    assert (tmp_path / "run" / "features.safetensors").exists() == (normalize == "global")


def test_lost_statistics_are_told(tmp_path):
    feature_extractor = FeatureExtractor(
        replace(FEATURES, normalize="global"), mean=torch.zeros(10), std=torch.ones(10)
    )
    run = random_speech_run(tmp_path / "run", feature_extractor)
    (run / "features.safetensors").unlink()
    with pytest.raises(ValueError) as error:
        td.load(run)
    assert str(error.value) == (
        f"normalize=global needs the training data's mean and std, but {run} has no features.safetensors; "
        "copy the whole run directory"
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_known_words_alone_come_out(tmp_path, recordings, beam_size):
    """Of the run's lexicon.txt, which anybody may write."""
    run = random_speech_run(tmp_path / "run")
    (run / "lexicon.txt").write_text("red\ngreen  blue\n\n")
    transcriber, paths = td.load(run), [r.audio for r in recordings]
    how = {"length_ratio": 0.0, "length_extra": 30, "beam_size": beam_size}
    plain, out = transcriber(paths, **how), transcriber(paths, words="known", **how)
    assert not any({*text.split()} <= {"red", "green", "blue"} for text in plain if text)
    assert any(out)
    for text in out:
        *whole, last = text.split(" ")
        assert {*whole} - {""} <= {"red", "green", "blue"}
        assert any(word.startswith(last) for word in ("red", "green", "blue")), "the last one may be cut"
    (run / "lexicon.txt").unlink()
    with pytest.raises(
        ValueError, match=r"^words=known needs the lexicon of a run of speech to text, but this run has none"
    ):
        td.load(run)(paths, words="known")


def test_load_gives_what_was_trained(tmp_path):
    speech, text = random_speech_run(tmp_path / "speech"), random_run(tmp_path / "text")
    assert isinstance(td.load(speech), td.Transcriber) and isinstance(load_as(td.Transcriber, speech), td.Transcriber)
    assert isinstance(td.load(text), td.Translator) and isinstance(load_as(td.Translator, text), td.Translator)
    with pytest.raises(ValueError) as error:
        load_as(td.Translator, speech)
    assert str(error.value) == (
        f"translating takes a run of text to text, but {speech} transcribes; use transduce transcribe"
    )
    with pytest.raises(ValueError) as error:
        load_as(td.Transcriber, text)
    assert str(error.value) == (
        f"transcribing takes a run of speech to text, but {text} translates; use transduce translate"
    )
    (speech / "tokenizer.model").unlink(missing_ok=True)
    (speech / "target.model").unlink()
    with pytest.raises(ValueError) as error:
        td.load(speech)
    assert str(error.value) == f"text needs a tokenizer to come out, but {speech} has none"


def test_a_run_in_bf16_transcribes(tmp_path, recordings):
    transcriber = td.load(random_speech_run(tmp_path / "run"), dtype=torch.bfloat16)
    assert len(transcriber([r.audio for r in recordings[:2]], SHORT)) == 2


def test_vectors_instead_of_sound(tmp_path):
    run = random_speech_run(tmp_path / "run", VectorReader(VectorConfig(n_features=5, hop=0.02, normalize="none")))
    assert load_run(run).feature_extractor.config == VectorConfig(n_features=5, hop=0.02, normalize="none")
    transcriber = td.load(run, dtype=torch.float64)
    array = np.random.default_rng(1).normal(size=(31, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    (transcript,) = transcriber.transcribe([tmp_path / "a.npy"], SHORT)
    assert (transcript.segments[0].start, transcript.segments[0].stop) == (0.0, pytest.approx(0.62))
    assert transcript.segments[0].outputs == transcriber.decode([torch.from_numpy(array)], SHORT)[0]
    soundfile.write(tmp_path / "a.wav", sound("red"), RATE)
    (transcript,) = transcriber.transcribe([tmp_path / "a.wav"], SHORT)
    assert transcript.error.startswith(f"{tmp_path / 'a.wav'} cannot be read as vectors: ")
    (transcript,) = transcriber.transcribe([(sound("red"), RATE)], SHORT)
    assert transcript.error == "sound 1 cannot be used: this model takes vectors, not sound; name files (.npy)"


def test_long_vectors_are_cut_into_equal_parts_that_cover_them(tmp_path):
    """Of 0.02 s each, 131 vectors last 2.62 s: three parts of at most 1 s, and two of at most 1.32 s."""
    reader = VectorReader(VectorConfig(n_features=5, hop=0.02, normalize="none"))
    transcriber = td.load(random_speech_run(tmp_path / "run", reader), dtype=torch.float64)
    array = np.random.default_rng(1).normal(size=(131, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    for max_seconds, sizes in ((1.0, [43, 44, 44]), (1.32, [65, 66]), (2.62, [131])):
        (transcript,) = transcriber.transcribe([tmp_path / "a.npy"], replace(SHORT, max_seconds=max_seconds))
        first = 0
        for segment, size in zip(transcript.segments, sizes, strict=True):
            assert (segment.start, segment.stop) == pytest.approx((0.02 * first, 0.02 * (first + size)))
            (alone,) = transcriber.decode([torch.from_numpy(array[first : first + size])], SHORT)
            assert [o.text for o in segment.outputs] == [o.text for o in alone]
            first += size


def test_what_learned_positions_do_not_reach_is_refused_alone(transcriber, recordings):
    n = [-(-len(transcriber.feature_extractor(read_audio(r.audio, RATE))) // 2) for r in recordings]
    limit = sorted(n)[4]
    config = replace(transcriber.model.config, positions="learned", max_positions=limit)
    assert config.encoder.input == SPEECH.encoder.input
    small = td.Transcriber(td.Transformer(config).eval(), transcriber.tokenizer, transcriber.feature_extractor)
    got = small.transcribe([r.audio for r in recordings], SHORT)
    assert [bool(t.error) for t in got] == [each > limit for each in n]
    i = n.index(max(n))
    assert got[i].error.startswith(
        f"{recordings[i].audio} cannot be transcribed: the model's learned positions end at {limit}, but "
    )
    assert got[i].error.endswith(f" frames need {n[i]}; cut it into shorter segments (max_seconds)")
