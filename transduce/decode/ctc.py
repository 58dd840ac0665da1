"""CTC prefix scores: the probability that a transcript begins with these tokens."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decode.scorer import Places, Scores, Tokens, at_least_float32

UpTo = Float[Tensor, "N j"]
"""A number for the frames 1 ... j of every row, for every j."""


class Prefixes(NamedTuple):
    """N prefixes: natural logs of the probability that frames 1 ... j spell each."""

    log_p_nonblank: UpTo
    """Summed over the alignments whose frame j is the prefix's last token."""
    log_p_blank: UpTo
    """Summed over those whose frame j is blank."""
    log_prob: Float[Tensor, " N"]
    """Over all frames: the log-probability that the transcript begins with the prefix."""
    last: Tokens

    @property
    def alpha(self) -> UpTo:
        """The sum of both: frame j is the last token or blank."""
        return torch.logaddexp(self.log_p_nonblank, self.log_p_blank)


class CTCPrefixScorer:
    """A scorer of CTC alone: log p(next token | prefix), summed over all alignments.

    The recursions over frames are linear, so cumulative sums solve them; and alpha does not depend
    on the next token, so one matrix product scores the whole vocabulary. Nothing loops over frames,
    and no token is left out; but with logits in float32, a continuation less likely than e^-87 may
    count as impossible.

    Args:
        logits: finite, over vocabulary and blank, at every source position.
        lengths: real source positions of each sentence; None: all of them.
        eos_id: its score is the probability that the transcript ends here; CTC itself has no EOS.
        blank_id: an id that no transcript contains; it never comes next.
        least: for each sentence, the lowest log-probability that any other token gets, if its
            transcript must contain what CTC may find impossible; empty: -inf.

    Source: Graves et al. (2006), Connectionist temporal classification, section 3.2, for prefix
    probabilities; Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech
    recognition, algorithm 2.
    """

    additive = True

    def __init__(
        self,
        logits: Float[Tensor, "B S V"],
        lengths: Int[Tensor, " B"] | None = None,
        *,
        eos_id: int,
        blank_id: int = 0,
        least: Sequence[float] = (),
    ) -> None:
        self.n_sentences = len(logits)
        self.eos_id = eos_id
        self.blank_id = blank_id
        self.least = logits.new_tensor(least or [-math.inf] * len(logits))
        frames = torch.arange(logits.size(1), device=logits.device)
        ends = frames.new_full((len(logits),), len(frames)) if lengths is None else lengths
        log_probs = at_least_float32(logits).log_softmax(-1)
        self.padding: Bool[Tensor, "B S"] = frames >= ends[:, None]
        """Padding does not change probabilities, and no token can begin there."""
        self.log_probs: Float[Tensor, "B S V"] = log_probs.masked_fill(
            self.padding[:, :, None], 0.0
        )
        self.probs: Float[Tensor, "B S V"] = log_probs.exp().masked_fill(
            self.padding[:, :, None], 0.0
        )
        self.prefixes: Prefixes | None = None

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row, and score the next. The first call, with BOS, appends
        nothing."""
        self.prefixes = (
            self._empty() if self.prefixes is None else self._extended(self.prefixes, tokens)
        )
        alpha = self.prefixes.alpha
        log_prob = _finite(self.prefixes.log_prob)
        phi = self._before(alpha)
        largest = _finite(phi.amax(dim=1))
        weights = (phi - largest[:, None]).exp().to(self.probs.dtype)
        weights = weights.view(self.n_sentences, -1, weights.size(1))
        # a validation in bf16 searches under autocast
        with torch.autocast(weights.device.type, enabled=False):
            products = torch.bmm(weights, self.probs).flatten(0, 1)
        scores = products.log() + (largest - log_prob)[:, None].to(products.dtype)
        last = self.prefixes.last[:, None]
        repeated = self._before(self.prefixes.log_p_blank) + self._cumulative(last[:, 0]).diff()
        scores.scatter_(1, last, (repeated.logsumexp(dim=1) - log_prob)[:, None].to(scores.dtype))
        scores[:, self.eos_id] = (alpha[:, -1] - log_prob).to(scores.dtype)
        beams = len(scores) // self.n_sentences
        scores.clamp_min_(self.least.to(scores.dtype).repeat_interleave(beams)[:, None])
        scores[:, self.blank_id] = -math.inf
        return scores

    def reorder(self, rows: Places) -> None:
        """Let row m continue from the prefix of row rows[m]; rows may repeat or be left out."""
        if self.prefixes is not None:
            self.prefixes = Prefixes(*(each[rows] for each in self.prefixes))

    def keep(self, sentences: Places) -> None:
        """Continue with these sentences only. Their rows were already chosen by `reorder`."""
        self.padding = self.padding[sentences]
        self.log_probs = self.log_probs[sentences]
        self.probs = self.probs[sentences]
        self.least = self.least[sentences]
        self.n_sentences = len(sentences)

    def _empty(self) -> Prefixes:
        """The empty prefix of every sentence, which frames spell if all of them are blank."""
        last = torch.full((self.n_sentences,), self.blank_id, device=self.probs.device)
        log_p_blank = self._cumulative(last)
        impossible = torch.full_like(log_p_blank, -math.inf)
        return Prefixes(impossible, log_p_blank, torch.zeros_like(log_p_blank[:, 0]), last)

    def _extended(self, old: Prefixes, tokens: Tokens) -> Prefixes:
        """Append one token to every prefix; a blank must separate a token from its repetition."""
        phi = self._before(torch.where((tokens == old.last)[:, None], old.log_p_blank, old.alpha))
        token = self._cumulative(tokens)
        blank = self._cumulative(torch.full_like(tokens, self.blank_id))
        log_p_nonblank = _recursion(phi, token)
        log_p_blank = _recursion(self._before(log_p_nonblank), blank)
        return Prefixes(log_p_nonblank, log_p_blank, (phi + token.diff()).logsumexp(dim=1), tokens)

    def _before(self, alpha: UpTo) -> Float[Tensor, "N S"]:
        """The columns before each frame, with -inf from the sentence's length on."""
        beams = len(alpha) // self.n_sentences
        return alpha[:, :-1].masked_fill(self.padding.repeat_interleave(beams, dim=0), -math.inf)

    def _cumulative(self, tokens: Tokens) -> UpTo:
        """The log-probability that frames 1 ... j are all the row's token, in float64."""
        index = tokens.view(self.n_sentences, 1, -1).expand(-1, self.log_probs.size(1), -1)
        frames = self.log_probs.gather(2, index).transpose(1, 2).flatten(0, 1)
        return F.pad(frames.double().cumsum(dim=1), (1, 0))


def _recursion(phi: Float[Tensor, "N S"], cumulative: UpTo) -> UpTo:
    """The x of x(j) = (x(j-1) + phi(j-1)) p(j), x(0) = 0, in logs; `cumulative`: products of p."""
    x = cumulative[:, 1:] + (phi - cumulative[:, :-1]).logcumsumexp(dim=1)
    return F.pad(x, (1, 0), value=-math.inf)


def _finite(x: Tensor) -> Tensor:
    """Replace -inf by the lowest finite number, so that -inf minus it is -inf, not nan."""
    return x.clamp_min(torch.finfo(x.dtype).min)
