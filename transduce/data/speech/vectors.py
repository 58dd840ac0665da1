"""Dense vectors from .npy files: features that another program made, in place of sound."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.speech.config import VectorConfig
from transduce.data.speech.features import normalized
from transduce.errors import InputError


class VectorReader:
    """Reads and normalizes the vectors that a VectorConfig describes."""

    def __init__(self, config: VectorConfig) -> None:
        self.config = config

    def __call__(self, path: Path) -> Float[Tensor, "S F"]:
        """The vectors of one file, as float32.

        Raises:
            InputError: the file is missing or empty, is not an array of this width, or has NaN or infinite values; the
                message names it.
        """
        try:
            with path.open("rb") as file:
                found = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from error
        except Exception as error:  # NumPy raises errors of many kinds where the file is not one of its own
            told = str(error).strip().rstrip(".").replace("\n", " ")
            raise InputError(f"{path} cannot be read as vectors: {told}; write it with numpy.save") from error
        if found.ndim != 2 or not len(found) or found.shape[1] != self.config.n_features:
            raise InputError(
                f"{path} cannot be used: vectors must have shape (frames, {self.config.n_features}), but they have "
                f"{found.shape}; set n_features, or leave the file out"
            )
        if found.dtype.kind != "f":
            raise InputError(f"{path} cannot be used: vectors must be floats, but it holds {found.dtype}; convert it")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            frames = torch.from_numpy(found.astype(np.float32))
        if not frames.isfinite().all():
            raise InputError(f"{path} cannot be used: it has NaN or infinite values in float32; leave it out")
        if self.config.normalize == "none":
            return frames
        wide = frames.double()  # squares of large values would not fit into float32
        return normalized(wide, wide.mean(dim=0), wide.var(dim=0, correction=0)).float()
