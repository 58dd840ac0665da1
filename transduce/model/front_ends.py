"""The input of a half of the Transformer: token ids, or vectors such as frames of sound."""

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
    """A recipe puts the size of its tokenizer here."""
    multiple: int = 1
    """The table is padded with rows until this divides their number. Padding rows stand for no
    token and change no result, but a GPU multiplies matrices faster if their sizes are multiples of
    64 or 128."""

    def __post_init__(self) -> None:
        at_least(1, self, "vocab_size", "multiple")

    @property
    def padded_size(self) -> int:
        """Rows of the table: one per token, and padding rows."""
        return -(-self.vocab_size // self.multiple) * self.multiple

    def out_lengths(self, lengths: LengthsT) -> LengthsT:
        """Positions of so many ids: as many."""
        return lengths


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The input is vectors, `stack` consecutive ones per position, or convolutions over them.

    Where n_features * stack == d_model they are the embeddings, without a weight in between.
    Otherwise one linear map gives them the width d_model.
    """

    n_features: int
    """Numbers per frame. A recipe puts those of its feature extractor here."""
    stack: int = 1
    """Consecutive frames that make one position."""
    project: bool = False
    """Whether there is a linear map even where none is needed."""
    conv_strides: tuple[int, ...] = ()
    """Convolutions instead, by their strides: after 2 2 a position stands for four frames. They
    take stack=1."""
    conv_kernel: int = 3
    """Frames under each convolution, an odd number."""
    conv_channels: int | None = None
    """Channels between two convolutions; None: d_model, as there are after the last."""
    conv_activation: ConvActivation = "gelu"
    """The nonlinearity after each convolution; glu: twice as many channels, of which one half gates
    the other."""

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
        """Numbers per position, before convolutions."""
        return self.n_features * self.stack

    @property
    def per_position(self) -> int:
        """Frames that a position stands for."""
        return self.stack * math.prod(self.conv_strides)

    def out_lengths(self, lengths: LengthsT) -> LengthsT:
        """Positions of so many frames, ceil(lengths / per_position); also of arrays and tensors."""
        return -(-lengths // self.per_position)
