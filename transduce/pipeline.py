"""Text in, text out: a run directory as something one calls."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transduce.checkpoint import CONFIG, load_model, load_run
from transduce.config import from_dict
from transduce.data.batch import bucket, pad
from transduce.data.masking import encode_gaps, mask_id
from transduce.data.tokenizer import EOS, PAD, AnyTokenizer, Tokenizer
from transduce.decoding import Decoding, Output, outputs_of, search
from transduce.generator import Generator
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer
from transduce.transcriber import Transcriber

logger = logging.getLogger("transduce")

KindT = TypeVar("KindT", "Translator", "FillIn", Transcriber, Generator)


class Translator:
    """A list of sentences in, as many translations out, in the same order; a blank line gives a blank line."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        decoding: Decoding | None = None,
    ) -> None:
        self.model, self.source_tokenizer, self.tokenizer = model, source_tokenizer, target_tokenizer
        self.decoding = decoding or Decoding()
        """How to search where nothing else is said."""

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


class FillIn:
    """Lines with gaps in, whole lines out, in the same order; a line without a gap comes back as it is."""

    def __init__(self, model: Transformer, tokenizer: AnyTokenizer) -> None:
        encoder = model.config.encoder
        if encoder is None or model.config.decoder is not None or not isinstance(encoder.input, Tokens):
            raise ValueError(
                "gaps are filled by an encoder alone over tokens, but this model has "
                f"encoder={encoder} and decoder={model.config.decoder}; use td.load(directory)"
            )
        if encoder.input.vocab_size <= mask_id(tokenizer):
            raise ValueError(
                "the model must have every id of its tokenizer and the mask symbol behind them, but "
                f"it has {encoder.input.vocab_size} ids and the tokenizer {tokenizer.vocab_size}"
            )
        self.model, self.tokenizer = model, tokenizer
        self.never = [*tokenizer.never, *range(mask_id(tokenizer), encoder.input.vocab_size)]
        """Ids that have no text."""

    def __call__(self, lines: Sequence[str], *, mask_word: str = "_", batch_tokens: int = 4096) -> list[str]:
        """Every mask word is one token: the likeliest there, whatever fills the other gaps.

        Text around the gaps comes out as the tokenizer writes it: SentencePiece's in NFKC, with single spaces.
        """
        if isinstance(lines, str):
            raise ValueError(f"gaps are filled in a list of lines, but got one string; use [{lines[:20]!r}]")
        outputs = list(lines)
        numbers = np.array([i for i, line in enumerate(lines) if mask_word in line], dtype=np.int64)
        if len(numbers):
            rows = [encode_gaps(self.tokenizer, lines[i], mask_word) for i in numbers]
            for batch in bucket(np.array([[len(row)] for row in rows]), batch_tokens):
                ids, lengths = (t.to(self.model.device) for t in pad([rows[b] for b in batch], 0))
                gaps = ids == mask_id(self.tokenizer)
                ids[gaps] = self.likeliest(ids, lengths, gaps)
                found = [row[:n] for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
                for i, text in zip(numbers[batch], self.tokenizer.decode(found), strict=True):
                    outputs[i] = text.replace("\n", " ").replace("\r", " ")  # one line in, one line out
        return outputs

    @torch.no_grad()
    def likeliest(
        self, ids: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], places: Bool[Tensor, "B T"]
    ) -> Int[Tensor, " n"]:
        """The likeliest token at each of these places, row after row."""
        states = self.model.states(source=ids, source_lengths=lengths)
        logits = self.model.project(states[places])
        logits[:, self.never] = -torch.inf
        return logits.argmax(dim=-1)


def load(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Translator | Transcriber | Generator | FillIn:
    """A run directory as what it was trained to be; it searches as the run's own configuration says.

    Its weights are as `dtype`: bfloat16 is faster and not quite the same.

    Raises:
        ValueError: the directory is not a whole run.
    """
    directory = Path(directory)
    run = load_run(directory)
    if run.target_tokenizer is None:
        raise ValueError(f"text needs a tokenizer to come out, but {directory} has none")
    model = load_model(directory, device).to(dtype)
    if run.model.encoder is None:
        return Generator(model, run.target_tokenizer)
    if run.model.decoder is None:
        return FillIn(model, run.target_tokenizer)
    target = _sentencepiece(run.target_tokenizer, directory)
    decoding = from_dict(Decoding, run.experiment.get("decoding", {}), f"decoding in {directory / CONFIG}")
    if run.front is not None:
        return Transcriber(model, target, run.front, decoding)
    if run.source_tokenizer is None:
        raise ValueError(f"a translator needs two tokenizers or a shared one, but {directory} has none")
    return Translator(model, _sentencepiece(run.source_tokenizer, directory), target, decoding)


def _sentencepiece(tokenizer: AnyTokenizer, directory: Path) -> Tokenizer:
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"a model with an encoder needs SentencePiece tokenizers (.model), but {directory} has a "
            f"{type(tokenizer).__name__}"
        )
    return tokenizer


WANTS: dict[type, str] = {
    Translator: "translating takes a run of text to text",
    Transcriber: "transcribing takes a run of speech to text",
    Generator: "generating takes a run of a language model",
    FillIn: "filling gaps takes a run of masked language modelling",
}
DOES: dict[type, str] = {
    Translator: "translates; use transduce translate",
    Transcriber: "transcribes; use transduce transcribe",
    Generator: "is a language model; use transduce generate",
    FillIn: "fills gaps; use td.load(RUN)(['a line with a _']) in Python",
}
"""What a message says of the wrong kind of run."""


def load_as(
    kind: type[KindT], directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> KindT:
    """`load`, where only one kind of run will do.

    Raises:
        ValueError: something else was trained there.
    """
    found = load(directory, device, dtype)
    if not isinstance(found, kind):
        raise ValueError(f"{WANTS[kind]}, but {directory} {DOES[type(found)]}")
    return found
