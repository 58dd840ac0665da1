"""Log-mels on disk: from the second epoch on, no sound is decoded and no DFT is computed."""

import hashlib
import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.config import FeatureConfig
from transduce.data.speech.audio import read_audio, sound_status
from transduce.data.speech.augment import change_speed
from transduce.data.speech.features import FeatureExtractor
from transduce.errors import InputError
from transduce.files import remove_leftovers, write_file
from transduce.progress import Bar
from transduce.threads import use_one_core

FORMULA = 1
"""A part of every key; increase it whenever `log_mel`, `read_audio` or `change_speed` give other
numbers."""

Settings = tuple[int | float | str, ...]


@dataclass(frozen=True)
class FeatureCache:
    """A directory of .npy files, each the log-mel of one sound file at one speed, float32.

    (float16 would halve the size, but its steps of 1/128 around -13 move MFCC by more than 1e-3.) A
    file's name is a hash of the sound file's path, size and time of change, of the settings that
    its log-mel depends on, and of the speed. Files are written whole or not at all, so any number
    of processes may use one directory. It may be deleted at any time.

    The cache remembers the files that `fill` has looked up. From then on `get` does not need the
    sound file, and training goes on when the disk of the sound files is away.
    """

    directory: Path
    _known: dict[tuple[Path, Settings, float], Path] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The files that `fill` has looked up, by sound file, settings and speed."""

    def file(self, path: Path, config: FeatureConfig, speed: float) -> Path:
        """The file of the log-mel of `path`, whether it is there or not.

        Raises:
            InputError: `path` is not a file, or is empty.
        """
        status = sound_status(path)
        sound = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        key = json.dumps([FORMULA, *sound, _settings(config), float(speed)])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"

    def get(
        self, path: Path, features: FeatureExtractor, speed: float = 1.0
    ) -> Float[Tensor, "S M"]:
        """The log-mel of a sound file. If the directory lacks it or holds a damaged one, it is
        computed and written.

        Raises:
            InputError: the sound cannot be read or is shorter than one window; the message names
                the file.
        """
        config = features.config
        file = self._known.get((path, _settings(config), speed)) or self.file(path, config, speed)
        log_mel = _load(file, config.n_mels)
        return self._compute(path, features, (speed,))[speed] if log_mel is None else log_mel

    def _compute(
        self, path: Path, features: FeatureExtractor, speeds: Sequence[float]
    ) -> dict[float, Float[Tensor, "S M"]]:
        """Compute and write the log-mels of a sound file, which is read once, and return them by
        speed."""
        waveform = read_audio(path, features.config.sample_rate)
        log_mels = {}
        for speed in speeds:
            try:
                log_mels[speed] = features.log_mel(change_speed(waveform, speed))
            except InputError as error:
                raise InputError(f"{path} cannot be used at speed {speed}: {error}") from error
            content = io.BytesIO()
            np.save(content, log_mels[speed].numpy(), allow_pickle=False)
            self.directory.mkdir(parents=True, exist_ok=True)
            # not durable: a torn one is computed anew
            write_file(self.file(path, features.config, speed), content.getvalue(), durable=False)
        return log_mels

    def fill(
        self,
        paths: Sequence[Path],
        features: FeatureExtractor,
        speeds: Sequence[float] = (1.0,),
        workers: int = 0,
    ) -> dict[Path, str]:
        """Compute what is missing, in `workers` threads, at least one. Progress goes to stderr.

        Reading sound, resampling and the DFT leave Python's lock to others, so threads share the
        work. After an interruption, the files that are written stay.

        Returns:
            The files that cannot be used at one of the speeds, each with the reason, which names
            the file.

        Raises:
            OSError: the directory cannot be written.
        """
        remove_leftovers(self.directory)
        config = replace(features.config, normalize="none")  # no log-mel needs means and deviations
        plain = FeatureExtractor(config)
        errors: dict[Path, str] = {}
        missing: dict[Path, list[float]] = {}
        for path in dict.fromkeys(paths):
            try:
                files = {speed: self.file(path, config, speed) for speed in speeds}
            except InputError as error:
                errors[path] = str(error)
                continue
            self._known.update(
                {(path, _settings(config), speed): file for speed, file in files.items()}
            )
            if lacking := [speed for speed, file in files.items() if not file.exists()]:
                missing[path] = lacking

        def compute(path: Path) -> None:
            try:
                self._compute(path, plain, missing[path])
            except InputError as error:
                errors[path] = str(error)

        bar = Bar(total=len(missing), desc="features", unit="file", disable=not missing)
        with bar, ThreadPoolExecutor(max(1, workers), initializer=use_one_core) as pool:
            for _ in pool.map(compute, missing):
                bar.update()
        return errors


def _settings(config: FeatureConfig) -> Settings:
    """The settings that a log-mel depends on; those of another kind than the plain one are added
    behind."""
    plain = (
        config.sample_rate,
        config.frame,
        config.hop,
        config.n_mels,
        config.low,
        config.highest,
    )
    other = (config.log_mel, config.pad_to)
    return plain if other == ("plain", 0.0) else (*plain, *other)


def _load(file: Path, n_mels: int) -> Float[Tensor, "S M"] | None:
    """The log-mel in a file, mapped into memory; None where the file is missing or damaged.

    Its length alone takes reading the header alone. Writing to it would change a copy.
    """
    try:
        log_mel = np.load(file, mmap_mode="c", allow_pickle=False)
    except (
        Exception
    ):  # NumPy raises errors of many kinds on a damaged header, from EOFError to TokenError
        return None
    if not (
        isinstance(log_mel, np.ndarray)
        and log_mel.dtype == np.float32
        and log_mel.shape[1:] == (n_mels,)
    ):
        return None
    return torch.from_numpy(log_mel)
