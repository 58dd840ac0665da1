"""Glossaries: terms with a fixed translation."""

import re
from collections.abc import Iterable
from unicodedata import normalize

from transduce.errors import InputError

Terms = tuple[tuple[str, str], ...]
"""Terms of a source, and their translations."""


LETTER = (
    r"(?![\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u31ff\u3400-\u9fff\uac00-\ud7ff"
    r"\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff])"
    r"[\w\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff]"
)
"""A letter, digit, combining mark or Indic vowel sign of a script with spaces around words: not of
Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese, nor of Korean, where particles are
attached to words."""

BORDERS = re.compile(f"(?<!{LETTER})(?={LETTER})|(?<={LETTER})(?!{LETTER})")
"""The beginnings and the ends of words."""


def at_word(term: str) -> str:
    """The term as a phrase that begins a word, if its script has spaces around words."""
    return f" {term}" if re.match(LETTER, term) else term


class Glossary:
    """Finds terms in texts: whole words, the longest at each place. A term in lower case is found
    in any case."""

    def __init__(self, terms: Terms) -> None:
        by_length = sorted(
            dict(terms).items(), key=lambda pair: (-len(pair[0]), pair[0] == pair[0].lower())
        )
        self.terms = [(_folded(term), _pattern(term), meaning) for term, meaning in by_length]

    def __call__(self, text: str) -> list[str]:
        """The translations of the terms in a text, each once."""
        folded = _folded(text)
        # a pattern of all terms would try each of them at each character
        near = [(pattern, meaning) for term, pattern, meaning in self.terms if term in folded]
        any_term = "|".join(f"({pattern})" for pattern, _ in near) or "(?!)"
        numbers = (match.lastindex or 1 for match in re.finditer(any_term, _marked(text)))
        return list(dict.fromkeys(near[number - 1][1] for number in numbers))


def _folded(text: str) -> str:
    """The text in NFC and case-folded, with the Turkish İ and ı as i."""
    return normalize("NFC", text).replace("İ", "i").replace("ı", "i").casefold()


def _marked(text: str) -> str:
    """The text in NFC, so that é is one character, with a mark at every border of a word."""
    return BORDERS.sub("\0", normalize("NFC", text))


def _pattern(term: str) -> str:
    escaped = re.escape(_marked(term))
    return f"(?i:{escaped})" if term == term.lower() else escaped


def parse_glossary(lines: Iterable[str], name: str) -> Terms:
    """The terms of the lines of a file: a term, a tab and its translation, or a term that stays as
    it is. Blank lines are skipped.

    Raises:
        InputError: the file is CSV, a line has another format, or a term has two translations.
    """
    if name.lower().endswith(".csv"):
        raise InputError(
            f"a glossary has tabs between terms and translations, but {name} is named as CSV, with "
            "commas; save it with tabs, as .tsv"
        )
    terms: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        term, *rest = (cell.strip() for cell in line.split("\t"))
        if len(rest) > 1 or not all((term, *rest)):
            raise InputError(
                f"{name}: line {number} of a glossary must be TERM or TERM<TAB>TRANSLATION, but it "
                f"is {line!r:.60}; correct it"
            )
        translation = rest[0] if rest else term
        if terms.setdefault(term, translation) != translation:
            raise InputError(
                f"{name}: a term of a glossary has one translation, but line {number} has "
                f"{translation!r} for {term!r}, and an earlier one has {terms[term]!r}; keep one "
                "of them"
            )
    return tuple(terms.items())
