"""Shards: the ids of a text in binary files, each with a header, that are mapped into memory."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from transduce.config import Common, from_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.language import Language, Stream, smallest_type
from transduce.data.tokenizer_files import KINDS, TokenizerKind, load_tokenizer
from transduce.errors import InputError


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
    finished, so one that is made again loses its header first."""
    from transduce.files import write_file, write_json  # they load torch: slow for --help

    kind = smallest_type(vocab_size)
    content = ids.astype(kind).tobytes()
    header = ShardHeader(
        dtype=kind.name,
        count=len(ids),
        tokenizer=hashlib.sha256(tokenizer).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
        source=source,
    )
    path.with_suffix(".json").unlink(missing_ok=True)
    write_file(path.with_suffix(".bin"), content)
    write_json(path.with_suffix(".json"), asdict(header))


def read_header(path: Path) -> ShardHeader:
    """The header of a shard, which is named by its .bin or its .json.

    Raises:
        InputError: the header is missing or invalid.
    """
    from transduce.files import read_json  # it loads torch, which would slow down --help

    path = path.with_suffix(".json")
    try:
        header = from_dict(ShardHeader, read_json(path), str(path))
        np.dtype(header.dtype)
        return header
    except (OSError, InputError, TypeError) as error:
        raise InputError(
            f"a shard needs its header file, but {path}: {error}; make the shard again"
        ) from error


def open_shards(
    paths: Sequence[Path],
    *,
    tokenizer: bytes,
    vocab_size: int | None = None,
    verify: bool = False,
) -> Stream:
    """Open shards as one stream. Files are memory-mapped and read where ids are needed.

    Args:
        vocab_size: see `Stream`.
        verify: whether to read everything once and compare it with the checksums.

    Raises:
        InputError: there is no shard, one was made with another tokenizer, or its bytes are not
            those of its header.
    """
    if not paths:
        raise InputError(
            "a stream needs a shard, but there is none; make shards with transduce data shards"
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
    return Stream(parts, [header.sha256 for header in headers], vocab_size)


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A folder of shards, as `transduce data shards` writes it: train-*.bin, valid-*.bin and the
    tokenizer."""

    data: Common[Path | None] = None
    """The folder."""
    verify: bool = False
    """Whether to compare all bytes with their checksums first."""

    def read(
        self,
        kind: TokenizerKind | Path,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        symbols: Sequence[str] = (),
    ) -> Language:
        """Map the shards into memory. The tokenizer is the shards' own, and vocab_size is not used.

        Args:
            tokenizer: the tokenizer of the file `kind`, if `kind` is a file; otherwise it is not
                used.

        Raises:
            InputError: no folder is named, it lacks shards or the tokenizer, a shard is missing
                among others, or another tokenizer or symbols are named.
        """
        if self.data is None:
            raise InputError(
                "shards need a folder: use --data DIR; transduce data shards makes them from text"
            )
        stored = load_tokenizer(self.data)
        if isinstance(kind, Path):
            matches = (tokenizer or load_tokenizer(kind)).model == stored.model
        else:
            matches = isinstance(stored, KINDS[kind])
        if symbols or not matches:
            raise InputError(
                f"shards are ids of the tokenizer in their folder, a {type(stored).__name__} in "
                f"{self.data}, but there is tokenizer={kind}, symbols={' '.join(symbols)!r}; leave "
                "these out, or make other shards: transduce data shards --tokenizer FILE"
            )
        streams = []
        for split in ("train", "valid"):
            paths = sorted(self.data.glob(f"{split}-*.bin"))
            for i, path in enumerate(paths):
                if path.stem != (name := f"{split}-{i:05d}"):
                    raise InputError(
                        f"shards are numbered from 0 without a gap, but {path} stands where "
                        f"{name}.bin is missing; make it again with transduce data shards"
                    )
            streams.append(
                open_shards(
                    paths,
                    tokenizer=stored.model,
                    vocab_size=stored.vocab_size,
                    verify=self.verify,
                )
            )
        return Language(stored, *streams)
