"""How likely it is that nobody speaks, by the model that transcribes."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.tokenizer import Tokenizer
from transduce.decode.scorer import at_least_float32
from transduce.model.transformer import Memory, Transformer
from transduce.tasks.search import Output
from transduce.tasks.states import encoded

logger = logging.getLogger("transduce")


def _measurable(model: Transformer, tokenizer: Tokenizer) -> bool:
    """Whether the model has a token for it, as Whisper has, or a CTC head."""
    return tokenizer.no_speech_id is not None or model.ctc is not None


def warn_if_unmeasurable(model: Transformer, tokenizer: Tokenizer) -> None:
    """Say so where a threshold can change nothing."""
    if not _measurable(model, tokenizer):
        logger.warning(
            "no_speech_threshold changes nothing: this model has neither a CTC head nor a token for no speech"
        )


def blank_noise(outputs: list[Output], threshold: float) -> list[Output]:
    """The n best outputs for a sound, blank where the probability that nobody speaks is above the threshold; 0 = off."""
    p = outputs[0].no_speech_prob
    return outputs if not threshold or p is None or p <= threshold else [Output("", no_speech_prob=p)] * len(outputs)


@torch.no_grad()
def with_no_speech(
    model: Transformer, tokenizer: Tokenizer, sources: Sequence[Float[Tensor, "_ F"]], outputs: Sequence[list[Output]]
) -> list[list[Output]]:
    """The same outputs, n of every source, each with the probability that nobody speaks there.

    It is that of Whisper's token for it behind the first token of its prompt. Of other models it is what their CTC head
    leaves to other texts, or to none: 1 - q(output)^(1/n), of an output of n tokens with the probability q(output), all
    alignments together; so long outputs are as sure as short ones. A blank output has 1.

    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision, section 4.5.
    """
    if not _measurable(model, tokenizer):
        return list(outputs)
    memory = encoded(model, sources)
    if tokenizer.no_speech_id is None:
        return [_by_ctc(model, tokenizer, memory, row, some) for row, some in enumerate(outputs)]
    (bos,) = tokenizer.required("bos_id")
    first = torch.full((len(sources), 1), bos, device=model.device)
    probs = at_least_float32(model.decode(first, memory=memory)[:, 0]).softmax(-1)[:, tokenizer.no_speech_id].tolist()
    return [[replace(each, no_speech_prob=p) for each in some] for some, p in zip(outputs, probs, strict=True)]


def _by_ctc(
    model: Transformer, tokenizer: Tokenizer, memory: Memory, row: int, outputs: Sequence[Output]
) -> list[Output]:
    assert memory.lengths is not None
    (blank,), states = tokenizer.required("pad_id"), memory.states[row : row + 1, : int(memory.lengths[row])]
    log_probs = at_least_float32(model.ctc_logits(states)[0]).log_softmax(-1).cpu()
    found = []
    for output in outputs:
        n, p = len(output.tokens), 1.0
        if n:
            ids, sizes = torch.tensor(output.tokens), (torch.tensor(len(log_probs)), torch.tensor(n))
            log_prob = -F.ctc_loss(log_probs, ids, *sizes, blank=blank, reduction="sum")
            p = -float((log_prob / n).expm1())
        found.append(replace(output, no_speech_prob=p))
    return found
