"""Beam search over a Scorer: the likeliest whole sequences, as far as a beam can see."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import within
from transduce.decode.constraints import Constraints, ids_tensor
from transduce.decode.hypothesis import Hypothesis, length_penalty
from transduce.decode.phrases import Required, in_banks
from transduce.decode.scorer import Scorer
from transduce.decode.topk import likeliest


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

    def first(self, k: int) -> "Beams":
        """The first k hypotheses."""
        return Beams(self.tokens[:, :k], self.log_prob[:, :k], self.score[:, :k])

    def rows(self, sentences: Int[Tensor, " M"]) -> "Beams":
        """The beams of some sentences."""
        return Beams(self.tokens[sentences], self.log_prob[sentences], self.score[sentences])

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
    finished_first: bool = True,
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
        finished_first: False: at its bound, live hypotheses take the places of finished ones that have a lower score.
        coverage: what is added to the score of whatever continues each row that the scorer has seen; it is never above 0.

    Raises:
        ValueError: n_best is not in 1 ... beam_size.
    Source: Wu et al. (2016), section 7, for the penalty; the rule to stop is that of transformers' generate.
    """
    within(f"[1, {beam_size}]", n_best=n_best)
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
        if constraints.required is None:
            continuations = likeliest(scores, offset, 2 * beam_size)
        else:
            at_end = max_lengths <= step
            continuations = _in_banks(constraints.required, scores, offset, live, running, at_end, beam_size, end)
        penalty, bonus = length_penalty(step, alpha), None
        if coverage is not None:
            bonus = coverage().view(len(running), -1).gather(1, continuations[2])
        live, kept, parent = _advance(live, kept, continuations, end, penalty, bonus)
        best = live.score[:, 0] if bonus is None else live.log_prob.amax(dim=1) / penalty  # more may yet be covered
        done = (best <= kept.score[:, -1]) | (max_lengths <= step)
        flags: list[bool] = done.tolist()  # the one host sync of a step
        if any(flags):
            gone, on = ([i for i, flag in enumerate(flags) if flag is want] for want in (True, False))
            out, rest = ids_tensor(gone, device), ids_tensor(on, device)
            results.append(([running[i] for i in gone], kept.rows(out), live.rows(out)))
            running, max_lengths, parent = [running[i] for i in on], max_lengths[rest], parent[rest]
            live, kept = live.rows(rest), kept.rows(rest)
        if parent.device.type == "cpu":
            live, parent = _settled(live, parent)
        scorer.reorder(parent.flatten())
        if any(flags):
            scorer.keep(rest)
        last = live.tokens[:, :, -1].flatten()
    return _collect(results, end, n_best, finished_first)


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
    running: list[int],
    last: Tensor,
    beam_size: int,
    eos_id: int,
) -> tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]]:
    """What `likeliest` gives where phrases are required: ends first, then what shall go on (see `in_banks`)."""
    n_sentences, n_rows = offset.shape
    total = (scores.view(n_sentences, n_rows, -1) + offset[:, :, None]).flatten(1)
    progress = required.progress(live.tokens.flatten(0, 1).tolist(), running).to(scores.device).view(n_sentences, -1)
    needed = ids_tensor([required.totals[i] for i in running], scores.device)
    best, index = in_banks(total, progress, needed, last, beam_size, eos_id, scores.size(1))
    return best, index % scores.size(1), (index // scores.size(1)).clamp_max(n_rows - 1)


def _advance(
    live: Beams,
    kept: Beams,
    continuations: tuple[Float[Tensor, "A n"], Int[Tensor, "A n"], Int[Tensor, "A n"]],
    eos_id: int,
    penalty: float,
    bonus: Float[Tensor, "A n"] | None = None,
) -> tuple[Beams, Beams, Int[Tensor, "A K"]]:
    """Go one token further: the new live and kept hypotheses, and the row that each live one continues."""
    log_prob, token, parent = continuations
    beam_size = kept.score.size(1)
    past = live.tokens.gather(1, parent[:, :, None].expand(-1, -1, live.tokens.size(2)))
    tokens = torch.cat((past, token[:, :, None]), dim=2)
    on, over = log_prob.masked_fill(token == eos_id, -math.inf), log_prob.masked_fill(token != eos_id, -math.inf)
    ended = Beams(tokens, over, over / penalty if bonus is None else over / penalty + bonus).first(beam_size)
    earlier = Beams(F.pad(kept.tokens, (0, 1), value=eos_id), kept.log_prob, kept.score)
    kept, _ = earlier.beside(ended).best(beam_size)
    first_row = live.score.size(1) * torch.arange(len(parent), device=parent.device)[:, None]
    live, chosen = Beams(tokens, on, on / penalty if bonus is None else on / penalty + bonus).best(beam_size)
    return live, kept, first_row + parent.gather(1, chosen)


def _settled(live: Beams, parent: Int[Tensor, "A K"]) -> tuple[Beams, Int[Tensor, "A K"]]:
    """The same hypotheses of every sentence in another order, and their parents: the first of those that continue a row
    takes its place. So of its caches only the rows that nothing continues are overwritten."""
    beam_size = parent.size(1)
    place = parent % beam_size  # of the parent among those of its sentence; one row per sentence before the first step
    first = ~(place[:, :, None] == place[:, None, :]).tril(-1).any(-1)
    taken = torch.zeros_like(place).scatter_(1, place, 1)
    free = taken.argsort(dim=1, stable=True)
    place = place.where(first, free.gather(1, (~first).cumsum(1).sub_(1).clamp_min_(0)))
    order = place.argsort(dim=1)
    tokens = live.tokens.gather(1, order[:, :, None].expand_as(live.tokens))
    return Beams(tokens, live.log_prob.gather(1, order), live.score.gather(1, order)), parent.gather(1, order)


def _collect(
    results: list[tuple[list[int], Beams, Beams]], eos_id: int, n_best: int, finished_first: bool
) -> list[list[Hypothesis]]:
    """Per sentence, in the order of the batch: finished hypotheses, then live ones in the places left free; sorted."""
    found: dict[int, list[Hypothesis]] = {}
    for sentences, kept, live in results:
        beam_size = kept.score.size(1)
        for sentence, finished, unfinished in zip(sentences, _lists(kept, eos_id), _lists(live, eos_id), strict=True):
            hypotheses = (finished + unfinished)[: beam_size if finished_first else None]
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
