"""The second epoch costs no DFT, bad sound ends nothing, and no torn file is ever believed."""

import _thread
import os
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from transduce.data import features as features_module
from transduce.data.audio import change_speed, read_audio
from transduce.data.features import FeatureCache, FeatureConfig, FeatureExtractor
from transduce.data.frame_reader import FrameReader

CONFIG = FeatureConfig(sample_rate=8000, n_mels=23, n_coefficients=13)
FEATURES = FeatureExtractor(CONFIG)


def record(path: Path, seconds: float = 0.3, rate: int = 8000) -> Path:
    rng = np.random.default_rng(len(path.name) + round(1000 * seconds))
    soundfile.write(path, 0.1 * rng.standard_normal(round(seconds * rate)), rate)
    return path


def fill(
    cache: FeatureCache, paths: list[Path], features: FeatureExtractor, speeds=(1.0,), workers: int = 0
) -> dict[Path, str]:
    return FrameReader(features, cache).fill(paths, speeds, workers)[1]


def get(cache: FeatureCache, path: Path, speed: float = 1.0) -> torch.Tensor:
    (log_mel,) = cache.get(path, FEATURES, [speed])
    return log_mel


def no_reading(path: Path, sample_rate: int) -> torch.Tensor:
    raise AssertionError(f"{path} was read again")


@pytest.fixture
def cache(tmp_path) -> FeatureCache:
    return FeatureCache(tmp_path / "made" / "cache")


def test_cached_features_equal_computed_ones(tmp_path, cache):
    path = record(tmp_path / "a.wav", rate=16000)
    for speed in (1.0, 0.9):
        want = FEATURES.log_mel(change_speed(read_audio(path, 8000), speed))
        for _ in range(2):
            got = get(cache, path, speed)
            assert torch.equal(got, want) and got.dtype == torch.float32
            got += 1  # the caller's own


def test_features_do_not_depend_on_autocast(tmp_path, cache):
    path, reader = record(tmp_path / "a.wav"), FrameReader(FEATURES, cache)
    want = FEATURES(read_audio(path, 8000))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(reader(path), want)  # of the sound, and of what is kept of it
        assert torch.equal(reader(path), want)
    assert torch.equal(reader(path), want)


def test_reading_in_a_thread_does_not_change_autocast(tmp_path, cache, monkeypatch):
    """Each thread computes on as it did before: the one in float32, the other in bf16."""
    begun, finished = threading.Event(), threading.Event()
    dtypes = {}

    def read_late(path: Path, sample_rate: int) -> torch.Tensor:
        begun.set()
        if path.stem == "beside":  # it begins before the validation does, and ends after it
            assert finished.wait(60)
        return read_audio(path, sample_rate)

    def read_beside() -> None:
        FrameReader(FEATURES, cache)(record(tmp_path / "beside.wav"))
        dtypes["beside"] = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    monkeypatch.setattr(features_module, "read_audio", read_late)
    thread = threading.Thread(target=read_beside)
    thread.start()
    assert begun.wait(60)
    with torch.autocast("cpu", torch.bfloat16):
        FrameReader(FEATURES, cache)(record(tmp_path / "bf16.wav"))
        finished.set()
        thread.join()
        dtypes["bf16"] = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    assert dtypes == {"beside": torch.float32, "bf16": torch.bfloat16}


def test_cached_features_are_read_without_audio(tmp_path, cache, monkeypatch):
    path = record(tmp_path / "a.wav")
    want = get(cache, path)
    monkeypatch.setattr(features_module, "read_audio", no_reading)
    assert torch.equal(get(cache, path), want)
    monkeypatch.chdir(tmp_path)
    assert torch.equal(get(cache, Path("a.wav")), want)  # by whatever name
    (tmp_path / "link.wav").symlink_to(path)
    assert torch.equal(get(cache, Path("link.wav")), want)


def test_only_settings_of_log_mels_change_the_cache_file(tmp_path, cache):
    path = record(tmp_path / "a.wav")
    same = [
        CONFIG, replace(CONFIG, n_coefficients=7), replace(CONFIG, n_coefficients=0), replace(CONFIG, deltas=2), replace(CONFIG, normalize="none"),
        replace(CONFIG, high=4000.0),
    ]  # fmt: skip
    others = [
        replace(CONFIG, sample_rate=16000), replace(CONFIG, frame=0.03), replace(CONFIG, hop=0.02),
        replace(CONFIG, n_mels=24), replace(CONFIG, low=21.0), replace(CONFIG, high=3900.0),
        replace(CONFIG, log_mel="kaldi"), replace(CONFIG, log_mel="whisper"), replace(CONFIG, pad_to=2.0),
    ]  # fmt: skip
    assert len({cache.file(path, config, 1.0) for config in same}) == 1
    files = {cache.file(path, config, speed) for config in [CONFIG, *others] for speed in (0.9, 1.0)}
    assert len(files) == 2 * (1 + len(others))


def test_changed_audio_is_recomputed(tmp_path, cache):
    path = record(tmp_path / "a.wav")
    first = get(cache, path)
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    assert torch.equal(get(cache, path), first) and len(list(cache.directory.iterdir())) == 1
    record(path, 0.4)
    assert len(get(cache, path)) > len(first)
    os.utime(path, ns=(0, 12345))
    get(cache, path)
    assert len(list(cache.directory.iterdir())) == 3


@pytest.mark.parametrize("damage", ["empty", "header", "cut", "text", "object", "shape", "dtype", "zip", "directory"])
def test_a_damaged_cache_file_is_recomputed(tmp_path, cache, damage):
    path = record(tmp_path / "a.wav")
    want = get(cache, path)
    (kept,) = cache.directory.iterdir()
    raw = kept.read_bytes()
    match damage:
        case "empty" | "cut":
            kept.write_bytes(raw[: 0 if damage == "empty" else -100])
        case "header":
            kept.write_bytes(raw[:10] + b"{'descr': [((" + raw[23:])
        case "text":
            kept.write_bytes(b"not an array")
        case "object" | "shape" | "dtype":
            other = {"object": np.array([{}]), "shape": want.numpy()[:, :5], "dtype": want.numpy().astype(np.float64)}
            np.save(kept, other[damage])
        case "zip":
            np.savez(tmp_path / "a.npz", want.numpy())
            (tmp_path / "a.npz").replace(kept)
        case "directory":
            kept.unlink()
    assert torch.equal(get(cache, path), want)
    assert kept.read_bytes() == raw


def test_a_new_formula_version_has_other_cache_files(tmp_path, cache, monkeypatch):
    path = record(tmp_path / "a.wav")
    before = cache.file(path, CONFIG, 1.0)
    monkeypatch.setattr(features_module, "FORMULA", features_module.FORMULA + 1)
    assert cache.file(path, CONFIG, 1.0) != before


def test_audio_changed_after_filling_is_recomputed(tmp_path, cache):
    path = record(tmp_path / "a.wav")
    fill(cache, [path], FEATURES)
    for seconds in (0.4, 0.5):
        record(path, seconds)
        if seconds == 0.4:
            fill(cache, [path], FEATURES)
        else:
            for kept in cache.directory.iterdir():
                kept.unlink()
        assert torch.equal(get(cache, path), FEATURES.log_mel(read_audio(path, 8000)))


def bad_recordings(folder: Path) -> list[Path]:
    record(folder / "short.wav", 0.02)
    soundfile.write(folder / "none.wav", np.zeros(0), 8000)
    soundfile.write(folder / "nan.wav", np.full(4000, np.nan), 8000, subtype="FLOAT")
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("no sound at all " * 99)
    (folder / "folder.wav").mkdir()
    names = ("short", "none", "nan", "empty", "text", "folder", "missing")
    return [folder / f"{name}.wav" for name in names]


def test_bad_audio_is_refused_and_not_cached(tmp_path, cache):
    for path in bad_recordings(tmp_path):
        with pytest.raises(ValueError) as caught:
            get(cache, path)
        assert str(caught.value).startswith(f"{path} ")
    assert not cache.directory.exists()
    with pytest.raises(ValueError) as caught:
        get(cache, tmp_path / "short.wav")
    assert str(caught.value) == (
        f"{tmp_path / 'short.wav'} cannot be used at speed 1.0: a waveform must fill one window of 200 samples "
        "(0.025 s at 8000 Hz), but it has 160; leave it out or add silence"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_filling_computes_missing_features_and_returns_errors(tmp_path, cache, monkeypatch, capfd, workers):
    good = [record(tmp_path / f"{i}.wav", 0.2 + 0.1 * i) for i in range(4)]
    bad = bad_recordings(tmp_path)
    barely = record(tmp_path / "barely.wav", 0.026)  # long enough at speed 1, not at 1.1
    get(cache, good[2])
    needs_statistics = FeatureExtractor(replace(CONFIG, normalize="global"), mean=torch.zeros(13), std=torch.ones(13))
    errors = fill(cache, [*good, *bad, barely, good[0]], needs_statistics, (1.0, 1.1), workers)
    assert set(errors) == {*bad, barely}
    assert all(message.startswith(f"{path} ") for path, message in errors.items())
    assert "speed 1.1" in errors[barely] and re.search(r"speed 1\.[01]", errors[tmp_path / "short.wav"])
    out, err = capfd.readouterr()
    assert out == "" and "features: 100%" in err and "Traceback" not in err
    assert len(list(cache.directory.iterdir())) == 2 * len(good) + 1
    monkeypatch.setattr(features_module, "read_audio", no_reading)
    for path in good:
        for speed in (1.0, 1.1):
            assert get(cache, path, speed).size(1) == 23
    assert fill(cache, good, FEATURES, (1.0, 1.1), workers) == {}


def test_a_file_is_read_once_for_all_speeds(tmp_path, cache, monkeypatch):
    read = []
    monkeypatch.setattr(features_module, "read_audio", lambda path, rate: read.append(path) or read_audio(path, rate))
    paths = [record(tmp_path / f"{i}.wav") for i in range(3)]
    get(cache, paths[0])
    fill(cache, paths, FEATURES, (0.9, 1.0, 1.1), 2)
    assert sorted(read) == sorted([paths[0], *paths])
    assert len(list(cache.directory.iterdir())) == 9


def test_filling_with_no_paths(cache):
    assert fill(cache, [], FEATURES, (1.0,), 2) == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unwritable_cache_raises_os_error(tmp_path, workers):
    """The same one from a thread, with its name of the file."""
    path = record(tmp_path / "a.wav")
    (tmp_path / "file").touch()
    cache = FeatureCache(tmp_path / "file" / "cache")
    with pytest.raises(NotADirectoryError) as caught:
        fill(cache, [path], FEATURES, (0.9, 1.0), workers)
    assert caught.value.filename == str(cache.directory)
    assert str(caught.value) == f"[Errno 20] Not a directory: '{cache.directory}'"


@pytest.mark.parametrize("workers", [0, 2])
def test_filling_does_not_advance_the_global_generator(tmp_path, cache, workers):
    path = record(tmp_path / "a.wav")
    before = torch.get_rng_state()
    assert fill(cache, [path], FEATURES, (0.9, 1.0), workers) == {}
    assert torch.equal(torch.get_rng_state(), before)


def test_ctrl_c_stops_filling_and_keeps_written_files(tmp_path, cache, request, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore Ctrl-C
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    paths = [record(tmp_path / f"{i}.wav") for i in range(60)]

    def slow(path: Path, rate: int) -> torch.Tensor:
        time.sleep(0.05)
        return read_audio(path, rate)

    monkeypatch.setattr(features_module, "read_audio", slow)

    def interrupt() -> None:
        while not list(cache.directory.glob("*.npy")):
            time.sleep(0.005)
        _thread.interrupt_main()

    others = set(threading.enumerate())
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        fill(cache, paths, FEATURES, (0.9, 1.0, 1.1), 2)
    assert caught.tb is not None  # although the traceback still lives, no thread of the pool does
    for each in set(threading.enumerate()) - others:
        if each.name.startswith("ThreadPoolExecutor"):  # one that was just beginning ends now
            each.join(20)
            assert not each.is_alive()
    files = list(cache.directory.iterdir())
    assert 0 < len(files) < 180 and all(file.suffix == ".npy" for file in files)
    assert all(np.load(file).shape[1] == 23 for file in files)
