"""What scripts/bench features compares is the same work."""

from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
import torch
from bench import features as bench_features

from transduce.data.features import FeatureExtractor


def test_compared_extractor_gives_nearly_the_same_features(rng):
    """On noise, whose bands have energy everywhere: floors and the shape of triangles hardly matter."""
    waveform = 0.3 * torch.randn(16000, generator=rng)
    ours, theirs = (
        FeatureExtractor(replace(bench_features.CONFIG, normalize="none"))(waveform),
        bench_features.rival(waveform),
    )
    assert ours.shape == theirs.shape == (98, 40)
    assert (ours - theirs).abs().mean() < 0.02 * ours.std(dim=0).mean()


def test_recordings_are_joined_to_pieces_of_one_length(tmp_path):
    for i in range(3):
        soundfile.write(tmp_path / f"{i}.wav", [0.25 * i] * 12_000, 16000)
    samples = bench_features.recordings(tmp_path, 3, 1.0)
    assert [len(each) for each in samples] == [16000, 16000]
    assert torch.cat(samples)[[0, 11_999, 12_000, 24_000]].tolist() == [0.0, 0.0, 0.25, 0.5]
    assert [len(each) for each in bench_features.recordings(tmp_path, 2, 0.0)] == [12_000, 12_000]


def test_missing_or_too_short_audio_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError) as error:
        bench_features.recordings(tmp_path, 5, 0.0)
    assert str(error.value) == f"a folder with sound files must be named, but {tmp_path} has none; use --data DIR"
    soundfile.write(tmp_path / "a.wav", [0.1] * 8000, 16000)
    with pytest.raises(ValueError) as error:
        bench_features.recordings(tmp_path, 5, 2.0)
    assert str(error.value) == (
        "a piece must be shorter than all sound together, but --seconds 2 and the sound lasts 0.5 s; take shorter "
        "pieces or more --files"
    )
