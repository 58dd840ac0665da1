"""SentencePiece BPE: raw text to ids and back, nothing unknown."""

import io
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

PAD, UNK, BOS, EOS = range(4)


class Tokenizer:
    """A SentencePiece model. Ids: 0 padding, 1 unknown (never met: bytes stand in), 2 begin, 3 end.

    Source: Sennrich et al. (2016), BPE; Kudo and Richardson (2018), SentencePiece.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "unk", "bos", "eos")]
        if ids != [PAD, UNK, BOS, EOS]:
            raise ValueError(f"pad, unk, bos and eos must have the ids 0, 1, 2, 3, but this model gives them {ids}")

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> "Tokenizer":
        """Learn BPE from raw sentences, with byte fallback.

        A small corpus may have fewer merges than asked for; then the vocabulary is smaller.

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

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a .model file."""
        return cls(Path(path).read_bytes())

    def save(self, path: Path | str) -> None:
        """Write a .model file."""
        Path(path).write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return self._processor.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without BEGIN and END, a list per text."""
        return self._processor.encode(list(texts))

    def encode_with_dropout(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """`encode` that skips each merge with probability `dropout`: another segmentation for every seed.

        SentencePiece seeds its generator once per thread, so a new thread makes the result a function of the seed.

        Source: Provilkov et al. (2020), BPE-dropout.
        """
        ids: list[list[int]] = []

        def sample() -> None:
            sentencepiece.set_random_generator_seed(seed)
            for text in texts:
                ids.append(self._processor.encode(text, enable_sampling=True, alpha=dropout, nbest_size=-1))

        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        return ids

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each list of ids; the special pieces have none."""
        return self._processor.decode([list(row) for row in ids]) if len(ids) else []  # it takes [] for one text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces as one reads them, for pictures and reports."""
        return [self._processor.id_to_piece(int(i)) for i in ids]


def tokenizers(
    source: Sequence[str], target: Sequence[str], *, vocab_size: int, joint: bool
) -> tuple[Tokenizer, Tokenizer]:
    """Trained tokenizers of both sides; the very same object twice if `joint`."""
    if joint:
        shared = Tokenizer.train([*source, *target], vocab_size=vocab_size)
        return shared, shared
    return Tokenizer.train(source, vocab_size=vocab_size), Tokenizer.train(target, vocab_size=vocab_size)
