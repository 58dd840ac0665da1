"""Tokenizers as models of transformers have them, with the ids, ends and tags of languages that those models know."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import sentencepiece

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError

TAG = re.compile(">>.*?<<")
"""What a line begins with where Marian's model of many languages shall write in one of them: >>fra<<."""
ROLES = ("bos", "eos", "pad", "unk")
PLACES = ("opening", "first", "closing", "bos")
"""Where a text has the tag of its language: alone in front, first in front, behind its end, or in the place of bos."""


class Cutter(Protocol):
    """What cuts a text into tokens."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]: ...

    def tokens(self, ids: Sequence[int]) -> list[str]: ...


class Pieces:
    """A SentencePiece model cuts a text into pieces, and a table says which id each has; what has none is unknown."""

    def __init__(self, model: bytes, pieces: Sequence[str], unk_id: int) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._pieces, self._unk_id = pieces, unk_id
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece}
        self._tagged = any(map(TAG.fullmatch, pieces))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids, a list per text; a tag such as >>fra<< in front is one token, where the table has any."""
        tags = [TAG.match(text) if self._tagged else None for text in texts]
        bare = [text[tag.end() if tag else 0 :] for text, tag in zip(texts, tags, strict=True)]
        rows: list[list[str]] = self._processor.encode(bare, out_type=str)
        named = ([*([tag[0]] if tag else []), *row] for tag, row in zip(tags, rows, strict=True))
        return [[self._ids.get(piece, self._unk_id) for piece in row] for row in named]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        rows = (self._processor.decode_pieces(self.tokens(row)) for row in ids)
        return [text.replace("▁", " ").strip() for text in rows]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]


class ImportedTokenizer(Tokenizer):
    """Pieces of SentencePiece with a table of ids, or a JSON of the library `tokenizers`, and what a model knows beside.

    Its file is JSON: `sentencepiece` (in base64) and `pieces` by id, "" where there is none, or else `tokenizer`; `size`,
    the ids that the model has; `special`, those of bos, eos, pad and unk; `opening` and `closing`, which stand before
    every text and behind its end; `languages`, the ids of their tags, and `place`, where a text has the tag of its own.
    """

    def __init__(self, model: bytes) -> None:
        """Read the bytes of such a file.

        Raises:
            InputError: they are something else.
        """
        super().__init__(model)
        try:
            plain: Any = json.loads(model)
            self._size, self._special, self._languages = plain["size"], plain["special"], plain["languages"]
            self._opening, self._closing, self._place = [*plain["opening"]], [*plain["closing"]], plain["place"]
            ids = [*map(self._special.__getitem__, ROLES), *self._opening, *self._closing, *self._languages.values()]
            if type(self._size) is not int or not all(type(i) is int and 0 <= i < self._size for i in ids):
                raise InputError(f"its ids must be less than size={self._size}")
            if self._place not in PLACES:
                raise InputError(f"place must be one of {', '.join(PLACES)}")
            self._cutter: Cutter
            if "tokenizer" in plain:
                json_tokenizer = JSONTokenizer(json.dumps(plain["tokenizer"], ensure_ascii=False).encode())
                self._cutter, n = json_tokenizer, json_tokenizer.vocab_size
            else:
                pieces = plain["pieces"]
                self._cutter, n = (
                    Pieces(b64decode(plain["sentencepiece"], validate=True), pieces, self.unk_id),
                    len(pieces),
                )
            if n > self._size:
                raise InputError(f"it has {n} tokens, but size={self._size}")
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
            raise InputError(f"a tokenizer of an imported model is JSON with its parts, but: {error!r:.200}") from error
        self._n, self._unwritten = n, {*ids}
        self._in: dict[str, ImportedTokenizer] = {}

    @classmethod
    def of(
        cls,
        cutter: dict[str, Any],
        *,
        size: int,
        special: dict[str, int],
        opening: Sequence[int] = (),
        closing: Sequence[int] = (),
        languages: dict[str, int] | None = None,
        place: str = "opening",
    ) -> "ImportedTokenizer":
        """The tokenizer of these parts; `cutter` is `tokenizer`, or `sentencepiece` and `pieces`.

        Raises:
            InputError: they do not go together.
        """
        plain = {**cutter, "size": size, "special": special, "opening": list(opening), "closing": list(closing)}
        plain |= {"languages": languages or {}, "place": place}
        return cls(json.dumps(plain, ensure_ascii=False).encode())

    @classmethod
    def of_pieces(cls, model: bytes, pieces: Sequence[str], **parts: Any) -> "ImportedTokenizer":
        """The tokenizer of a SentencePiece model and its pieces by id.

        Raises:
            InputError: they do not go together.
        """
        cutter = {"sentencepiece": b64encode(model).decode(), "pieces": list(pieces)}
        return cls.of(cutter, size=len(pieces), **parts)

    def sentencepiece(self) -> bytes | None:
        """The SentencePiece model that cuts texts, if one does, and no tag of a language belongs to them."""
        plain = json.loads(self.model)
        bare = not (self._opening or self._closing or self._languages)
        return b64decode(plain["sentencepiece"]) if "sentencepiece" in plain and bare else None

    def with_language(self, language: str) -> "ImportedTokenizer":
        if language not in self._languages:
            there = ", ".join([*self._languages][:8]) + ", ..." * (len(self._languages) > 8)
            raise InputError(f"a language must be one that the model knows ({there or 'none'}), but it is {language!r}")
        if language not in self._in:
            plain, tag = json.loads(self.model), self._languages[language]
            if self._place == "bos":
                plain["special"] = self._special | {"bos": tag}
            elif self._place == "first":
                plain["opening"] = [tag, *self._opening[1:]]
            else:
                plain[self._place] = [tag]
            self._in[language] = ImportedTokenizer(json.dumps(plain, ensure_ascii=False).encode())
        return self._in[language]

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def bos_id(self) -> int:
        return self._special["bos"]

    @property
    def eos_id(self) -> int:
        return self._special["eos"]

    @property
    def pad_id(self) -> int:
        return self._special["pad"]

    @property
    def unk_id(self) -> int:
        return self._special["unk"]

    @property
    def opening(self) -> tuple[int, ...]:
        return tuple(self._opening)

    @property
    def lacks_language(self) -> bool:
        """See Tokenizer."""
        tags = {*self._languages.values()}
        return bool(tags) and not tags & {*self._opening, *self._closing, self.bos_id}

    @property
    def opens_by_language(self) -> bool:
        """Whether every text begins with the tag of its language."""
        return bool(self._languages) and self._place == "opening"

    @cached_property
    def timestamp_begin_id(self) -> int | None:
        """See Tokenizer."""
        return next((i for i, token in enumerate(self.tokens(range(self._n))) if token == "<|0.00|>"), None)

    @cached_property
    def no_speech_id(self) -> int | None:
        """See Tokenizer; Whisper's first vocabularies have another name for it."""
        tokens = enumerate(self.tokens(range(self._n)))
        return next((i for i, token in tokens if token in ("<|nospeech|>", "<|nocaptions|>")), None)

    @property
    def suppressed(self) -> tuple[int, ...]:
        """See Tokenizer. What is unknown may come out, and is not written, as in transformers."""
        return () if self.pad_id == self.eos_id else (self.pad_id,)

    def with_eos(self, rows: Any) -> list[list[int]]:
        """See Tokenizer; with what stands before and behind.

        Raises:
            InputError: no language was chosen.
        """
        if self.lacks_language:
            raise InputError(
                "this model reads and writes many languages, so say which: --source-language and --target-language (in "
                "training --decoding.source-language and --decoding.target-language), of "
                f"{', '.join([*self._languages][:8])}"
            )
        return [[*row, *self._closing] for row in super().with_eos(rows)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._cutter.encode(texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self._cutter.decode([[i for i in row if i not in self._unwritten and i < self._n] for row in ids])

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._cutter.tokens([i])[0] if i < self._n else "" for i in ids]
