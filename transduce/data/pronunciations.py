"""A tokenizer of phones: a pronouncing dictionary maps words to phones, and bigram counts choose
between homophones."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from unicodedata import normalize

from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import extractOne

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.lines import read_lines
from transduce.errors import InputError

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "▁")
"""The first tokens. The last of them separates words, and <unk> stands for a word that the
dictionary lacks."""
PAD, UNK, BOS, EOS, SPACE = range(len(SPECIAL))
ALTERNATIVE = re.compile(r".*\(\d+\)")
"""The second, third, ... pronunciation of a word in a dictionary."""
STRESSED = re.compile(
    r"(?<!\S)(A[AEHOWXY]|AXR|E[HRY]|I[HXY]|O[WY]|U[HWX])[012](?!\S)", re.IGNORECASE
)
"""A vowel of CMU's dictionary or TIMIT's with its stress. In other dictionaries a digit may be a
tone or a part of a vowel."""
TONE = re.compile(r"[A-Za-z][3-5](?!\S)")
"""A tone, which tells that a dictionary is one of Mandarin, in upper or lower case: its ao1 is not
CMU's AO1."""
PROBABILITY = re.compile(r"\d*\.\d+")
"""A probability before the phones, as in Kaldi's lexiconp.txt and in dictionaries of the Montreal
Forced Aligner."""
MARKS = '.,;:!?"()[]…“”„«»¿¡،؛؟۔।॥։።、。，！？；：「」（）'
"""Marks around words; an apostrophe belongs to one."""

PRIOR = 10.0
"""Pseudo-counts that all successors of a word share, seen or not: the more, the less bigram counts
decide."""

Phones = tuple[str, ...]


def read_dictionary(path: Path) -> dict[str, str]:
    """Read a pronouncing dictionary, plain or .gz: words in lower case, each with its phones,
    separated by spaces.

    A line is a word and its phones, as in the CMU Pronouncing Dictionary: `hello HH AH0 L OW1`.
    Lines that begin with ;;; and the rest of a line from # on are comments, and
    probabilities are left out. Of several pronunciations, hello and hello(2), the first is taken.
    AH0 and AH1 are one phone, AH.

    Raises:
        InputError: there is no such file, a line has a word without phones, or there are no words.
    """
    pronunciations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(";;;") or not (cells := line.split("#")[0].split()):
            continue
        word, *rest = cells
        phones = [cell for cell in rest if not PROBABILITY.fullmatch(cell)]
        if not phones:
            raise InputError(
                f"a line must be a word and its phones, but {path}, line {number}, is {line!r}; "
                "add them"
            )
        if not ALTERNATIVE.fullmatch(word):
            pronunciations.setdefault(normalize("NFC", word.lower()), " ".join(phones))
    if not pronunciations:
        raise InputError(
            f"a dictionary must have words and their phones, but {path} has none; name another file"
        )
    toned = {
        tone[0][0].isupper() for phones in pronunciations.values() for tone in TONE.finditer(phones)
    }

    def unstressed(vowel: re.Match[str]) -> str:
        return vowel[0] if vowel[1].isupper() in toned else vowel[1]

    return {word: STRESSED.sub(unstressed, phones) for word, phones in pronunciations.items()}


def bare(word: str) -> str:
    """A word as a dictionary has it: in lower case, without the marks around it."""
    return normalize("NFC", word.lower().strip(MARKS))


class PronunciationTokenizer(Tokenizer):
    """Encodes words as phones, a token each, with a token between words; decodes phones to words
    with this pronunciation.

    Words are separated by white space in the training texts, and are written as they are there.
    Among homophones, the most probable sequence of words is written, by a bigram model of those
    texts. Phones that are no word become the word at the smallest edit distance. A word without a
    pronunciation is <unk>, and is never written.

    The JSON has a pronunciation for every word, and counts of words and of pairs of words. Entries
    may be added to it.

    Source: Miao et al. (2015), EESEN: End-to-end speech recognition using deep RNN models and
    WFST-based decoding, for CTC over phones and a lexicon in the search.
    """

    file_name = "tokenizer.pronunciations.json"
    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS

    writes_phones = True

    def __init__(self, model: bytes) -> None:
        """Read the JSON that `train` makes.

        Raises:
            InputError: `model` is something else.
        """
        super().__init__(model)
        try:
            plain = json.loads(model)
            self._phones = {
                word: tuple(phones.split()) for word, phones in plain["pronunciations"].items()
            }
            self._counts = {word: int(n) for word, n in plain["counts"].items()}
            self._pairs = {
                (first, second): int(n)
                for first, after in plain["pairs"].items()
                for second, n in after.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                'pronunciations must come as JSON {"pronunciations": {"hello": "HH AH L OW"}, '
                '"counts": {"hello": 1}, '
                f'"pairs": {{}}}}, but: {error!r:.200}'
            ) from error
        if silent := [word for word, phones in self._phones.items() if not phones]:
            raise InputError(
                f"a word must have phones, but {silent[0]!r} has none; add them or leave the word "
                "out"
            )
        self.all_tokens = [*SPECIAL, *sorted(set().union(*self._phones.values()))]
        self.vocab_size = len(self.all_tokens)
        self._ids = {token: i for i, token in enumerate(self.all_tokens)}
        self._n_words = sum(self._counts.values())
        self._words = defaultdict[Phones, list[str]](list)
        for word, phones in self._phones.items():
            self._words[phones].append(word)
        self._similar = lru_cache(maxsize=65536)(self._sounding_like)

    @classmethod
    def train(cls, texts: Iterable[str], dictionary: dict[str, str]) -> "PronunciationTokenizer":
        """A tokenizer for the words of these texts, with the dictionary's pronunciations.

        Args:
            dictionary: see `read_dictionary`.

        Raises:
            InputError: the dictionary has none of the words.
        """
        counts: Counter[str] = Counter()
        pairs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            words = text.split()
            counts.update(words)
            for first, second in pairwise(("", *words, "")):
                pairs[first][second] += 1
        phones = {
            word: dictionary[bare(word)] for word in sorted(counts) if bare(word) in dictionary
        }
        if not phones:
            raise InputError(
                "a pronouncing dictionary must have words of the training texts, but it has none "
                f"of their {len(counts):,} words; name one of this language"
            )
        times = Counter(phones.values())
        homophones = {word for word, each in phones.items() if times[each] > 1}
        following = {
            first: {word: n for word, n in sorted(after.items()) if homophones & {first, word}}
            for first, after in sorted(pairs.items())
        }
        plain = {
            "pronunciations": phones,
            "counts": {word: counts[word] for word in phones},
            "pairs": {first: after for first, after in following.items() if after},
        }
        return cls(json.dumps(plain, ensure_ascii=False).encode())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = ("<unk>",)
        spelled = ([self._phones.get(word, unknown) for word in text.split()] for text in texts)
        return [
            [self._ids[phone] for phones in words for phone in ("▁", *phones)][1:]
            for words in spelled
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        texts = []
        for row in ids:
            runs = groupby((i for i in row if i >= SPACE), SPACE.__eq__)
            words = [tuple(self.tokens([*run])) for is_space, run in runs if not is_space]
            texts.append(" ".join(self._most_probable([*map(self._similar, words)])))
        return texts

    def _sounding_like(self, phones: Phones) -> list[str]:
        """The words with these phones, or else with the phones at the smallest edit distance."""
        if phones not in self._words:
            phones, _, _ = extractOne(phones, self._words.keys(), scorer=Levenshtein.distance)
        return self._words[phones]

    def _most_probable(self, choices: Sequence[Sequence[str]]) -> list[str]:
        """One word of each choice: the most probable sequence by the bigram model (Viterbi
        1967)."""
        best: dict[str, tuple[float, list[str]]] = {"": (0.0, [])}
        for words in (*choices, ("",)):
            best = {
                word: max(
                    (score + self._log_prob(word, before), [*path, word])
                    for before, (score, path) in best.items()
                )
                for word in words
            }
        ((_, path),) = best.values()
        return path[:-1]

    def _log_prob(self, word: str, before: str) -> float:
        """The log-probability of a word after another one: PRIOR pseudo-counts are shared by all
        words, in proportion to their frequency.

        Source: MacKay and Peto (1995), A hierarchical Dirichlet language model.
        """
        prior = PRIOR * (self._counts.get(word, 0) + 1) / (self._n_words + 1)
        return math.log(
            (self._pairs.get((before, word), 0) + prior) / (self._counts.get(before, 0) + PRIOR)
        )

    @cached_property
    def surfaces(self) -> list[bytes]:
        """<HH> for a phone, and a space between words."""
        return (
            [b""] * SPACE
            + [b" "]
            + [f"<{phone}>".encode() for phone in self.all_tokens[len(SPECIAL) :]]
        )

    def beginnings(self, ids: Sequence[int]) -> list[str]:
        """The phones up to each token, as the phones of half a word give no word."""
        return [text.decode() for text in accumulate(self.surfaces[i] for i in ids)]
