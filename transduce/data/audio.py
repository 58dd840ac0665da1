"""Reads recordings of any libsndfile format as one channel at one sample rate; errors name the
file."""

import math
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import soundfile
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.config import BY_FFMPEG
from transduce.errors import InputError, logger, require

Waveform = Float[Tensor, " n"]
Block = Float[Tensor, " _"]
"""A part of a waveform."""

BLOCK = 2**20
"""Samples decoded at a time. A header may claim any length, so memory is allocated block by block
for the samples that exist."""

LONGEST_RATIO = 1000
"""The largest denominator of a resampling ratio, because the filters have about numerator *
denominator weights. 16000 / 44099 is rounded to 283 / 780."""

RATES = (1000, 768_000)
"""Sample rates that a header may claim, in Hz."""

MISSING = 0.1
"""Seconds that may be missing from a file without a warning, as the header of an MP3 is only an
estimate."""

SIZE_MISMATCH = re.compile(r"(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)")
"""libsndfile's log message about a WAV, AIFF or AU file whose size differs from its header. The
header of a file that was written to a pipe says 0x7FFF0000 or more, as its length was not known."""


def read_audio(path: Path, sample_rate: int) -> Waveform:
    """The waveform of a file, its channels averaged, at `sample_rate` Hz, in [-1, 1].

    A waveform that is louder than full scale (floats may be, and resampling overshoots) is scaled
    down as a whole. If a file is shorter than its header says, the existing samples are used, with
    a warning. That holds for WAV, AIFF, AU and MP3; a truncated Ogg file cannot be recognized.

    Raises:
        InputError: the file is missing, a directory, empty, not sound or damaged, or it has no
            samples, or NaN or infinite ones; the message names it.
    """
    waveform = torch.cat([*audio_blocks(path, sample_rate, name=str(path))])
    return waveform / scale(waveform.abs().max(), str(path))


def audio_blocks(sound: Path | BufferedIOBase, sample_rate: int, *, name: str) -> Iterator[Block]:
    """Yield the waveform of `read_audio` block by block, not yet scaled, so that memory does not
    grow with the recording.

    Args:
        sound: a path, or an open seekable file, whose position is restored at the end, even if not
            all blocks are read.
        name: its name in messages.

    Raises:
        InputError: as `read_audio`, except for NaN and infinite samples.
    """
    n = 0
    with opened(sound, name) as file:
        rate = file.samplerate
        _check_rate(rate, name, "correct the header or leave it out")
        average = torch.full((file.channels,), 1 / file.channels)
        frames = math.ceil(BLOCK / file.channels)

        def mono() -> Iterator[Block]:
            nonlocal n
            while len(block := file.read(frames, dtype="float32", always_2d=True)):
                n += len(block)
                yield torch.from_numpy(block) @ average

        yield from _at_rate(mono(), Fraction(sample_rate, rate))
        promised = file.frames / rate  # for a WAV, libsndfile counts the existing samples
        if (sizes := SIZE_MISMATCH.search(file.extra_info)) and int(sizes[1]) < 0x7FFF_0000:
            promised *= int(sizes[1]) / max(1, int(sizes[2]))
    if not n:
        raise InputError(
            f"{name} cannot be used: it has no samples; record it again or leave it out"
        )
    if promised - n / rate > MISSING:
        logger.warning(
            "%s is truncated: its header says %.2f s, but it has %.2f s; the existing part is used",
            name,
            promised,
            n / rate,
        )


def read_samples(
    samples: np.ndarray | Tensor, rate: int, sample_rate: int, *, name: str
) -> Waveform:
    """Samples of one channel, at `rate` Hz, as `audio_blocks` would read them from a file.

    Args:
        samples: floats of shape (n,) with full scale -1 ... 1, or integers of 16 or 32 bits with
            the full scale of their type.
        name: their name in messages.

    Raises:
        InputError: the samples or the rate are of another kind.
    """
    if isinstance(samples, np.ndarray):  # torch takes native byte order and positive strides only
        samples = np.array(samples, samples.dtype.newbyteorder("="))
    waveform = torch.as_tensor(samples)
    if waveform.dtype in (torch.int16, torch.int32):
        waveform = waveform / -float(torch.iinfo(waveform.dtype).min)
    if waveform.ndim != 1 or not len(waveform) or not waveform.is_floating_point():
        raise InputError(
            f"{name} cannot be used: samples must be floats, or integers of 16 or 32 bits, of "
            f"shape (n,), but they are {waveform.dtype} of shape {tuple(waveform.shape)}; average "
            "the channels, and give (samples, rate)"
        )
    _check_rate(rate, name, "give (samples, rate)")
    return change_rate(waveform.detach().cpu().float(), Fraction(sample_rate, int(rate)))


def _check_rate(rate: int, name: str, way_out: str) -> None:
    low, high = RATES
    if not low <= rate <= high:
        raise InputError(
            f"{name} cannot be used: its sample rate must lie in {low} ... {high} Hz, but it is "
            f"{rate}; {way_out}"
        )


def scale(loudest: Float[Tensor, ""], name: str) -> Float[Tensor, ""]:
    """The divisor that brings sound with this largest absolute sample into [-1, 1]: at least 1.

    Raises:
        InputError: the largest sample is NaN or infinite.
    """
    if not loudest.isfinite():  # resampling passes both on
        raise InputError(
            f"{name} cannot be used: it has NaN or infinite samples; convert it again or leave it "
            "out"
        )
    return loudest.clamp_min(1.0)


def sound_status(path: Path) -> os.stat_result:
    """The `stat` result of a file that exists and is not empty.

    Raises:
        InputError: the file is missing, not a regular file, not readable, or empty.
    """
    try:
        status = path.stat()
        if is_file := stat.S_ISREG(status.st_mode):
            path.open("rb").close()  # libsndfile would not say why it fails
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}; check the path") from error
    if not is_file or not status.st_size:
        kind = "the file is empty" if is_file else "it is a directory or a device"
        raise InputError(
            f"{path} cannot be read as sound: {kind}; name a sound file, or leave it out"
        )
    return status


def change_rate(waveform: Waveform, ratio: Fraction) -> Float[Tensor, " m"]:
    """Resample to m = ceil(ratio * n) samples with a windowed sinc (see LONGEST_RATIO).

    It works block by block, because an hour at 48 kHz would take 5 GB at once.
    """
    return torch.cat(list(_at_rate(iter([waveform]), ratio)))


def change_speed(waveform: Waveform, speed: float) -> Float[Tensor, " m"]:
    """The waveform played `speed` times as fast: m = ceil(n / speed) samples. Tempo and pitch
    change together.

    Source: Ko et al. (2015), Audio augmentation for speech recognition.
    """
    return change_rate(waveform, 1 / Fraction(speed).limit_denominator(100))


def _at_rate(blocks: Iterator[Block], ratio: Fraction) -> Iterator[Block]:
    """Resample sound that is given block by block; the samples do not depend on the block
    borders."""
    ratio = ratio.limit_denominator(LONGEST_RATIO)
    if ratio == 1:
        yield from blocks
        return
    from torchaudio.functional import resample

    up, down = ratio.numerator, ratio.denominator
    step = down * math.ceil(BLOCK / down)
    margin = 8 * down  # torchaudio's filters reach 6.1 * down / min(up, down)
    buffer = torch.zeros(0)
    done = 0  # samples of the buffer that were resampled before
    needed = step + margin
    for block in chain(blocks, [None]):
        if block is None:
            needed = 1
        else:
            buffer = torch.cat([buffer, block])
        while len(buffer) - done >= needed:
            part = resample(buffer[: done + step + margin], down, up)
            first = done // down * up
            yield part[first : first + step // down * up]
            buffer = buffer[done + step - margin :]
            done = margin


@contextmanager
def opened(sound: Path | BufferedIOBase, name: str) -> Iterator[soundfile.SoundFile]:
    """An open sound file. Errors of libsndfile, now or while it is read, become a ValueError."""
    if isinstance(sound, Path):
        sound_status(sound)
        if sound.suffix.lower() in BY_FFMPEG:
            with _decoded(sound) as decoded, opened(decoded, name) as file:
                yield file
            return
    start = sound.tell() if isinstance(sound, BufferedIOBase) and sound.seekable() else None
    try:
        # soundfile encodes names as UTF-8, but names on a disk may have other bytes
        with soundfile.SoundFile(os.fsencode(sound) if isinstance(sound, Path) else sound) as file:
            yield file
    except (
        soundfile.SoundFileError,
        TypeError,
    ) as error:  # TypeError: a format without header, such as .raw
        message = str(getattr(error, "error_string", error))
        raise InputError(
            f"{name} cannot be read as sound: it is damaged or of an unknown format (libsndfile: "
            f"{message.strip().rstrip('.')}); convert it to WAV or leave it out"
        ) from error
    finally:
        if isinstance(sound, BufferedIOBase) and start is not None:
            sound.seek(start)


@contextmanager
def _decoded(path: Path) -> Iterator[Path]:
    """Decode the sound of a file with FFmpeg into a temporary file.

    Raises:
        InputError: FFmpeg is not installed, or finds no sound.
    """
    program = shutil.which("ffmpeg")
    if program is None:
        raise InputError(
            f"{path} cannot be read as sound: {path.suffix} needs FFmpeg, which is not installed; "
            "install it (apt install ffmpeg, brew install ffmpeg), or convert the file to WAV"
        )
    with NamedTemporaryFile(suffix=".w64") as file:  # .wav is limited to 4 GB
        command = [program, "-nostdin", "-v", "error", "-y", "-i", f"file:{path}", "-vn", file.name]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise InputError(
                f"{path} cannot be read as sound: FFmpeg says "
                f"{last_line or f'nothing (status {done.returncode})'}; convert it to WAV or leave "
                "it out"
            )
        yield Path(file.name)


def record(wait: Callable[[], object]) -> tuple[Float[np.ndarray, " n"], int]:
    """Record the default microphone: the samples of one channel, and their rate in Hz.

    Args:
        wait: recording lasts until this function returns.

    Raises:
        InputError: sounddevice is not installed, or there is no microphone, or it delivered no
            sound.
    """
    require("sounddevice", "a microphone", "microphone")

    try:
        import sounddevice  # importing it looks for devices
    except OSError as error:
        raise InputError(
            f"a microphone needs PortAudio, but {error}; install it, such as libportaudio2 of "
            "Debian, or name a sound file"
        ) from error
    blocks: list[Float[np.ndarray, "n 1"]] = []

    def keep(block: Float[np.ndarray, "n 1"], *_: Any) -> None:
        blocks.append(block.copy())  # the library reuses its buffer

    try:
        rate = int(sounddevice.query_devices(kind="input")["default_samplerate"])
        with sounddevice.InputStream(samplerate=rate, channels=1, dtype="float32", callback=keep):
            wait()
    except sounddevice.PortAudioError as error:
        raise InputError(
            f"recording needs a microphone, but {error}; plug one in, or name a sound file"
        ) from error
    if not blocks:
        raise InputError(
            "a microphone must deliver sound, but nothing was recorded; check the system's sound "
            "settings"
        )
    return np.concatenate(blocks)[:, 0], rate
