"""Beam search over a Scorer: the likeliest whole sequences, as far as a beam can see."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.config import divides, within
from transduce.decode.constraints import Constraints, ids_tensor
from transduce.decode.hypothesis import Hypothesis, length_penalty
from transduce.decode.phrases import Required, in_banks
from transduce.decode.scorer import Scorer
from transduce.decode.topk import likeliest
from transduce.errors import InputError
from transduce.kernels import library


@dataclass
class Beams:
    """K hypotheses of every running sentence, best first; -inf where there is none."""

    tokens: Int[Tensor, "A K L"]
    log_prob: Float[Tensor, "A K"]
    score: Float[Tensor, "A K"]

    def best(self, k: int, by: Float[Tensor, "A K"] | None = None) -> tuple["Beams", Int[Tensor, "A k"]]:
        """The k best hypotheses by score, or by something else, and which of all they were."""
        score, index = (self.score if by is None else by).topk(k)
        tokens = self.tokens.gather(1, index[:, :, None].expand(-1, -1, self.tokens.size(2)))
        score = score if by is None else self.score.gather(1, index)
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
    length_offset: float = 5.0,
    n_best: int = 1,
    groups: int = 1,
    diversity: float = 0.0,
    finished_first: bool = True,
    early_stopping: bool = False,
    coverage: Callable[[], Float[Tensor, " N"]] | None = None,
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
        length_offset: see `length_penalty`.
        groups: each searches with its share of the beam and by the rules above, and a sentence is done when all are. In
            every step, a group prefers what the groups before it did not take: a continuation counts as if it was
            less likely by `diversity` for each of their live hypotheses that has just taken the same token. What a
            hypothesis scores in the end knows nothing of that. A group does not end what a group before it has ended
            (in the paper and in transformers it may, and one output comes twice): it goes on to an output of its own.
        finished_first: False: at its bound, live hypotheses take the places of finished ones that have a lower score.
        early_stopping: a sentence is done when it has beam_size finished hypotheses, whatever its live ones score.
        coverage: what is added to the score of whatever continues each row that the scorer has seen; it is never above 0.

    Raises:
        InputError: n_best is not in 1 ... beam_size, groups do not divide it, or there are groups and required phrases.
    Source: Wu et al. (2016), section 7, for the penalty; the rule to stop is that of transformers' generate; Vijayakumar
    et al. (2018), Diverse beam search for improved description of complex scenes, for groups (Hamming diversity).
    """
    within(f"[1, {beam_size}]", n_best=n_best)
    divides(beam_size=beam_size, groups=groups)
    if constraints.required and groups > 1:
        raise InputError(f"groups of a beam know no required phrases, but groups={groups}; leave one of them out")
    device, max_lengths = prompts.device, constraints.max_lengths
    end = -1 if constraints.eos_id is None else constraints.eos_id  # no token is -1
    running, last = list(range(scorer.n_sentences)), prompts[:, -1]
    live, kept = _start(len(running), beam_size, device)
    results: list[tuple[list[int], Beams, Beams]] = []
    step = 0
    while running:
        step += 1
        scores, total = constraints.scores(scorer, last, live.tokens.flatten(0, 1), running)
        offset = live.log_prob - total.view_as(live.log_prob)
        first_row = offset.size(1) * torch.arange(len(running), device=device)[:, None]
        covered = None if coverage is None else coverage().view_as(offset)
        told = end, length_penalty(step, alpha, length_offset), covered
        if groups > 1:
            live, kept, parent, done = _advance_groups(scores, offset, live, kept, groups, diversity, *told)
        else:
            if constraints.required is None:
                continuations = likeliest(scores, offset, 2 * beam_size)
            else:
                at_end = max_lengths <= step
                continuations = _in_banks(constraints.required, scores, offset, live, kept, running, at_end, end)
            live, kept, parent, done = _advance(live, kept, continuations, *told)
        if early_stopping:
            done = (kept.score > -math.inf).all(dim=1)
            live.score = live.score.masked_fill(
                (done & (max_lengths > step))[:, None], -math.inf
            )  # they come out no more
        parent, done = first_row + parent, done | (max_lengths <= step)
        flags: list[bool] = done.tolist()  # the one host sync of a step
        if any(flags):
            gone, on = ([i for i, flag in enumerate(flags) if flag is want] for want in (True, False))
            out, rest = ids_tensor(gone, device), ids_tensor(on, device)
            results.append(([running[i] for i in gone], kept.rows(out), live.rows(out)))
            running, max_lengths, parent = [running[i] for i in on], max_lengths[rest], parent[rest]
            live, kept = live.rows(rest), kept.rows(rest)
        if step > 1 and groups == 1 and device.type == "cpu":
            live, parent = _settled(live, parent)
        scorer.reorder(parent.flatten())
        if any(flags):
            scorer.keep(rest)
        last = live.tokens[:, :, -1].flatten()
    return _collect(results, end, n_best, groups, finished_first)


def _start(n_sentences: int, beam_size: int, device: torch.device) -> tuple[Beams, Beams]:
    """One empty live hypothesis per sentence, and no kept one."""
    nothing = torch.empty(n_sentences, beam_size, 0, dtype=torch.long, device=device)
    zero, nowhere = torch.zeros(n_sentences, 1, device=device), torch.full(nothing.shape[:2], -math.inf, device=device)
    return Beams(nothing[:, :1], zero, zero), Beams(nothing, nowhere, nowhere)


def _in_banks(
    required: Required,
    scores: Float[Tensor, "N V"],
    offset: Float[Tensor, "A k"],
    live: Beams,
    kept: Beams,
    running: list[int],
    last: Tensor,
    eos_id: int,
) -> tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]]:
    """What `likeliest` gives where phrases are required: ends first, then what shall go on (see `in_banks`)."""
    n_sentences, n_rows = offset.shape
    total = (scores.view(n_sentences, n_rows, -1) + offset[:, :, None]).flatten(1)
    progress = required.progress(live.tokens.flatten(0, 1).tolist(), running).to(scores.device).view(n_sentences, -1)
    needed = ids_tensor([required.totals[i] for i in running], scores.device)
    empty, beam_size = kept.score[:, 0] == -math.inf, kept.score.size(1)
    best, index = in_banks(total, progress, needed, last, empty, beam_size, eos_id, scores.size(1))
    return best, index % scores.size(1), (index // scores.size(1)).clamp_max(n_rows - 1)


def _advance_groups(
    scores: Float[Tensor, "N V"],
    offset: Float[Tensor, "A k"],
    live: Beams,
    kept: Beams,
    groups: int,
    diversity: float,
    eos_id: int,
    penalty: float,
    covered: Float[Tensor, "A k"] | None,
) -> tuple[Beams, Beams, Int[Tensor, "A K"], Bool[Tensor, " A"]]:
    """`_advance`, group by group; a sentence is done when all of its groups are."""
    size, table = kept.score.size(1) // groups, scores.view(*offset.shape, -1)
    taken, found = torch.zeros_like(table[:, 0]), list[tuple[Beams, Beams, Tensor, Tensor]]()
    for group in range(groups):
        span = slice(group * size, (group + 1) * size)
        rows = span if offset.size(1) > 1 else slice(0, 1)  # all begin as one
        less = diversity * taken
        best, token, parent = likeliest((table[:, rows] - less[:, None]).flatten(0, 1), offset[:, rows], 2 * size)
        bias, seen = less.gather(1, token), None if covered is None else covered[:, rows]
        if found:
            past = live.columns(rows).tokens.gather(1, parent[:, :, None].expand(-1, -1, live.tokens.size(2)))
            ended = reduce(Beams.beside, [each[1] for each in found])
            same = (torch.cat((past, token[:, :, None]), dim=2)[:, :, None] == ended.tokens[:, None]).all(dim=3)
            best = best.masked_fill((same & (ended.score > -math.inf)[:, None]).any(dim=2), -math.inf)
        continuations = best + bias, token, parent
        new, over, parent, done = _advance(
            live.columns(rows), kept.columns(span), continuations, eos_id, penalty, seen, bias
        )
        there = (new.log_prob > -math.inf).to(taken.dtype)
        taken = taken.scatter_add(1, new.tokens[:, :, -1], there)
        found.append((new, over, rows.start + parent, done))
    lives, over_all, parents, all_done = zip(*found, strict=True)
    parent, done = torch.cat(parents, dim=1), torch.stack(all_done).all(dim=0)
    return reduce(Beams.beside, lives), reduce(Beams.beside, over_all), parent, done


def _advance(
    live: Beams,
    kept: Beams,
    continuations: tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]],
    eos_id: int,
    penalty: float,
    covered: Float[Tensor, "A k"] | None = None,
    bias: Float[Tensor, "A n"] | None = None,
) -> tuple[Beams, Beams, Int[Tensor, "A K"], Bool[Tensor, " A"]]:
    """Go one token further: the new live and kept hypotheses, which of its sentence each live one continues, and whether
    no live one beats any of beam_size kept ones.

    Args:
        continuations: sorted by their log-probability less `bias`, by which the live ones are chosen.
        covered: what each hypothesis adds to the scores of its continuations.
    """
    log_prob, token, parent = continuations
    beam_size = kept.score.size(1)
    past = live.tokens.gather(1, parent[:, :, None].expand(-1, -1, live.tokens.size(2)))
    tokens = torch.cat((past, token[:, :, None]), dim=2)
    on, over = log_prob.masked_fill(token == eos_id, -math.inf), log_prob.masked_fill(token != eos_id, -math.inf)
    on_score, over_score = on / penalty, over / penalty
    if covered is not None:
        bonus = covered.gather(1, parent)
        on_score, over_score = on_score + bonus, over_score + bonus
    ended = Beams(tokens, over, over_score).columns(slice(beam_size))
    earlier = Beams(F.pad(kept.tokens, (0, 1), value=eos_id), kept.log_prob, kept.score)
    kept, _ = earlier.beside(ended).best(beam_size)
    live, chosen = Beams(tokens, on, on_score).best(beam_size, None if bias is None else on_score - bias / penalty)
    by_score = covered is None and bias is None
    best = live.score[:, 0] if by_score else live.log_prob.amax(dim=1) / penalty  # more may yet be covered
    return live, kept, parent.gather(1, chosen), best <= kept.score[:, -1]


def _settled(live: Beams, parent: Int[Tensor, "A K"]) -> tuple[Beams, Int[Tensor, "A K"]]:
    """The same hypotheses of every sentence in another order, and their parents: the first of those that continue a row
    takes its place. So of its caches only the rows that nothing continues are overwritten."""
    beam_size = parent.size(1)
    place = parent % beam_size  # of the parent among those of its sentence
    order = torch.empty_like(place)
    if (cpp := library()) is not None:
        cpp.settle(place.data_ptr(), *place.shape, order.data_ptr())
    else:
        first = ~(place[:, :, None] == place[:, None, :]).tril(-1).any(-1)
        taken = torch.zeros_like(place).scatter_(1, place, 1)
        free = taken.argsort(dim=1, stable=True)
        place = place.where(first, free.gather(1, (~first).cumsum(1).sub_(1).clamp_min_(0)))
        order = place.argsort(dim=1)
    tokens = live.tokens.gather(1, order[:, :, None].expand_as(live.tokens))
    return Beams(tokens, live.log_prob.gather(1, order), live.score.gather(1, order)), parent.gather(1, order)


def _collect(
    results: list[tuple[list[int], Beams, Beams]], eos_id: int, n_best: int, groups: int, finished_first: bool
) -> list[list[Hypothesis]]:
    """Per sentence, in the order of the batch: finished hypotheses, then live ones in the places left free; sorted."""
    found: dict[int, list[Hypothesis]] = {}
    for sentences, kept, live in results:
        size = kept.score.size(1) // groups
        spans = [slice(group * size, (group + 1) * size) for group in range(groups)]
        each = [zip(*(_lists(beams.columns(span), eos_id) for beams in (kept, live)), strict=True) for span in spans]
        room = size if finished_first else None
        for sentence, pairs in zip(sentences, zip(*each, strict=True), strict=True):
            distinct: dict[tuple[int, ...], Hypothesis] = {}  # groups may go on with the same one until the bound
            for finished, unfinished in pairs:
                own = {(*h.tokens, h.finished): h for h in finished + unfinished}
                new = [key for key in own if key not in distinct]
                distinct |= {key: own[key] for key in new[:room]}
            found[sentence] = sorted(distinct.values(), key=lambda hypothesis: -hypothesis.score)[:n_best]
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
