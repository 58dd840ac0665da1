"""All measures by name: BLEU, chrF and TER by sacrebleu, with its signatures, COMET, and error
rates."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import estimate_ci

from transduce.errors import InputError, logger, require
from transduce.score.score import (
    SEED,
    Lines,
    Measure,
    Statistics,
    Values,
    bootstrap_signature,
    check_lines,
)
from transduce.score.wer import cer, per, wer

Tokenization = Literal["13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "flores200", "none"]
"""Names of sacrebleu: how text becomes the tokens whose n-grams BLEU counts."""

SCRIPTS: dict[Tokenization, str] = {
    "zh": "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "ja-mecab": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "ko-mecab": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "char": "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf",
}
"""Letters of Chinese; of Japanese alone; of Korean; of Thai, Lao, Tibetan, Burmese, Khmer, Tai Le
and Tai Tham."""

LETTERS = {name: re.compile(f"[{span}]") for name, span in SCRIPTS.items()}

UNSPACED = re.compile(f"[{SCRIPTS['zh']}{SCRIPTS['ja-mecab']}{SCRIPTS['char']}]")
"""Letters without spaces between words."""

LONGEST_WORD = 7
"""The most such letters per word, on average, in text with spaces between words."""

BY_LETTERS = {"wer": "cer", "ter": "chrf"}
"""For measures that count words, those that count characters."""

LIBRARIES: dict[Tokenization, str] = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
"""The module that a tokenization needs."""


def tokenization(texts: Iterable[str]) -> Tokenization:
    """The tokenization for references of this script.

    13a where words are separated by spaces; zh for Chinese; ja-mecab and ko-mecab for Japanese and
    Korean where their libraries are installed, else char; char for other scripts without spaces
    between words. The majority of the letters decides; text with at least one kana in ten such
    letters is Japanese.

    Source: the choices that sacrebleu makes by target language (Post 2018); char for Thai as in WAT
    (Nakazawa et al. 2021).
    """
    counts = dict.fromkeys(SCRIPTS, 0)
    n_letters = 0
    for text in texts:
        n_letters += sum(map(str.isalpha, text))
        for script, letters in LETTERS.items():
            counts[script] += len(letters.findall(text))
    if 2 * sum(counts.values()) <= n_letters:
        return "13a"
    kana_or_han = counts["zh"] + counts["ja-mecab"]
    is_japanese = 10 * counts["ja-mecab"] >= kana_or_han > counts["ko-mecab"]
    name: Tokenization = "ja-mecab" if is_japanese else max(counts, key=counts.__getitem__)
    return name if is_installed(name) else "char"


def is_installed(name: Tokenization) -> bool:
    """Whether the library that this tokenization needs is installed."""
    return name not in LIBRARIES or find_spec(LIBRARIES[name]) is not None


def warn_without_words(measure: str, references: Lines) -> None:
    """Warn if a measure counts words in text without spaces between words, where it would count
    sentences."""
    text = " ".join(references)
    if measure in BY_LETTERS and len(UNSPACED.findall(text)) > LONGEST_WORD * len(text.split()):
        logger.warning(
            "%s counts words between spaces, but this text has no spaces between words, such as "
            "%r; use transduce score %s, and in a training --validate-by %s",
            measure.upper(),
            text[:20],
            BY_LETTERS[measure],
            BY_LETTERS[measure],
        )


CHUNK = 200
"""Lines whose n-grams are in memory at a time: as many as fit into a CPU's caches."""


@dataclass(frozen=True, kw_only=True)
class TranslationMeasure(Measure):
    """A corpus measure of sacrebleu for plain, untokenized text; case counts unless `lowercase`.

    With several lists of references, each has one translation of every line. The bootstrap is
    sacrebleu's, with its seed.

    Source: Post (2018), A call for clarity in reporting BLEU scores; Koehn (2004) for the interval.
    """

    make: Callable[..., Metric]
    """Makes sacrebleu's metric; called with `lowercase`."""
    lowercase: bool = False

    @cached_property
    def metric(self) -> Metric:
        return self.make(lowercase=self.lowercase)

    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        chunks = []
        for start in range(0, len(hypotheses), CHUNK):
            chunk = slice(start, start + CHUNK)
            self.metric._force = start > 0  # BLEU warns of tokenized text once
            rows = self.metric._extract_corpus_statistics(
                hypotheses[chunk], [lines[chunk] for lines in references]
            )
            chunks.append(np.array(rows, dtype=np.float64))
        return np.concatenate(chunks)

    def value(self, sums: Values) -> float:
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    def signature(self, resamples: int) -> str:
        signature = self.metric.get_signature()
        if resamples:
            signature.update("seed", str(SEED))
            signature.update("bs", resamples)
        return str(signature)

    def interval(self, values: Values) -> tuple[float, float]:
        """The interval of sacrebleu, as wide as that of percentiles, but around the mean."""
        mean, half = estimate_ci(values)
        return float(mean - half), float(mean + half)


@dataclass(frozen=True, kw_only=True)
class BleuMeasure(TranslationMeasure):
    """Corpus BLEU with exponential smoothing.

    Source: Papineni et al. (2002), BLEU.
    """

    make: Callable[..., Metric] = BLEU
    tokenize: Tokenization | None = None
    """How words are separated; None: by the script of the references (`tokenization`)."""

    def with_references(self, references: Sequence[Lines]) -> "BleuMeasure":
        """BLEU with the tokenization of these references; warn if none is long enough.

        Raises:
            InputError: this tokenization needs a library that is not installed, or a model that
                cannot be downloaded.
        """
        lines = [line for each in references for line in each]
        name = self.tokenize or tokenization(lines)
        if name in LIBRARIES:
            way_out = ", or name --tokenize char"
            require(LIBRARIES[name], f"--tokenize {name}", "mecab", way_out)
        measure = replace(self, make=partial(BLEU, tokenize=name))
        try:
            metric: Any = measure.metric
        except OSError as error:  # sacrebleu downloads the model of flores200
            raise InputError(
                f"--tokenize {name} needs a model, which is downloaded once, but: {error}; check "
                "the network, or name another"
            ) from error
        order = metric.max_ngram_order
        if all(len(metric.tokenizer(line.rstrip()).split()) < order for line in lines):
            logger.warning(
                "BLEU is 0 unless %d tokens in a row match, but no reference has that many "
                "(tok:%s); score by chrF, or name another --tokenize",
                order,
                name,
            )
        return measure


bleu = BleuMeasure(name="bleu", title="BLEU")
"""Case-sensitive BLEU."""

bleu_lowercase = replace(bleu, name="bleu.lowercase", title="BLEU, lowercase", lowercase=True)
"""BLEU of texts in lower case."""

chrf = TranslationMeasure(
    name="chrf",
    title="chrF2",
    make=CHRF,
)
"""Source: Popović (2015), chrF."""

chrf_words = replace(chrf, name="chrf++", title="chrF2++", make=partial(CHRF, word_order=2))
"""chrF with word 1- and 2-grams beside the characters.

Source: Popović (2017), chrF++: words helping character n-grams.
"""

ter = TranslationMeasure(
    name="ter",
    title="TER",
    higher_is_better=False,
    make=lambda lowercase: TER(case_sensitive=not lowercase),
)
"""Case-sensitive TER, like BLEU here; the sacrebleu command ignores case by default.

Source: Snover et al. (2006), A study of translation edit rate.
"""


@dataclass(frozen=True, kw_only=True)
class CometMeasure(Measure):
    """The mean COMET score of all lines, times 100; `with_sources` sets the sources.

    Source: Rei et al. (2022), COMET-22: Unbabel-IST 2022 submission for the metrics shared task.
    """

    model: str = "Unbabel/wmt22-comet-da"
    """A model that unbabel-comet downloads, or finds in its cache."""
    sources: Lines = field(default=(), repr=False)

    def with_sources(self, sources: Lines | None) -> "CometMeasure":
        """The measure for outputs of these sources.

        Raises:
            InputError: unbabel-comet is not installed, or the sources are no text.
        """
        elsewhere = (
            " in an environment of its own, without constraints.txt, as it wants numpy below 2"
        )
        require("comet", "COMET", "comet", elsewhere)
        if sources is None:
            raise InputError(
                "COMET reads source texts, but the sources are sound; name another measure, such "
                "as bleu"
            )
        return replace(self, sources=sources)

    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        """The COMET score of every line, times 100, and 1."""
        (rights,) = references
        check_lines({"hypotheses": hypotheses, "sources": self.sources})
        sides = zip(self.sources, hypotheses, rights, strict=True)
        data = [
            {"src": source, "mt": output, "ref": reference} for source, output, reference in sides
        ]
        import torch  # it takes seconds to import, and --help does without

        from transduce.device import default_device

        gpus = int(default_device() != "cpu")
        judge = _model(self.model)
        # a validation in bf16 may be the caller
        with torch.autocast("cuda" if gpus else "cpu", enabled=False):
            predicted = judge.predict(data, batch_size=8, gpus=gpus, progress_bar=False)
        return np.array([(100 * score, 1.0) for score in predicted.scores])

    def value(self, sums: Values) -> float:
        total, n = sums
        return float(total / n)

    def signature(self, resamples: int) -> str:
        model = f"model:{self.model}|scale:100|version:{version('unbabel-comet')}"
        return bootstrap_signature(resamples) + model


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """The COMET model, which is cached, as loading takes longer than scoring."""
    import comet

    return comet.load_from_checkpoint(comet.download_model(name))


comet = CometMeasure(name="comet", title="COMET")


MEASURES: dict[str, Measure] = {
    each.name: each for each in (bleu, bleu_lowercase, chrf, chrf_words, ter, wer, cer, per, comet)
}


def get_measure(name: str, tokenize: Tokenization | None = None) -> Measure:
    """The measure of this name; `tokenize` is for BLEU.

    Raises:
        InputError: there is no such measure.
    """
    if name not in MEASURES:
        raise InputError(
            f"a measure must be one of {', '.join(MEASURES)}, but it is {name!r}; name one of these"
        )
    measure = MEASURES[name]
    return replace(measure, tokenize=tokenize) if isinstance(measure, BleuMeasure) else measure
