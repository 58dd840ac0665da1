"""Any text to shards of token ids, in parallel, with checksums: what `python recipes/language_model.py gpt2` reads.

    python scripts/corpora/make_shards.py --train a.txt b.txt.gz --valid c.txt --output DIR --tokenizer GPT2_DIRECTORY
    python scripts/corpora/make_shards.py --train a.txt --valid c.txt --output DIR --kind byte_bpe --vocab-size 32000

DIR gets train-00000.bin, its header train-00000.json and so on, valid-..., the tokenizer, and manifest.json with what
all of it is. The same command again goes on: a shard stays where its header names the same text and tokenizer.

A file is cut where a line begins; a .gz becomes one shard. Every file is a text of its own; with byte-level BPE, write
<|endoftext|> between the documents of a file. Memory: a process takes up to six times a shard's text.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.language import CUT, encode_text, read_text
from transduce.data.text.lines import check_text, decode_lines
from transduce.data.text.shards import read_header, write_shard
from transduce.data.text.tokenizer_files import (
    FILES,
    TokenizerKind,
    load_tokenizer,
    tokenizer_file,
    train_tokenizer,
)
from transduce.errors import InputError
from transduce.exit import exit_code
from transduce.files import write_file

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Piece:
    """Bytes start ... stop - 1 of a file, and the shard they become."""

    file: Path
    start: int
    stop: int
    shard: Path
    tokenizer: Path
    tokenizer_hash: str

    def read(self) -> tuple[str, str]:
        """The text, whose lines all end alike, and the SHA-256 of its bytes."""
        if self.file.suffix == ".gz":
            text = read_text(self.file)
            return text, hashlib.sha256(text.encode()).hexdigest()
        with self.file.open("rb") as file:
            file.seek(self.start)
            raw = file.read(self.stop - self.start)
        lines = decode_lines(io.BytesIO(raw), f"{self.file}, from byte {self.start}")
        return "\n".join([*lines, ""]), hashlib.sha256(raw).hexdigest()


def pieces_of(file: Path, size: int) -> Iterator[tuple[int, int]]:
    """Where pieces of about `size` bytes begin and end: where CUT finds that a text may be cut."""
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
    """Between two lines; a character has four bytes at most, and half a one at either end is left out."""
    border = (line[-6:] + after[:4]).replace(b"\r\n", b"\n")
    return CUT.search(border.decode(errors="ignore")) is not None


@cache
def tokenizer_at(path: Path, sha256: str) -> Tokenizer:
    """Read once in every process; another hash, another tokenizer."""
    return load_tokenizer(path)


def make(piece: Piece) -> bool:
    """Write a shard; False where it is there already."""
    tokenizer = tokenizer_at(piece.tokenizer, piece.tokenizer_hash)
    text, source = piece.read()
    if piece.shard.with_suffix(".bin").is_file() and piece.shard.with_suffix(".json").is_file():
        header = read_header(piece.shard)
        if (header.source, header.tokenizer) == (source, piece.tokenizer_hash):
            return False
    ids = encode_text(tokenizer, text)
    if piece.start and tokenizer.bos_id is not None and tokenizer.bos_id == tokenizer.eos_id:
        ids = ids[1:]  # no text begins here
    write_shard(piece.shard, ids, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.model, source=source)
    return True


def own_tokenizer(x: argparse.Namespace) -> Path:
    """The tokenizer in the folder: copied there, trained, or found from last time.

    Raises:
        InputError: the one from last time is not what is asked for now.
    """
    tokenizer = load_tokenizer(x.tokenizer) if x.tokenizer else None
    if tokenizer is None:
        try:
            path = x.output / tokenizer_file(load_tokenizer(x.output))
        except ValueError:  # the first time
            tokenizer = trained_tokenizer(x)
        else:
            check_wishes(x, path)
            return path
    write_file(x.output / MANIFEST, json.dumps({"wishes": wishes(x)}) + "\n")  # first, so that no tokenizer lacks them
    path = x.output / tokenizer_file(tokenizer)
    write_file(path, tokenizer.model)
    for name in FILES.keys() - {path.name}:  # of another kind, from another time
        (x.output / name).unlink(missing_ok=True)
    return path


def trained_tokenizer(x: argparse.Namespace) -> Tokenizer:
    """A new one, of the beginning of the training text."""
    left, texts = x.tokenizer_bytes, []
    for file in x.train:
        begin = min(left, file.stat().st_size)
        texts.append(Piece(file, 0, next((stop for _, stop in pieces_of(file, max(begin, 1))), 0), file, file, ""))
        left -= begin
        if left <= 0:
            break
    return train_tokenizer(x.kind, [piece.read()[0] for piece in texts], vocab_size=x.vocab_size)


def wishes(x: argparse.Namespace) -> dict[str, object]:
    """What the command line says about the tokenizer; a small text may have fewer pieces than asked for."""
    if x.tokenizer:
        return {"tokenizer": "FILE"}
    size = {} if x.kind == "characters" else {"vocab_size": x.vocab_size}
    return {"kind": x.kind, **size, "tokenizer_bytes": x.tokenizer_bytes}


def check_wishes(x: argparse.Namespace, path: Path) -> None:
    """Raises InputError where the tokenizer in the folder was made for other ones; nobody can tell without the manifest."""
    manifest = x.output / MANIFEST
    before = json.loads(manifest.read_text()).get("wishes") if manifest.is_file() else None
    now = wishes(x)
    if before not in (None, now):
        raise InputError(
            f"all shards of a folder have one tokenizer, but {path} was made with {_said(before)} and now it is "
            f"{_said(now)}; say the same as before, name another --output, or remove {x.output}"
        )


def _said(wishes: dict[str, object]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in wishes.items())


def write_manifest(x: argparse.Namespace, tokenizer: Path, pieces: list[Piece]) -> dict[str, int]:
    """What the folder holds; tokens by split."""
    tokens, shards = {"train": 0, "valid": 0}, []
    for piece in pieces:
        header = read_header(piece.shard)
        tokens[piece.shard.name.split("-")[0]] += header.count
        shards.append({"file": f"{piece.shard.name}.bin", "from": piece.file.name, "first_byte": piece.start})
        shards[-1] |= {"count": header.count, "dtype": header.dtype, "sha256": header.sha256}
    plain = {
        "wishes": wishes(x),
        "tokenizer": {
            "file": tokenizer.name,
            "vocab_size": load_tokenizer(tokenizer).vocab_size,
            "sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        },
        "tokens": tokens,
        "shards": shards,
    }
    write_file(x.output / MANIFEST, json.dumps(plain, indent=1) + "\n")
    return tokens


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--valid", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tokenizer", type=Path, help="a file, a run, or GPT-2's directory; without, one is trained")
    parser.add_argument("--kind", choices=get_args(TokenizerKind), default="byte_bpe", help="what is trained")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--tokenizer-bytes", type=int, default=200_000_000, help="text that it is trained on")
    parser.add_argument("--shard-bytes", type=int, default=100_000_000, help="text of a shard")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def main() -> None:
    x = arguments()
    for file in (*x.train, *x.valid):
        check_text(file)
    x.output.mkdir(parents=True, exist_ok=True)
    tokenizer = own_tokenizer(x)
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    pieces: list[Piece] = []
    for split, files in (("train", x.train), ("valid", x.valid)):
        cuts = [(file, start, stop) for file in files for start, stop in pieces_of(file, x.shard_bytes)]
        names = (x.output / f"{split}-{i:05d}" for i in range(len(cuts)))
        pieces += [Piece(*cut, shard, tokenizer, digest) for cut, shard in zip(cuts, names, strict=True)]
    known = {piece.shard.name for piece in pieces}
    strange = [path.name for path in sorted(x.output.glob("*-*.bin")) if path.stem not in known]
    if strange:
        raise InputError(
            f"{x.output} must hold shards of this text only, but has {', '.join(strange[:5])}; remove them"
        )
    if x.processes > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(x.processes, len(pieces)), mp_context=context) as pool:
            made = list(tqdm(pool.map(make, pieces), total=len(pieces), unit="shard", disable=None))
    else:
        made = list(map(make, pieces))
    tokens = write_manifest(x, tokenizer, pieces)
    print(f"{sum(made)} shards made, {len(made) - sum(made)} kept: {tokens['train']:,} and {tokens['valid']:,} tokens")


if __name__ == "__main__":
    sys.exit(exit_code(main, interrupted="stopped; run the same command again to go on"))
