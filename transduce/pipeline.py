"""Text in, text out: a run directory as something one calls."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from transduce.checkpoint import load_model, load_run
from transduce.data.batch import bucket, pad
from transduce.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transduce.decode.beam import beam_search
from transduce.decode.greedy import greedy_search
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.scorer import ModelScorer
from transduce.model.transformer import Transformer

logger = logging.getLogger("transduce")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to search."""

    beam_size: int = 5
    """1 is greedy search."""
    alpha: float = 0.6
    """Exponent of the GNMT length penalty ((5 + length) / 6)^alpha; 0 ranks by log-probability."""
    n_best: int = 1
    batch_tokens: int = 2048
    """Source tokens per batch, padding included. It changes speed and memory, never the output."""
    length_ratio: float = 2.0
    length_extra: int = 20
    """At most length_ratio * source tokens + length_extra tokens come out."""
    max_source_length: int = 512
    """Longer sources, in tokens, are cut, with a warning."""

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


GREEDY = Decoding(beam_size=1)


@dataclass(frozen=True)
class Output:
    """One text that came out, with its natural log-probability and the score that ranked it."""

    text: str
    log_prob: float = 0.0
    score: float = 0.0


class Translator:
    """A list of sentences in, as many translations out, in the same order; a blank line gives a blank line."""

    def __init__(self, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        self.model, self.source_tokenizer, self.tokenizer = model, source_tokenizer, target_tokenizer

    def __call__(self, lines: Sequence[str], decoding: Decoding | None = None) -> list[str]:
        """The best translation of every line."""
        return [outputs[0].text for outputs in self.translate(lines, decoding)]

    def translate(
        self,
        lines: Sequence[str],
        decoding: Decoding | None = None,
        *,
        first_line: int = 1,
        progress: Callable[[int], object] | None = None,
    ) -> list[list[Output]]:
        """The n best translations of every line, best first.

        Args:
            first_line: the number of lines[0], for warnings.
            progress: called with the number of lines each batch has finished.
        """
        if isinstance(lines, str):
            raise ValueError(f"translate takes a list of lines, but got one string; use [{lines[:20]!r}]")
        decoding = decoding or Decoding()
        outputs = [[Output("")] * decoding.n_best for _ in lines]
        sources = self._encode(lines, decoding, first_line)
        numbers = np.array(list(sources), dtype=np.int64)
        if len(numbers):
            lengths = np.array([len(ids) for ids in sources.values()])
            for batch in reversed(bucket(lengths[:, None], decoding.batch_tokens)):  # longest first: memory peaks early
                rows = numbers[batch].tolist()
                for row, hypotheses in zip(rows, self._search([sources[r] for r in rows], decoding), strict=True):
                    outputs[row] = self._outputs(hypotheses, decoding.n_best)
                if progress:
                    progress(len(rows))
        return outputs

    def _encode(self, lines: Sequence[str], decoding: Decoding, first_line: int) -> dict[int, list[int]]:
        """Ids of the lines that are not blank."""
        limit = decoding.max_source_length
        if self.model.config.positions == "learned":
            limit = min(limit, self.model.config.max_positions)
        spoken = [i for i, line in enumerate(lines) if line.strip()]
        sources = {}
        for i, ids in zip(spoken, self.source_tokenizer.encode([lines[i] for i in spoken]), strict=True):
            if len(ids) >= limit:
                logger.warning(
                    "line %d has %d tokens and was cut to %d (max_source_length)", first_line + i, len(ids), limit - 1
                )
            sources[i] = [*ids[: limit - 1], EOS]
        return sources

    @torch.inference_mode()
    def _search(self, sources: list[list[int]], decoding: Decoding) -> list[list[Hypothesis]]:
        device = self.model.device
        source, lengths = (tensor.to(device) for tensor in pad(sources, PAD))
        bounds = (lengths * decoding.length_ratio).long() + decoding.length_extra
        if self.model.config.positions == "learned":
            bounds = bounds.clamp(max=self.model.config.max_positions)
        scorer = ModelScorer(self.model, self.model.encode(source, lengths))
        never = (PAD, UNK, BOS)
        if decoding.beam_size == 1:
            found = greedy_search(scorer, bos_id=BOS, eos_id=EOS, max_lengths=bounds, forbidden=never, scores=True)
            return [[hypothesis] for hypothesis in found]
        return beam_search(
            scorer,
            bos_id=BOS,
            eos_id=EOS,
            max_lengths=bounds,
            beam_size=decoding.beam_size,
            alpha=decoding.alpha,
            n_best=decoding.n_best,
            forbidden=never,
        )

    def _outputs(self, hypotheses: list[Hypothesis], n_best: int) -> list[Output]:
        """Texts of one line each: byte pieces could spell a line break."""
        texts = self.tokenizer.decode([hypothesis.tokens for hypothesis in hypotheses])
        found = [
            Output(text.replace("\n", " ").replace("\r", " "), hypothesis.log_prob, hypothesis.score)
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]
        return found + [replace(found[-1])] * (n_best - len(found))  # n lines in, n * n_best lines out


def load(directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Translator:
    """A run directory as a Translator, its weights as `dtype`: bfloat16 is faster and not quite the same.

    Raises:
        ValueError: the directory is not a whole run of text to text.
    """
    directory = Path(directory)
    run = load_run(directory)
    if run.source_tokenizer is None or run.target_tokenizer is None:
        raise ValueError(f"a translator needs two tokenizers or a shared one, but {directory} has none")
    return Translator(load_model(directory, device).to(dtype), run.source_tokenizer, run.target_tokenizer)
