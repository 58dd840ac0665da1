"""A text as one stream of token ids, in memory or in shards on a disk."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from transduce.config import from_dict
from transduce.errors import InputError

CHUNK = 1 << 22
"""Ids that are read at a time where a whole stream is read."""


def smallest_type(vocab_size: int) -> np.dtype:
    """uint16 where it holds every id, else uint32; both little-endian, as in files."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class Stream:
    """Ids end to end, which may lie in several arrays.

    Args:
        checksums: one per array, where they are known; then a fingerprint is made without reading
            the ids.
    """

    def __init__(
        self, parts: Sequence[Integer[np.ndarray, " _"]], checksums: Sequence[str] = ()
    ) -> None:
        self.parts = list(parts)
        self.checksums = list(checksums)
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    def read(self, start: int, stop: int) -> Int[np.ndarray, " n"]:
        """The ids start ... stop - 1, across the borders of arrays."""
        first, last = np.searchsorted(self.ends, (start, stop - 1), side="right")
        pieces = []
        for part, end in zip(
            self.parts[first : last + 1], self.ends[first : last + 1].tolist(), strict=True
        ):
            begin = end - len(part)
            pieces.append(part[max(start - begin, 0) : stop - begin])
        return np.concatenate(pieces).astype(np.int64)

    def chunks(self, overlap: int = 0, limit: int | None = None) -> Iterator[Int[np.ndarray, " _"]]:
        """The first `limit` ids, or all, in chunks; each chunk ends with the first `overlap` ids of
        the next one."""
        stop = len(self) if limit is None else min(limit, len(self))
        for start in range(0, stop, CHUNK):
            yield self.read(start, min(start + CHUNK + overlap, stop))

    def fingerprint(self) -> str:
        """SHA-256 of the checksums where they are known, else of the ids, however they are
        stored."""
        digest = hashlib.sha256("".join(self.checksums).encode())
        for chunk in [] if self.checksums else self.chunks():
            digest.update(chunk.astype("<u4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """NAME.json, the header of the shard NAME.bin."""

    dtype: str
    count: int
    tokenizer: str
    """SHA-256 of the tokenizer's file."""
    sha256: str
    """SHA-256 of NAME.bin."""
    source: str
    """SHA-256 of the text that was encoded."""


def write_shard(
    path: Path, ids: Integer[np.ndarray, " _"], *, vocab_size: int, tokenizer: bytes, source: str
) -> None:
    """Write the ids to NAME.bin, and then the header to NAME.json: a shard without a header is not
    finished."""
    from transduce.files import write_file  # it loads torch, for which --help does not wait

    kind = smallest_type(vocab_size)
    content = ids.astype(kind).tobytes()
    header = ShardHeader(
        dtype=kind.name,
        count=len(ids),
        tokenizer=hashlib.sha256(tokenizer).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
        source=source,
    )
    write_file(path.with_suffix(".bin"), content)
    write_file(path.with_suffix(".json"), json.dumps(asdict(header)) + "\n")


def read_header(path: Path) -> ShardHeader:
    """The header of a shard, which is named by its .bin or its .json.

    Raises:
        InputError: it is missing, or is something else.
    """
    from transduce.files import read_json  # it loads torch, for which --help does not wait

    path = path.with_suffix(".json")
    try:
        header = from_dict(ShardHeader, read_json(path), str(path))
        np.dtype(header.dtype)
        return header
    except (OSError, InputError, TypeError) as error:
        raise InputError(
            f"a shard has its header beside it, but {path}: {error}; make the shard again"
        ) from error


def open_shards(paths: Sequence[Path], *, tokenizer: bytes, verify: bool = False) -> Stream:
    """Shards as one stream. Files are mapped into memory, and read where ids are needed.

    Args:
        verify: whether to read everything once and compare it with the checksums.

    Raises:
        InputError: there is no shard, one was made with another tokenizer, or its bytes are not
            those of its header.
    """
    if not paths:
        raise InputError(
            "a stream needs a shard, but there is none; transduce data shards makes them"
        )
    expected = hashlib.sha256(tokenizer).hexdigest()
    headers = [read_header(path) for path in paths]
    parts = []
    for path, header in zip(paths, headers, strict=True):
        if header.tokenizer != expected:
            raise InputError(
                f"shards must be made with the tokenizer they are read with, but {path} has "
                f"{header.tokenizer[:12]} and the tokenizer is {expected[:12]}; make the shards "
                "again"
            )
        kind = np.dtype(header.dtype).newbyteorder("<")
        n_bytes = header.count * kind.itemsize
        if (size := path.stat().st_size) != n_bytes:
            raise InputError(
                f"{path} must have {n_bytes} bytes, as its header says, but has {size}; make it "
                "again"
            )
        # an empty file cannot be mapped
        ids = np.memmap(path, kind, mode="r") if size else np.empty(0, kind)
        if verify and hashlib.sha256(ids.data).hexdigest() != header.sha256:
            raise InputError(
                f"{path} must have the checksum of its header, but has not; make it again"
            )
        parts.append(ids)
    return Stream(parts, [header.sha256 for header in headers])
