"""Which kinds of tokenizers there are, and what their files are called."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from transduce.data.text.byte_bpe import ByteBPE
from transduce.data.text.characters import CharTokenizer
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.data.text.tokenizer import Tokenizer

TokenizerKind = Literal["characters", "byte_bpe", "sentencepiece"]
FILES: dict[str, type[Tokenizer]] = {
    "characters.json": CharTokenizer,
    "tokenizer.json": ByteBPE,
    "tokenizer.model": SentencePieceTokenizer,
}
"""The names of tokenizer files, as in a run directory, and the class of each."""


def train_tokenizer(kind: TokenizerKind, texts: Sequence[str], *, vocab_size: int) -> Tokenizer:
    """A new tokenizer; vocab_size does not apply to characters."""
    if kind == "characters":
        return CharTokenizer.train(texts)
    if kind == "byte_bpe":
        return ByteBPE.train(texts, vocab_size=vocab_size)
    return SentencePieceTokenizer.train([line for text in texts for line in text.split("\n")], vocab_size=vocab_size)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, or of a folder: a run, shards, or vocab.json and merges.txt of GPT-2.

    Raises:
        ValueError: there is no tokenizer.
    """
    for file in [path, *(path / name for name in FILES)]:
        if file.name in FILES and file.is_file():
            return FILES[file.name].load(file)
    if (path / "vocab.json").is_file():
        return ByteBPE.load(path)
    raise ValueError(f"a tokenizer is one of {', '.join(FILES)}, or a folder with one, but {path} is neither")


def tokenizer_file(tokenizer: Tokenizer) -> str:
    """The name that `load_tokenizer` expects of this tokenizer's file."""
    (name,) = (name for name, kind in FILES.items() if isinstance(tokenizer, kind))
    return name
