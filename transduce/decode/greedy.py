"""Greedy search: the likeliest next token, again and again."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.constraints import check_no_repeat_ngram, rule_out
from transduce.decode.hypothesis import Hypothesis, check_bounds, ids_tensor
from transduce.decode.scorer import Scorer


@torch.inference_mode()
def greedy_search(
    scorer: Scorer,
    *,
    bos_id: int,
    eos_id: int,
    max_lengths: Int[Tensor, " B"],
    suppressed: Sequence[int] = (),
    scores: bool = False,
    no_repeat_ngram: int = 0,
) -> list[Hypothesis]:
    """The same tokens as beam_search with beam_size=1, without a softmax.

    Args:
        scorer: one row per sentence; its tensors live where `max_lengths` does.
        max_lengths: bound on the tokens of each sentence, EOS included.
        forbidden: ids never produced.
        scores: also compute log_prob, which is nan otherwise; it costs one pass over the vocabulary per step.
        no_repeat_ngram: no n-gram of this many tokens occurs twice in a hypothesis (see decode/ngram.py); 0 = off.

    Raises:
        ValueError: max_lengths does not hold one bound of at least 1 per sentence, or no_repeat_ngram is negative.
    """
    check_bounds(scorer.n_sentences, max_lengths)
    check_no_repeat_ngram(no_repeat_ngram)
    device, suppressed_ids = max_lengths.device, ids_tensor(suppressed, max_lengths.device)
    running = list(range(scorer.n_sentences))
    tokens = torch.full((len(running), 1), bos_id, device=device)
    log_prob = torch.full((len(running),), 0.0 if scores else math.nan, device=device)
    ended: list[tuple[list[int], Tensor, Tensor]] = []
    while running:
        logits = scorer.step(tokens[:, -1])
        total = _log_norm(logits) if scores and not scorer.additive else 0.0
        rule_out(logits, tokens[:, 1:], suppressed_ids=suppressed_ids, no_repeat_ngram=no_repeat_ngram, eos_id=eos_id)
        best, token = logits.max(dim=-1)
        tokens = torch.cat((tokens, token[:, None]), dim=1)
        if scores:
            log_prob = log_prob + (best - total)
        done = (token == eos_id) | (max_lengths < tokens.size(1))
        flags: list[bool] = done.tolist()  # the one host sync of a step
        if any(flags):
            out, on = ([i for i, flag in enumerate(flags) if flag is want] for want in (True, False))
            rows, rest = ids_tensor(out, device), ids_tensor(on, device)
            ended.append(([running[i] for i in out], tokens[rows, 1:], log_prob[rows]))
            running, tokens, log_prob = [running[i] for i in on], tokens[rest], log_prob[rest]
            max_lengths = max_lengths[rest]
            scorer.reorder(rest)
            scorer.keep(rest)
    return _hypotheses(ended, eos_id)


def _log_norm(logits: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """What log_softmax takes from every logit of a row."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)


def _hypotheses(ended: list[tuple[list[int], Tensor, Tensor]], eos_id: int) -> list[Hypothesis]:
    """Back to the order of the batch."""
    found: dict[int, Hypothesis] = {}
    for sentences, tokens, log_prob in ended:
        for sentence, row, value in zip(sentences, tokens.tolist(), log_prob.tolist(), strict=True):
            finished = row[-1] == eos_id
            found[sentence] = Hypothesis(row[:-1] if finished else row, value, value, finished)
    return [found[sentence] for sentence in sorted(found)]
