"""N-gram models with backoff, from ARPA files."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.decode.scorer import Places, Scores, Tokens
from transduce.errors import InputError, logger

MISSING = -100.0
"""Log 10 of the probability of tokens that are not words of a model without <unk>; the value is
KenLM's."""

OTHER = -1
"""The id of words that are not tokens."""

CACHED = 512
"""Histories whose next-token probabilities are kept in memory."""


class NGrams:
    """An n-gram model whose words are the tokens of a tokenizer.

    <s> and </s> are its BOS and EOS; tokens that are not words of the model are <unk>. p(w | c) is
    that of the n-gram c w if the model has it, else backoff(c) p(w | c without its first word).

    Args:
        lines: those of an ARPA file.
        tokens: the words, by id.
        bos_id: the token that the file writes as <s>.
        eos_id: the token that the file writes as </s>.

    Raises:
        InputError: this is not an ARPA file, or most of its words are not tokens.
    Source: Katz (1987), Estimation of probabilities from sparse data; Stolcke (2002), SRILM, for
    the format.
    """

    def __init__(
        self,
        lines: Iterable[str],
        tokens: Sequence[str],
        *,
        bos_id: int,
        eos_id: int,
        device: torch.device | str,
    ) -> None:
        self.device = device
        unknown = len(tokens)
        self.start = bos_id if bos_id != eos_id else unknown + 1
        """The id of <s>; not that of </s>, even if BOS and EOS are the same token."""
        words = {word: i for i, word in enumerate(tokens)}
        words |= {"<s>": self.start, "</s>": eos_id, "<unk>": unknown, "<UNK>": unknown}
        self.order = 0
        self.backoffs: dict[tuple[int, ...], float] = {}
        following: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
        n_others = 0
        for gram, log_prob, backoff in _read(lines, words):
            if OTHER in gram:
                n_others += len(gram) == 1
                continue
            past = gram[:-1]
            if past and past not in self.backoffs:
                raise InputError(
                    f"the {len(gram)}-grams of an ARPA file must begin with {len(past)}-grams that "
                    "it has, but one does not; make it anew"
                )
            self.backoffs[gram] = backoff * math.log(10)
            following[past][gram[-1]] = log_prob * math.log(10)
            self.order = len(gram)
        self.following = {
            past: (np.array([*values]), np.array([*values.values()], dtype=np.float32))
            for past, values in following.items()
        }
        known = {*following[()]}
        _check_words(known, n_others, unknown, bos_id=bos_id, eos_id=eos_id)
        self.words = np.array([i if i in known else unknown for i in range(unknown + 2)])
        """The model's word for each token, then two words that are not tokens: <unk> and <s>."""
        self._row = lru_cache(maxsize=CACHED)(self._log_probs)

    def log_probs(self, past: Int[Tensor, "N L"]) -> Scores:
        """The log-probabilities of every next token after these tokens, which include BOS."""
        rows = [self._row(tuple(ids)) for ids in self.words[past.numpy(force=True)].tolist()]
        return torch.from_numpy(np.stack(rows)[:, self.words[:-2]]).to(self.device)

    def _log_probs(self, past: tuple[int, ...]) -> np.ndarray:
        """The log-probabilities of every next word after one history."""
        if past:
            row = self._row(past[1:]) + self.backoffs.get(past, 0.0)
        else:
            row = np.full(len(self.words), MISSING * math.log(10), dtype=np.float32)
        if past in self.following:
            ids, log_probs = self.following[past]
            row[ids] = log_probs
        return row


def _check_words(known: set[int], n_others: int, unknown: int, *, bos_id: int, eos_id: int) -> None:
    """Raise InputError if most 1-grams, of which n_others are no tokens, are no tokens, or </s> is
    none of them; give a warning if <unk> is not."""
    n_tokens = len(known & {*range(unknown)} - {bos_id, eos_id})
    if n_tokens <= n_others:  # words of plain text may be tokens, too, such as "in"
        raise InputError(
            "an n-gram model is an ARPA file whose 1-grams are the run's tokens, but "
            f"{n_tokens} of its {n_tokens + n_others} 1-grams are; make its text with "
            "transduce tokenize RUN"
        )
    if eos_id not in known:
        raise InputError(
            "an n-gram model must have the end of a sentence, </s>, but this one lacks it; "
            "make it anew"
        )
    if unknown not in known:
        logger.warning(
            "this n-gram model has no <unk>, so the %d tokens that it lacks are practically "
            "forbidden; make it with <unk>, as ngram-count -unk does",
            unknown - n_tokens,
        )


def _read(
    lines: Iterable[str], words: dict[str, int]
) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """The n-grams of an ARPA file as ids, with log 10 of their probabilities and backoffs."""
    n = 0
    for line in lines:
        if line.startswith("mmap lm"):
            raise InputError(
                "n-grams are read from an ARPA file, but this is a binary of KenLM; name the ARPA "
                "file that it was made from"
            )
        if line.startswith("\\"):
            section = line.strip().removeprefix("\\").removesuffix("-grams:")
            if section.isdecimal() and section != str(n + 1):
                raise InputError(
                    f"an ARPA file has 1-grams, 2-grams and so on, but {n}-grams are followed by "
                    f"{section:.9}-grams"
                )
            n = n + 1 if section.isdecimal() else 0
        elif n and line.strip():
            log_prob, *rest = re.split("[ \t]+", line.strip(" \t\r\n"))
            gram = tuple(words.get(word, OTHER) for word in rest[:n])
            try:
                values = float(log_prob), float(rest[n]) if len(rest) > n else 0.0
            except ValueError:
                values = math.nan, 0.0
            if math.isnan(sum(values)) or len(rest) < n:
                raise InputError(
                    f"a line of {n}-grams must have a number, {n} words and a number, but it is "
                    f"{line!r:.60}"
                )
            yield gram, *values
    if n:
        raise InputError(
            f"an ARPA file ends with \\end\\, but this one ends in its {n}-grams; fetch or make it "
            "again"
        )


class NGramScorer:
    """A scorer of an n-gram model for B sentences, each of which begins with BOS.

    The first step begins with <s>, whatever token it is given. Only as many tokens are stored as
    the order of the model needs.
    """

    additive = True

    def __init__(self, ngrams: NGrams, n_sentences: int) -> None:
        self.ngrams = ngrams
        self.n_sentences = n_sentences
        self.past = torch.empty(n_sentences, 0, dtype=torch.long, device=ngrams.device)

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row, at first BOS; returns log-probabilities of the next."""
        new = tokens if self.past.size(1) else torch.full_like(tokens, self.ngrams.start)
        self.past = torch.cat((self.past, new[:, None]), dim=1)[:, -max(1, self.ngrams.order - 1) :]
        return self.ngrams.log_probs(self.past)

    def reorder(self, rows: Places) -> None:
        self.past = self.past[rows]

    def keep(self, sentences: Places) -> None:
        self.n_sentences = len(sentences)
