"""A cache of features that processes fill: what a kill or Ctrl-C leaves is whole, and two fill one directory."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.test_feature_cache import FEATURES, fill, get, no_reading, record
from transduce.data import features as features_module
from transduce.data.audio import change_speed, read_audio
from transduce.data.features import FeatureCache

pytestmark = pytest.mark.process

FILL = """
import os, resource, signal, sys, time
from pathlib import Path
from transduce.data import features as features_module
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.frame_reader import FrameReader

def read_audio(path, rate, read=features_module.read_audio):
    time.sleep({"endless.wav": 600, "slow.wav": 0.05}.get(path.name, 0))
    return read(path, rate)

features_module.read_audio = read_audio

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore Ctrl-C
    directory, workers, limit, *paths = sys.argv[1:]
    if workers == "0":
        os.getpid = lambda: 7
    features = FeatureExtractor(FeatureConfig(sample_rate=8000, n_mels=23, n_coefficients=13))
    print("ready", flush=True)
    input()
    if limit != "0":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    cache = features_module.FeatureCache(Path(directory))
    assert FrameReader(features, cache).fill([Path(path) for path in paths], (0.9, 1.0), int(workers))[1] == {}
"""
"""Fills a cache in a process of its own, takes its time with every slow.wav and stays at endless.wav.

Alone, it has process id 7, as another in another container may have. Beyond `limit` bytes of a file the kernel ends it.
"""


@pytest.fixture
def cache(tmp_path) -> FeatureCache:
    return FeatureCache(tmp_path / "made" / "cache")


@pytest.fixture
def filling(tmp_path, cache, request):
    def start(paths: list[Path], workers: int = 0, limit: int = 0) -> subprocess.Popen:
        script = tmp_path / "fill.py"
        script.write_text(FILL)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [sys.executable, "-B", script, cache.directory, str(workers), str(limit), *paths],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
            text=True,
            **pipes,
        )
        request.addfinalizer(lambda: end(process))
        return process

    def end(process: subprocess.Popen) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    return start


def start_together(*processes: subprocess.Popen) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def assert_filled(cache: FeatureCache, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log-mel is there and whole, up to rounding: another number of threads may sum in another order."""
    want = {(p, s): FEATURES.log_mel(change_speed(read_audio(p, 8000), s)) for p in paths for s in (0.9, 1.0)}
    monkeypatch.setattr(features_module, "read_audio", no_reading)
    for (path, speed), log_mel in want.items():
        torch.testing.assert_close(get(cache, path, speed), log_mel, rtol=0, atol=1e-5)


def test_a_killed_process_leaves_only_complete_files(tmp_path, cache, filling, monkeypatch):
    paths = [record(tmp_path / f"{name}.wav") for name in ("a", "b", "endless", "c")]
    process = filling(paths, workers=1)
    start_together(process)
    while len(list(cache.directory.glob("*.npy"))) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(list(cache.directory.glob("*.npy"))) == 4
    assert fill(cache, paths, FEATURES, (0.9, 1.0)) == {}
    assert_filled(cache, paths, monkeypatch)


def test_ctrl_c_in_a_terminal_leaves_only_complete_files(tmp_path, cache, filling):
    paths = [tmp_path / str(i) / "slow.wav" for i in range(60)]
    for path in paths:
        path.parent.mkdir()
        record(path)
    process = filling(paths, workers=1)
    start_together(process)
    while len(list(cache.directory.glob("*.npy"))) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    files = list(cache.directory.iterdir())
    assert 4 <= len(files) < 120 and all(file.suffix == ".npy" for file in files)
    assert all(np.load(file).shape[1] == 23 for file in files)


def test_a_process_killed_while_writing_leaves_no_partial_file(tmp_path, cache, filling, monkeypatch):
    """The kernel ends it at byte 20,000 of a log-mel."""
    paths = [record(tmp_path / "short.wav"), record(tmp_path / "long.wav", 4.0)]
    process = filling(paths, limit=20_000)
    start_together(process)
    process.communicate()
    assert process.returncode == -signal.SIGXFSZ
    assert len(list(cache.directory.glob("*.npy"))) == 2  # of short.wav
    assert fill(cache, paths, FEATURES, (0.9, 1.0)) == {}
    assert_filled(cache, paths, monkeypatch)


def test_two_processes_with_one_process_id_fill_one_directory(tmp_path, cache, filling, monkeypatch):
    paths = [record(tmp_path / f"{i}.wav", 0.1) for i in range(60)]
    processes = [filling(paths), filling(paths)]
    start_together(*processes)
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert len(list(cache.directory.iterdir())) == 120
    assert_filled(cache, paths, monkeypatch)
