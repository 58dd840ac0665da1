"""`transduce data shards`: a text as shards of token ids."""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from transduce.cli.common import OptionalFile, Texts
from transduce.cli.jobs import end_with_parent, submit, worker_pool
from transduce.config import at_least
from transduce.data.language import CUT, encode_text, read_text
from transduce.data.lines import check_text, decode_lines
from transduce.data.shards import open_shards, read_header, write_shard
from transduce.data.tokenizer_files import (
    FILES,
    KINDS,
    TokenizerKind,
    load_tokenizer,
    train_tokenizer,
)
from transduce.errors import InputError
from transduce.process import Bar

TOKENIZER_BYTES = 200_000_000
"""Bytes from the beginning of the training text from which a tokenizer is trained."""


@dataclass(frozen=True)
class Piece:
    """Bytes start ... stop - 1 of a file, and the shard that they become."""

    file: Path
    start: int
    stop: int
    shard: Path

    def read(self) -> tuple[str, str]:
        """The text, with the same line end everywhere, and the SHA-256 of its bytes."""
        if self.file.suffix == ".gz":
            text = read_text(self.file)
            return text, hashlib.sha256(text.encode()).hexdigest()
        with self.file.open("rb") as file:
            file.seek(self.start)
            raw = file.read(self.stop - self.start)
        lines = decode_lines(io.BytesIO(raw), f"{self.file}, from byte {self.start}")
        return "\n".join([*lines, ""]), hashlib.sha256(raw).hexdigest()


def shards(
    *,
    train: Texts,
    valid: Texts,
    output: Annotated[Path, arg(metavar="DIR")],
    tokenizer: OptionalFile = None,
    kind: TokenizerKind = "byte_bpe",
    vocab_size: int = 32000,
    shard_bytes: int = 100_000_000,
    processes: int = os.cpu_count() or 1,
) -> None:
    """Make shards of token ids of any text, for transduce train language-model gpt2 --data DIR.

    DIR gets train-00000.bin, its header train-00000.json and so on, valid-..., and the tokenizer.
    The same command again resumes: a shard is kept if it is complete and its header names the same
    text and tokenizer. Files are split at the start of a line; a .gz becomes one shard. Every file
    is a separate text; with byte-level BPE, write <|endoftext|> between the documents of a file.

    Args:
        train: Text to train on, plain or .gz.
        valid: Text to validate on.
        output: Folder for the shards.
        tokenizer: A tokenizer's file, a run, or GPT-2's directory; by default one is trained.
        kind: Kind of the tokenizer to train.
        vocab_size: Number of tokens of the tokenizer to train.
        shard_bytes: Bytes of text per shard; a process takes up to six times as much memory.
        processes: Number of shards that are made at a time.
    """
    at_least(1, shard_bytes=shard_bytes, processes=processes)
    pieces = _pieces(output, {"train": train, "valid": valid}, shard_bytes)
    path = _write_tokenizer(output, tokenizer, kind, vocab_size, train)
    make = partial(write, tokenizer=path)
    if processes > 1:
        with worker_pool(min(processes, len(pieces)), end_with_parent) as pool:
            calls = submit(pool, make, zip(pieces, strict=True))
            made = [call.result() for call in Bar(iterable=calls, unit="shard")]
    else:
        made = [*map(make, pieces)]
    n_tokens = sum(read_header(piece.shard).count for piece in pieces)
    print(f"{sum(made)} shards made, {len(made) - sum(made)} kept: {n_tokens:,} tokens")


def _pieces(output: Path, texts: dict[str, Sequence[Path]], shard_bytes: int) -> list[Piece]:
    """The pieces of both texts.

    Raises:
        InputError: a text is missing, or the folder has shards of another text.
    """
    pieces = []
    for split, files in texts.items():
        for file in files:
            check_text(file)
        cuts = [(file, *cut) for file in files for cut in pieces_of(file, shard_bytes)]
        pieces += [Piece(*cut, output / f"{split}-{i:05d}") for i, cut in enumerate(cuts)]
        if not cuts:
            raise InputError(
                f"shards need text to train on and to validate on, but --{split} "
                f"{' '.join(map(str, files))} has none"
            )
    known = {piece.shard.name for piece in pieces}
    if strange := [path for path in sorted(output.glob("*-*.bin")) if path.stem not in known]:
        raise InputError(
            f"{output} must hold shards of this text only, but has {strange[0].name}; remove it, "
            "or name another --output"
        )
    return pieces


def pieces_of(file: Path, size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of pieces of about `size` bytes, split only where CUT matches."""
    if file.suffix == ".gz":
        yield 0, file.stat().st_size
        return
    start, end = 0, file.stat().st_size
    with file.open("rb") as opened:
        while start < end:
            opened.seek(min(start + size, end))
            line, after = opened.readline(), opened.readline()
            while after and not _may_be_cut(line, after):
                line, after = after, opened.readline()
            stop = opened.tell() - len(after)
            yield start, stop
            start = stop


def _may_be_cut(line: bytes, after: bytes) -> bool:
    """Whether CUT matches between two lines; a character has four bytes at most."""
    border = (line[-6:] + after[:4]).replace(b"\r\n", b"\n")
    return CUT.search(border.decode(errors="ignore")) is not None


def write(piece: Piece, *, tokenizer: Path) -> bool:
    """Write a shard; return False if it exists already and is complete."""
    text, source = piece.read()
    loaded = load_tokenizer(tokenizer)
    with suppress(InputError, OSError):
        open_shards([piece.shard.with_suffix(".bin")], tokenizer=loaded.model, verify=True)
        if read_header(piece.shard).source == source:
            return False
    ids = encode_text(loaded, text)
    if piece.start and loaded.bos_id is not None and loaded.bos_id == loaded.eos_id:
        ids = ids[1:]  # without BOS, as this piece continues a text
    write_shard(
        piece.shard, ids, vocab_size=loaded.vocab_size, tokenizer=loaded.model, source=source
    )
    return True


def _write_tokenizer(
    output: Path, file: Path | None, kind: TokenizerKind, vocab_size: int, train: Sequence[Path]
) -> Path:
    """The tokenizer file in the folder: copied there, trained, or left from last time.

    Raises:
        InputError: the one from last time is of another kind, or larger.
    """
    from transduce.files import write_file

    existing = [output / name for name in FILES if (output / name).is_file()]
    if existing and not file:
        last = load_tokenizer(existing[0])
        too_large = kind != "characters" and last.vocab_size > vocab_size
        if too_large or not isinstance(last, KINDS[kind]):
            raise InputError(
                f"all shards of a folder have one tokenizer, but {existing[0]} is a "
                f"{type(last).__name__} of {last.vocab_size} tokens, and now it is {kind} with "
                f"{vocab_size}; name another --output, or remove {output}"
            )
        print(f"{existing[0]} exists, with {last.vocab_size} tokens, and is used")
        return existing[0]
    if file:
        tokenizer = load_tokenizer(file)
    else:
        texts, left = [], TOKENIZER_BYTES
        for path in train:
            stop = next((stop for _, stop in pieces_of(path, left)), 0)
            texts.append(Piece(path, 0, stop, path).read()[0])
            left -= stop
            if left <= 0:
                break
        tokenizer = train_tokenizer(kind, texts, vocab_size=vocab_size)
    for path in existing:  # perhaps of another kind
        path.unlink()
    path = output / tokenizer.file_name
    write_file(path, tokenizer.model)
    return path
