"""Tokenizers of the library `tokenizers` in a JSON file, such as GPT-2's byte-level BPE."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer as LibraryTokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from transduce.config import Json, within
from transduce.data.base_tokenizer import END, LARGEST, SPECIAL, Tokenizer, warn_if_smaller
from transduce.errors import InputError

_PRINTED = {*pre_tokenizers.ByteLevel.alphabet()}
_OTHERS = map(chr, count(256))
LETTERS = "".join(c if c in _PRINTED else next(_OTHERS) for c in map(chr, range(256)))
"""The letter that stands for each byte in byte-level BPE: itself if it can be printed, else one
from U+0100 on."""


PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of transformers that take tokenizer.json as it is."""


class JSONTokenizer(Tokenizer):
    """A tokenizer.json of the library `tokenizers`: BPE, unigram, or any other model that it has.

    Special tokens are recognized by their names (`SPECIAL`); encoding adds none of them, and
    decoding leaves them out. GPT-2's END is both bos_id and eos_id. Without a BOS token, the
    padding token is bos_id, as in T5 and Marian.
    """

    file_name = "tokenizer.json"

    def __init__(self, model: bytes) -> None:
        """Read the bytes of a tokenizer.json.

        Raises:
            InputError: they are something else.
        """
        super().__init__(model)
        try:
            self._tokenizer = LibraryTokenizer.from_str(model.decode())
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                f"tokenizer.json must be one of the library tokenizers, but: {error}"
            ) from error
        # some files were saved with padding and truncation switched on
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # ids may have gaps
        self.vocab_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: i for i, token in added.items() if token.special}
        plain = json.loads(model)
        core = plain["model"]
        self._byte_level = '"ByteLevel"' in json.dumps(plain.get("decoder"))
        self.pad_id, bos_id, self.eos_id = (
            next((self._special[name] for name in SPECIAL[role] if name in self._special), None)
            for role in ("pad_id", "bos_id", "eos_id")
        )
        self.bos_id = self.pad_id if bos_id is None else bos_id
        self.unk_id = core.get("unk_id", self.id_of(core.get("unk_token") or ""))

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, symbols: Sequence[str] = ()
    ) -> "JSONTokenizer":
        """Learn byte-level BPE, merges of bytes; END is id 0, and symbols have the last ids.

        A small text may have fewer merges than requested, with a warning.

        Raises:
            InputError: vocab_size is beyond LARGEST, or leaves no room for END, the 256 bytes and
                the symbols.
        Source: Radford et al. (2019), Language models are unsupervised multitask learners, section
        2.2.
        """
        within(LARGEST, vocab_size=vocab_size)
        least = 257 + len(symbols)
        if vocab_size < least:
            parts = "END, all bytes and the symbols" if symbols else "END and all bytes"
            raise InputError(
                f"vocab_size must be at least {least}, for {parts}, but vocab_size={vocab_size}"
            )
        tokenizer = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(symbols),
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        trained = cls(tokenizer.to_str().encode())
        if symbols:
            trained = trained.with_symbols(symbols)
        warn_if_smaller(trained.vocab_size, vocab_size)
        return trained

    def with_symbols(self, symbols: Sequence[str]) -> "JSONTokenizer":
        """See Tokenizer. A symbol that is a name in `SPECIAL`, such as <pad>, becomes that special
        token."""
        for symbol in symbols:
            if symbol in self._special:
                raise InputError(
                    f"a symbol must be no special token, but {symbol} is one of this vocabulary "
                    "already; leave it out"
                )
            if self._byte_level and not symbol.isascii() and {*symbol} <= {*LETTERS}:
                raise InputError(
                    f"a symbol of byte-level BPE must have other letters than {symbol!r}, which "
                    "stand for bytes in it; write it in ASCII"
                )
        names = set().union(*SPECIAL.values())
        tokenizer = LibraryTokenizer.from_str(self.model.decode())
        tokenizer.add_tokens(
            [AddedToken(symbol, normalized=False, special=symbol in names) for symbol in symbols]
        )
        return JSONTokenizer(tokenizer.to_str().encode())

    @classmethod
    def load(cls, path: Path | str) -> "JSONTokenizer":
        """Read a tokenizer.json, or a directory with one or with vocab.json and merges.txt.

        Raises:
            InputError: the directory has neither.
        """
        path = Path(path)
        for file in (path, path / "tokenizer.json"):
            if file.is_file():
                return super().load(file)._with_prefix_space(file.parent)
        try:
            merges = models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                "a byte-level tokenizer is tokenizer.json, or vocab.json and merges.txt, but "
                f"{path} has neither: {error}; copy them from where the model came from"
            ) from error
        tokenizer = _byte_level(merges)
        if tokenizer.token_to_id(END) is not None:
            tokenizer.add_special_tokens([AddedToken(END, normalized=True, special=True)])
        _add_tokens(tokenizer, path)
        return cls(tokenizer.to_str().encode())

    def _with_prefix_space(self, directory: Path) -> "JSONTokenizer":
        """The same tokenizer with add_prefix_space of tokenizer_config.json, which the classes of
        transformers that are named there prefer."""
        from transduce.files import read_optional  # it loads torch, which would slow down --help

        settings = read_optional(directory / "tokenizer_config.json")
        before, space = self._tokenizer.pre_tokenizer, settings.get("add_prefix_space")
        named = settings.get("tokenizer_class") not in (None, *PLAIN)
        if isinstance(before, pre_tokenizers.ByteLevel) and named and isinstance(space, bool):
            before.add_prefix_space = space
            return JSONTokenizer(self._tokenizer.to_str().encode())
        return self

    @property
    def is_byte_bpe(self) -> bool:
        """Whether this is byte-level BPE, as GPT-2 has it."""
        return isinstance(self._tokenizer.model, models.BPE) and self._byte_level

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if there is no such token."""
        return self._tokenizer.token_to_id(token)

    @cached_property
    def surfaces(self) -> list[bytes]:
        """See Tokenizer; byte-level BPE writes every byte as a letter."""
        if not self._byte_level:
            return super().surfaces
        special = {*self._special.values(), self.unk_id}
        names = ("" if i in special else name for i, name in enumerate(self.all_tokens))
        return [
            bytes(map(LETTERS.index, name)) if {*name} <= {*LETTERS} else name.encode()
            for name in names
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids, a list per text; a special token such as END that is spelled out in a text becomes
        that token.

        Raises:
            InputError: a part of a text has no token, and the vocabulary has no unknown token.
        """
        try:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                f"a text must be made of tokens, but this vocabulary cannot spell one: {error}; "
                "name another tokenizer"
            ) from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each list of ids, without special tokens; U+FFFD where bytes are not UTF-8."""
        return self._tokenizer.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    @cached_property
    def all_tokens(self) -> list[str]:  # type: ignore[override]
        """The tokens as the vocabulary writes them: byte-level BPE has a letter per byte, Ġ for a
        space."""
        return [self._tokenizer.id_to_token(i) or "" for i in range(self.vocab_size)]


def special_tokens(settings: Json) -> set[str]:
    """The special tokens that tokenizer_config.json and special_tokens_map.json name."""
    listed = [value for name, value in settings.items() if name.endswith("_token") and value]
    more, added = (settings.get(n) for n in ("additional_special_tokens", "added_tokens_decoder"))
    if isinstance(more, list):
        listed += more
    if isinstance(added, dict):
        listed += [t for t in added.values() if isinstance(t, dict) and t.get("special")]
    return {*map(_text, listed)}


def _text(token: object) -> str:
    """A token that is written as a string, or as an object with its properties."""
    return str(token.get("content") if isinstance(token, dict) else token)


def _byte_level(model: models.BPE) -> LibraryTokenizer:
    tokenizer = LibraryTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: LibraryTokenizer, directory: Path) -> None:
    """Add what the files beside vocab.json and merges.txt define: added tokens, special tokens and
    BOS.

    Raises:
        InputError: the id of an added token is not the next free one.
    """
    from transduce.files import read_optional  # it loads torch, which would slow down --help

    settings = read_optional(directory / "special_tokens_map.json") | read_optional(
        directory / "tokenizer_config.json"
    )
    if settings.get("add_prefix_space"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = special_tokens(settings)
    for name, i in sorted(
        read_optional(directory / "added_tokens.json").items(), key=lambda item: item[1]
    ):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=name in special)])
        if tokenizer.token_to_id(name) != i:
            raise InputError(
                "added_tokens.json must number its tokens after those of vocab.json, but in "
                f"{directory} {name!r} has {i!r}"
            )
    tokenizer.add_special_tokens(
        [
            AddedToken(name, normalized=False, special=True)
            for name in special - {END}
            if tokenizer.token_to_id(name) is not None
        ]
    )
    bos = _text(settings.get("bos_token"))
    start = tokenizer.token_to_id(bos)
    if settings.get("add_bos_token") is True and start is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, start)]
        )
