"""The probability that nobody speaks, by the model that transcribes."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.scorer import at_least_float32
from transduce.engine.select import Engine
from transduce.model.transformer import Memory
from transduce.tasks.states import encoder_states


def detects_speech(model: Engine, tokenizer: Tokenizer) -> bool:
    """Whether the model has a token for no speech, as Whisper has, or a CTC head."""
    return tokenizer.no_speech_id is not None or model.config.ctc


@torch.no_grad()
def no_speech_probs(
    model: Engine, tokenizer: Tokenizer, sources: Sequence[Float[Tensor, "_ F"]], batch_tokens: int
) -> list[float | None]:
    """The probability that nobody speaks in every sound; 1 of no frames, None if it cannot be told.

    Whisper's is that of its token for it, after the first token of its prompt. Of other models it
    is 1 - q^(1/n), for the n tokens of the greedy path of their CTC head, which all alignments
    together spell with the probability q; 1 where that path is all blank.

    Args:
        batch_tokens: source positions of a batch: speed and memory, never the figures.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5.
    """
    if not detects_speech(model, tokenizer):
        return [None if len(frames) else 1.0 for frames in sources]
    states = iter(
        encoder_states(model, [frames for frames in sources if len(frames)], batch_tokens)
    )
    return [
        _probability(model, tokenizer, next(states)) if len(frames) else 1.0 for frames in sources
    ]


def _probability(model: Engine, tokenizer: Tokenizer, states: Float[Tensor, "S D"]) -> float:
    batch = states[None].to(model.device)
    if tokenizer.no_speech_id is None:
        return _by_ctc(
            at_least_float32(model.ctc_logits(batch)[0]).cpu(), *tokenizer.required("pad_id")
        )
    bos = torch.tensor([tokenizer.required("bos_id")], device=model.device)
    decoded = model.decoder_states(bos, memory=Memory(batch, None))
    return float(at_least_float32(model.project(decoded))[0, 0].softmax(-1)[tokenizer.no_speech_id])


def _by_ctc(logits: Float[Tensor, "S V"], blank_id: int) -> float:
    log_probs = logits.log_softmax(-1)
    ids = log_probs.argmax(-1).unique_consecutive()
    ids = ids[ids != blank_id]
    if not len(ids):
        return 1.0
    sizes = torch.tensor(len(log_probs)), torch.tensor(len(ids))
    log_prob = -F.ctc_loss(log_probs, ids, *sizes, blank=blank_id, reduction="sum")
    return -float((log_prob / len(ids)).expm1())
