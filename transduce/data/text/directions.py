"""Parallel text of several languages, for one model that translates between all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np

from transduce.config import at_least
from transduce.data.text.base_tokenizer import tag_of
from transduce.data.text.corpus import CACHE, Corpus, PairFiles, Split, find_text, text_in
from transduce.data.text.parallel_text import ParallelText
from transduce.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Directions(Corpus):
    """Parallel text of several languages in one folder; every source begins with a tag of the language to write, <2de>.

    Files are SPLIT.LANGUAGE, whose lines i mean the same in all languages, or, where two languages have text of their own,
    SPLIT.SOURCE-TARGET.LANGUAGE; plain or .gz. All text is kept in memory.

    Source: Johnson et al. (2017), Google's multilingual neural machine translation system, for the tags; Arivazhagan et al.
    (2019), Massively multilingual neural machine translation in the wild, section 4.2, for the temperature.
    """

    data: Path | None = None
    """The folder."""
    languages: tuple[str, ...] = ()
    """The endings of the files, such as en de fr."""
    directions: tuple[str, ...] = ()
    """What is trained and validated, such as en-de de-en; if none is named, from each language to each other one."""
    test_directions: tuple[str, ...] = ()
    """What is tested, if it is something else: translation between two languages whose pairs were never trained on is
    called zero-shot."""
    train: str = "train"
    """The name of the training files without their ending."""
    valid: str = "val"
    """The name of the validation files."""
    test: str = "test"
    """The name of the test files, which only the finished model sees."""
    temperature: float = 1.0
    """A direction of n pairs is drawn in proportion to n^(1 / temperature): 1, every pair once an epoch; 5, small corpora
    more often than that."""
    valid_pairs: int = 100
    """Validation takes so many pairs of every direction, evenly spread over the file."""

    def __post_init__(self) -> None:
        at_least(1, temperature=self.temperature, valid_pairs=self.valid_pairs)
        for name in (*self.directions, *self.test_directions):
            if name not in self.pairs:
                raise InputError(
                    f"a direction is two of the languages ({', '.join(self.languages) or 'none'}) with - between them, "
                    f"but there is {name!r}; name others with --languages"
                )
        if len({*self.languages}) < 2:
            raise InputError(
                f"directions need two languages or more, but there are {len({*self.languages})}; try --languages en de"
            )

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """Source and target language by the name of the direction: from each language to each other one."""
        return {
            f"{source}-{target}": (source, target) for source, target in permutations(dict.fromkeys(self.languages), 2)
        }

    @property
    def symbols(self) -> tuple[str, ...]:
        """The tags, one token each."""
        return tuple(map(tag_of, self.languages))

    def splits(self, seed: int, cache: Path = CACHE) -> tuple[ParallelText, ParallelText, ParallelText]:
        """Training, validation and test text, every source with its tag.

        Raises:
            InputError: no folder is named, or it lacks a file.
        """
        train = [text for _, text in self.read("train")]
        most = max(map(len, train))
        wanted = [round(most * (len(text) / most) ** (1 / self.temperature)) for text in train]
        rng = np.random.default_rng(seed)
        train = [_repeated(text, n, rng) for text, n in zip(train, wanted, strict=True)]
        valid = [_spread(text, self.valid_pairs) for _, text in self.read("valid")]
        return _together(train), _together(valid), _together([text for _, text in self.read("test")])

    def test_groups(self) -> list[str]:
        return [name for name, text in self.read("test") for _ in range(len(text))]

    def read(self, split: Split) -> Iterator[tuple[str, ParallelText]]:
        """The directions of a split, one after the other, with the text of each.

        Raises:
            InputError: no folder is named, or it lacks a file.
        """
        for name in (self.test_directions if split == "test" else ()) or self.directions or self.pairs:
            source, target = self.pairs[name]
            files, tag = self._files(getattr(self, split), source, target), tag_of(target)
            text = files.read() if split == "train" else files.read_whole()
            yield name, replace(text, source=[f"{tag} {line}" if line.strip() else line for line in text.source])

    def _files(self, split: str, source: str, target: str) -> PairFiles:
        own = (f"{split}.{source}-{target}", f"{split}.{target}-{source}")
        name = next((name for name in own if find_text(self.data, f"{name}.{source}")), split)
        return PairFiles((text_in(self.data, f"{name}.{source}"), text_in(self.data, f"{name}.{target}")))


def _repeated(text: ParallelText, n: int, rng: np.random.Generator) -> ParallelText:
    """So many pairs of a text, no fewer than it has: all of them as often as that goes, and some once more."""
    whole, rest = divmod(n, len(text))
    places = [*range(len(text))] * whole + sorted(rng.permutation(len(text))[:rest].tolist())
    return text.select(places)


def _spread(text: ParallelText, n: int) -> ParallelText:
    """n pairs, or all where there are no more, evenly spread."""
    return text.select([i * len(text) // n for i in range(n)]) if n < len(text) else text


def _together(texts: list[ParallelText]) -> ParallelText:
    return ParallelText(
        [line for text in texts for line in text.source],
        [line for text in texts for line in text.target],
        sum(text.n_blank for text in texts),
    )
