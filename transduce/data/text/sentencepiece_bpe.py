"""SentencePiece BPE: raw text to ids and back (in NFKC, with single spaces); no character is unknown."""

import io
import random
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import sentencepiece

from transduce.data.text.tokenizer import Tokenizer

PAD, UNK, BOS, EOS = range(4)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. Its first ids are 0 padding, 1 unknown (unused, as bytes stand in), 2 begin and 3 end.

    Source: Sennrich et al. (2016), BPE; Kudo and Richardson (2018), SentencePiece.
    """

    bos_id, eos_id, suppressed = BOS, EOS, (PAD, UNK, BOS)

    def __init__(self, model: bytes) -> None:
        """Read the bytes of a SentencePiece model.

        Raises:
            ValueError: they are something else, or its special pieces have other ids.
        """
        super().__init__(model)
        try:
            self._processor = sentencepiece.SentencePieceProcessor()
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(
                f"a SentencePiece model is a protocol buffer, but these {len(model)} bytes are none"
            ) from error
        self._ids = {self._processor.id_to_piece(i): i for i in range(self.vocab_size)}
        """The id of every piece; a merge learned earlier has the smaller id."""
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "unk", "bos", "eos")]
        if ids != [PAD, UNK, BOS, EOS]:
            raise ValueError(f"pad, unk, bos and eos must have the ids 0, 1, 2, 3, but this model gives them {ids}")

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> "SentencePieceTokenizer":
        """Learn BPE from raw sentences, with byte fallback. A small corpus may give a smaller vocabulary.

        Raises:
            ValueError: vocab_size leaves no room for the 4 special pieces, 256 bytes and the characters.
        """
        model = io.BytesIO()
        sentences = (t for t in texts if t.strip())
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences,
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                byte_fallback=True,
                character_coverage=0.9999,
                max_sentence_length=1 << 20,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"SentencePiece could not learn vocab_size={vocab_size} pieces: {error}; "
                "it must exceed 260 (special pieces and bytes) by more than the number of different characters"
            ) from error
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(texts))

    def encode_with_dropout(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """`encode` that skips each merge with probability `dropout`: another segmentation for every seed.

        Without dropout the segmentation is SentencePiece's. Its own sampling is not used, as it differs from process to
        process whatever the seed.

        Source: Provilkov et al. (2020), BPE-dropout, algorithm 1.
        """
        rng = random.Random(seed)
        rows = []
        for plain in self.encode(texts):
            row: list[int] = []
            for is_byte, run in groupby(plain, self._processor.is_byte):
                if is_byte:  # characters without a piece merge with nothing
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


def tokenizers(
    source: Sequence[str], target: Sequence[str], *, vocab_size: int, joint: bool
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """Trained tokenizers of both sides; if `joint`, one tokenizer of both texts, twice."""
    first = SentencePieceTokenizer.train([*source, *target] if joint else source, vocab_size=vocab_size)
    return first, first if joint else SentencePieceTokenizer.train(target, vocab_size=vocab_size)
