"""SentencePiece BPE: raw text to ids and back (with single spaces); no character is unknown.

Models that were learned elsewhere are taken too, BPE or unigram (Kudo 2018), whatever their special ids are.
"""

import io
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Literal, SupportsIndex

import sentencepiece

from transduce.config import within
from transduce.data.text.base_tokenizer import LARGEST, TAG, Tokenizer, say_if_smaller, tag_of
from transduce.errors import InputError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("pad", "unk", "bos", "eos")
PIECES = ("<pad>", "<unk>", "<s>", "</s>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a SentencePiece model."""
BPE = 2
"""The type of a model that was learned by merging."""


Normalization = Literal["identity", "nmt_nfkc"]
"""identity keeps every character but tabs and what else ends a line, which become spaces; nmt_nfkc is SentencePiece's rule
for Unicode NFKC, which writes ² as 2, and a full-width comma as a comma."""

BREAKS = "\t\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that would make one line several."""

SIGMA = re.compile(r"[^\s<>]*Σ[^\s<>]*")
"""Words with a capital sigma, whose small letter depends on its place in the word; symbols such as <2el> are left alone."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. Its first ids are 0 padding, 1 unknown (unused where bytes stand in), 2 begin and 3 end.

    Source: Sennrich et al. (2016), BPE; Kudo and Richardson (2018), SentencePiece.
    """

    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS

    def __init__(self, model: bytes) -> None:
        """Read the bytes of a SentencePiece model.

        Raises:
            InputError: they are something else, or its special pieces have other ids.
        """
        super().__init__(model)
        try:
            self._processor = sentencepiece.SentencePieceProcessor()
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise InputError(
                f"a SentencePiece model is a protocol buffer, but these {len(model)} bytes are none"
            ) from error
        self._ids = {self._processor.id_to_piece(i): i for i in range(self.vocab_size)}
        """The id of every piece; a merge learned earlier has the smaller id."""
        self._opening: tuple[int, ...] = ()
        self.lowercase = self._processor.decode(self._processor.encode("A")) == "a"
        """Whether a text comes back without capitals."""
        ids = [getattr(self._processor, f"{name}_id")() for name in SPECIAL]
        if ids != [PAD, UNK, BOS, EOS]:
            raise InputError(f"pad, unk, bos and eos must have the ids 0, 1, 2, 3, but this model gives them {ids}")

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        symbols: Sequence[str] = (),
        lowercase: bool = False,
        normalization: Normalization = "identity",
    ) -> "SentencePieceTokenizer":
        """Learn BPE from raw sentences, with byte fallback. A small corpus may give a smaller vocabulary, which is said.

        Args:
            symbols: what is one piece wherever it stands, such as <2de>.
            lowercase: a text, but for symbols, comes back without capitals, as `str.lower` writes it.
            normalization: what becomes of characters; runs of spaces are one space in any case.

        Raises:
            InputError: vocab_size is beyond LARGEST, or leaves no room for the 4 special pieces, 256 bytes, the symbols and the characters;
                or a symbol marks something else.
        """
        _check_symbols(symbols, dict.fromkeys(PIECES, CONTROL))
        within(LARGEST, vocab_size=vocab_size)
        model = io.BytesIO()
        sentences = (t for t in texts if t.strip())
        if lowercase:
            sentences = (_lower_sigma(t) for t in sentences)
        rules: dict[str, Any] = {"normalization_rule_name": "nmt_nfkc_cf" if lowercase else "nmt_nfkc"}
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
                if normalization == "identity":
                    rules = {"normalization_rule_tsv": file.name}
                    file.write(_rules(lowercase))
                    file.flush()
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=sentences,
                    model_writer=model,
                    model_type="bpe",
                    vocab_size=max(vocab_size, 260 + len(symbols)),  # below that, its error does not say how many
                    hard_vocab_limit=False,
                    **rules,
                    byte_fallback=True,
                    character_coverage=0.9999,
                    max_sentence_length=1 << 20,
                    pad_id=PAD,
                    unk_id=UNK,
                    bos_id=BOS,
                    eos_id=EOS,
                    user_defined_symbols=list(symbols),
                    num_threads=1,
                    minloglevel=2,
                )
        except RuntimeError as error:
            if least := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
                what = f"special pieces, {'symbols, ' * bool(symbols)}bytes and the characters of the text"
                raise InputError(
                    f"vocab_size must be at least {least[1]}, for {what}, but vocab_size={vocab_size}"
                ) from error
            raise InputError(f"SentencePiece cannot learn from this text: {error}; look for a wrong file") from error
        proto = _parse(model.getvalue())
        proto.normalizer_spec.normalization_rule_tsv = ""  # the rules are in the model; the file is gone
        tokenizer = cls(proto.SerializeToString())
        say_if_smaller(tokenizer.vocab_size, vocab_size)
        return tokenizer

    @classmethod
    def adapt(cls, model: bytes) -> "SentencePieceTokenizer":
        """A SentencePiece model of any origin: padding, unknown, begin and end become 0 to 3, added where it lacks them.

        All other pieces keep their order, and a text its segmentation.

        Raises:
            InputError: this is no SentencePiece model.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"this is no SentencePiece model: {error}") from error
        proto = _parse(model)
        if not proto.pieces:
            raise InputError("this is no SentencePiece model: it has no pieces")
        ids = [getattr(processor, f"{name}_id")() for name in SPECIAL]
        if ids == [PAD, UNK, BOS, EOS]:
            return cls(model)
        kept = [piece for i, piece in enumerate(proto.pieces) if i not in ids and piece.piece not in PIECES]
        del proto.pieces[:]
        for i, (name, piece) in enumerate(zip(SPECIAL, PIECES, strict=True)):
            proto.pieces.add(piece=piece, score=0.0, type=UNKNOWN if i == UNK else CONTROL)
            setattr(proto.trainer_spec, f"{name}_id", i)
            setattr(proto.trainer_spec, f"{name}_piece", piece)
        proto.pieces.extend(kept)
        proto.trainer_spec.vocab_size = len(proto.pieces)
        return cls(proto.SerializeToString())

    def with_symbols(self, symbols: Sequence[str]) -> "SentencePieceTokenizer":
        proto = _parse(self.model)
        there = {piece.piece: piece for piece in proto.pieces}
        _check_symbols(symbols, {name: piece.type for name, piece in there.items()})
        for symbol in symbols:
            if symbol in there:
                there[symbol].type = USER_DEFINED
            else:
                proto.pieces.add(piece=symbol, score=0.0, type=USER_DEFINED)
        proto.trainer_spec.vocab_size = len(proto.pieces)
        return SentencePieceTokenizer(proto.SerializeToString())

    @cached_property
    def tagged_languages(self) -> tuple[str, ...]:
        return tuple(tag[1] for tag in map(TAG.fullmatch, self._ids) if tag)

    def with_tag(self, language: str) -> "SentencePieceTokenizer":
        if language not in self.tagged_languages:
            return super().with_tag(language)
        there = copy(self)
        (there._opening,) = map(tuple, self.encode([tag_of(language)]))
        return there

    @property
    def opening(self) -> tuple[int, ...]:
        return self._opening

    @cached_property
    def _whole(self) -> set[int]:
        """The ids of what merges with nothing: bytes, symbols, and what is unknown.

        Raises:
            InputError: the pieces were not learned by merging.
        """
        proto = _parse(self.model)
        if proto.trainer_spec.model_type != BPE:
            raise InputError(
                "bpe_dropout skips merges of SentencePiece BPE, but this tokenizer is another kind (unigram, say); use "
                "bpe_dropout=0"
            )
        return {i for i, piece in enumerate(proto.pieces) if piece.type != NORMAL}

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([*map(_lower_sigma, texts)] if self.lowercase else list(texts))

    def encode_with_dropout(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """`encode` that skips each merge with probability `dropout`: another segmentation for every seed.

        Without dropout the segmentation is SentencePiece's. Its own sampling is not used, as it differs from process to
        process whatever the seed.

        Source: Provilkov et al. (2020), BPE-dropout, algorithm 1.
        """
        return self.with_dropout(self.encode(texts), dropout=dropout, seed=seed)

    def with_dropout(
        self, plain_rows: Iterable[Iterable[SupportsIndex]], *, dropout: float, seed: int
    ) -> list[list[int]]:
        """`encode_with_dropout` of texts that are encoded already."""
        rng = random.Random(seed)
        rows = []
        for plain in plain_rows:
            row: list[int] = []
            for is_whole, run in groupby(map(int, plain), self._whole.__contains__):
                if is_whole:  # a symbol, or bytes of a character without a piece
                    row += run
                    continue
                text = "".join(self._processor.id_to_piece(i) for i in run)
                for word in text.replace("▁", " ▁").split(" "):
                    row += (self._ids[piece] for piece in self._merge(word, dropout, rng))
            rows.append(row)
        return rows

    def _merge(self, word: str, dropout: float, rng: random.Random) -> list[str]:
        """The pieces of a word: again and again, merge the pair that was learned first among those not dropped."""
        pieces = list(word)
        while True:
            open_merges = [
                (rank, i)
                for i, (left, right) in enumerate(pairwise(pieces))
                if (rank := self._ids.get(left + right)) is not None and rng.random() >= dropout
            ]
            if not open_merges:
                return pieces
            i = min(open_merges)[1]
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self._processor.decode([list(row) for row in ids]) if len(ids) else []  # it takes [] for one text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]


def train_tokenizer_pair(
    source: Sequence[str],
    target: Sequence[str],
    *,
    vocab_size: int,
    joint: bool,
    symbols: Sequence[str] = (),
    lowercase: bool = False,
    normalization: Normalization = "identity",
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """Trained tokenizers of both sides; if `joint`, one tokenizer of both texts, twice."""
    options: dict[str, Any] = {"vocab_size": vocab_size, "symbols": symbols, "lowercase": lowercase}
    options["normalization"] = normalization
    first = SentencePieceTokenizer.train([*source, *target] if joint else source, **options)
    return first, first if joint else SentencePieceTokenizer.train(target, **options)


tokenizers = train_tokenizer_pair
"""The name of version 0.2, for recipes written with it."""


def _lower_sigma(text: str) -> str:
    """The text with small sigmas for capital ones: ς at the end of a word, σ elsewhere."""
    return SIGMA.sub(lambda word: word[0].lower(), text) if "Σ" in text else text


def _rules(lowercase: bool) -> str:
    """A line for every character that changes: its code points and those of what it becomes, as SentencePiece reads it."""
    changed = dict.fromkeys(BREAKS, " ")
    if lowercase:
        changed |= {c: c.lower() for c in map(chr, range(sys.maxunicode + 1)) if c.lower() != c}
    return "".join(f"{ord(old):X}\t{' '.join(f'{ord(c):X}' for c in new)}\n" for old, new in changed.items())


def _parse(model: bytes) -> Any:
    """The pieces of a SentencePiece model and how they were learned, as its file format has them."""
    from sentencepiece import sentencepiece_model_pb2  # slow to load, so only what changes a model does

    module: Any = sentencepiece_model_pb2
    return module.ModelProto.FromString(model)


def _check_symbols(symbols: Sequence[str], types: dict[str, int]) -> None:
    """Raise InputError if a symbol is a piece of a type that no text can hold."""
    for symbol in symbols:
        if types.get(symbol, NORMAL) not in (NORMAL, USER_DEFINED):
            raise InputError(
                f"a symbol must be no special piece, but {symbol} has another meaning in this vocabulary; rename it"
            )
