"""Tokenizers of imported models: other ids, openings and language tags."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import sentencepiece

from transduce.config import Json
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.errors import InputError

TAG = re.compile(">>.*?<<")
"""The tag before a line of Marian's multilingual models, which names the target language:
>>fra<<."""
ROLES = ("bos", "eos", "pad", "unk")
PLACES = ("opening", "first", "closing", "bos")
"""Where a text has its language tag: as the whole opening, as the first id of the opening, after
its EOS, or in place of BOS."""

SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What transformers writes without spaces if tokenizer_config.json has
clean_up_tokenization_spaces."""


class Pieces(Tokenizer):
    """A SentencePiece model with a separate table of ids; pieces that are not in the table are
    unknown. Added tokens, with their ids, are not split into pieces."""

    def __init__(
        self, model: bytes, pieces: Sequence[str], unk_id: int, added: dict[str, int]
    ) -> None:
        super().__init__(model)
        self.vocab_size = len(pieces)
        self.all_tokens = list(pieces)
        for token, i in added.items():
            self.all_tokens[i] = token
        longest_first = sorted(map(re.escape, added), key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.unk_id: int = unk_id
        self._ids = {piece: i for i, piece in enumerate(self.all_tokens) if piece}
        self._tagged = any(map(TAG.fullmatch, pieces))

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids, a list per text; a tag such as >>fra<< at the beginning is one token, if the table
        has tags."""
        return [
            [self._ids.get(piece, self.unk_id) for piece in self._pieces(text)] for text in texts
        ]

    def _pieces(self, text: str) -> Iterator[str]:
        for i, part in enumerate(self._added.split(text)):
            tag = TAG.match(part) if self._tagged else None
            whole = part if i % 2 else tag[0] if tag else ""  # every second part is an added token
            if whole:
                yield whole
            yield from self._processor.encode(part.removeprefix(whole), out_type=str)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [
            self._processor.decode_pieces(self.tokens(row)).replace("▁", " ").strip() for row in ids
        ]


class ImportedTokenizer(Tokenizer):
    """SentencePiece pieces with a table of ids, or a JSON of the library `tokenizers`, with the
    settings of an imported model.

    Its file is JSON: `sentencepiece` (in base64) and `pieces` by id ("" if an id has none), or else
    `tokenizer`; perhaps `added_tokens`, as in a tokenizer.json, and `clean_up`, whether texts are
    written without SPACED; `size`, the model's vocabulary size; `special`, the ids of bos, eos, pad
    and unk; `opening` and `closing`, the ids before every text and after its EOS; `languages`, the
    ids of the language tags; and `place`, where a text has its tag (see PLACES).
    """

    file_name = "tokenizer.imported.json"

    def __init__(self, model: bytes) -> None:
        """Read the bytes of such a file.

        Raises:
            InputError: they are not such a file.
        """
        super().__init__(model)
        try:
            self._plain = plain = json.loads(model)
            self.vocab_size = size = plain["size"]
            self.languages = plain["languages"]
            self._place = plain["place"]
            self._closing = [*plain["closing"]]
            self.opening = tuple(plain["opening"])
            special = [plain["special"][role] for role in ROLES]
            added = {token["content"]: token["id"] for token in plain.get("added_tokens", ())}
            hidden = [token["id"] for token in plain.get("added_tokens", ()) if token["special"]]
            ids = [*special, *self.opening, *self._closing, *self.languages.values(), *hidden]
            if type(size) is not int or not all(
                type(i) is int and 0 <= i < size for i in [*ids, *added.values()]
            ):
                raise InputError(f"its ids must be less than size={size}")
            if self._place not in PLACES:
                raise InputError(f"place must be one of {', '.join(PLACES)}")
            self.bos_id, self.eos_id, self.pad_id, self.unk_id = special
            self._tokenizer: JSONTokenizer | Pieces
            if "tokenizer" in plain:
                self._tokenizer = JSONTokenizer(_to_json(plain["tokenizer"]))
            else:
                pieces = b64decode(plain["sentencepiece"], validate=True)
                self._tokenizer = Pieces(pieces, plain["pieces"], self.unk_id, added)
            if self._tokenizer.vocab_size > size:
                raise InputError(f"it has {self._tokenizer.vocab_size} tokens, but size={size}")
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(
                f"a tokenizer of an imported model is JSON with its parts, but: {error!r:.200}"
            ) from error
        self.clean_up = plain.get("clean_up") is True
        self._special_ids = {*ids}
        self._by_language: dict[str, ImportedTokenizer] = {}
        tags = {*self.languages.values()}
        self.lacks_language = bool(tags) and not tags & {*self.opening, *self._closing, self.bos_id}
        self.opens_by_language = bool(tags) and self._place == "opening"
        """Whether every text begins with the tag of its language."""
        self.timestamp_begin_id = self._tokenizer.id_of("<|0.00|>")
        names = ("<|nospeech|>", "<|nocaptions|>")  # the second one in Whisper's first vocabularies
        self.no_speech_id = next(
            (i for i in map(self._tokenizer.id_of, names) if i is not None), None
        )

    @classmethod
    def of(
        cls,
        tokenizer: Json,
        *,
        size: int,
        special: dict[str, int],
        opening: Sequence[int] = (),
        closing: Sequence[int] = (),
        languages: dict[str, int] | None = None,
        place: str = "opening",
    ) -> "ImportedTokenizer":
        """Make a tokenizer of these parts; `tokenizer` has the key `tokenizer`, or `sentencepiece`
        and `pieces`, and perhaps the optional ones.

        Raises:
            InputError: the parts do not fit together.
        """
        parts = {
            "size": size,
            "special": special,
            "opening": [*opening],
            "closing": [*closing],
            "languages": languages or {},
            "place": place,
        }
        return cls(_to_json(tokenizer | parts))

    @classmethod
    def of_pieces(
        cls, model: bytes, pieces: Sequence[str], settings: Json | None = None, **parts: Any
    ) -> "ImportedTokenizer":
        """The tokenizer of a SentencePiece model and its pieces by id.

        Args:
            settings: `added_tokens` and `clean_up`.

        Raises:
            InputError: they do not go together.
        """
        tokenizer = {"sentencepiece": b64encode(model).decode(), "pieces": list(pieces)}
        return cls.of(tokenizer | (settings or {}), size=len(pieces), **parts)

    def sentencepiece(self) -> bytes | None:
        """The SentencePiece model of this tokenizer, if it has one and adds nothing to texts."""
        model = self._plain.get("sentencepiece")
        return (
            None
            if not model
            or self.opening
            or self._closing
            or self.languages
            or self._plain.get("added_tokens")
            else b64decode(model)
        )

    def tokenizer_json(self) -> bytes | None:
        """The tokenizer.json of this tokenizer, if it has one."""
        return _to_json(self._plain["tokenizer"]) if "tokenizer" in self._plain else None

    def with_language(self, language: str) -> "ImportedTokenizer":
        if language not in self.languages:
            names = ", ".join([*self.languages][:8]) + ", ..." * (len(self.languages) > 8)
            raise InputError(
                f"a language must be one of the model's ({names or 'none'}), but it is {language!r}"
            )
        if language not in self._by_language:
            tag = self.languages[language]
            if self._place == "bos":
                change = {"special": self._plain["special"] | {"bos": tag}}
            elif self._place == "first":
                change = {"opening": [tag, *self.opening[1:]]}
            else:
                change = {self._place: [tag]}
            other = ImportedTokenizer(_to_json(self._plain | change))
            other._by_language = self._by_language
            self._by_language[language] = other
        return self._by_language[language]

    @property
    def suppressed(self) -> tuple[int, ...]:
        """See Tokenizer. The unknown token may be produced, and is not written, as in
        transformers."""
        return () if self.pad_id is None or self.pad_id == self.eos_id else (self.pad_id,)

    def with_eos(self, rows: Any) -> list[list[int]]:
        """See Tokenizer; with `opening` before each text and `closing` after its EOS.

        Raises:
            InputError: no language was chosen.
        """
        if self.lacks_language:
            raise InputError(
                "this model reads and writes many languages, so name them: --source-language and "
                "--target-language (in training --decoding.source-language and "
                f"--decoding.target-language), of {', '.join([*self.languages][:8])}"
            )
        return [[*row, *self._closing] for row in super().with_eos(rows)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenizer.encode(texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        n = self._tokenizer.vocab_size
        texts = self._tokenizer.decode(
            [[i for i in row if i not in self._special_ids and i < n] for row in ids]
        )
        for spaced in SPACED if self.clean_up else ():
            texts = [text.replace(spaced, spaced.strip()) for text in texts]
        return texts

    @cached_property
    def surfaces(self) -> list[bytes]:
        surfaces = self._tokenizer.surfaces
        surfaces = [*surfaces, *[b""] * (self.vocab_size - len(surfaces))]
        return [b"" if i in self._special_ids else each for i, each in enumerate(surfaces)]

    @cached_property
    def all_tokens(self) -> list[str]:  # type: ignore[override]
        return [*self._tokenizer.all_tokens, *[""] * (self.vocab_size - self._tokenizer.vocab_size)]


def _to_json(plain: Json) -> bytes:
    return json.dumps(plain, ensure_ascii=False).encode()
