"""Parallel corpora: a folder, files of any name, or a folder of several languages. Nothing is left
out silently."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Literal

import numpy as np

from transduce.config import Common, at_least
from transduce.data.base_tokenizer import tag_of
from transduce.data.parallel_text import LargeText, PairFiles, ParallelText
from transduce.data.tables import table_files
from transduce.errors import InputError

CACHE = Path("runs/text")
"""The default cache folder for large corpora."""

Split = Literal["train", "valid", "test"]


def corpus_folder(name: str) -> Path | None:
    """The folder `name` inside the one that the environment variable TRANSDUCE_DATA names; None if
    it is not set."""
    root = os.environ.get("TRANSDUCE_DATA")
    return Path(root) / name if root else None


def find_text(folder: Path | None, name: str) -> Path | None:
    """The file of this name in a folder, plain or .gz; None if there is none.

    Raises:
        InputError: no folder is named.
    """
    if folder is None:
        raise InputError(
            "a folder of parallel text must be named: use --data DIR, or set TRANSDUCE_DATA"
        )
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def pair_files(folder: Path | None, split: str, languages: tuple[str, str]) -> PairFiles:
    """SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz of two languages.

    Raises:
        InputError: no folder is named, or it lacks a file.
    """
    paths = []
    for language in languages:
        name = f"{split}.{language}"
        path = find_text(folder, name)
        if path is None:
            assert folder is not None
            content = "no such folder"
            if folder.is_dir():
                names = sorted(path.name for path in folder.iterdir())
                content = f"it holds {', '.join(names[:8]) or 'nothing'}"
            raise InputError(f"the folder {folder} must hold {name} or {name}.gz, but {content}")
        paths.append(path)
    return PairFiles(tuple(paths))


class Corpus:
    """A corpus of one direction."""

    symbols: tuple[str, ...] = ()
    """Strings that are always one token, such as language tags."""
    hold_out: int = 0
    """Number of training pairs that are held out for validation."""

    @property
    def has_test(self) -> bool:
        """Whether there is a test split."""
        return True

    def files(self, split: Split) -> PairFiles:
        """The files of one split."""
        raise NotImplementedError

    def read(self, split: Split) -> ParallelText:
        """One split; of the training text, the pairs with text on both sides.

        Raises:
            InputError: files are not named, or missing.
        """
        return self.files(split).read(keep_blank=split != "train")

    def splits(
        self, seed: int, cache: Path = CACHE
    ) -> tuple[ParallelText | LargeText, ParallelText, ParallelText | None]:
        """Training, validation and test text.

        Args:
            seed: decides which pairs are held out, where some are.
            cache: the cache folder for a large training text.

        Raises:
            InputError: as for `read`.
        """
        train = self.files("train").read_or_survey(cache)
        if self.hold_out:
            train, valid = train.hold_out(self.hold_out, seed)
        else:
            valid = self.read("valid")
        return train, valid, self.read("test") if self.has_test else None

    def test_groups(self) -> list[str]:
        """The group of every test pair; each group is scored separately. Empty if there are no
        groups."""
        return []


@dataclass(frozen=True, kw_only=True)
class Folder(Corpus):
    """Parallel text as SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz in one folder, the layout of
    Multi30k."""

    data: Common[Path | None] = None
    """The folder."""
    source: Common[str] = "en"
    """Source language: the ending of its files."""
    target: Common[str] = "de"
    """Target language: the ending of its files."""
    train: str = "train"
    """The name of the training files without their ending: NAME.LANGUAGE or NAME.LANGUAGE.gz."""
    valid: str = "val"
    """The name of the validation files, which checkpoints are compared on."""
    test: str = "test"
    """The name of the test files, which only the finished model is scored on."""

    def files(self, split: Split) -> PairFiles:
        return pair_files(self.data, getattr(self, split), (self.source, self.target))


@dataclass(frozen=True, kw_only=True)
class Files(Corpus):
    """Parallel text in files of any name: two per split, one TSV of source, tab, target, or
    tables."""

    train_source: Common[Path | None] = None
    """Training text, one sentence a line, plain or .gz."""
    train_target: Common[Path | None] = None
    """Its translation, line by line."""
    train_tsv: Path | None = None
    """Tab-separated pairs of source and target, instead of the two files."""
    valid_source: Common[Path | None] = None
    """Validation text, which checkpoints are compared on."""
    valid_target: Common[Path | None] = None
    """Its translation."""
    valid_tsv: Path | None = None
    """Tab-separated pairs, instead of the two files."""
    test_source: Common[Path | None] = None
    """Test text, which only the finished model is scored on; optional."""
    test_target: Common[Path | None] = None
    """Its translation."""
    test_tsv: Path | None = None
    """Tab-separated pairs, instead of the two files."""
    train_table: Path | None = None
    """A table, or a folder of tables, instead of the two files: CSV (.csv), JSON lines (.jsonl),
    TMX, a Moses zip of OPUS, Parquet and Arrow (pip install '.[arrow]' in a clone)."""
    valid_table: Path | None = None
    """A table, or a folder of tables, instead of the two files."""
    test_table: Path | None = None
    """A table, or a folder of tables, instead of the two files."""
    source_column: str = "source"
    """The source column of tables; in TMX and Moses zips a language such as en. translation.en is
    the field en of the column translation."""
    target_column: str = "target"
    """The target column of tables."""
    hold_out: int = 0
    """Number of training pairs held out for validation, if it has no files; the seed decides
    which."""

    def __post_init__(self) -> None:
        at_least(0, self, "hold_out")
        if self.hold_out and any(self._named("valid").values()):
            raise InputError(
                f"validation needs either files or hold_out, but hold_out={self.hold_out} and "
                "files are named; leave one out"
            )

    @property
    def has_test(self) -> bool:
        return any(self._named("test").values())

    def files(self, split: Split) -> PairFiles:
        """The files of one split.

        Raises:
            InputError: a side is missing, files and TSV are both named, or columns without a table.
        """
        named = self._named(split)
        columns = (self.source_column, self.target_column)
        tables = (self.train_table, self.valid_table, self.test_table)
        if columns != ("source", "target") and not any(tables):
            raise InputError(
                "only tables have named columns, but source_column and target_column are "
                f"{' and '.join(columns)}, and no table is named; give --train-table, or put the "
                "source first in a TSV"
            )
        match [*named.values()]:
            case [Path() as source, Path() as target, None, None]:
                return PairFiles((source, target))
            case [None, None, Path() as tsv, None]:
                return PairFiles((tsv,))
            case [None, None, None, Path() as table]:
                return PairFiles(table_files(table), columns)
        way_out = ", or --hold-out 500" if split == "valid" and not any(named.values()) else ""
        *first, last = (f"{split}_{part}={path}" for part, path in named.items())
        raise InputError(
            f"the {split} text is two files, a TSV or a table: give --{split}-source and "
            f"--{split}-target, or --{split}-tsv, or --{split}-table{way_out}, but "
            f"{', '.join(first)} and {last}"
        )

    def _named(self, split: Split) -> dict[str, Path | None]:
        return {
            part: getattr(self, f"{split}_{part}") for part in ("source", "target", "tsv", "table")
        }


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Parallel text of several languages in one folder; every source begins with a tag of the
    language to write, <2de>.

    Files are SPLIT.LANGUAGE, where line i has the same meaning in all languages, or, if two
    languages have text of their own, SPLIT.SOURCE-TARGET.LANGUAGE; plain or .gz. All text is kept
    in memory.

    Source: Johnson et al. (2017), Google's multilingual neural machine translation system, for the
    tags; Arivazhagan et al. (2019), Massively multilingual neural machine translation in the wild,
    section 4.2, for the temperature.
    """

    data: Common[Path | None] = None
    """The folder."""
    languages: tuple[str, ...] = ()
    """The endings of the files, such as en de fr."""
    directions: tuple[str, ...] = ()
    """Directions to train and validate, such as en-de de-en; default: from each language to every
    other."""
    test_directions: tuple[str, ...] = ()
    """Directions to test, if they differ from those of training; a direction without training pairs
    is called zero-shot."""
    train: str = "train"
    """The name of the training files without their ending."""
    valid: str = "val"
    """The name of the validation files."""
    test: str = "test"
    """The name of the test files, which only the finished model is scored on."""
    temperature: float = 1.0
    """A direction of n pairs is sampled in proportion to n^(1 / temperature). At 1 every pair
    occurs once per epoch; at 5 pairs of small corpora occur more often."""
    valid_pairs: int = 100
    """Number of validation pairs of every direction, evenly spread over the file."""

    def __post_init__(self) -> None:
        at_least(1, self, "temperature", "valid_pairs")
        for name in (*self.directions, *self.test_directions):
            if name not in self.pairs:
                raise InputError(
                    f"a direction is two of the languages ({', '.join(self.languages) or 'none'}) "
                    f"with - between them, but there is {name!r}; name others with --languages"
                )
        n = len({*self.languages})
        if n < 2:
            raise InputError(
                f"directions need two languages or more, but there are {n}; try --languages en de"
            )

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """Source and target language by the name of the direction, from each language to every
        other."""
        languages = dict.fromkeys(self.languages)
        return {
            f"{source}-{target}": (source, target) for source, target in permutations(languages, 2)
        }

    @property
    def symbols(self) -> tuple[str, ...]:
        """The tags, one token each."""
        return tuple(map(tag_of, self.languages))

    def splits(
        self, seed: int, cache: Path = CACHE
    ) -> tuple[ParallelText, ParallelText, ParallelText]:
        """Training, validation and test text, every source with its tag.

        Raises:
            InputError: no folder is named, or it lacks a file.
        """
        train = [text for _, text in self.read("train")]
        most = max(map(len, train))
        rng = np.random.default_rng(seed)
        drawn = []
        for pairs in map(list, train):
            times, rest = divmod(
                round(most * (len(pairs) / most) ** (1 / self.temperature)), len(pairs)
            )
            again = sorted(rng.permutation(len(pairs))[:rest].tolist())
            drawn += [*pairs * times, *(pairs[i] for i in again)]
        valid = []
        for _, text in self.read("valid"):
            n = min(self.valid_pairs, len(text))
            pairs = list(text)
            valid += [pairs[i * len(pairs) // n] for i in range(n)]
        test = [pair for _, text in self.read("test") for pair in text]
        n_blank = sum(text.n_blank for text in train)
        return ParallelText.of(drawn, n_blank), ParallelText.of(valid), ParallelText.of(test)

    def test_groups(self) -> list[str]:
        """The direction of every test pair."""
        return [name for name, text in self.read("test") for _ in range(len(text))]

    def read(self, split: Split) -> Iterator[tuple[str, ParallelText]]:
        """The directions of a split, one after the other, with the text of each.

        Raises:
            InputError: no folder is named, or it lacks a file.
        """
        directions = self.test_directions if split == "test" else ()
        for name in dict.fromkeys(directions or self.directions or self.pairs):
            source, target = self.pairs[name]
            shared = getattr(self, split)
            own = (f"{shared}.{source}-{target}", f"{shared}.{target}-{source}")
            stem = next((stem for stem in own if find_text(self.data, f"{stem}.{source}")), shared)
            text = pair_files(self.data, stem, (source, target)).read(keep_blank=split != "train")
            tag = tag_of(target)
            lines = [f"{tag} {line}" if line.strip() else line for line in text.source]
            yield name, replace(text, source=lines)
