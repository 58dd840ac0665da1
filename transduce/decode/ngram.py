"""N-gram models with backoff, from ARPA files: the log-probability of every next token of every row."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import InputError

MISSING = -100.0
"""Log 10 of the probability of what has no word, where the model has no <unk>; it is KenLM's."""


@dataclass(frozen=True)
class Order:
    """All n-grams of one length, sorted by what comes before their last word, then by that word."""

    key: Int[Tensor, " C"]
    """The number of the n-gram without its last word, in the order below, times the number of words, plus the last word."""
    log_prob: Float[Tensor, " C"]
    backoff: Float[Tensor, " C"]
    """Natural logs, as log_prob."""


class NGrams:
    """An n-gram model whose words are the tokens of a tokenizer. <s> and </s> are its BOS and EOS; and what has no word
    of its own is <unk>.

    p(w | c) is that of the n-gram c w if the model has it, else backoff(c) p(w | c without its first word).

    Args:
        lines: of an ARPA file.
        tokens: the words, by id.
        bos_id: the token that is written <s>; eos_id that of </s>.

    Raises:
        InputError: it is no ARPA file, or its words are other ones.
    Source: Katz (1987), Estimation of probabilities from sparse data; Stolcke (2002), SRILM, for the format.
    """

    def __init__(
        self, lines: Iterable[str], tokens: Sequence[str], *, bos_id: int, eos_id: int, device: torch.device | str
    ) -> None:
        self.unknown = len(tokens)
        self.n_words, self.bos_id, self.device = len(tokens) + 1, bos_id, device
        words = {word: i for i, word in enumerate(tokens)} | {"<s>": bos_id, "</s>": eos_id, "<unk>": self.unknown}
        self.orders: list[Order] = []
        below: list[np.ndarray] = []
        for n, (grams, values) in enumerate(_sections(lines, words), start=1):
            if not len(grams):
                break
            if n == 1:
                absent = np.setdiff1d(np.arange(len(tokens)), grams[:, 0])
                key, known = np.arange(self.n_words), values
                values = np.tile([MISSING, 0.0], (self.n_words, 1))
                values[grams[:, 0]] = known
            else:
                key = self._numbers(grams[:, :-1], below) * self.n_words + grams[:, -1]
                order = key.argsort()
                key, values = key[order], values[order]
            below.append(key)
            logs = torch.from_numpy(values * math.log(10)).float().to(device)
            self.orders.append(Order(torch.from_numpy(key).to(device), logs[:, 0].clone(), logs[:, 1].clone()))
        self.order = len(self.orders)
        known_words = set(range(len(tokens))) - set(absent.tolist()) - {bos_id, eos_id} if self.orders else set()
        _check_words(bool(known_words), "none of them" if self.orders else "no 1-grams")
        self.absent = torch.from_numpy(absent).to(device)

    def log_probs(self, past: Int[Tensor, "N L"]) -> Float[Tensor, "N V"]:
        """Of every next token, after these; BOS is one of them where they begin a text."""
        past = torch.where(torch.isin(past, self.absent), self.unknown, past)
        found = self.orders[0].log_prob.expand(len(past), -1).clone()
        for n in range(2, min(len(self.orders), past.size(1) + 1) + 1):
            node, there = self._find(past[:, past.size(1) - n + 1 :])
            found += (self.orders[n - 2].backoff[node] * there)[:, None]
            longer = self.orders[n - 1]
            start, stop = (torch.searchsorted(longer.key, (node + i) * self.n_words) for i in (0, 1))
            count = (stop - start) * there
            row = torch.repeat_interleave(torch.arange(len(past), device=past.device), count)
            each = torch.arange(len(row), device=past.device) - (count.cumsum(0) - count)[row] + start[row]
            found[row, longer.key[each] % self.n_words] = longer.log_prob[each]
        found[:, self.absent] = found[:, self.unknown :].clone()
        return found[:, : self.unknown]

    def _find(self, grams: Int[Tensor, "N n"]) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
        """The number of each n-gram among those of its length, and 1 where the model has it, else 0."""
        node, there = grams[:, 0], torch.ones_like(grams[:, 0])
        for order, word in zip(self.orders[1:], grams.T[1:], strict=False):
            wanted = node * self.n_words + word
            node = torch.searchsorted(order.key, wanted).clamp_max(len(order.key) - 1)
            there = there * (order.key[node] == wanted)
        return node, there

    def _numbers(self, grams: np.ndarray, below: Sequence[np.ndarray]) -> np.ndarray:
        """The number of each n-gram among those of its length.

        Raises:
            InputError: the model does not have it, although a longer one begins with it.
        """
        node = grams[:, 0]
        for key, word in zip(below[1:], grams.T[1:], strict=True):
            wanted = node * self.n_words + word
            node = np.searchsorted(key, wanted).clip(max=len(key) - 1)
            if len(key) == 0 or (key[node] != wanted).any():
                raise InputError(
                    f"the {grams.shape[1] + 1}-grams of an ARPA file must begin with {grams.shape[1]}-grams that it has, "
                    "but one does not; make it anew"
                )
        return node


def _check_words(known: bool, found: str) -> None:
    """Raise InputError, with what was found, unless a model knows a word."""
    if not known:
        raise InputError(
            f"an n-gram model is an ARPA file whose words are the run's tokens, but it has {found}; make its text with "
            "transduce tokenize RUN"
        )


def _sections(lines: Iterable[str], words: dict[str, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """By length, the n-grams of an ARPA file as ids of shape (C, n), and log 10 of probability and backoff, (C, 2).

    N-grams with a word that is no token are left out.
    """
    n, grams, values = 0, list[list[int]](), list[tuple[float, float]]()
    for line in lines:
        if line.startswith("\\"):
            if n:
                yield np.array(grams, dtype=np.int64).reshape(-1, n), np.array(values).reshape(-1, 2)
            found = line.strip().removeprefix("\\").removesuffix("-grams:")
            if found.isdecimal() and found != str(n + 1):
                raise InputError(
                    f"an ARPA file has 1-grams, 2-grams and so on, but behind {n}-grams come {found:.9}-grams"
                )
            n, grams, values = n + 1 if found.isdecimal() else 0, [], []
        elif n and line.strip():
            log_prob, *rest = [field for field in line.strip("\r\n").replace("\t", " ").split(" ") if field]
            ids = [words[word] for word in rest[:n] if word in words]
            try:
                value = float(log_prob), float(rest[n]) if len(rest) > n else 0.0
                if math.isnan(sum(value)):
                    raise ValueError
            except ValueError as error:
                raise InputError(
                    f"a line of {n}-grams must have a number, words and a number, but it is {line!r:.60}"
                ) from error
            if len(ids) == n:
                grams.append(ids)
                values.append(value)
    if n:
        raise InputError(f"an ARPA file ends with \\end\\, but this one ends in its {n}-grams; fetch or make it again")


class NGramScorer:
    """A scorer of an n-gram model for B sentences, each of which begins with BOS.

    The first step begins, whatever token it is given; the tokens that the model can look back on are kept.
    """

    additive = True

    def __init__(self, ngrams: NGrams, n_sentences: int) -> None:
        self.ngrams, self.n_sentences = ngrams, n_sentences
        self.past: Int[Tensor, "N L"] = torch.empty(n_sentences, 0, dtype=torch.long, device=ngrams.device)

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Append one token to every row, but at first only begin, with BOS; log-probabilities of the next."""
        new = tokens if self.past.size(1) else torch.full_like(tokens, self.ngrams.bos_id)
        self.past = torch.cat((self.past, new[:, None]), dim=1)[:, -max(1, self.ngrams.order - 1) :]
        return self.ngrams.log_probs(self.past)

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        self.past = self.past[rows]

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        self.n_sentences = len(sentences)
