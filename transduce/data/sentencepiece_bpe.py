"""SentencePiece BPE: raw text to ids and back (with single spaces); no character is unknown.

Models that were trained elsewhere can be loaded, too, BPE or unigram (Kudo 2018), with any special
ids.
"""

import io
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal

import sentencepiece

from transduce.config import within
from transduce.data.base_tokenizer import LARGEST, TAG, Tokenizer, tag_of, warn_if_smaller
from transduce.errors import InputError

LONGEST = 1 << 18
"""The most characters of a training sentence; longer lines are split, as SentencePiece would leave
them out."""

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("pad", "unk", "bos", "eos")
PIECES = ("<pad>", "<unk>", "<s>", "</s>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a SentencePiece model."""

Normalization = Literal["identity", "nmt_nfkc"]
"""identity keeps every character, except that tabs and line separators become spaces; nmt_nfkc is
SentencePiece's rule for Unicode NFKC, which writes ² as 2, and a full-width comma as a comma."""

BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that would make one line several."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. Its first ids are 0 padding, 1 unknown (unused with byte fallback), 2
    BOS and 3 EOS; a model with other ids is changed to have them, and keeps the order of its other
    pieces and the segmentation of texts.

    Source: Sennrich et al. (2016), BPE; Kudo and Richardson (2018), SentencePiece.
    """

    file_name = "tokenizer.model"
    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS

    def __init__(self, model: bytes) -> None:
        """Read the bytes of a SentencePiece model.

        Raises:
            InputError: they are something else.
        """
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            special = [getattr(self._processor, f"{name}_id")() for name in SPECIAL]
            if special != [PAD, UNK, BOS, EOS]:
                model = _with_special_pieces(model, special)
                self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise InputError(f"this is not a SentencePiece model: {error}") from error
        super().__init__(model)
        self.vocab_size = self._processor.get_piece_size()
        self.all_tokens = self._processor.id_to_piece([*range(self.vocab_size)])

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
        """Learn BPE from the lines of texts, with byte fallback. A small corpus may give a smaller
        vocabulary, with a warning.

        Args:
            symbols: strings that are always one piece, such as <2de>.
            lowercase: put all of a text but symbols into lower case, each character by itself: a
                final sigma is like any other.
            normalization: how characters are changed; runs of spaces always become one space.

        Raises:
            InputError: vocab_size is beyond LARGEST, or leaves no room for the 4 special pieces,
                256 bytes, the symbols and the characters; or a symbol has another meaning.
        """
        _check_symbols(symbols, PIECES)
        within(LARGEST, vocab_size=vocab_size)
        sentences = (
            line[i : i + LONGEST]
            for text in texts
            for line in text.split("\n")
            for i in range(0, len(line), LONGEST)
            if line.strip()
        )
        rules = "nmt_nfkc_cf" if lowercase else "nmt_nfkc"
        table = ""  # instead of rules with a name
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            if normalization == "identity":
                file.write(_rules(lowercase))
                file.flush()
                table = file.name
            proto = _parse(_learn(sentences, vocab_size, symbols, rules, table))
        # the rules are in the model; the file is removed
        proto.normalizer_spec.normalization_rule_tsv = ""
        tokenizer = cls(proto.SerializeToString())
        warn_if_smaller(tokenizer.vocab_size, vocab_size)
        return tokenizer

    def with_symbols(self, symbols: Sequence[str]) -> "SentencePieceTokenizer":
        proto = _parse(self.model)
        pieces = {piece.piece: piece for piece in proto.pieces}
        textual = (NORMAL, USER_DEFINED)
        _check_symbols(symbols, [name for name, each in pieces.items() if each.type not in textual])
        for symbol in dict.fromkeys(symbols):
            if symbol in pieces:
                pieces[symbol].type = USER_DEFINED
            else:
                proto.pieces.add(piece=symbol, score=0.0, type=USER_DEFINED)
        proto.trainer_spec.vocab_size = len(proto.pieces)
        return SentencePieceTokenizer(proto.SerializeToString())

    @cached_property
    def tagged_languages(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(tag[1] for tag in map(TAG.fullmatch, self.all_tokens) if tag)

    def with_tag(self, language: str) -> "SentencePieceTokenizer":
        if language not in self.tagged_languages:
            return super().with_tag(language)
        tagged = copy(self)
        tagged.opening = tuple(self.encode([tag_of(language)])[0])
        return tagged

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See Tokenizer.

        Raises:
            InputError: UTF-8 cannot encode a text.
        """
        try:
            # one by one: for a list SentencePiece starts threads, which takes longer than a text
            return [self._processor.encode(text) for text in texts]
        except RuntimeError as error:
            raise InputError(
                f"a text must be one that UTF-8 can encode, but one of {[*texts]!r:.80} is not; "
                "correct it"
            ) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self._processor.decode([*row]) for row in ids]


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
    trained = [
        SentencePieceTokenizer.train(
            texts,
            vocab_size=vocab_size,
            symbols=symbols,
            lowercase=lowercase,
            normalization=normalization,
        )
        for texts in ([[*source, *target]] if joint else [source, target])
    ]
    return trained[0], trained[-1]


def _with_special_pieces(model: bytes, ids: Sequence[int]) -> bytes:
    """The same model with padding, unknown, BOS and EOS, which had these ids, as pieces 0 to 3."""
    proto = _parse(model)
    others = [
        piece for i, piece in enumerate(proto.pieces) if i not in ids and piece.piece not in PIECES
    ]
    del proto.pieces[:]
    for i, (name, piece) in enumerate(zip(SPECIAL, PIECES, strict=True)):
        proto.pieces.add(piece=piece, score=0.0, type=UNKNOWN if i == UNK else CONTROL)
        setattr(proto.trainer_spec, f"{name}_id", i)
        setattr(proto.trainer_spec, f"{name}_piece", piece)
    proto.pieces.extend(others)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return bytes(proto.SerializeToString())


def _rules(lowercase: bool) -> str:
    """A line for every character that changes: its code points and the new ones, in SentencePiece's
    format."""
    changed = dict.fromkeys(BREAKS, " ")
    if lowercase:
        changed |= {c: c.lower() for c in map(chr, range(sys.maxunicode + 1)) if c.lower() != c}
    return "".join(
        f"{ord(old):X}\t{' '.join(f'{ord(c):X}' for c in new)}\n" for old, new in changed.items()
    )


def _learn(
    sentences: Iterable[str], vocab_size: int, symbols: Sequence[str], rules: str, table: str
) -> bytes:
    """Train a SentencePiece model, which normalizes by the rules of this name, or by those in a
    table.

    Raises:
        InputError: see `SentencePieceTokenizer.train`.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            # for smaller sizes, its error does not name the least one
            vocab_size=max(vocab_size, 260 + len(symbols)),
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=0.9999,
            required_chars="▁",  # a space, however long the lines; as bytes it would stay ▁
            max_sentence_length=4 * LONGEST,  # bytes of UTF-8
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            user_defined_symbols=list(dict.fromkeys(symbols)),
            num_threads=1,
            minloglevel=2,
            normalization_rule_name=rules,
            normalization_rule_tsv=table,
        )
    except RuntimeError as error:
        least = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if least is None:
            raise InputError(
                f"SentencePiece cannot learn from this text: {error}; look for a wrong file"
            ) from error
        parts = f"special pieces, {'symbols, ' * bool(symbols)}bytes and the characters of the text"
        raise InputError(
            f"vocab_size must be at least {least[1]}, for {parts}, but vocab_size={vocab_size}"
        ) from error
    return model.getvalue()


def _parse(model: bytes) -> Any:
    """The protocol buffer of a SentencePiece model: its pieces, and how they were learned."""
    # slow to load, and needed only to change a model
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # protobuf has an error of its own
        raise InputError(
            f"this version of SentencePiece needs a newer protobuf ({error}); pip install "
            "--upgrade protobuf, or where something else holds that back, pip install "
            "'sentencepiece<0.2.3'"
        ) from error
    module: Any = sentencepiece_model_pb2
    return module.ModelProto.FromString(model)


def _check_symbols(symbols: Sequence[str], special: Collection[str]) -> None:
    """Raise InputError if a symbol is a special piece."""
    if reserved := [symbol for symbol in symbols if symbol in special]:
        raise InputError(
            f"a symbol must be no special piece, but {reserved[0]} has another meaning in this "
            "vocabulary; rename it"
        )
