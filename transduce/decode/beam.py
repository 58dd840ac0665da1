"""Beam search over a Scorer: the likeliest whole sequences, as far as a beam can see."""

import math
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import divides, within
from transduce.decode.constraints import Constraints, ids_tensor
from transduce.decode.hypothesis import Hypothesis, length_penalty
from transduce.decode.scorer import Scorer, log_probs


@dataclass
class Beams:
    """K hypotheses of every running sentence, best first; -inf where there is none."""

    tokens: Int[Tensor, "A K L"]
    log_prob: Float[Tensor, "A K"]
    score: Float[Tensor, "A K"]

    def best(self, k: int) -> tuple["Beams", Int[Tensor, "A k"]]:
        """The k best hypotheses by score, and which of all they were."""
        score, index = self.score.topk(k)
        tokens = self.tokens.gather(1, index[:, :, None].expand(-1, -1, self.tokens.size(2)))
        return Beams(tokens, self.log_prob.gather(1, index), score), index

    def rows(self, sentences: Int[Tensor, " M"]) -> "Beams":
        """The beams of some sentences."""
        return Beams(self.tokens[sentences], self.log_prob[sentences], self.score[sentences])

    def columns(self, some: slice) -> "Beams":
        """Some of the hypotheses of every sentence."""
        return Beams(self.tokens[:, some], self.log_prob[:, some], self.score[:, some])

    def beside(self, other: "Beams") -> "Beams":
        """Both, in one row per sentence."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Beams(*(torch.cat(pair, dim=1) for pair in pairs))


@torch.inference_mode()
def beam_search(
    scorer: Scorer,
    prompts: Int[Tensor, "B P"],
    constraints: Constraints,
    *,
    beam_size: int = 5,
    alpha: float = 0.6,
    n_best: int = 1,
    groups: int = 1,
    diversity: float = 0.0,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence, best score first.

    Every step weighs the 2 * beam_size likeliest continuations of a sentence, so that at least beam_size live ones
    remain when others end. A continuation that ends counts if it is among the best beam_size. A sentence is done when
    it has beam_size finished hypotheses and its best live one, scored at its present length, beats none of them; or at
    its own bound, where live hypotheses fill the places that finished ones left free. Done sentences leave the batch.

    Args:
        scorer: begins with one row per sentence, and has seen all of the prompt but the last token.
        prompts: what came before, at least BOS, on the device of the search.
        alpha: exponent of the length penalty; 0 ranks by log-probability.
        groups: each searches with its share of the beam and by the rules above, and a sentence is done when all are. In
            every step, a group prefers what the groups before it did not take: a continuation counts as if it was
            less likely by `diversity` for each of their live hypotheses that has just taken the same token. What a
            hypothesis scores in the end knows nothing of that.

    Raises:
        ValueError: n_best is not in 1 ... beam_size, or groups do not divide it.
    Source: Wu et al. (2016), section 7, for the penalty; the rule to stop is that of transformers' generate; Vijayakumar
    et al. (2018), Diverse beam search for improved description of complex scenes, for groups (Hamming diversity).
    """
    within(f"[1, {beam_size}]", n_best=n_best)
    divides(beam_size=beam_size, groups=groups)
    device, max_lengths = prompts.device, constraints.max_lengths
    end = -1 if constraints.eos_id is None else constraints.eos_id  # no token is -1
    running, last = list(range(scorer.n_sentences)), prompts[:, -1]
    live, kept = _start(len(running), beam_size, device)
    results: list[tuple[list[int], Beams, Beams]] = []
    step = 0
    while running:
        step += 1
        scores = log_probs(scorer, last)
        constraints.rule_out(scores, live.tokens.flatten(0, 1))
        first_row = live.score.size(1) * torch.arange(len(running), device=device)[:, None]
        live, kept, parent = _advance_groups(scores, live, kept, groups, diversity, end, length_penalty(step, alpha))
        parent = first_row + parent
        best, worst = live.score.unflatten(1, (groups, -1)).amax(-1), kept.score.unflatten(1, (groups, -1))[:, :, -1]
        done = (best <= worst).all(dim=1) | (max_lengths <= step)
        flags: list[bool] = done.tolist()  # the one host sync of a step
        if any(flags):
            gone, on = ([i for i, flag in enumerate(flags) if flag is want] for want in (True, False))
            out, rest = ids_tensor(gone, device), ids_tensor(on, device)
            results.append(([running[i] for i in gone], kept.rows(out), live.rows(out)))
            running, max_lengths, parent = [running[i] for i in on], max_lengths[rest], parent[rest]
            live, kept = live.rows(rest), kept.rows(rest)
        scorer.reorder(parent.flatten())
        if any(flags):
            scorer.keep(rest)
        last = live.tokens[:, :, -1].flatten()
    return _collect(results, end, n_best, groups)


def _start(n_sentences: int, beam_size: int, device: torch.device) -> tuple[Beams, Beams]:
    """One empty live hypothesis per sentence, and no kept one."""
    nothing = torch.empty(n_sentences, beam_size, 0, dtype=torch.long, device=device)
    zero, nowhere = torch.zeros(n_sentences, 1, device=device), torch.full(nothing.shape[:2], -math.inf, device=device)
    return Beams(nothing[:, :1], zero, zero), Beams(nothing, nowhere, nowhere)


def _continuations(
    log_prob: Float[Tensor, "N V"], live: Float[Tensor, "A k"], n: int
) -> tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]]:
    """The n likeliest continuations of every sentence: log-probability, token, and which of its k rows it continues."""
    vocab_size = log_prob.size(1)
    total = log_prob.view(*live.shape, vocab_size).add_(live[:, :, None]).flatten(1)
    if total.size(1) < n:  # in the first steps with a tiny vocabulary
        total = F.pad(total, (0, n - total.size(1)), value=-math.inf)
    best, index = total.topk(n)
    return best, index % vocab_size, (index // vocab_size).clamp_max(live.size(1) - 1)


def _advance_groups(
    log_prob: Float[Tensor, "N V"],
    live: Beams,
    kept: Beams,
    groups: int,
    diversity: float,
    eos_id: int,
    penalty: float,
) -> tuple[Beams, Beams, Int[Tensor, "A K"]]:
    """Go one token further, group by group: live and kept hypotheses, and which of its sentence each live one continues."""
    n_live, size = live.score.size(1), kept.score.size(1) // groups
    if groups == 1:
        return _advance(live, kept, _continuations(log_prob, live.log_prob, 2 * size), eos_id, penalty)
    table = log_prob.view(len(live.score), n_live, -1)
    taken, found = torch.zeros_like(table[:, 0]), []
    for group in range(groups):
        span = slice(group * size, (group + 1) * size)
        rows = span if n_live > 1 else slice(0, 1)  # all begin as one
        own, less = live.columns(rows), diversity * taken
        best, token, parent = _continuations((table[:, rows] - less[:, None]).flatten(0, 1), own.log_prob, 2 * size)
        bias = less.gather(1, token)
        new, over, chosen = _advance(own, kept.columns(span), (best + bias, token, parent), eos_id, penalty, bias)
        there = (new.log_prob > -math.inf).to(taken.dtype)
        taken = taken.scatter_add(1, new.tokens[:, :, -1], there)
        found.append((new, over, chosen + rows.start))
    lives, over_all, parents = zip(*found, strict=True)
    return reduce(Beams.beside, lives), reduce(Beams.beside, over_all), torch.cat(parents, dim=1)


def _advance(
    live: Beams,
    kept: Beams,
    continuations: tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]],
    eos_id: int,
    penalty: float,
    bias: Float[Tensor, "A n"] | float = 0.0,
) -> tuple[Beams, Beams, Int[Tensor, "A K"]]:
    """Go one token further: the new live and kept hypotheses, and which of its sentence each live one continues.

    Args:
        continuations: sorted by their log-probability less `bias`, by which the live ones are chosen.
    """
    log_prob, token, parent = continuations
    beam_size = kept.score.size(1)
    past = live.tokens.gather(1, parent[:, :, None].expand(-1, -1, live.tokens.size(2)))
    tokens = torch.cat((past, token[:, :, None]), dim=2)
    on, over = log_prob.masked_fill(token == eos_id, -math.inf), log_prob.masked_fill(token != eos_id, -math.inf)
    ended = Beams(tokens[:, :beam_size], over[:, :beam_size], over[:, :beam_size] / penalty)
    earlier = Beams(F.pad(kept.tokens, (0, 1), value=eos_id), kept.log_prob, kept.score)
    kept, _ = earlier.beside(ended).best(beam_size)
    live, chosen = Beams(tokens, on, on - bias).best(beam_size)
    return Beams(live.tokens, live.log_prob, live.log_prob / penalty), kept, parent.gather(1, chosen)


def _collect(
    results: list[tuple[list[int], Beams, Beams]], eos_id: int, n_best: int, groups: int
) -> list[list[Hypothesis]]:
    """Per sentence, in the order of the batch: finished hypotheses, then live ones in the places left free; sorted."""
    found: dict[int, list[Hypothesis]] = {}
    for sentences, kept, live in results:
        size = kept.score.size(1) // groups
        spans = [slice(group * size, (group + 1) * size) for group in range(groups)]
        each = [zip(*(_lists(beams.columns(span), eos_id) for beams in (kept, live)), strict=True) for span in spans]
        for sentence, pairs in zip(sentences, zip(*each, strict=True), strict=True):
            hypotheses = [h for finished, unfinished in pairs for h in (finished + unfinished)[:size]]
            found[sentence] = sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:n_best]
    return [found[sentence] for sentence in sorted(found)]


def _lists(beams: Beams, eos_id: int) -> list[list[Hypothesis]]:
    """Turn tensors into hypotheses, leaving out those that do not exist."""
    columns = zip(beams.tokens.tolist(), beams.log_prob.tolist(), beams.score.tolist(), strict=True)
    return [
        [
            Hypothesis(row[: row.index(eos_id)] if eos_id in row else row, log_prob, score, eos_id in row)
            for row, log_prob, score in zip(*sentence, strict=True)
            if score > -math.inf
        ]
        for sentence in columns
    ]
