"""Vectors from .npy files: what is stored comes out, normalized; anything else is refused by name."""

from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.data.features import VectorConfig, VectorReader

CONFIG = VectorConfig(n_features=3, normalize="none")


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_vectors_are_read_as_saved(tmp_path, dtype, order):
    array = np.asarray(np.random.default_rng(1).normal(size=(7, 3)), dtype=dtype, order=order)
    got = VectorReader(CONFIG)(saved(tmp_path / "a.npy", array))
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), array.astype(np.float32))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30])
def test_every_feature_gets_mean_0_and_variance_1(tmp_path, scale):
    array = np.random.default_rng(1).normal(size=(50, 3)) * [1, 20, 300] + [5, 6, 7]
    array = (array * scale).astype(np.float32).astype(np.float64)
    got = VectorReader(VectorConfig(n_features=3))(saved(tmp_path / "a.npy", array)).numpy()
    want = (array - array.mean(axis=0)) / np.sqrt(array.var(axis=0) + 1e-5)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    constant = VectorReader(VectorConfig(n_features=3))(saved(tmp_path / "b.npy", np.ones((1, 3), dtype=np.float32)))
    assert torch.equal(constant, torch.zeros(1, 3))


def test_seconds_are_vectors_times_hop():
    assert VectorConfig(n_features=3, hop=0.02).seconds(7) == pytest.approx(0.14)


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as error:
        VectorReader(CONFIG)(path)
    message = str(error.value)
    assert message.startswith(f"{path} ") and "\n" not in message and "unsafe" not in message
    return message.removeprefix(f"{path} ")


def test_a_wrong_shape_is_refused(tmp_path):
    for shape in ((7, 4), (7,), (0, 3), (1, 7, 3), ()):
        assert f"of shape (frames, 3), but they are float64 of shape {shape}; set n_features" in refusal(
            saved(tmp_path / "a.npy", np.zeros(shape))
        )


def test_nan_and_infinity_are_refused(tmp_path):
    for value in (np.nan, np.inf, -np.inf, 1e300):
        array = np.zeros((7, 3))
        array[4, 1] = value
        assert refusal(saved(tmp_path / "a.npy", array)) == (
            "cannot be used: it has NaN or infinite values in float32; leave it out"
        ), value


@pytest.mark.parametrize("dtype", ["int64", "complex64", "bool"])
def test_other_dtypes_are_refused(tmp_path, dtype):
    path = saved(tmp_path / "a.npy", np.zeros((7, 3), dtype=dtype))
    assert f"must be floats of shape (frames, 3), but they are {dtype} of shape (7, 3); " in refusal(path)


def test_other_files_are_refused(tmp_path):
    whole = saved(tmp_path / "whole.npy", np.zeros((70, 3))).read_bytes()
    np.savez(tmp_path / "many.npz", a=np.zeros((7, 3)))
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    for name, content in (("empty", b""), ("text", b"hello\n" * 20), ("cut", whole[:-100]), ("head", whole[:20])):
        (tmp_path / name).write_bytes(content)
    for name in ("empty", "text", "cut", "head", "many.npz", "objects.npy"):
        message = refusal(tmp_path / name)
        assert message.startswith("cannot be read as vectors: "), name
    assert "No such file or directory" in refusal(tmp_path / "none.npy")
    assert "Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("fields", "reason"), [({"n_features": 0}, "n_features=0"), ({"n_features": 3, "hop": 0.0}, "hop=0.0")]
)
def test_invalid_settings_are_refused(fields, reason):
    with pytest.raises(ValueError, match=f"but {reason}$"):
        VectorConfig(**fields)
