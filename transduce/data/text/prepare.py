"""A large parallel text as shards of ids, made once."""

import hashlib
import json
from itertools import chain, islice
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.parallel_text import BLOCK, LargeText, Pair, blocks
from transduce.data.text.shards import smallest_type, write_shard
from transduce.errors import InputError
from transduce.files import write_file
from transduce.progress import Bar

SHARD = 1 << 20
"""Pairs of a shard."""


def prepare(text: LargeText, source: Tokenizer, target: Tokenizer) -> list[Path]:
    """The shards of a text, in order; those that are not there are made.

    NAME.bin has the ids of source, target, source, ..., each side ending in EOS. NAME.offsets has where each side begins,
    and the end, as int64. Their folder is named by a hash of the tokenizers, of the languages that they are set to, and of what validation holds out. A header,
    NAME.json, is written last, so an interruption costs one shard.

    Raises:
        InputError: all of the text is held out.
    """
    models = source.model + target.model
    languages = [side.with_eos(side.encode(["A"])) for side in (source, target)]  # a tag is no part of a model
    key = hashlib.sha256(models + json.dumps([sorted(text.held_out), languages]).encode()).hexdigest()
    folder = text.folder / key[:16]
    finished = folder / "shards.json"
    if finished.is_file():
        return [folder / name for name in json.loads(finished.read_text())]
    folder.mkdir(parents=True, exist_ok=True)
    kind = smallest_type(max(source.vocab_size, target.vocab_size))
    paths, pairs = list[Path](), iter(text)
    with Bar(desc="tokenizing", total=text.n_pairs, unit="pair", unit_scale=True) as bar:
        while first := next(pairs, None):
            path, shard = folder / f"{len(paths):05d}.bin", chain([first], islice(pairs, SHARD - 1))
            paths.append(path)
            if path.with_suffix(".json").is_file():
                bar.update(sum(1 for _ in shard))
                continue
            found, lengths = [], []
            for block in blocks(shard, BLOCK):
                ids, sizes = encoded(block, source, target)
                found.append(ids.astype(kind))
                lengths.append(sizes)
                bar.update(len(block))
            offsets = np.cumsum(np.concatenate([[0], *lengths]), dtype="<i8")
            write_file(path.with_suffix(".offsets"), offsets.tobytes())
            vocab_size = max(source.vocab_size, target.vocab_size)
            write_shard(path, np.concatenate(found), vocab_size=vocab_size, tokenizer=models, source=text.digest)
    if not paths:
        raise InputError(f"a training needs pairs besides those held out, but {text.files} has none; hold out fewer")
    write_file(finished, json.dumps([path.name for path in paths]) + "\n")
    return paths


def encoded(
    pairs: list[Pair], source: Tokenizer, target: Tokenizer
) -> tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]:
    """The ids of source, target, source, ... end to end, each with EOS, and their lengths."""
    sides = source.with_eos(source.encode([s for s, _ in pairs])), target.with_eos(target.encode([t for _, t in pairs]))
    rows = [row for pair in zip(*sides, strict=True) for row in pair]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=lengths.sum())
    return ids, lengths
