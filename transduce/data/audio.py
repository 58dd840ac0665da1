"""Recordings of any libsndfile format as one channel at one rate; errors name the file that cannot
be used."""

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
"""Samples decoded at once. A header may promise any length, so memory is taken block by block for
what is there."""

LONGEST_RATIO = 1000
"""The largest b of a ratio a : b, as its filters have about a * b weights. 16000 : 44099 is rounded
to 283 : 780."""

RATES = (1000, 768_000)
"""Sample rates that a header may claim, in Hz."""

MISSING = 0.1
"""Seconds that may be missing from a file without a warning, as the header of an MP3 is only an
estimate."""

CUT = re.compile(r"(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)")
"""libsndfile's remark on a WAV, AIFF or AU file that holds another number of bytes than its header
says. One that was written to a pipe says 0x7FFF0000 or more, as its length was not known."""


def read_audio(path: Path, sample_rate: int) -> Waveform:
    """The waveform of a file, its channels averaged, at `sample_rate` Hz, in [-1, 1].

    A waveform that is louder than full scale (floats may be, and resampling overshoots) is scaled
    down as a whole. If a file ends before its header says, the samples that are there are used,
    with a warning. That holds for WAV, AIFF, AU and MP3; a cut Ogg file looks whole.

    Raises:
        InputError: the file is missing, a directory, empty, not sound or damaged, or it has no
            samples, or NaN or infinite ones; the message names it.
    """
    waveform = torch.cat([*audio_blocks(path, sample_rate, name=str(path))])
    return waveform / scale(waveform.abs().max(), str(path))


def audio_blocks(sound: Path | BufferedIOBase, sample_rate: int, *, name: str) -> Iterator[Block]:
    """The waveform of `read_audio`, block by block and not yet scaled, so that a long recording
    takes no more memory.

    Args:
        sound: a file, or an open one that can seek. An open file is afterwards where it was before,
            also if the last blocks are not needed.
        name: stands for it in messages.

    Raises:
        InputError: as `read_audio`, but for NaN and infinite samples.
    """
    n = 0
    with _opened(sound, name) as file:
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
        promised = file.frames / rate  # of a WAV, libsndfile counts the samples that are there
        if (cut := CUT.search(file.extra_info)) and int(cut[1]) < 0x7FFF_0000:
            promised *= int(cut[1]) / max(1, int(cut[2]))
    if not n:
        raise InputError(
            f"{name} cannot be used: it has no samples; record it again or leave it out"
        )
    if promised - n / rate > MISSING:
        logger.warning(
            "%s is cut short: its header promises %.2f s, but it holds %.2f; what is there is used",
            name,
            promised,
            n / rate,
        )


def read_samples(
    samples: np.ndarray | Tensor, rate: int, sample_rate: int, *, name: str
) -> Waveform:
    """Samples of one channel, at `rate` Hz, as `audio_blocks` would read them from a file.

    Args:
        samples: floats of shape (n,), full scale being -1 ... 1; or integers of 16 or 32 bits,
            which have their own.
        name: stands for them in messages.

    Raises:
        InputError: samples or rate are something else.
    """
    if isinstance(samples, np.ndarray):  # as torch has them: of this machine's bytes, ascending
        samples = np.array(samples, samples.dtype.newbyteorder("="))
    waveform = torch.as_tensor(samples)
    if waveform.dtype in (torch.int16, torch.int32):
        waveform = waveform / -float(torch.iinfo(waveform.dtype).min)
    if (
        waveform.shape != (waveform.numel(),)
        or not len(waveform)
        or not waveform.is_floating_point()
    ):
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
    """The divisor of sound whose loudest sample is so far from 0: at least 1.

    Raises:
        InputError: that is NaN or infinite.
    """
    if not loudest.isfinite():  # resampling passes both on
        raise InputError(
            f"{name} cannot be used: it has NaN or infinite samples; convert it again or leave it "
            "out"
        )
    return loudest.clamp_min(1.0)


def sound_status(path: Path) -> os.stat_result:
    """Size and time of a file that exists and is not empty.

    Raises:
        InputError: the file is missing, not a regular file, not readable, or empty.
    """
    try:
        status = path.stat()
        if is_file := stat.S_ISREG(status.st_mode):
            path.open("rb").close()  # libsndfile does not say why it cannot
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
    """The same sound in m = ceil(ratio * n) samples, by a windowed sinc (see LONGEST_RATIO).

    It is resampled block by block, as an hour at 48 kHz would take 5 GB at once.
    """
    return torch.cat(list(_at_rate(iter([waveform]), ratio)))


def change_speed(waveform: Waveform, speed: float) -> Float[Tensor, " m"]:
    """The waveform played `speed` times as fast: m = ceil(n / speed) samples. Tempo and pitch
    change together.

    Source: Ko et al. (2015), Audio augmentation for speech recognition.
    """
    return change_rate(waveform, 1 / Fraction(speed).limit_denominator(100))


def _at_rate(blocks: Iterator[Block], ratio: Fraction) -> Iterator[Block]:
    """The same sound at another rate, in blocks that do not depend on the borders of those
    given."""
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
def _opened(sound: Path | BufferedIOBase, name: str) -> Iterator[soundfile.SoundFile]:
    """An open sound file. Errors of libsndfile, now or while it is read, become a ValueError."""
    if isinstance(sound, Path):
        sound_status(sound)
        if sound.suffix.lower() in BY_FFMPEG:
            with _decoded(sound) as decoded, _opened(decoded, name) as file:
                yield file
            return
    start = sound.tell() if isinstance(sound, BufferedIOBase) and sound.seekable() else None
    try:
        # soundfile itself turns a name into UTF-8, which not every name on a disk is
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
    """A temporary file of the sound of a file that FFmpeg reads.

    Raises:
        InputError: FFmpeg is not installed, or finds no sound.
    """
    program = shutil.which("ffmpeg")
    if program is None:
        raise InputError(
            f"{path} cannot be read as sound: {path.suffix} needs FFmpeg, which is not installed; "
            "install it (apt install ffmpeg, brew install ffmpeg), or convert the file to WAV"
        )
    with NamedTemporaryFile(suffix=".w64") as file:  # .wav ends at 4 GB
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
    """Sound of the default microphone, one channel, at its own rate in Hz.

    Args:
        wait: what is recorded until it returns.

    Raises:
        InputError: sounddevice is not installed, or there is no microphone, or no sound came from
            it.
    """
    require("sounddevice", "a microphone", "microphone")

    try:
        import sounddevice  # it looks for devices when it is loaded
    except OSError as error:
        raise InputError(
            f"a microphone needs PortAudio, but {error}; install it, such as libportaudio2 of "
            "Debian, or name a sound file"
        ) from error
    blocks: list[Float[np.ndarray, "n 1"]] = []

    def keep(block: Float[np.ndarray, "n 1"], *_: Any) -> None:
        blocks.append(block.copy())  # the library uses its memory again

    try:
        rate = int(sounddevice.query_devices(kind="input")["default_samplerate"])
        with sounddevice.InputStream(samplerate=rate, channels=1, dtype="float32", callback=keep):
            wait()
    except sounddevice.PortAudioError as error:
        raise InputError(
            f"a microphone must be there, but {error}; plug one in, or name a sound file"
        ) from error
    if not blocks:
        raise InputError(
            "a microphone must give sound, but nothing came; look at the system's sound settings"
        )
    return np.concatenate(blocks)[:, 0], rate
