"""The perplexity of a text by a language model, in windows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
from jaxtyping import Int, Integer
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from transduce.config import at_least
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.language import encode_text
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.tasks.base import token_log_probs


@dataclass(frozen=True)
class Perplexity:
    """The cost of a text for a model, and how it was measured."""

    nats: float
    """The cost of all predicted tokens together."""
    n_tokens: int
    n_bytes: int
    """Length of the predicted text in UTF-8."""
    signature: str

    @property
    def nats_per_token(self) -> float:
        """Cross-entropy, as training reports it."""
        return self.nats / self.n_tokens

    @property
    def perplexity(self) -> float:
        """e to the nats per token: comparable between models with one tokenizer only."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / self.n_bytes

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.3f} per token, {self.nats_per_token:.4f} nats per "
            "token, "
            f"{self.bits_per_byte:.4f} bits per byte\n{self.signature}"
        )


@torch.inference_mode()
def measure_perplexity(
    model: Engine,
    tokenizer: Tokenizer,
    text: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_tokens: int = 4096,
) -> Perplexity:
    """Predict every token of a text once, from up to `window` tokens before it.

    Windows begin `stride` tokens apart, and in each window only the tokens after the previous
    window count: so all but those of the first window have at least window - stride tokens of
    context. The text is tokenized as for training (`encode_text`): BOS stands first if the
    tokenizer has one, otherwise the first token is not predicted; and if EOS is another token,
    every line is a text between the two, and both are predicted.

    Args:
        window: positions; the model's max_positions if not given.
        stride: half of the window if not given; the whole window is fastest, 1 the fairest.
        batch_tokens: positions of a batch; it changes speed and memory, never the result.

    Raises:
        InputError: there is no token to predict, or the stride or the window is not valid.
    """
    at_least(1, window=window, stride=stride)
    config = model.config.for_stack(model.config.decoder)
    limit = config.max_positions
    window = window or limit
    stride = stride or max(1, window // 2)
    if stride > window or (config.positions == "learned" and window > limit):
        raise InputError(
            "stride must lie in 1 ... window, and window within learned positions, but "
            f"stride={stride}, window={window} and max_positions={limit}"
        )
    stream = encode_text(tokenizer, text)
    n_tokens = len(stream) - 1
    if n_tokens < 1:
        raise InputError(
            f"perplexity needs a token to predict, but the text has {len(text)} characters"
        )
    nats = 0.0
    for rows, n in _windows(stream, window, stride, max(1, batch_tokens // window)):
        ids: Int[Tensor, "B T"] = torch.from_numpy(rows.astype(np.int64)).to(model.device)
        states = model.decoder_states(ids[:, :-1])[:, -n:].flatten(0, 1)
        nats -= token_log_probs(model, states, ids[:, -n:].flatten()).double().sum().item()
    n_bytes = len(text.encode())
    if tokenizer.bos_id is None:  # the first token is not predicted
        n_bytes -= len(tokenizer.decode([stream[:1].tolist()])[0].encode())
    return Perplexity(nats, n_tokens, n_bytes, _signature(tokenizer, n_tokens, window, stride))


def _signature(tokenizer: Tokenizer, n_tokens: int, window: int, stride: int) -> str:
    return (
        f"tokens:{n_tokens}|vocabulary:{tokenizer.vocab_size}|window:{window}|stride:{stride}|"
        f"first:{'given' if tokenizer.bos_id is None else 'bos'}|"
        f"eos:{'no' if tokenizer.bos_id == tokenizer.eos_id else 'yes'}|"
        f"version:{version('transduce')}"
    )


def _windows(
    stream: Integer[np.ndarray, " L"], window: int, stride: int, batch_size: int
) -> Iterator[tuple[Integer[np.ndarray, "B T"], int]]:
    """Windows with the token after each, in batches, and how many predictions of each count: the
    first window, full windows, and the rest."""
    yield stream[None, : window + 1], min(window, len(stream) - 1)
    whole = sliding_window_view(stream, min(window + 1, len(stream)))[stride::stride]
    for i in range(0, len(whole), batch_size):
        yield whole[i : i + batch_size], stride
    n_left = len(stream) - 1 - window - stride * len(whole)
    if n_left > 0:
        yield stream[None, stride * (len(whole) + 1) :], n_left
