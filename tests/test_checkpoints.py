"""The checkpoints of a run: which of them has the weights, and their mean."""

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from transduce.files import write_directory
from transduce.run import average, weights_path


def test_the_newest_checkpoint_replaces_a_missing_model(tmp_path):
    for update in (20, 100, 3):
        (tmp_path / "checkpoints" / f"{update:08d}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"{update:08d}" / "model.safetensors").write_bytes(b"")
    (tmp_path / "checkpoints" / ".00000200.tmp").mkdir()
    assert weights_path(tmp_path) == tmp_path / "checkpoints" / "00000100" / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert weights_path(tmp_path) == tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_average_is_the_mean(tmp_path, dtype):
    rng = np.random.default_rng(1)
    arrays = [{"a": rng.normal(size=(3, 2)), "b": rng.normal(size=5) * 1e3} for _ in range(3)]
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    rounded = []
    for path, some in zip(paths, arrays, strict=True):
        tensors = {name: torch.from_numpy(array).to(dtype) for name, array in some.items()}
        safetensors.torch.save_file(tensors, path)
        rounded.append({name: tensor.double().numpy() for name, tensor in tensors.items()})
    mean = average(paths)
    for name in ("a", "b"):
        want = np.mean([some[name] for some in rounded], axis=0)
        assert mean[name].dtype == dtype
        np.testing.assert_array_equal(mean[name].numpy(), want.astype(mean[name].numpy().dtype))


def test_a_damaged_checkpoint_is_not_averaged(tmp_path):
    paths = [tmp_path / name / "model.safetensors" for name in ("00000001", "00000002")]
    for path in paths:
        write_directory(
            path.parent, lambda at: safetensors.numpy.save_file({"a": np.zeros(2)}, at / "model.safetensors")
        )
    average(paths)
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"?")  # another number
    with pytest.raises(ValueError) as caught:
        average(paths)
    assert str(caught.value) == (
        f"a checkpoint must be as it was written, but {paths[1]} is damaged; remove {paths[1].parent}, and use the others"
    )
    manifest = paths[0].parent / "manifest.json"
    manifest.write_text("{")
    with pytest.raises(ValueError, match=f"but {manifest} is damaged; remove {paths[0].parent}, and use the others"):
        average(paths)


def test_no_checkpoints_or_different_names_cannot_be_averaged(tmp_path):
    with pytest.raises(ValueError) as caught:
        average([])
    assert str(caught.value) == "an average needs at least one checkpoint, but there is none"
    one, other = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(2)}, one)
    safetensors.numpy.save_file({"b": np.zeros(2)}, other)
    with pytest.raises(ValueError) as caught:
        average([one, other])
    assert str(caught.value) == f"checkpoints to average must have the same names, but {one} and {other} differ"
