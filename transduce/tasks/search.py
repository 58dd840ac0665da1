"""How to search, and the search itself: from what flows into a model to the token ids that come out."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from transduce.data.text.sentencepiece_bpe import BOS, EOS, PAD, UNK, SentencePieceTokenizer
from transduce.decode.beam import beam_search
from transduce.decode.constraints import check_no_repeat_ngram
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.greedy import greedy_search
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.joint import JointScorer
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How to search."""

    beam_size: int = 5
    """1 is greedy search."""
    alpha: float = 0.6
    """Exponent of the GNMT length penalty ((5 + length) / 6)^alpha; 0 ranks by log-probability."""
    n_best: int = 1
    """Outputs per source, best first."""
    batch_tokens: int = 2048
    """Source positions per batch, padding included. It changes speed and memory, never the output."""
    length_ratio: float = 2.0
    """At most length_ratio * source positions + length_extra tokens come out."""
    length_extra: int = 20
    """See length_ratio."""
    max_source_length: int = 512
    """Longer texts, in tokens, are cut, with a warning."""
    max_seconds: float = 20.0
    """Longer recordings are transcribed in segments, cut where they are quietest."""
    ctc_weight: float = 0.0
    """Share of CTC in the score of a transcript; 0 = attention alone. Needs a model with a CTC head."""
    no_repeat_ngram: int = 0
    """No n-gram of this many tokens comes out twice; 0 = off."""

    def __post_init__(self) -> None:
        for name in ("beam_size", "n_best", "batch_tokens", "max_source_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but {name}={getattr(self, name)}")
        if self.n_best > self.beam_size:
            raise ValueError(
                f"a beam holds at most beam_size hypotheses, but n_best={self.n_best} and beam_size={self.beam_size}"
            )
        if self.alpha < 0 or self.length_ratio < 0 or self.length_extra < 1:
            raise ValueError(
                "alpha and length_ratio must not be negative and length_extra at least 1, but "
                f"alpha={self.alpha}, length_ratio={self.length_ratio}, length_extra={self.length_extra}"
            )
        if not 0 <= self.ctc_weight <= 1 or self.max_seconds < 1:
            raise ValueError(
                "ctc_weight must lie in [0, 1] and max_seconds be at least 1, but "
                f"ctc_weight={self.ctc_weight} and max_seconds={self.max_seconds}"
            )
        check_no_repeat_ngram(self.no_repeat_ngram)

    def greedy(self) -> "SearchConfig":
        """The same, but searched greedily."""
        return replace(self, beam_size=1, n_best=1)


GREEDY = SearchConfig(beam_size=1)


@dataclass(frozen=True)
class Output:
    """One text that came out, with its natural log-probability and the score that ranked it."""

    text: str
    log_prob: float = 0.0
    score: float = 0.0


@torch.inference_mode()
def search(
    model: Transformer, source: Shaped[Tensor, "B S *F"], lengths: Int[Tensor, " B"], decoding: SearchConfig
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every source, best first.

    Raises:
        ValueError: CTC is to be heard, but the model has no CTC head.
    """
    memory = model.encode(source.to(model.device), lengths.to(model.device))
    assert memory.lengths is not None
    bounds = (memory.lengths * decoding.length_ratio).long() + decoding.length_extra
    if model.config.positions == "learned":
        bounds = bounds.clamp(max=model.config.max_positions)
    scorer: Scorer = ModelScorer(model, memory)
    if decoding.ctc_weight:
        ctc = CTCPrefixScorer(model.ctc_logits(memory.states), memory.lengths, eos_id=EOS, blank_id=PAD)
        scorer = JointScorer(scorer, ctc, weight=decoding.ctc_weight)
    suppressed = (PAD, UNK, BOS)
    if decoding.beam_size == 1:
        found = greedy_search(
            scorer,
            bos_id=BOS,
            eos_id=EOS,
            max_lengths=bounds,
            suppressed=suppressed,
            scores=True,
            no_repeat_ngram=decoding.no_repeat_ngram,
        )
        return [[hypothesis] for hypothesis in found]
    return beam_search(
        scorer,
        bos_id=BOS,
        eos_id=EOS,
        max_lengths=bounds,
        beam_size=decoding.beam_size,
        alpha=decoding.alpha,
        n_best=decoding.n_best,
        suppressed=suppressed,
        no_repeat_ngram=decoding.no_repeat_ngram,
    )


def outputs_of(tokenizer: SentencePieceTokenizer, hypotheses: list[Hypothesis], n_best: int) -> list[Output]:
    """Texts of one line each: byte pieces could spell a line break. Always n_best, the last one repeated."""
    texts = tokenizer.decode([hypothesis.tokens for hypothesis in hypotheses])
    found = [
        Output(text.replace("\n", " ").replace("\r", " "), hypothesis.log_prob, hypothesis.score)
        for text, hypothesis in zip(texts, hypotheses, strict=True)
    ]
    return found + [replace(found[-1])] * (n_best - len(found))  # n lines in, n * n_best lines out
