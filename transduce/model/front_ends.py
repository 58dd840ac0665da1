"""The input of one half of the Transformer: token ids, or vectors such as audio frames."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from transduce.config import at_least, check_choices
from transduce.errors import InputError

ConvActivation = Literal["relu", "gelu", "glu"]
if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    LengthsT = TypeVar("LengthsT", int, np.ndarray, Tensor)
else:  # torch takes seconds to import, and --help does without
    LengthsT = TypeVar("LengthsT")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The input is token ids; an embedding table turns them into vectors."""

    vocab_size: int
    """Number of tokens; a recipe sets it to the size of its tokenizer."""
    multiple: int = 1
    """The rows of the table are padded to a multiple of this. Padding rows stand for no token and
    change no result, but a GPU multiplies matrices faster if their sizes are multiples of 64 or
    128."""

    def __post_init__(self) -> None:
        at_least(1, self, "vocab_size", "multiple")

    @property
    def padded_size(self) -> int:
        """Rows of the table: one per token, and padding rows."""
        return -(-self.vocab_size // self.multiple) * self.multiple

    def out_lengths(self, lengths: LengthsT) -> LengthsT:
        """The number of positions of so many ids, which is the same."""
        return lengths


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The input is vectors: `stack` consecutive ones per position, or convolutions over them.

    If n_features * stack == d_model, the stacked frames are the embeddings, without any weights.
    Otherwise one linear map projects them to d_model.
    """

    n_features: int
    """Features per frame; a recipe sets it to that of its feature extractor."""
    stack: int = 1
    """Consecutive frames that make one position."""
    project: bool = False
    """Use a linear map even if the stacked frames have the width d_model."""
    conv_strides: tuple[int, ...] = ()
    """Strides of convolutions that replace stacking: with 2 2, a position stands for four frames.
    They need stack=1."""
    conv_kernel: int = 3
    """Kernel size of each convolution in frames, an odd number."""
    conv_channels: int | None = None
    """Channels between two convolutions; None: d_model, as after the last one."""
    conv_activation: ConvActivation = "gelu"
    """The nonlinearity after each convolution; glu doubles the channels, and one half gates the
    other."""

    def __post_init__(self) -> None:
        at_least(1, self, "n_features", "stack", "conv_channels")
        at_least(1, self, "conv_kernel", conv_strides=min(self.conv_strides, default=None))
        check_choices(self)
        if self.conv_kernel % 2 == 0:
            raise InputError(
                "conv_kernel must be odd, with a frame in its middle, but "
                f"conv_kernel={self.conv_kernel}"
            )
        if self.conv_strides and (self.stack > 1 or self.project):
            raise InputError(
                "convolutions take frames one by one and give d_model numbers, but "
                f"conv_strides={self.conv_strides}, stack={self.stack} and project={self.project}; "
                "use stack=1 and project=False"
            )

    @property
    def width(self) -> int:
        """Features per position, before convolutions."""
        return self.n_features * self.stack

    @property
    def per_position(self) -> int:
        """Frames that a position stands for."""
        return self.stack * math.prod(self.conv_strides)

    def out_lengths(self, lengths: LengthsT) -> LengthsT:
        """The number of positions of so many frames, ceil(lengths / per_position); also for arrays
        and tensors."""
        return -(-lengths // self.per_position)
