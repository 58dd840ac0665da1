"""Text in, its translation out."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from transduce.data.batch import bucket, pad
from transduce.data.text.sentencepiece_bpe import EOS, PAD, SentencePieceTokenizer
from transduce.model.transformer import Transformer
from transduce.tasks.search import Output, SearchConfig, outputs_of, search

logger = logging.getLogger("transduce")


class Translator:
    """A list of sentences in, as many translations out, in the same order; a blank line gives a blank line."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: SentencePieceTokenizer,
        target_tokenizer: SentencePieceTokenizer,
        decoding: SearchConfig | None = None,
    ) -> None:
        self.model, self.source_tokenizer, self.tokenizer = model, source_tokenizer, target_tokenizer
        self.decoding = decoding or SearchConfig()
        """How to search where nothing else is said."""

    def __call__(self, lines: Sequence[str], decoding: SearchConfig | None = None) -> list[str]:
        """The best translation of every line."""
        return [outputs[0].text for outputs in self.translate(lines, decoding)]

    def translate(
        self,
        lines: Sequence[str],
        decoding: SearchConfig | None = None,
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
        decoding = decoding or self.decoding
        outputs = [[Output("")] * decoding.n_best for _ in lines]
        sources = self._encode(lines, decoding, first_line)
        numbers = np.array(list(sources), dtype=np.int64)
        if len(numbers):
            lengths = np.array([len(ids) for ids in sources.values()])
            for batch in reversed(bucket(lengths[:, None], decoding.batch_tokens)):  # longest first: memory peaks early
                rows = numbers[batch].tolist()
                for row, hypotheses in zip(
                    rows, search(self.model, *pad([sources[r] for r in rows], PAD), decoding), strict=True
                ):
                    outputs[row] = outputs_of(self.tokenizer, hypotheses, decoding.n_best)
                if progress:
                    progress(len(rows))
        return outputs

    def _encode(self, lines: Sequence[str], decoding: SearchConfig, first_line: int) -> dict[int, list[int]]:
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
