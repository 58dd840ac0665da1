"""What the directory of a run of speech to text holds: features or vectors, statistics, a lexicon, positions."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import FEATURES, RATE, SPEECH, random_speech_run, sound
from transduce.data.audio import read_audio
from transduce.data.features import FeatureExtractor, VectorConfig, VectorReader
from transduce.run import load_run
from transduce.tasks.load import load_as

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, no_repeat_ngram=4)  # no second search


@pytest.mark.parametrize("normalize", ["utterance", "none", "global"])
def test_feature_extractor_survives_saving_and_loading(tmp_path, recordings, normalize):
    config = replace(FEATURES, n_mels=17, n_coefficients=10, deltas=1, hop=0.0125, normalize=normalize)
    numbers = {"mean": torch.randn(20), "std": torch.rand(20) + 0.5} if normalize == "global" else {}
    feature_extractor = FeatureExtractor(config, **numbers)
    loaded = td.load(random_speech_run(tmp_path / "run", feature_extractor)).feature_extractor
    assert loaded.config == config
    waveform = read_audio(recordings[0].audio, RATE)
    assert torch.equal(loaded(waveform), feature_extractor(waveform))
    assert (tmp_path / "run" / "features.safetensors").exists() == (normalize == "global")


def test_missing_feature_statistics_are_an_error(tmp_path):
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
def test_words_known_restricts_outputs_to_the_lexicon(tmp_path, recordings, beam_size):
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


def test_load_returns_the_task_of_the_run(speech_run, text_run, tmp_path):
    speech, text = shutil.copytree(speech_run, tmp_path / "speech"), text_run
    assert isinstance(td.load(speech), td.Transcriber) and isinstance(load_as(td.Transcriber, speech), td.Transcriber)
    assert isinstance(td.load(text), td.Translator) and isinstance(load_as(td.Translator, text), td.Translator)
    with pytest.raises(ValueError) as error:
        load_as(td.Translator, speech)
    assert str(error.value) == (
        f"translating takes a run of text to text, but {speech} transcribes; use transduce transcribe"
    )
    with pytest.raises(ValueError, match=f"{re.escape(str(text))} translates; use transduce translate$"):
        load_as(td.Transcriber, text)
    (speech / "target.model").unlink()
    with pytest.raises(ValueError, match=f"tokenizer .*{re.escape(str(speech))} has none$"):
        td.load(speech)


def test_a_run_in_bf16_transcribes(speech_run, recordings):
    transcriber = td.load(speech_run, dtype=torch.bfloat16)
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


def test_long_vectors_are_cut_into_equal_segments(tmp_path):
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


def test_recordings_beyond_learned_positions_fail_alone(transcriber, recordings):
    n = [-(-len(transcriber.feature_extractor(read_audio(r.audio, RATE))) // 2) for r in recordings]
    limit = sorted(n)[4]
    config = replace(transcriber.model.config, positions="learned", max_positions=limit)
    assert config.encoder.input == SPEECH.encoder.input
    small = td.Transcriber(td.Transformer(config).eval(), transcriber.tokenizer, transcriber.feature_extractor)
    got = small.transcribe([r.audio for r in recordings], SHORT)
    assert [bool(t.error) for t in got] == [each > limit for each in n]
    i = n.index(max(n))
    assert got[i].error == (
        f"{recordings[i].audio} cannot be transcribed: a segment must fit into the model's learned positions, which end "
        f"at {limit}, but it takes {n[i]}; lower max_seconds"
    )
