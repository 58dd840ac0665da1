"""Which of sacrebleu's tokenizations fits a text, by its script."""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Literal

from transduce.errors import InputError

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

LIBRARIES: dict[Tokenization, tuple[str, str]] = {
    "ja-mecab": ("MeCab", "ja"),
    "ko-mecab": ("mecab_ko", "ko"),
    "flores200": ("sentencepiece", ""),
}
"""The module that a tokenization needs, and the extra of sacrebleu that brings it."""


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
    return name not in LIBRARIES or find_spec(LIBRARIES[name][0]) is not None


def check_tokenization(name: Tokenization) -> None:
    """Check that the library of a tokenization is installed.

    Raises:
        InputError: it is not.
    """
    if not is_installed(name):
        module, extra = LIBRARIES[name]
        raise InputError(
            f"--tokenize {name} needs the library {module}, which is not installed; "
            f"pip install 'sacrebleu[{extra}]', or name --tokenize char"
        )
