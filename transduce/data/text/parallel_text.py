"""Parallel text: as a whole in memory, or pair by pair where memory may not hold it."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from transduce.errors import InputError
from transduce.progress import Bar

logger = logging.getLogger("transduce")

POOL = 1 << 18
"""A training text of so many pairs at most is kept in memory. Of a larger one it is so many at a time."""

SAMPLE = 1 << 19
"""So many pairs of a large text are what a tokenizer learns from."""

BLOCK = 1 << 14
"""So many pairs of a large text are read at a time."""

Pair = tuple[str, str]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs: target[i] translates source[i]. `n_blank` pairs were left out, as a side was blank."""

    source: list[str]
    target: list[str]
    n_blank: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def select(self, places: Iterable[int]) -> "ParallelText":
        """The pairs at these places."""
        places = list(places)
        return replace(self, source=[self.source[i] for i in places], target=[self.target[i] for i in places])

    def hold_out(self, n: int, seed: int) -> tuple["ParallelText", "ParallelText"]:
        """Most pairs for training, and n that validation takes; both keep their order.

        Which ones is a function of n, the seed and the number of pairs. Pairs equal to one that is held out, on both
        sides, leave the training text too; a line of the log tells how many.

        Raises:
            InputError: no pair would be left for training.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        taken = sorted(order[:n].tolist())
        pairs = list(zip(self.source, self.target, strict=True))
        twins = {pairs[i] for i in taken}
        train = [pair for pair in pairs if pair not in twins]
        if not train:
            raise InputError(
                f"a training needs pairs besides those held out, but hold_out={n} takes all of {len(pairs)}; hold out "
                "fewer"
            )
        told = "validation holds out %d of %d training pairs; %d equal to one of them left the training text too"
        logger.warning(told, len(taken), len(pairs), len(pairs) - len(taken) - len(train))
        return ParallelText(*_sides(train), self.n_blank), ParallelText(*_sides([pairs[i] for i in taken]))

    def sample(self) -> tuple[list[str], list[str]]:
        """Source and target sentences for a tokenizer to learn from: all of them."""
        return self.source, self.target

    def lines(self) -> Iterator[str]:
        """What tells this text from another."""
        yield from self.source
        yield from self.target


@runtime_checkable
class PairSource(Protocol):
    """Files of pairs that can be read again and again."""

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def __iter__(self) -> Iterator[Pair]: ...


@dataclass(frozen=True)
class LargeText:
    """Sentence pairs that stay in their files and are read one after the other.

    `n_pairs` have text on both sides; `n_blank` have not, and are left out.
    """

    files: PairSource
    folder: Path
    """What was found out about the text, and what is made of it."""
    n_pairs: int
    n_blank: int
    digest: str
    held_out: frozenset[Pair] = frozenset()
    """Pairs that validation has taken; equal ones are left out, too."""

    def __iter__(self) -> Iterator[Pair]:
        return (pair for pair in self.files if has_text(pair) and pair not in self.held_out)

    def hold_out(self, n: int, seed: int) -> tuple["LargeText", ParallelText]:
        """As of a `ParallelText`; the pairs are of the sample, in its order.

        Raises:
            InputError: n is more than the sample has.
        """
        pairs = self._sample()
        if n >= len(pairs):
            raise InputError(
                f"hold_out must be less than {len(pairs):,} for a text of so many pairs, but hold_out={n}; hold out fewer"
            )
        taken = [pairs[i] for i in sorted(np.random.default_rng(seed).permutation(len(pairs))[:n].tolist())]
        told = "validation holds out %d of %d training pairs; those equal to one of them leave the training text too"
        logger.warning(told, n, self.n_pairs)
        return replace(self, held_out=frozenset(taken)), ParallelText(*_sides(taken))

    def sample(self) -> tuple[list[str], list[str]]:
        """Source and target sentences for a tokenizer to learn from: at most SAMPLE pairs, all equally likely."""
        return _sides(pair for pair in self._sample() if pair not in self.held_out)

    def lines(self) -> Iterator[str]:
        """What tells this text from another."""
        yield self.digest

    def _sample(self) -> list[Pair]:
        with (self.folder / "sample.jsonl").open(encoding="utf-8") as file:
            return [(source, target) for source, target in map(json.loads, file)]


def survey(files: PairSource, cache: Path) -> LargeText:
    """Read a large text once: count and hash its pairs, and draw the sample.

    What was found is kept in `cache`, under a hash of the files' paths, sizes and times of change, and of the columns
    that are read of them, so that the next start need not read the text.
    """
    status = [(str(path.resolve()), (found := path.stat()).st_size, found.st_mtime_ns) for path in files.paths]
    folder = cache / hashlib.sha256(repr((status, files.columns)).encode()).hexdigest()[:16]
    found_out = folder / "survey.json"
    if not found_out.is_file():
        _survey(files, folder, found_out)
    return LargeText(files, folder, **json.loads(found_out.read_text()))


def _survey(files: PairSource, folder: Path, found_out: Path) -> None:
    from transduce.files import write_file  # it loads torch, for which --help does not wait

    rng, digests = np.random.default_rng(0), (hashlib.sha256(), hashlib.sha256())
    n_pairs, n, sample = 0, 0, list[Pair]()
    with Bar(desc="reading", unit="pair", unit_scale=True) as bar:
        for block in blocks(files, BLOCK):
            pairs = [pair for pair in block if has_text(pair)]
            # reservoir sampling: pair i takes the place of another with probability SAMPLE / (i + 1)
            places = rng.integers(np.arange(n_pairs, n_pairs + len(pairs)) + 1).tolist()
            for i, (pair, place) in enumerate(zip(pairs, places, strict=True), start=n_pairs):
                if i < SAMPLE:
                    sample.append(pair)
                elif place < SAMPLE:
                    sample[place] = pair
            for digest, side in zip(digests, _sides(pairs), strict=True):
                digest.update("".join(f"{text}\n" for text in side).encode())
            n_pairs += len(pairs)
            n += len(block)
            bar.update(len(block))
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "sample.jsonl", "".join(json.dumps(pair) + "\n" for pair in sample))
    both = hashlib.sha256("".join(digest.hexdigest() for digest in digests).encode()).hexdigest()
    write_file(found_out, json.dumps({"n_pairs": n_pairs, "n_blank": n - n_pairs, "digest": both}) + "\n")


def has_text(pair: Pair) -> bool:
    """Whether neither side is blank."""
    return bool(pair[0].strip() and pair[1].strip())


def blocks(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """So many items at a time; the last block may have fewer."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def _sides(pairs: Iterable[Pair]) -> tuple[list[str], list[str]]:
    pairs = list(pairs)
    return [source for source, _ in pairs], [target for _, target in pairs]
