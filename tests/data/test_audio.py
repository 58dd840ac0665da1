"""Whatever lies in a folder of recordings: it is read at the right rate and level, or refused by its name."""

import math
import os
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torchaudio.functional import resample

from tests.limits import without_files
from transduce.data import audio
from transduce.data.audio import change_rate, read_audio, read_samples


def tone(rate: int, seconds: float, *, hertz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return level * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def noise(n: int, *, level: float = 0.1) -> np.ndarray:
    return np.clip(level * np.random.default_rng(n).standard_normal(n), -1, 1)


def write(path: Path, samples: np.ndarray, rate: int = 16000, subtype: str | None = None) -> Path:
    soundfile.write(path, samples, rate, subtype=subtype)
    return path


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "transduce"]


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read_audio(path, 16000)
    message = str(caught.value)
    assert message.startswith(f"{path} ") and "\n" not in message
    return message.removeprefix(f"{path} ")


@pytest.mark.parametrize(
    ("ending", "subtype", "tolerance"),
    [
        ("wav", "PCM_16", 2**-15), ("wav", "PCM_U8", 2**-7), ("wav", "PCM_24", 2**-23), ("wav", "FLOAT", 1e-7),
        ("wav", "DOUBLE", 1e-7), ("wav", "ULAW", 2**-6), ("flac", "PCM_16", 2**-15), ("flac", "PCM_S8", 2**-7),
        ("aiff", "PCM_16", 2**-15), ("au", "PCM_16", 2**-15), ("ogg", "VORBIS", 0.02), ("ogg", "OPUS", 0.05),
        ("mp3", "MPEG_LAYER_III", 0.02),
    ],
)  # fmt: skip
def test_every_format_returns_the_written_samples(tmp_path, ending, subtype, tolerance, caplog):
    samples = tone(16000, 0.5)
    path = write(tmp_path / f"a.{ending}", samples, subtype=subtype)
    got = read_audio(path, 16000)
    assert got.dtype == torch.float32 and len(got) == len(samples)
    middle = slice(1000, -1000)  # lossy formats fade in and out
    np.testing.assert_allclose(got.numpy()[middle], samples[middle], rtol=0, atol=tolerance)
    assert messages(caplog) == []


def test_channels_are_averaged(tmp_path):
    left, right, rear = noise(5000), noise(5001)[:5000], noise(5002)[:5000]
    for channels in ([left, right], [left, right, rear]):
        path = write(tmp_path / "a.wav", np.stack(channels, axis=1), subtype="FLOAT")
        np.testing.assert_allclose(read_audio(path, 16000).numpy(), sum(channels) / len(channels), rtol=0, atol=1e-6)


@pytest.mark.parametrize("wanted", [8000, 16000])
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 32000, 44099, 44100, 48000, 96000])
def test_resampling_from_any_rate_keeps_the_tone(tmp_path, rate, wanted):
    """The tone at the wanted rate is known without resampling. The filter's edges are left out."""
    path = write(tmp_path / "a.wav", tone(rate, 1.0), rate, "FLOAT")
    got = read_audio(path, wanted).numpy()
    assert abs(len(got) - wanted) <= 1
    middle = slice(100, wanted - 100)
    np.testing.assert_allclose(got[middle], tone(wanted, 1.0)[middle], rtol=0, atol=0.01)


def test_resampling_removes_frequencies_above_nyquist(tmp_path):
    """7 kHz at 8000 Hz would fold down to 1 kHz."""
    path = write(tmp_path / "a.wav", tone(16000, 1.0, hertz=7000), subtype="FLOAT")
    assert read_audio(path, 8000)[100:-100].abs().max() < 0.005


def test_a_long_file_of_many_channels_is_read_completely(tmp_path):
    """More than one block of 2^20 numbers."""
    samples = np.random.default_rng(1).integers(-9000, 9000, size=(170_001, 7), dtype=np.int16)
    path = write(tmp_path / "a.wav", samples)
    np.testing.assert_allclose(read_audio(path, 16000).numpy(), samples.mean(axis=1) / 2**15, rtol=0, atol=1e-6)


def test_samples_above_full_scale_are_scaled_not_clipped(tmp_path):
    samples = tone(16000, 0.1, level=3e4)
    got = read_audio(write(tmp_path / "a.wav", samples, subtype="FLOAT"), 16000).numpy()
    np.testing.assert_allclose(got, samples / np.abs(samples).max(), rtol=0, atol=1e-6)
    square = np.where(tone(44100, 0.5) > 0, 1.0, -1.0)  # overshoots when resampled
    assert read_audio(write(tmp_path / "b.wav", square, 44100), 16000).abs().max() == 1


def test_arrays_of_any_stride_and_byte_order_give_the_same_samples():
    """Backwards, of the other byte order, or that nobody may write, as those of a microphone's bytes are."""
    plain = (1000 * tone(8000, 0.1)).astype("<i2")
    want = read_samples(plain, 8000, 8000, name="x")
    np.testing.assert_array_equal(want.numpy(), plain / 2**15)
    for array in (
        plain[::-1][::-1],
        plain[::-1].copy()[::-1],
        plain.astype(">i2"),
        np.frombuffer(plain.tobytes(), "<i2"),
    ):
        assert torch.equal(read_samples(array, 8000, 8000, name="x"), want)


def test_silence_is_read_as_zeros(tmp_path):
    assert torch.equal(read_audio(write(tmp_path / "a.wav", np.zeros(100)), 16000), torch.zeros(100))


def test_missing_files_directories_and_pipes_are_refused(tmp_path):
    assert refusal(tmp_path / "none.wav") == "cannot be read: No such file or directory; check the path"
    assert "it is a directory or a device" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.wav")  # opening it would wait for a writer
    assert "it is a directory or a device" in refusal(tmp_path / "pipe.wav")


def test_too_many_open_files_is_not_reported_as_damage(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(100), 8000)
    with without_files():
        assert refusal(path) == "cannot be read: Too many open files; check the path"


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.wav").touch()
    assert "the file is empty" in refusal(tmp_path / "a.wav")


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.raw", "a"])
def test_a_file_that_is_not_audio_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"once upon a time\n" * 50)
    assert "it is damaged or of an unknown format (libsndfile: " in refusal(tmp_path / name)


def test_audio_without_samples_is_refused(tmp_path):
    path = write(tmp_path / "a.wav", np.zeros(0))
    assert "it has no samples" in refusal(path)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_nan_or_infinite_samples_are_refused(tmp_path, bad):
    """Wherever it stands, and whether the rate is another one or not."""
    for rate in (8000, 16000, 48000, 44100):
        for at in (0, 777, -1):
            samples = tone(rate, 0.1)
            samples[at] = bad
            path = write(tmp_path / "a.wav", samples, rate, "DOUBLE")
            assert "it has NaN or infinite samples" in refusal(path), (rate, at)


@pytest.mark.parametrize(
    ("ending", "subtype"),
    [
        ("wav", "PCM_16"), ("wav", "PCM_24"), ("wav", "FLOAT"), ("wav", "ULAW"), ("aiff", "PCM_16"), ("au", "PCM_16"),
        ("mp3", "MPEG_LAYER_III"),
    ],
)  # fmt: skip
def test_a_truncated_file_is_read_with_a_warning(tmp_path, ending, subtype, caplog):
    path = write(tmp_path / f"a.{ending}", noise(32000), subtype=subtype)
    whole, raw = read_audio(path, 16000), path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    got = read_audio(path, 16000)
    assert 0.4 * len(whole) < len(got) < 0.51 * len(whole)
    torch.testing.assert_close(got, whole[: len(got)], rtol=0, atol=1e-6)
    (said,) = messages(caplog)
    assert str(path) in said and "2.00 s" in said and f"{len(got) / 16000:.2f} s;" in said
    path.write_bytes(raw[:20])
    assert refusal(path).startswith("cannot be read as sound: ")


@pytest.mark.parametrize("size", [2**31 - 4096, 2**31 - 2, 2**31, 2**32 - 1])
def test_placeholder_sizes_of_streamed_wav_give_no_warning(tmp_path, size, caplog):
    """Its writer could not go back to put the size in."""
    path = write(tmp_path / "a.wav", noise(32000))
    raw = bytearray(path.read_bytes())
    assert raw[36:40] == b"data"
    raw[40:44] = struct.pack("<I", size)
    path.write_bytes(raw)
    assert len(read_audio(path, 16000)) == 32000
    assert messages(caplog) == []


DAMAGED = {
    ("flac", "cut"): False, ("flac", "overwritten"): False, ("flac", "promise"): False,
    ("ogg", "cut"): True, ("ogg", "overwritten"): True, ("ogg", "promise"): False,
    ("opus", "cut"): True, ("opus", "overwritten"): True, ("opus", "promise"): False,
    ("mp3", "cut"): True, ("mp3", "overwritten"): True, ("mp3", "promise"): True,
}  # fmt: skip
"""Can it be decoded up to the damage?"""


@pytest.mark.parametrize("ending", ["flac", "ogg", "opus", "mp3"])
def test_a_damaged_compressed_file_is_read_up_to_the_damage_or_refused(tmp_path, ending):
    path, n = tmp_path / f"a.{ending}", 160_000
    kind = {"format": "OGG", "subtype": "OPUS"} if ending == "opus" else {}
    soundfile.write(path, noise(n), 16000, **kind)
    whole, good = read_audio(path, 16000), path.read_bytes()
    half = len(good) // 2
    promise = bytes([good[21] | 0x0F])  # of a FLAC: 2^36 samples; of an MP3: 2^27 frames; of an Ogg: a wrong checksum
    for damage, raw, least, most in (
        ("cut", good[:half], 0.35, 0.5),  # a page is up to 1.5 s
        ("overwritten", good[:half] + bytes(300) + good[half + 300 :], 0.35, 1.0),
        ("promise", good[:21] + promise + good[22:], 1.0, 1.01),
    ):
        path.write_bytes(raw)
        if not DAMAGED[ending, damage]:
            message = refusal(path)
            assert message.startswith("cannot be read as sound: it is damaged or of an unknown format"), damage
            continue
        got = read_audio(path, 16000)
        assert least * n <= len(got) <= most * n, damage
        same = len(got) if damage == "cut" else round(least * n)
        torch.testing.assert_close(got[:same], whole[:same], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [100, 2**31 - 2])
def test_an_impossible_sample_rate_is_refused(tmp_path, rate):
    path = write(tmp_path / "a.wav", noise(3200))
    raw = bytearray(path.read_bytes())
    raw[24:28] = struct.pack("<I", rate)
    path.write_bytes(raw)
    assert refusal(path) == (
        f"cannot be used: its sample rate must lie in 1000 ... 768000 Hz, but it is {rate}; "
        "correct the header or leave it out"
    )


def test_an_odd_rate_needs_no_giant_filter(tmp_path):
    """16000 : 44099 have no common factor, and the filters for exactly that ratio would take gigabytes."""
    path = write(tmp_path / "a.wav", noise(2000), 44099)
    assert len(read_audio(path, 16000)) == pytest.approx(2000 * 16000 / 44099, abs=1)


@pytest.mark.parametrize("ratio", [Fraction(1, 3), Fraction(160, 441), Fraction(2), Fraction(10, 9), Fraction(1, 48)])
def test_resampling_in_blocks_equals_resampling_at_once(ratio, monkeypatch):
    """Block by block, with no seam: less than a block, a little more, and several; and blocks as they are."""
    for block, n in ((2**12, 2**12 - 1), (2**12, 2**12 + 50), (2**12, 5 * 2**12 + 777), (audio.BLOCK, 2**20 + 50)):
        monkeypatch.setattr(audio, "BLOCK", block)
        waveform = torch.from_numpy(noise(n)).float()
        want = resample(waveform, ratio.denominator, ratio.numerator)
        torch.testing.assert_close(change_rate(waveform, ratio), want, rtol=0, atol=1e-6)


def test_the_same_rate_changes_nothing(rng):
    waveform = torch.randn(100, generator=rng)
    assert torch.equal(change_rate(waveform, Fraction(1)), waveform)
