"""Byte-level BPE, as GPT-2 directories hold it: any text to ids and back, byte for byte."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer as LibraryTokenizer, decoders, models, pre_tokenizers, trainers

from transduce.data.text.tokenizer import Tokenizer, say_if_smaller

END = "<|endoftext|>"
"""The token that stands between the texts of GPT-2's training data."""


class ByteBPE(Tokenizer):
    """A tokenizer.json of the library `tokenizers`. END is bos_id and eos_id at once; decoding leaves it out.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.2.
    """

    def __init__(self, model: bytes) -> None:
        """Read the bytes of a tokenizer.json.

        Raises:
            ValueError: they are something else, or another tokenizer than byte-level BPE.
        """
        super().__init__(model)
        try:
            self._tokenizer = LibraryTokenizer.from_str(model.decode())
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer.json must be one of the library tokenizers, but: {error}") from error
        if not isinstance(self._tokenizer.model, models.BPE) or not isinstance(
            self._tokenizer.decoder, decoders.ByteLevel
        ):
            raise ValueError(
                "tokenizer.json must be byte-level BPE, as GPT-2's, but it has "
                f"model {type(self._tokenizer.model).__name__} and decoder {type(self._tokenizer.decoder).__name__}"
            )

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, symbols: Sequence[str] = ()) -> "ByteBPE":
        """Learn merges of bytes; END is id 0, and symbols have the last ids.

        A small text may have fewer merges than asked for, which is said.

        Raises:
            ValueError: vocab_size leaves no room for END, the 256 bytes and the symbols.
        """
        least = 257 + len(symbols)
        if vocab_size < least:
            what = "END, all bytes and the symbols" if symbols else "END and all bytes"
            raise ValueError(f"vocab_size must be at least {least}, for {what}, but vocab_size={vocab_size}")
        tokenizer = _byte_level(models.BPE())
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(symbols),
            special_tokens=[END],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        trained = cls(tokenizer.to_str().encode())
        trained = trained.with_symbols(symbols) if symbols else trained
        say_if_smaller(trained.vocab_size, vocab_size)
        return trained

    def with_symbols(self, symbols: Sequence[str]) -> "ByteBPE":
        if END in symbols:
            raise ValueError(f"a symbol must be no special token, but {END} stands between texts; rename it")
        tokenizer = LibraryTokenizer.from_str(self.model.decode())
        tokenizer.add_tokens([AddedToken(symbol, normalized=False, special=False) for symbol in symbols])
        return ByteBPE(tokenizer.to_str().encode())

    @classmethod
    def load(cls, path: Path | str) -> "ByteBPE":
        """Read a tokenizer.json, or a directory with one or with vocab.json and merges.txt.

        Raises:
            ValueError: the directory has neither.
        """
        path = Path(path)
        for file in (path, path / "tokenizer.json"):
            if file.is_file():
                return super().load(file)
        vocabulary, merges = path / "vocab.json", path / "merges.txt"
        if not vocabulary.is_file() or not merges.is_file():
            raise ValueError(
                f"a byte-level tokenizer is tokenizer.json, or vocab.json and merges.txt, but {path} has neither; "
                "copy them from where the model came from"
            )
        tokenizer = _byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
        if END in json.loads(vocabulary.read_text(encoding="utf-8")):
            tokenizer.add_special_tokens([AddedToken(END, normalized=True, special=True)])
        return cls(tokenizer.to_str().encode())

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def bos_id(self) -> int | None:
        """The id of END; None where the vocabulary lacks it."""
        return self._tokenizer.token_to_id(END)

    @property
    def eos_id(self) -> int | None:
        """The id of END, as bos_id."""
        return self.bos_id

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids, a list per text; where a text has END written out, that is the token END."""
        return [found.ids for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each list of ids, without END; U+FFFD where bytes are no UTF-8."""
        return self._tokenizer.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them: a letter per byte, Ġ for a space."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]


def _byte_level(model: models.BPE) -> LibraryTokenizer:
    tokenizer = LibraryTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
