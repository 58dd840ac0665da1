"""Word, character and phone error rate; how they are counted is written in the signature that each rate carries."""

import importlib.metadata
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from jiwer import CharacterOutput, WordOutput

from transduce.errors import InputError
from transduce.score.alignment import NOUN, Errors, Unit, align, all_errors, count_errors
from transduce.score.bootstrap import SEED, p_value, resampled_sums
from transduce.score.score import Comparison, Lines, Measure, Score, check_lines, check_resamples, counted

CHUNK = 10_000
"""Utterances whose alignments are in memory at a time."""

APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´", "'"))


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Score):
    """Errors in percent of the reference, over `n` utterances; lower is better, and more than 100 is possible."""

    unit: Unit
    utterances: list[Errors] = field(repr=False)
    """The errors of each utterance."""
    hypotheses: Lines = field(repr=False)
    references: Lines = field(repr=False)
    """Both as they were aligned: normalized, if asked for."""

    @property
    def aligned(self) -> WordOutput | CharacterOutput:
        """Every utterance with its alignment, which is made anew: that of many utterances takes much memory."""
        return align(self.hypotheses, self.references, unit=self.unit)

    @property
    def errors(self) -> Errors:
        """The errors of all utterances together."""
        return all_errors(self.utterances)

    @property
    def n_right(self) -> int:
        """The number of utterances without an error."""
        return sum(each.total == 0 for each in self.utterances)

    @property
    def extent(self) -> str:
        """The counts of errors, and what was scored, in two lines."""
        return (
            f"{self.errors} in {counted(self.errors.n_reference, f'reference {NOUN[self.unit]}')}\n"
            f"over {counted(self.n, 'utterance')}, {self.n_right} ({100 * self.n_right / self.n:.1f} %) wholly right"
        )

    def by_group(self, labels: Sequence[str]) -> dict[str, list[Errors]]:
        """The errors of the utterances, by the label that each has; the group with the highest rate stands first.

        Raises:
            InputError: there are more labels than utterances, or fewer.
        """
        groups: dict[str, list[Errors]] = defaultdict(list)
        for label, errors in zip(labels, self.utterances, strict=True):
            groups[label].append(errors)
        return dict(sorted(groups.items(), key=lambda group: (-all_errors(group[1]).rate, group[0])))

    def table(self, by: str, labels: Sequence[str]) -> str:
        """A table of the groups, the worst first, and all together last.

        Args:
            by: what the labels are, such as "speaker".
            labels: of the utterances, one for each.
        """
        rows: list[tuple[str, ...]] = [(by, "utterances", f"{NOUN[self.unit]}s", self.name, "S", "I", "D")]
        for label, members in [*self.by_group(labels).items(), ("all", self.utterances)]:
            e = all_errors(members)
            counts = (len(members), e.n_reference, f"{e.rate:.2f}", e.substitutions, e.insertions, e.deletions)
            rows.append((label, *map(str, counts)))
        first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{label:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for label, *cells in rows
        )


@dataclass(frozen=True, kw_only=True)
class ErrorRateMeasure(Measure):
    """Substitutions, insertions and deletions in percent of the tokens of the reference.

    A blank hypothesis is all deletions; tokens beside a blank reference are insertions. The interval has 95 %:
    percentiles of bootstrap draws of the utterances, with the fixed seed that the signature names; draws without a
    token in the reference are left out.

    Source: Bisani and Ney (2004), Bootstrap estimates for confidence intervals in ASR performance evaluation.
    """

    higher_is_better: bool = False
    unit: Unit
    normalize: bool = False
    """Both sides pass through `normalized` first."""
    english: bool = False
    """Both sides pass through Whisper's normalization of English first (`english_normalizer`)."""

    def __post_init__(self) -> None:
        if self.normalize and self.english:
            raise InputError(
                "text is normalized in one way, but normalize=True and english=True; leave one of them out"
            )

    def __call__(self, hypotheses: Lines, references: Lines, *, resamples: int = 1000) -> ErrorRate:
        """The rate of all utterances together, with its 95 % interval.

        Raises:
            InputError: as for every measure, or no reference has a token.
        """
        check_lines({"hypotheses": hypotheses, "references": references})
        check_resamples(resamples, compared=False)
        normalizer = english_normalizer() if self.english else normalized if self.normalize else None
        if normalizer is not None:
            hypotheses, references = ([normalizer(line) for line in lines] for lines in (hypotheses, references))
        utterances = _errors(hypotheses, references, self.unit)
        errors = all_errors(utterances)
        if errors.n_reference == 0:
            after = " after normalization" if normalizer else ""
            raise InputError(
                f"an error rate needs at least one {NOUN[self.unit]} in the references, "
                f"but all {len(references)} are blank{after}; look for a wrong file or column"
            )
        interval = np.quantile(_resampled(utterances, resamples), (0.025, 0.975)).tolist() if resamples else ()
        signature = self._signature(resamples)
        return ErrorRate(
            self.title,
            errors.rate,
            signature,
            len(utterances),
            *interval,
            unit=self.unit,
            utterances=utterances,
            hypotheses=hypotheses,
            references=references,
        )

    def compare(self, hypotheses: Lines, other: Lines, references: Lines, *, resamples: int = 1000) -> Comparison:
        """Tell whether two systems differ by more than the choice of utterances explains: paired bootstrap.

        `difference` below 0 means that `hypotheses` are better.
        """
        check_lines({"hypotheses": hypotheses, "other": other, "references": references})
        check_resamples(resamples, compared=True)
        system, rival = (self(lines, references, resamples=resamples) for lines in (hypotheses, other))
        ours, theirs = (_resampled(rate.utterances, resamples) for rate in (system, rival))
        return Comparison(system, rival, p_value(system.value - rival.value, ours - theirs))

    def _signature(self, resamples: int) -> str:
        bootstrap = f"bs:{resamples}|seed:{SEED}|" if resamples else ""
        letters = "case:lc|norm:nfkc-nopunct" if self.normalize else "case:mixed|norm:no"
        if self.english:
            letters = f"case:lc|norm:whisper-en-{importlib.metadata.version('whisper-normalizer')}"
        space = "|space:yes" if self.unit == "char" else ""
        return f"{bootstrap}{letters}|unit:{self.unit}{space}|jiwer:{importlib.metadata.version('jiwer')}"


def _errors(hypotheses: Lines, references: Lines, unit: Unit) -> list[Errors]:
    found = []
    for start in range(0, len(references), CHUNK):
        chunk = slice(start, start + CHUNK)
        found += [count_errors(chunks) for chunks in align(hypotheses[chunk], references[chunk], unit=unit).alignments]
    return found


def sentence_rates(hypotheses: Lines, references: Lines, unit: Unit) -> list[float]:
    """The errors of each utterance in percent of its reference; a blank reference counts as one token."""
    return [100 * each.total / max(1, each.n_reference) for each in _errors(hypotheses, references, unit)]


def _resampled(utterances: Sequence[Errors], resamples: int) -> Float[np.ndarray, " R"]:
    """The rate in percent on every bootstrap draw that has a token in its references.

    The same numbers of utterances and draws give the same draws, so two systems are resampled as pairs.
    """
    counts = np.array([(errors.total, errors.n_reference) for errors in utterances], dtype=np.float64)
    errors, tokens = resampled_sums(counts, resamples, SEED).T
    return 100 * errors[tokens > 0] / tokens[tokens > 0]


def normalized(text: str) -> str:
    """Text without what a listener cannot hear: case, punctuation, the width of letters and spaces.

    Unicode NFKC and lower case; every punctuation mark becomes a space, except that apostrophes inside a word stay
    (’, ‘, ʼ, ` and ´ all become '); white space is squeezed. Accents, digits and symbols such as $ stay.
    """
    text = unicodedata.normalize("NFKC", text.translate(APOSTROPHES)).translate(APOSTROPHES)
    text = unicodedata.normalize("NFKC", text.lower())
    spoken = "".join(" " if unicodedata.category(c).startswith("P") and c != "'" else c for c in text)
    return " ".join(filter(None, (word.strip("'") for word in spoken.split())))


def english_normalizer() -> Callable[[str], str]:
    """Whisper's normalization of English: case, punctuation, fillers, contractions, numbers, British spelling.

    Raises:
        InputError: the library whisper-normalizer is not installed.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision, appendix C.
    """
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise InputError(
            "Whisper's normalization of English needs the library whisper-normalizer, which is not installed; "
            "pip install whisper-normalizer, or use --normalize"
        ) from error
    normalizer = EnglishTextNormalizer()

    def normalize(text: str) -> str:
        try:
            return str(normalizer(text))
        except Exception as error:  # it fails on some numbers, in many ways
            raise InputError(
                f"Whisper's normalization fails on {text!r:.60} ({type(error).__name__}); use --normalize"
            ) from error

    return normalize


wer = ErrorRateMeasure(name="wer", title="WER", description="word error rate in percent", unit="word")
"""What white space separates is a word."""

cer = ErrorRateMeasure(name="cer", title="CER", description="character error rate in percent", unit="char")
"""Characters are Unicode code points; one space between words counts as a character."""

per = ErrorRateMeasure(name="per", title="PER", description="phone error rate in percent", unit="phone")
"""What white space separates is a phone."""
