"""How likely it is that nobody speaks, by the model that transcribes."""

import logging
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

logger = logging.getLogger("transduce")


def _measurable(model: Engine, tokenizer: Tokenizer) -> bool:
    """Whether the model has a token for it, as Whisper has, or a CTC head."""
    return tokenizer.no_speech_id is not None or model.config.ctc


def warn_if_unmeasurable(model: Engine, tokenizer: Tokenizer) -> None:
    """Say so where a threshold can change nothing."""
    if not _measurable(model, tokenizer):
        logger.warning(
            "no_speech_threshold changes nothing: this model has neither a CTC head nor a token for no speech"
        )


@torch.no_grad()
def no_speech_probs(
    model: Engine, tokenizer: Tokenizer, sources: Sequence[Float[Tensor, "_ F"]], batch_tokens: int
) -> list[float | None]:
    """The probability that nobody speaks, for the frames of every sound; 1 of no frames, None where the model cannot tell.

    Whisper's is that of its token for it, behind the first token of its prompt. Of other models it is what their CTC head
    does not give to its own best transcript: 1 - q^(1/n), for the n tokens of the greedy path, which all alignments together
    spell with the probability q; 1 where that path is all blank.

    Args:
        batch_tokens: source positions in one go: speed and memory, never the figures.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision, section 4.5.
    """
    found: list[float | None] = [None if len(frames) else 1.0 for frames in sources]
    rows = [row for row, p in enumerate(found) if p is None and _measurable(model, tokenizer)]
    all_states = encoder_states(model, [sources[row] for row in rows], batch_tokens)
    for row, states in zip(rows, all_states, strict=True):
        memory = Memory(states[None].to(model.device), None)
        if tokenizer.no_speech_id is None:
            (blank,) = tokenizer.required("pad_id")
            found[row] = _by_ctc(at_least_float32(model.ctc_logits(memory.states)[0]).log_softmax(-1).cpu(), blank)
        else:
            first = torch.tensor([tokenizer.required("bos_id")], device=model.device)
            logits = at_least_float32(model.project(model.decoder_states(first, memory=memory))[0])
            found[row] = float(logits[0].softmax(-1)[tokenizer.no_speech_id])
    return found


def _by_ctc(log_probs: Float[Tensor, "S V"], blank_id: int) -> float:
    ids = log_probs.argmax(-1).unique_consecutive()
    ids = ids[ids != blank_id]
    if not len(ids):
        return 1.0
    sizes = torch.tensor(len(log_probs)), torch.tensor(len(ids))
    log_prob = -F.ctc_loss(log_probs, ids, *sizes, blank=blank_id, reduction="sum")
    return -float((log_prob / len(ids)).expm1())
