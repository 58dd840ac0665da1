"""Text in, its translation out."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transduce.data.batch import pad
from transduce.data.text.sentencepiece_bpe import EOS, PAD, SentencePieceTokenizer
from transduce.decode.hypothesis import Hypothesis
from transduce.model.transformer import Transformer
from transduce.tasks.search import (
    Output,
    SearchConfig,
    check_list,
    in_batches,
    last_position,
    outputs_of,
    search_sources,
)

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

    def __call__(self, lines: Sequence[str], decoding: SearchConfig | None = None, **settings: Any) -> list[str]:
        """The best translation of every line; see `translate`."""
        return [outputs[0].text for outputs in self.translate(lines, decoding, **settings)]

    def translate(
        self,
        lines: Sequence[str],
        decoding: SearchConfig | None = None,
        *,
        first_line: int = 1,
        progress: Callable[[int], object] | None = None,
        **settings: Any,
    ) -> list[list[Output]]:
        """The n best translations of every line, best first.

        Args:
            decoding: how to search; the run's own way if not given.
            settings: fields of SearchConfig, such as n_best=3; the others stay as they are in `decoding`.
            first_line: the number of lines[0], for warnings.
            progress: called with 1 for every line that is done.
        """
        outputs: dict[int, list[Output]] = {}
        for i, found in self.stream(lines, decoding, first_line=first_line, **settings):
            outputs[i] = found
            if progress:
                progress(1)
        return [outputs[i] for i in range(len(lines))]

    def stream(
        self, lines: Sequence[str], decoding: SearchConfig | None = None, *, first_line: int = 1, **settings: Any
    ) -> Iterator[tuple[int, list[Output]]]:
        """The index of a line and its n best translations, as batches finish: blank lines first, then long lines.

        Args:
            first_line: the number of lines[0], for warnings.
            settings: see `translate`.
        """
        check_list(lines, "translate takes a list of lines")
        config = (decoding or self.decoding).changed(**settings)
        sources = self._encode(lines, config, first_line)
        yield from ((i, [Output("")] * config.n_best) for i in range(len(lines)) if i not in sources)
        numbers, rows = list(sources), list(sources.values())

        def found(batch: list[int]) -> list[list[Hypothesis]]:
            return search_sources(self.model, *pad([rows[row] for row in batch], PAD), config)

        for row, hypotheses in in_batches([len(ids) for ids in rows], config.batch_tokens, found):
            yield numbers[row], outputs_of(self.tokenizer, hypotheses, config.n_best)

    def _encode(self, lines: Sequence[str], config: SearchConfig, first_line: int) -> dict[int, list[int]]:
        """Ids of the lines that are not blank."""
        limit = min(config.max_source_length, last_position(self.model))
        spoken = [i for i, line in enumerate(lines) if line.strip()]
        sources = {}
        for i, ids in zip(spoken, self.source_tokenizer.encode([lines[i] for i in spoken]), strict=True):
            if len(ids) >= limit:
                logger.warning(
                    "line %d has %d tokens and was cut to %d (max_source_length)", first_line + i, len(ids), limit - 1
                )
            sources[i] = [*ids[: limit - 1], EOS]
        return sources
