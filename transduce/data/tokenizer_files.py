"""The files of every kind of tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from transduce.data.base_tokenizer import CharTokenizer, Tokenizer
from transduce.data.imported_tokenizer import ImportedTokenizer
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
    kind.file_name: kind for kind in (*KINDS.values(), ImportedTokenizer, PronunciationTokenizer)
}
"""The names of tokenizer files, as in a run directory, and the class of each."""


def train_tokenizer(
    kind: TokenizerKind, texts: Sequence[str], *, vocab_size: int, symbols: Sequence[str] = ()
) -> Tokenizer:
    """A new tokenizer; vocab_size does not apply to characters.

    Args:
        symbols: strings that are always one token, such as <2de>.

    Raises:
        InputError: vocab_size leaves no room, or there are symbols for characters.
    """
    return KINDS[kind].train(texts, vocab_size=vocab_size, symbols=symbols)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether each id is the same token in both, even if their files differ."""
    first, second = (
        (each.bos_id, each.eos_id, each.pad_id, each.unk_id, each.all_tokens)
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
    if stored := stored_tokenizer(path):
        return stored
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
            f"characters or of pronunciations, but {path}: {error}"
        ) from error


def side_files(side: str) -> dict[str, type[Tokenizer]]:
    """`FILES` of a run with a tokenizer for each side: source.json, source.model."""
    return {
        name.replace("tokenizer", side): kind
        for name, kind in FILES.items()
        if name.startswith("tokenizer")
    }


def stored_tokenizer(
    directory: Path, files: dict[str, type[Tokenizer]] = FILES
) -> Tokenizer | None:
    """The tokenizer that `write_tokenizers` wrote into a directory under one of these names, if
    any."""
    for name, kind in files.items():
        if (directory / name).is_file():
            return kind.load(directory / name)
    return None


def write_tokenizers(
    directory: Path, source: Tokenizer | None, target: Tokenizer | None, *, alone: bool
) -> None:
    """Write the files of a run's tokenizers: one if both sides share it or there is a decoder
    `alone`, else one per side.

    Raises:
        InputError: there are two, and one is of characters, whose file has no name for a side.
    """
    from transduce.files import write_file  # it loads torch, which would slow down --help

    if alone or source is target:
        sides = {"tokenizer": target}
    else:
        sides = {"source": source, "target": target}
    for side, tokenizer in sides.items():
        if tokenizer is not None:
            name = tokenizer.file_name.replace("tokenizer", side)
            if len(sides) > 1 and name not in side_files(side):
                raise InputError(
                    "a tokenizer of single characters must be shared by both sides, but the "
                    f"{side} has one of its own; share it, or take another kind"
                )
            write_file(directory / name, tokenizer.model)
