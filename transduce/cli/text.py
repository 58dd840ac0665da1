"""`transduce data clean` and `transduce data shards`: prepare text for training."""

import hashlib
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from statistics import mode
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import OptionalFile
from transduce.cli.jobs import end_with_parent, submit, worker_pool
from transduce.cli.large_files import check_output
from transduce.config import at_least
from transduce.data.language import CUT, encode_text, read_text
from transduce.data.lines import check_text, decode_lines
from transduce.data.parallel_text import Pair, PairFiles, has_text
from transduce.data.shards import open_shards, read_header, write_shard
from transduce.data.tables import TABLES, table_files
from transduce.data.tokenizer_files import (
    FILES,
    KINDS,
    TokenizerKind,
    load_tokenizer,
    train_tokenizer,
)
from transduce.errors import InputError
from transduce.process import Bar

FIRST = 10_000
"""Number of first pairs that determine the usual script of each side."""

ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HALFWIDTH": "CJK", "FULLWIDTH": "LATIN"}
"""Scripts that count as another one: texts mix them, or they are its letters in another width."""

WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\U00020000-\U0003fffd]"
)
"""A character of Chinese, Japanese or Korean, which says about as much as three letters."""

TOKENIZER_BYTES = 200_000_000
"""Bytes from the beginning of the training text from which a tokenizer is trained."""

Texts = Annotated[tuple[Path, ...], arg(metavar="FILE ...", help_behavior_hint="(required)")]


def clean(
    files: Positional[Texts],
    *,
    source: str,
    target: str,
    output: Annotated[Path, arg(metavar="PREFIX")],
    max_ratio: float = 3.0,
    max_words: int = 200,
) -> None:
    """Remove pairs that are useless for training; they are counted, and kept in a file.

    FILE is two files, a TSV of source, tab, target, a TMX file or a Moses zip of OPUS as it comes,
    or a table (.csv, .jsonl, .parquet, .arrow) with a column named `source`, and one `target`.
    PREFIX.en and PREFIX.de get the pairs that are kept, PREFIX.removed.tsv the others with the
    reason: a blank side, the same text on both sides, a duplicate of another pair, a side longer
    than `max_words`, sides whose lengths differ by more than `max_ratio`, a wrong encoding (Ã¼ for
    ü, or �), or mostly letters of another script than the text usually has.

    Args:
        files: The parallel text.
        source: The source language, such as en, which becomes the suffix of its file.
        target: The target language, such as de.
        output: The prefix of the names of the new files.
        max_ratio: Maximum ratio of the lengths of the two sides in characters; Chinese, Japanese
            and Korean characters count three times.
        max_words: Maximum number of words of a side.
    """
    from transduce.files import replacing

    at_least(1, max_ratio=max_ratio, max_words=max_words)
    pairs = pair_files(files, source, target)
    first, more = _decoded(pairs)
    filters = Filters(max_ratio, max_words, _usual_scripts(first))
    counted = Counter[str]()
    names = _new_files(output, (source, target, "removed.tsv"), pairs.paths)
    one, other, rest = map(replacing, names)
    with one as sources, other as targets, rest as others, Bar(unit="pair", unit_scale=True) as bar:
        for pair in chain(first, more):
            counted[reason := filters.reason(pair)] += 1
            if reason:
                others.write(("\t".join((reason, *pair)) + "\n").encode())
            else:
                for file, text in zip((sources, targets), pair, strict=True):
                    file.write(f"{text}\n".encode())
            bar.update()
    n_pairs = counted.pop("", 0)
    counts = ", ".join(f"{n:,} {reason}" for reason, n in counted.most_common()) or "none"
    print(f"{names[0]} and {names[1]}: {n_pairs:,} pairs; {names[2]}: {counts}")
    if not n_pairs:
        raise InputError(f"training needs pairs, but none is left; {names[2]} has the reasons")


def _new_files(output: Path, endings: Sequence[str], inputs: Sequence[Path]) -> list[Path]:
    """The names of the new files, none of which may be an input.

    Raises:
        InputError: two of them would be one, or one is an input.
    """
    if len({*endings}) < len(endings):
        raise InputError(
            f"the new files are named by {', '.join(endings)}, but two are the same; give one "
            f"another name, such as {endings[1]}-2"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    names = [Path(f"{output}.{ending}") for ending in endings]
    for name in names:
        check_output(name, inputs)
    return names


def _usual_scripts(pairs: Sequence[Pair]) -> list[str]:
    """The most frequent script of each side."""
    sides = zip(*pairs, strict=True)
    return [mode([*filter(None, map(script_of, side))] or [""]) for side in sides]


def pair_files(files: Sequence[Path], source: str, target: str) -> PairFiles:
    """Two files or a TSV; or a table, whose columns are the languages.

    Raises:
        InputError: there are more files, or none.
    """
    if not 0 < len(files) < 3:
        raise InputError(f"a parallel text is one or two files, but there are {len(files)}")
    if len(files) == 1 and (files[0].is_dir() or files[0].name.lower().endswith(TABLES)):
        return PairFiles(table_files(files[0]), (source, target))
    return PairFiles(tuple(files))


def _decoded(pairs: PairFiles) -> tuple[list[Pair], Iterator[Pair]]:
    """The first pairs, and an iterator of the others, with U+FFFD for bytes that are not UTF-8;
    pairs with such bytes are removed later. All are read only once, as a pipe can be.

    Raises:
        InputError: more than a tenth of the first pairs have such bytes, as in another encoding.
    """
    more = pairs.decoded("replace")
    first = [*islice(more, FIRST)]
    if 10 * sum(any("\ufffd" in text for text in pair) for pair in first) > len(first):
        list(islice(pairs, FIRST))  # raises an error that names the line
    return first, more


@dataclass
class Filters:
    """Conditions for keeping a pair; `scripts` are the usual ones of both sides."""

    max_ratio: float
    max_words: int
    scripts: Sequence[str]
    seen: set[int] = field(default_factory=set)

    def reason(self, pair: Pair) -> str:
        """Why this pair is removed; "" if it is kept."""
        lengths = sorted(len(text) + 2 * len(WIDE.findall(text)) for text in pair)
        if not has_text(pair):
            return "blank"
        if hash(pair) in self.seen:
            return "duplicate"
        self.seen.add(hash(pair))
        if pair[0].strip() == pair[1].strip():
            return "untranslated"
        if any("\ufffd" in text or _decoded_twice(text) for text in pair):
            return "wrong encoding"
        if any(len(text.split()) > self.max_words for text in pair):
            return "too long"
        if lengths[1] > self.max_ratio * max(lengths[0], 10):  # short texts differ by more
            return "length ratio"
        scripts = zip(map(script_of, pair), self.scripts, strict=True)
        if any(script not in ("", usual or script) for script, usual in scripts):
            return "other script"
        return ""


def _decoded_twice(text: str) -> bool:
    """Whether UTF-8 was read as Latin-1 or Windows-1252, and written as UTF-8 again."""
    for encoding in ("latin1", "cp1252"):
        with suppress(UnicodeError):
            text.encode(encoding).decode()
            return not text.isascii()
    return False


def script_of(text: str) -> str:
    """The script of most letters, as their Unicode names begin; "" where there are no letters."""
    scripts = Counter(filter(None, map(_script, text)))
    return max(scripts, key=scripts.__getitem__, default="")


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "?") if character.isalpha() else ""
    script = re.split("[ -]", name)[0]
    return ONE_SCRIPT.get(script, script)


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
