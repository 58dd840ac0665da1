"""What a Transformer is made of: frozen dataclasses that check themselves."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Activation = Literal["relu", "gelu", "gelu_tanh"]
NormPosition = Literal["post", "pre"]
PositionKind = Literal["sinusoidal", "learned", "none"]
Tie = Literal["all", "output", "none"]


def at_least(low: int, **values: int) -> None:
    """Raise ValueError unless every value is `low` or more."""
    for name, value in values.items():
        if value < low:
            raise ValueError(f"{name} must be at least {low}, but {name}={value}")


def one_of(name: str, value: str, choices: Any) -> None:
    """Raise ValueError unless the value is one of a Literal's."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, but {name}={value!r}")


def fraction(**values: float) -> None:
    """Raise ValueError unless every value lies in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), but {name}={value}")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Ids flow in; an embedding table makes them vectors."""

    vocab_size: int

    def __post_init__(self) -> None:
        at_least(1, vocab_size=self.vocab_size)


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Vectors flow in, `stack` consecutive ones per position.

    Where n_features * stack == d_model they are the embeddings, with no weight in between; otherwise one linear map.
    """

    n_features: int
    stack: int = 1
    project: bool = False
    """A linear map even where none is needed."""

    def __post_init__(self) -> None:
        at_least(1, n_features=self.n_features, stack=self.stack)

    @property
    def width(self) -> int:
        """Numbers per position."""
        return self.n_features * self.stack


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One half of the Transformer: what flows in, and how many layers it passes."""

    input: Tokens | Frames
    n_layers: int = 6

    def __post_init__(self) -> None:
        at_least(1, n_layers=self.n_layers)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The defaults are the base model of Vaswani et al. (2017), table 3.

    What flows in decides what exists: with both halves the decoder has cross-attention; a decoder alone is a language
    model; an encoder alone, a model of masked tokens.

    Raises:
        ValueError: a field is out of its range, or two fields contradict each other.
    """

    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    """On every sublayer's output and on the sum of embedding and position (paper, section 5.4)."""
    attention_dropout: float = 0.0
    """On the attention weights; not in the paper, but in many systems after it."""
    activation: Activation = "relu"
    norm_position: NormPosition = "post"
    """post: norm(x + f(x)), the paper's; pre: x + f(norm(x)), with one more norm at the end of the stack."""
    norm_eps: float = 1e-5
    positions: PositionKind = "sinusoidal"
    max_positions: int = 1024
    """Rows of the learned table; sinusoidal positions have no end."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) (paper, section 3.4)."""
    tie: Tie = "output"
    """Which tables are one: encoder, decoder and output; decoder and output; none."""
    ctc: bool = False
    """A linear map from the memory to the decoder's vocabulary, for a CTC loss beside cross-entropy."""

    def __post_init__(self) -> None:
        at_least(1, d_model=self.d_model, n_heads=self.n_heads, d_ff=self.d_ff, max_positions=self.max_positions)
        fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)
        one_of("activation", self.activation, Activation)
        one_of("norm_position", self.norm_position, NormPosition)
        one_of("positions", self.positions, PositionKind)
        one_of("tie", self.tie, Tie)
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model, but n_heads={self.n_heads} and d_model={self.d_model}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, but d_model={self.d_model}")
        if self.encoder is None and self.decoder is None:
            raise ValueError("a Transformer needs an encoder, a decoder or both, but both are None")
        if self.decoder is not None and not isinstance(self.decoder.input, Tokens):
            raise ValueError(f"a decoder takes Tokens, but decoder.input={self.decoder.input}")
        if self.tie == "all" and self.encoder and self.decoder and self.encoder.input != self.decoder.input:
            raise ValueError(
                "tie='all' needs one vocabulary on both sides, "
                f"but encoder.input={self.encoder.input} and decoder.input={self.decoder.input}; use tie='output'"
            )
        if self.ctc and (self.encoder is None or self.decoder is None):
            raise ValueError(
                "ctc=True maps the encoder's memory to the decoder's vocabulary and needs both, "
                f"but encoder={self.encoder} and decoder={self.decoder}; use ctc=False"
            )

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads
