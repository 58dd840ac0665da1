"""The sound that ships, and the script that made it."""

import re
import shutil
import struct
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile

from scripts.corpora import make_sound
from transduce.data.manifest import read_manifest

COMMANDS = Path(__file__).resolve().parents[3] / "recipes" / "data" / "commands"
SIZES = {"train": 1100, "valid": 100, "test": 150}


@pytest.fixture(scope="module")
def shipped():
    return {split: read_manifest(COMMANDS / "sound" / f"{split}.tsv") for split in SIZES}


@pytest.fixture(scope="module")
def planned():
    return make_sound.plan(make_sound.SEED)


def test_the_commands_take_less_than_6_megabytes():
    assert sum(path.stat().st_size for path in COMMANDS.rglob("*") if path.is_file()) < 6_000_000


def test_every_file_is_in_a_manifest(shipped):
    assert {split: len(recordings) for split, recordings in shipped.items()} == SIZES
    named = {r.audio for recordings in shipped.values() for r in recordings}
    assert named == set((COMMANDS / "sound").rglob("*.opus"))


@pytest.mark.long
def test_durations_equal_those_of_the_manifests(shipped):
    for recordings in shipped.values():
        for r in recordings:
            info = soundfile.info(r.audio)
            assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "OPUS")
            assert info.frames / 16000 == pytest.approx(r.seconds, abs=6e-4)  # written to the millisecond


def test_every_file_decodes_to_speech_between_two_short_silences(shipped):
    for r in [r for recordings in shipped.values() for r in recordings][::45]:
        sound, _ = soundfile.read(r.audio)
        assert len(sound) / 16000 == pytest.approx(r.seconds, abs=6e-4)  # written to the millisecond
        assert 0.3 < np.abs(sound).max() < 1.1 and np.isfinite(sound).all()
        assert 0.5 < r.seconds < 5 and 1.2 < len(r.text.split()) / (r.seconds - 0.2) < 7  # words a second
        loud = np.flatnonzero(np.abs(sound) > 0.05 * np.abs(sound).max()) / 16000
        assert loud[0] < 0.4 and r.seconds - loud[-1] < 0.6


def test_high_frequencies_survive_in_every_split(shipped):
    """At too low a rate, Opus leaves nothing above 4 kHz, and s and f sound alike."""
    for recordings in shipped.values():
        for r in recordings[::74]:
            sound, _ = soundfile.read(r.audio)
            power = np.abs(np.fft.rfft(sound)) ** 2
            hertz = np.fft.rfftfreq(len(sound), 1 / 16000)
            share = power[hertz > 4500].sum() / power.sum()
            assert share > 1e-5, (r.id, r.speaker, share)


def test_no_voice_and_no_sentence_is_in_two_splits(shipped):
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        for part in (lambda r: r.speaker, lambda r: r.speaker.split("+")[1], lambda r: r.text):
            assert not set(map(part, shipped[one])) & set(map(part, shipped[other]))
    accents = {split: {r.speaker.split("+")[0] for r in recordings} for split, recordings in shipped.items()}
    assert not accents["test"] & (accents["train"] | accents["valid"])


def test_voices_speak_equally_many_sentences(shipped):
    voices = {split: Counter(r.speaker for r in recordings) for split, recordings in shipped.items()}
    assert {split: len(counts) for split, counts in voices.items()} == {"train": 24, "valid": 4, "test": 6}
    assert all(max(counts.values()) - min(counts.values()) <= 1 for counts in voices.values())
    for split in ("valid", "test"):  # a sentence is said twice, by different voices
        said = {(r.text, r.speaker) for r in shipped[split]}
        assert len(said) == SIZES[split] and len({text for text, _ in said}) == SIZES[split] // 2


def test_words_of_valid_and_test_are_frequent_in_train(shipped):
    counts = Counter(word for r in shipped["train"] for word in r.text.split())
    by = Counter(word for word, _ in {(word, r.speaker) for r in shipped["train"] for word in r.text.split()})
    for split in ("valid", "test"):
        words = {word for r in shipped[split] for word in r.text.split()}
        assert min(counts[word] for word in words) >= 10
        assert min(by[word] for word in words) >= 8
    assert len(counts) <= 110


def test_texts_and_translations_are_those_of_the_corpus_split(shipped):
    for split, recordings in shipped.items():
        english, german = (
            (COMMANDS / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")
        )
        plain = {re.sub(r"[.,?]", "", en).lower(): de for en, de in zip(english, german, strict=True)}
        for r in recordings:
            assert r.columns == {"german": plain[r.text]}
            assert 3 <= len(r.text.split()) <= 8


@pytest.mark.long
def test_manifests_equal_the_plan_of_the_script(shipped, planned):
    for split, recordings in shipped.items():
        assert [(r.id, r.text, r.speaker, r.columns["german"]) for r in recordings] == [
            (u.id, u.text, u.voice, u.german) for u in planned[split]
        ]


@pytest.mark.long
def test_another_seed_makes_another_corpus(planned):
    assert make_sound.plan(1) != planned


@pytest.mark.long
def test_speed_and_pitch_cover_their_ranges(planned):
    for value, (low, high) in (("speed", (140, 200)), ("pitch", (35, 65))):
        values = [getattr(u, value) for u in planned["train"]]
        assert (min(values), max(values)) == (low, high)
        assert np.mean(values) == pytest.approx((low + high) / 2, rel=0.03)


def pages(stream):
    """Header and body of each Ogg page."""
    got, start = [], 0
    while start < len(stream):
        assert stream[start : start + 4] == b"OggS"
        n = stream[start + 26]
        body = start + 27 + n
        stop = body + sum(stream[start + 27 : body])
        got.append((stream[start:body], stream[body:stop]))
        start = stop
    return got


def remainder(page):
    """CRC-32 of Ogg by long division, bit after bit."""
    bits = int.from_bytes(page + bytes(4), "big")
    for shift in range(len(page) * 8 - 1, -1, -1):
        if bits >> (shift + 32) & 1:
            bits ^= 0x104C11DB7 << shift
    return bits


def test_opus_streams_are_deterministic_and_decode_like_soundfile():
    sound = (0.5 * np.sin(np.arange(16000) / 20 * (1 + np.arange(16000) / 16000))).astype(np.float32)
    ours = make_sound.opus(sound, serial=7)
    assert ours == make_sound.opus(sound, serial=7)
    file = BytesIO()
    how = {"format": "OGG", "subtype": "OPUS", "compression_level": make_sound.COMPRESSION}
    soundfile.write(file, sound, 16000, **how)
    theirs = file.getvalue()
    np.testing.assert_array_equal(soundfile.read(BytesIO(ours))[0], soundfile.read(BytesIO(theirs))[0])
    assert len(ours) < len(theirs) - 700
    for header, body in pages(ours):
        assert struct.unpack_from("<I", header, 14) == (7,)
        assert struct.unpack_from("<I", header, 22) == (remainder(header[:22] + bytes(4) + header[26:] + body),)


def test_ogg_streams_have_distinct_serial_numbers(shipped):
    serials = [struct.unpack_from("<I", r.audio.read_bytes(), 14)[0] for r in shipped["train"]]
    assert serials == list(range(1100))
    assert len(pages(shipped["test"][0].audio.read_bytes())) >= 3


def test_missing_espeak_is_an_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["make_sound.py", "--output", str(tmp_path / "sound")])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert make_sound.main() == 2
    said = "transduce: espeak-ng must be installed, but is not; try: apt install espeak-ng\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "sound").exists()


def spoken(u: make_sound.Utterance) -> np.ndarray:
    return make_sound.speak(u.english, u.voice, u.speed, u.pitch)


needs_espeak = pytest.mark.skipif(not shutil.which("espeak-ng"), reason="needs espeak-ng")


@needs_espeak
@pytest.mark.process
def test_shipped_audio_matches_espeak(shipped, planned):
    """Decoded sound against the waveform: the same contour of loudness (10 ms), word for word."""
    for split, i in (("train", 3), ("valid", 4), ("test", 5)):
        said, (kept, _) = spoken(planned[split][i]), soundfile.read(shipped[split][i].audio)
        n = min(len(said), len(kept)) // 160 * 160
        contours = [np.sqrt((x[:n].reshape(-1, 160) ** 2).mean(axis=1)) for x in (said, kept)]
        assert abs(len(said) - len(kept)) < 160
        assert np.corrcoef(contours)[0, 1] > 0.95


@needs_espeak
@pytest.mark.process
def test_unknown_espeak_voice_is_an_error(planned):
    with pytest.raises(ValueError) as error:
        spoken(replace(planned["test"][0], voice="xx-nowhere+m3"))
    assert str(error.value).startswith("espeak-ng must speak as xx-nowhere+m3, but says ")
    assert str(error.value).endswith("; try version 1.51")


def test_vocabulary_drops_the_word_in_the_fewest_sentences(monkeypatch):
    """By brute force: of three words, the one in the fewest held-out sentences goes."""
    monkeypatch.setattr(make_sound, "N_WORDS", 2)
    held_out = [["a", "b"], ["a", "c"], ["a", "b"], ["two", "a"]]
    assert make_sound.vocabulary(held_out, [["c", "c"], ["c"]]) == {"a", "b"}
