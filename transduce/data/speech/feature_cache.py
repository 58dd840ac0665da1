"""Log-mels on disk: from the second epoch on, no sound is decoded and no DFT is computed."""

import hashlib
import io
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from transduce.data.speech.audio import read_audio, sound_status
from transduce.data.speech.augment import change_speed
from transduce.data.speech.config import FeatureConfig
from transduce.data.speech.features import FeatureExtractor
from transduce.files import write_file

FORMULA = 1
"""A part of every key; increase it whenever `log_mel`, `read_audio` or `change_speed` give other numbers."""


@dataclass(frozen=True)
class FeatureCache:
    """A directory of .npy files, each the log-mel of one sound file at one speed, float32.

    (float16 would halve the size, but its steps of 1/128 around -13 move MFCC by more than 1e-3.) A file's name is a
    hash of the sound file's path, size and time of change, of the settings that its log-mel depends on, and of the
    speed. Files are written whole or not at all, so any number of processes may use one directory. It may be deleted at
    any time.

    The cache remembers what `fill` has looked up. From then on `get` does not need the sound file, and training goes on
    when the disk of the sound files goes away.
    """

    directory: Path
    _kept: dict[tuple[Path, tuple[int | float, ...], float], Path] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The files that `fill` has looked up, by sound file, settings and speed."""

    def file(self, path: Path, config: FeatureConfig, speed: float) -> Path:
        """The file in which the log-mel of `path` is kept, or will be.

        Raises:
            ValueError: `path` is not a file, or is empty.
        """
        status = sound_status(path)
        sound = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        key = json.dumps([FORMULA, *sound, _settings(config), float(speed)])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"

    def get(self, path: Path, features: FeatureExtractor, speed: float = 1.0) -> Float[Tensor, "S M"]:
        """The log-mel of a sound file. Where the directory lacks it or holds a damaged one, it is computed and kept.

        Raises:
            ValueError: the sound cannot be read or is shorter than one window; the message names the file.
        """
        config = features.config
        known = self._kept.get((path, _settings(config), speed))
        if known and (found := _load(known, config.n_mels)) is not None:
            return found
        kept = self.file(path, config, speed)
        if (found := _load(kept, config.n_mels)) is not None:
            return found
        waveform = change_speed(read_audio(path, config.sample_rate), speed)
        try:
            log_mel = features.log_mel(waveform)
        except ValueError as error:
            raise ValueError(f"{path} cannot be used at speed {speed}: {error}") from error
        content = io.BytesIO()
        np.save(content, log_mel.numpy(), allow_pickle=False)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_file(kept, content.getvalue(), durable=False)  # a torn one is computed anew
        return log_mel

    def fill(
        self, paths: Sequence[Path], features: FeatureExtractor, speeds: Sequence[float] = (1.0,), workers: int = 0
    ) -> dict[Path, str]:
        """Compute what is missing, in `workers` processes or, with 0, in this one. Progress goes to stderr.

        A script that calls this with workers needs `if __name__ == "__main__"`. If it is interrupted, what is written
        stays.

        Returns:
            The files that cannot be used at one of the speeds, each with the reason, which names the file.

        Raises:
            OSError: the directory cannot be written.
        """
        config = replace(features.config, normalize="none")  # no log-mel needs means and deviations
        settings = _settings(config)
        errors: dict[Path, str] = {}
        missing: list[tuple[Path, float]] = []
        for path in dict.fromkeys(paths):
            try:
                found = {speed: self.file(path, config, speed) for speed in speeds}
            except ValueError as error:
                errors[path] = str(error)
                continue
            missing += [(path, speed) for speed, kept in found.items() if not kept.exists()]
            self._kept.update({(path, settings, speed): kept for speed, kept in found.items()})
        if workers and missing:
            done = self._fill_with(workers, missing, config)
        else:
            done = ((path, _fill_one(self, path, config, speed)) for path, speed in missing)
        with closing(done):  # a generator that a traceback keeps alive would keep its processes running
            for path, told in tqdm(done, total=len(missing), desc="features", unit="file", file=sys.stderr):
                if told:
                    errors.setdefault(path, told)
        return errors

    def _fill_with(
        self, workers: int, missing: list[tuple[Path, float]], config: FeatureConfig
    ) -> Generator[tuple[Path, str], None, None]:
        # spawned, as a fork of a process in which torch has threads can hang
        pool = ProcessPoolExecutor(
            min(workers, len(missing)), multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        bare = FeatureCache(self.directory)  # remembers nothing, as it is sent along with every task
        try:
            futures = {pool.submit(_fill_one, bare, path, config, speed): path for path, speed in missing}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process tells the others to end
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is gone: a killed parent tells its workers nothing, and they would wait."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _fill_one(cache: FeatureCache, path: Path, config: FeatureConfig, speed: float) -> str:
    """Keep the log-mel of a file, and return what is wrong with the file, or an empty text."""
    try:
        cache.get(path, _features(config), speed)
    except ValueError as error:
        return str(error)
    return ""


def _settings(config: FeatureConfig) -> tuple[int | float, ...]:
    """The settings that a log-mel depends on."""
    return (config.sample_rate, config.frame, config.hop, config.n_mels, config.low, config.highest)


@cache
def _features(config: FeatureConfig) -> FeatureExtractor:
    """A feature extractor, made once per process."""
    return FeatureExtractor(config)


def _load(kept: Path, n_mels: int) -> Float[Tensor, "S M"] | None:
    """The log-mel that a file holds; None where the file is missing or damaged."""
    try:
        found = np.load(kept, allow_pickle=False)
    except Exception:  # whatever NumPy meets in a damaged header, from EOFError to TokenError
        return None
    if not (isinstance(found, np.ndarray) and found.dtype == np.float32 and found.shape[1:] == (n_mels,)):
        return None
    return torch.from_numpy(found)
