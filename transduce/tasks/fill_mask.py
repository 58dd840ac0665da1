"""Filling masks in text with a masked language model."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.data.base_tokenizer import CharTokenizer, Tokenizer
from transduce.data.batch import pad
from transduce.data.glossary import LETTER
from transduce.data.language import encode_text
from transduce.data.text_batches import mask_id
from transduce.errors import InputError
from transduce.model.transformer import Transformer
from transduce.tasks.base import (
    Source,
    Task,
    check_list,
    check_positions,
    encoder_states,
)
from transduce.tasks.formats import one_line


class FillMask(Task):
    """Fills the masks in a line, or in each line of a list, in the same order."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        config = model.config
        if config.decoder is not None or not config.vocab_size:
            raise InputError(
                "masks are filled by an encoder-only model of tokens, but this model has "
                f"encoder={config.encoder} and decoder={config.decoder}; use td.load(directory)"
            )
        if config.vocab_size <= mask_id(tokenizer):
            raise InputError(
                "the model must have every id of its tokenizer and the mask symbol after them, but "
                f"it has {config.vocab_size} ids and the tokenizer {tokenizer.vocab_size}"
            )
        super().__init__(model, tokenizer)
        unused = range(mask_id(tokenizer), config.vocab_size)
        self.suppressed = [*tokenizer.suppressed, *unused]
        """Ids that have no text."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self, lines: str, *, mask_word: str = "_", batch_tokens: int = 4096
    ) -> str: ...
    @overload
    def __call__(
        self, lines: Sequence[str], *, mask_word: str = "_", batch_tokens: int = 4096
    ) -> list[str]: ...
    def __call__(
        self, lines: str | Sequence[str], *, mask_word: str = "_", batch_tokens: int = 4096
    ) -> str | list[str]:
        """Replace every mask word by the most probable token there, whatever the other masks
        become.

        The mask word only counts where it stands alone, so foo_bar is unchanged; with a tokenizer
        of characters it counts everywhere. The text around masks is as the tokenizer decodes it:
        SentencePiece writes single spaces.

        Raises:
            InputError: a line with a mask is longer than learned positions, or the mask word is
                empty.
        """
        if isinstance(lines, str):
            return self([lines], mask_word=mask_word, batch_tokens=batch_tokens)[0]
        check_list(lines, "masks are filled in a list of lines", of_text=True)
        if not mask_word:
            raise InputError(
                "mask_word must be what stands for a masked token, but it is empty; leave it out "
                "for _"
            )
        mask = mask_id(self.tokenizer)
        encoded = [
            (i, encode_masked(self.tokenizer, line, mask_word))
            for i, line in enumerate(lines)
            if mask_word in line
        ]
        masked = [(i, row) for i, row in encoded if mask in row]
        for i, row in masked:
            check_positions(f"line {i + 1}", len(row), [self.model])

        def fill(batch: list[int]) -> list[str]:
            ids, lengths = (t.to(self.model.device) for t in pad([masked[n][1] for n in batch], 0))
            places = ids == mask
            ids[places] = self.likeliest(ids, lengths, places)
            return self.tokenizer.decode(
                [row[:n] for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
            )

        outputs = list(lines)
        for n, text in self._in_batches([len(row) for _, row in masked], batch_tokens, fill):
            outputs[masked[n][0]] = one_line(text)
        return outputs

    def encode(
        self, lines: Sequence[str], *, batch_tokens: int = 4096
    ) -> list[Float[Tensor, "_ D"]]:
        """The encoder's states (T, d_model) of every line: a row per token of the text as in
        training.

        A tokenizer with BOS and EOS puts them around every line.

        Raises:
            InputError: a line has no token, or is longer than learned positions.
        """
        check_list(lines, "encode takes a list of lines", of_text=True)
        rows: list[Source] = [encode_text(self.tokenizer, line).tolist() for line in lines]
        for number, row in enumerate(rows, start=1):
            check_positions(f"line {number}", len(row), [self.model])
            if not len(row):
                raise InputError(
                    f"a line must have a token to encode, but line {number} has none; leave it out"
                )
        return encoder_states(self.engine, rows, batch_tokens)

    @torch.no_grad()
    def likeliest(
        self, ids: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], places: Bool[Tensor, "B T"]
    ) -> Int[Tensor, " n"]:
        """The most probable token at each of these places, row after row."""
        states = self.engine.encode(ids, lengths).states
        logits = self.engine.project(states[places])
        logits[:, self.suppressed] = -torch.inf
        return logits.argmax(dim=-1)


def encode_masked(tokenizer: Tokenizer, line: str, mask_word: str) -> list[int]:
    """Ids of a line in which every mask word is the mask symbol; with the marks of beginning and
    end, if any.

    The mask word counts where it stands alone: no letter, digit or underscore touches it, so that
    foo_bar has no mask; letters of Chinese and other scripts without spaces may. It includes the
    space before it, as tokens do. Where every character is a token, it counts everywhere, for one
    character of a word may be masked (Sp_ak); a text that has the mask word itself needs another
    mask word.
    """
    by_character = isinstance(tokenizer, CharTokenizer)
    mask = re.escape(mask_word)
    ids: list[int] = []
    parts = re.split(mask if by_character else rf" ?(?<!{LETTER}){mask}(?!{LETTER})", line)
    for i, (part, row) in enumerate(zip(parts, tokenizer.encode(parts), strict=True)):
        if i:
            ids.append(mask_id(tokenizer))
            spelled = "".join(tokenizer.tokens(row))
            one_more = spelled.startswith("▁" * (1 + len(part) - len(part.lstrip(" "))))
            if not by_character and one_more and tokenizer.tokens(row[:1]) == ["▁"]:
                row = row[1:]  # SentencePiece and its like begin every text with a space
        ids += row
    start, end = tokenizer.bos_id, tokenizer.eos_id
    return ids if start == end else [i for i in (start, *ids, end) if i is not None]


def decode_masked(tokenizer: Tokenizer, ids: Sequence[int], mask_word: str) -> str:
    """The text of ids, with the mask word for every mask symbol.

    `encode_masked` turns it into ids again where every masked token is a word or a sign of its own.
    """
    space = "" if isinstance(tokenizer, CharTokenizer) else " "
    text = ""
    for masked, run in groupby(ids, mask_id(tokenizer).__eq__):
        row = [i for i in run if i not in (tokenizer.bos_id, tokenizer.eos_id)]
        if masked:
            text += (space + mask_word) * len(row)
        else:
            # SentencePiece's letter for a space
            new_word = "".join(tokenizer.tokens(row[:1])).startswith("▁")
            text += (space if text and new_word else "") + tokenizer.decode([row])[0]
    return text.removeprefix(space)
