"""CTC in search: how likely does a transcript begin with these tokens, whatever the alignment?"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Prefixes:
    """N prefixes of transcripts, with the natural log of the probability that frames 1 ... j spell each, j = 0 ... S.

    `token` sums over the alignments whose frame j is the prefix's last token, `blank` over those where it is blank.
    """

    token: Float[Tensor, "N j"]
    blank: Float[Tensor, "N j"]
    log_prob: Float[Tensor, " N"]
    """The same over all frames, for the prefix with anything or nothing behind it."""
    last: Int[Tensor, " N"]

    def spelt(self) -> Float[Tensor, "N j"]:
        """Both together: frame j is the last token or blank."""
        return torch.logaddexp(self.token, self.blank)

    def rows(self, rows: Int[Tensor, " M"]) -> "Prefixes":
        """Some of the prefixes; rows may repeat."""
        return Prefixes(self.token[rows], self.blank[rows], self.log_prob[rows], self.last[rows])


class CTCPrefixScorer:
    """A scorer of CTC alone: log p(next token | prefix), summed over all alignments, for B sentences.

    The recursions over frames are linear, so cumulative sums solve them; and how likely a prefix is spelt by frame j
    does not depend on the next token, so one matrix product scores the whole vocabulary. Nothing loops over frames,
    and no token is left out; but with logits in float32, a continuation less likely than e^-87 may count as impossible.

    Args:
        logits: finite, over vocabulary and blank, at every source position.
        lengths: real source positions of each sentence; without, all are.
        eos_id: gets the probability that the transcript ends here, for CTC itself knows no EOS.
        blank_id: an id that no transcript contains; it never comes next.
        least: the least log-probability of any other token, where a transcript must hold what CTC may find impossible.

    Source: Graves et al. (2006), Connectionist temporal classification, section 3.2, for prefix probabilities;
    Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech recognition, algorithm 2.
    """

    additive = True

    def __init__(
        self,
        logits: Float[Tensor, "B S V"],
        lengths: Int[Tensor, " B"] | None = None,
        *,
        eos_id: int,
        blank_id: int = 0,
        least: float = -math.inf,
    ) -> None:
        self.n_sentences, self.eos_id, self.blank_id, self.least = len(logits), eos_id, blank_id, least
        frames = torch.arange(logits.size(1), device=logits.device)
        ends = frames.new_full((len(logits),), len(frames)) if lengths is None else lengths
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        self.outside: Bool[Tensor, "B S"] = frames >= ends[:, None]
        """Positions that are padding: they cost nothing, and no token can begin there."""
        self.log_probs: Float[Tensor, "B S V"] = log_probs.masked_fill(self.outside[:, :, None], 0.0)
        self.probs: Float[Tensor, "B S V"] = log_probs.exp().masked_fill(self.outside[:, :, None], 0.0)
        self.prefixes: Prefixes | None = None

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Append one token to every row, but at first only begin, with BOS; score the next."""
        self.prefixes = self._empty() if self.prefixes is None else self._appended(self.prefixes, tokens)
        spelt, before = self.prefixes.spelt(), _finite(self.prefixes.log_prob)
        ready = self._inside(spelt)
        largest = _finite(ready.amax(dim=1))
        weights = (ready - largest[:, None]).exp().to(self.probs.dtype)
        likely = torch.bmm(weights.view(self.n_sentences, -1, weights.size(1)), self.probs).flatten(0, 1)
        scores = likely.log() + (largest - before)[:, None].to(likely.dtype)
        last = self.prefixes.last[:, None]
        again = (self._inside(self.prefixes.blank) + self._along(last[:, 0]).diff()).logsumexp(dim=1) - before
        scores.scatter_(1, last, again[:, None].to(scores.dtype))
        scores[:, self.eos_id] = (spelt[:, -1] - before).to(scores.dtype)
        scores.clamp_min_(self.least)
        scores[:, self.blank_id] = -math.inf
        return scores

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m go on from the past of row rows[m]; rows may repeat and be left out."""
        if self.prefixes is not None:
            self.prefixes = self.prefixes.rows(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Go on with these sentences only. Their rows were already chosen by `reorder`."""
        self.outside, self.log_probs = self.outside[sentences], self.log_probs[sentences]
        self.probs, self.n_sentences = self.probs[sentences], len(sentences)

    def _empty(self) -> Prefixes:
        """The empty prefix of every sentence, which frames spell as long as they are blank."""
        last = torch.full((self.n_sentences,), self.blank_id, device=self.probs.device)
        blank = self._along(last)
        return Prefixes(torch.full_like(blank, -math.inf), blank, torch.zeros_like(blank[:, 0]), last)

    def _appended(self, old: Prefixes, tokens: Int[Tensor, " N"]) -> Prefixes:
        """Append one token to every prefix. The token that came last must be parted from its repetition by a blank."""
        ready = self._inside(torch.where((tokens == old.last)[:, None], old.blank, old.spelt()))
        along = self._along(tokens)
        token = _followed(ready, along)
        blank = _followed(self._inside(token), self._along(torch.full_like(tokens, self.blank_id)))
        return Prefixes(token, blank, (ready + along.diff()).logsumexp(dim=1), tokens)

    def _inside(self, spelt: Float[Tensor, "N j"]) -> Float[Tensor, "N S"]:
        """The columns that a frame follows, j = 0 ... S - 1, with -inf from the sentence's length on."""
        beams = len(spelt) // self.n_sentences
        return spelt[:, :-1].masked_fill(self.outside.repeat_interleave(beams, dim=0), -math.inf)

    def _along(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N j"]:
        """The log-probability that frames 1 ... j are all the row's token; in float64, as differences are taken of it."""
        index = tokens.view(self.n_sentences, 1, -1).expand(-1, self.log_probs.size(1), -1)
        frames = self.log_probs.gather(2, index).transpose(1, 2).flatten(0, 1)
        return F.pad(frames.double().cumsum(dim=1), (1, 0))


def _followed(ready: Float[Tensor, "N S"], along: Float[Tensor, "N j"]) -> Float[Tensor, "N j"]:
    """The x of x(j) = (x(j - 1) + ready(j - 1)) * p(j) with x(0) = 0, in logs; `along` is the running product of p."""
    x = along[:, 1:] + (ready - along[:, :-1]).logcumsumexp(dim=1)
    return F.pad(x, (1, 0), value=-math.inf)


def _finite(x: Tensor) -> Tensor:
    """-inf as the least number, so that -inf minus it is -inf, not nan."""
    return x.clamp_min(torch.finfo(x.dtype).min)
