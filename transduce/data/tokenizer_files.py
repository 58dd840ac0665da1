"""The kinds of tokenizers, and their files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from transduce.data.base_tokenizer import CharTokenizer, Tokenizer
from transduce.data.imported import ImportedTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.pronunciations import PronunciationTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError

TokenizerKind = Literal["characters", "byte_bpe", "sentencepiece"]
KINDS: dict[TokenizerKind, type[CharTokenizer | JSONTokenizer | SentencePieceTokenizer]] = {
    "characters": CharTokenizer,
    "byte_bpe": JSONTokenizer,
    "sentencepiece": SentencePieceTokenizer,
}
"""The class of each kind that can be trained."""
FILES: dict[str, type[Tokenizer]] = {
    "characters.json": CharTokenizer,
    "tokenizer.json": JSONTokenizer,
    "tokenizer.model": SentencePieceTokenizer,
    "tokenizer.imported.json": ImportedTokenizer,
    "tokenizer.pronunciations.json": PronunciationTokenizer,
}
"""The names of tokenizer files, as in a run directory, and the class of each."""


def train_tokenizer(
    kind: TokenizerKind, texts: Sequence[str], *, vocab_size: int, symbols: Sequence[str] = ()
) -> Tokenizer:
    """A new tokenizer; vocab_size does not apply to characters.

    Args:
        symbols: words that are one token wherever they stand, such as <2de>.

    Raises:
        InputError: vocab_size leaves no room, or there are symbols for characters.
    """
    return KINDS[kind].train(texts, vocab_size=vocab_size, symbols=symbols)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether an id stands for the same token in both, whatever their files are."""
    if one.model == other.model:
        return True
    first, second = (
        (each.bos_id, each.eos_id, each.pad_id, each.unk_id, each.tokens(range(each.vocab_size)))
        for each in (one, other)
    )
    return first == second


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file of any name, or of a folder: a run, shards, or vocab.json and
    merges.txt of GPT-2.

    Raises:
        InputError: there is no tokenizer.
    """
    if path.is_file():
        return _read(path)
    for name, kind in FILES.items():
        if (path / name).is_file():
            return kind.load(path / name)
    if (path / "vocab.json").is_file():
        return JSONTokenizer.load(path)
    reason = "is neither" if path.is_dir() else "does not exist"
    raise InputError(
        f"a tokenizer is one of {', '.join(FILES)}, or a folder with one, but {path} {reason}"
    )


def _read(path: Path) -> Tokenizer:
    """The tokenizer of a file, whose first bytes or keys tell its kind."""
    model = path.read_bytes()
    try:
        if not model.lstrip().startswith(b"{"):
            return SentencePieceTokenizer(model)
        plain = json.loads(model)
        kinds: dict[str, type[Tokenizer]] = {
            "special": ImportedTokenizer,
            "pronunciations": PronunciationTokenizer,
            "characters": CharTokenizer,
        }
        kind = next((kind for key, kind in kinds.items() if key in plain), JSONTokenizer)
        return kind(model)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "a tokenizer file is a SentencePiece model, or JSON of the library tokenizers, of "
            "characters or of "
            f"pronunciations, but {path}: {error}"
        ) from error


def side_files(side: str) -> dict[str, type[Tokenizer]]:
    """`FILES` of a run with a tokenizer for each side: source.json, source.model."""
    return {
        name.replace("tokenizer", side): kind
        for name, kind in FILES.items()
        if name.startswith("tokenizer")
    }


def tokenizer_file(tokenizer: Tokenizer, files: dict[str, type[Tokenizer]] = FILES) -> str:
    """The name of this tokenizer's file among `files`."""
    (name,) = (name for name, kind in files.items() if isinstance(tokenizer, kind))
    return name


def write_tokenizers(
    directory: Path, source: Tokenizer | None, target: Tokenizer | None, *, alone: bool
) -> None:
    """Write the files of a run's tokenizers: one, where both sides share it, or where there is a
    decoder `alone`."""
    from transduce.files import write_file  # it loads torch, for which --help does not wait

    if alone or source is target:
        sides = [(FILES, target)]
    else:
        sides = [(side_files("source"), source), (side_files("target"), target)]
    for files, tokenizer in sides:
        if tokenizer is not None:
            write_file(directory / tokenizer_file(tokenizer, files), tokenizer.model)
