"""Texts that an output begins with, holds or must not hold, however the tokenizer could cut them.

What tokens write is compared as bytes (UTF-8), so every way to spell a phrase counts, and a token may write the end of a
phrase and more. A text is seen between two spaces, which it does not hold itself: a phrase that begins or ends with a
space stands at the beginning or the end of a word.
"""

import sys
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.errors import InputError


class Vocabulary:
    """What the tokens of a vocabulary write.

    Args:
        surfaces: what each token adds to a text, in UTF-8; nothing for special ones.
        eos_id: stands for the space behind the text; None: there is none.
    """

    def __init__(self, surfaces: Sequence[bytes], eos_id: int | None) -> None:
        self.surfaces = list(surfaces)
        self.ordered = sorted((surface, i) for i, surface in enumerate(surfaces) if surface and i != eos_id)
        self.longest = max((len(surface) for surface, _ in self.ordered), default=0)
        if eos_id is not None:
            self.surfaces[eos_id] = b" "
        lengths = np.array([len(surface) for surface in self.surfaces])
        columns = [np.flatnonzero(lengths > j) for j in range(max(lengths))]
        self.columns = [(ids, np.array([self.surfaces[i][j] for i in ids])) for j, ids in enumerate(columns)]
        """For every place in a token, which tokens have a byte there, and which byte."""

    def text(self, tokens: Sequence[int]) -> bytes:
        """What these tokens write, behind the space before a text."""
        return b" " + b"".join([self.surfaces[i] for i in tokens])

    def writing(self, text: bytes) -> list[int]:
        """The tokens that write exactly this."""
        return [i for surface, i in self.beyond(text) if surface == text]

    def beyond(self, text: bytes) -> list[tuple[bytes, int]]:
        """The tokens that write this, and perhaps more behind it, each behind what it writes."""
        first = last = bisect_left(self.ordered, (text, -1))
        while last < len(self.ordered) and self.ordered[last][0].startswith(text):
            last += 1
        return self.ordered[first:last]

    def ways(self, text: bytes) -> list[list[int]]:
        """For every place in a text, and its end, the tokens that may come next if all of it shall be written.

        The last one may write more. Where there is none, but before the end, the rest cannot be written.
        """
        found: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            found[start] = [i for _, i in self.beyond(text[start:])]
            for stop in range(start + 1, min(len(text), start + self.longest + 1)):
                if stop < len(text) and found[stop]:
                    found[start] += self.writing(text[start:stop])
        return [*found, []]


class Prefix:
    """What one output begins with.

    Args:
        fixed: its first tokens.
        free: the text behind them, in any tokens, of which the last may write more.

    Raises:
        InputError: no tokens write `free`.
    """

    def __init__(self, vocabulary: Vocabulary, fixed: Sequence[int], free: bytes) -> None:
        self.vocabulary, self.fixed, self.length = vocabulary, list(fixed), len(free)
        self.ways = vocabulary.ways(free)
        if free and not self.ways[0]:
            raise InputError(f"a prefix must be made of tokens, but this vocabulary cannot spell {free.decode()!r}")

    @property
    def longest(self) -> int:
        """The most tokens that it can take."""
        return len(self.fixed) + self.length

    def next(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens that may follow these; None: any, for the prefix is there."""
        if len(tokens) < len(self.fixed):
            return [self.fixed[len(tokens)]]
        written = sum(len(self.vocabulary.surfaces[i]) for i in tokens[len(self.fixed) :])
        return self.ways[written] if written < self.length else None


class Matcher:
    """Finds phrases in what tokens write, byte by byte.

    A state is the longest end of a text with which a phrase begins; 0 is none.

    Source: Aho and Corasick (1975), Efficient string matching.
    """

    def __init__(self, phrases: Sequence[bytes]) -> None:
        self.longest = max(map(len, phrases), default=0)
        children: list[dict[int, int]] = [{}]
        ends = []
        for phrase in phrases:
            state = 0
            for byte in phrase:
                if byte not in children[state]:
                    children[state][byte] = len(children)
                    children.append({})
                state = children[state][byte]
            ends.append(state)
        self.found = np.zeros(len(children), dtype=bool)
        """Whether a phrase ends in a state."""
        self.found[ends] = True
        self.next = np.zeros((len(children), 256), dtype=np.int32)
        """By state and byte, the state that follows."""
        shorter, queue = np.zeros(len(children), dtype=np.int32), [0]
        for state in queue:
            for byte, child in children[state].items():
                shorter[child] = self.next[shorter[state], byte] if state else 0
                self.found[child] |= self.found[shorter[child]]
                queue.append(child)
            if state:
                self.next[state] = self.next[shorter[state]]
            for byte, child in children[state].items():
                self.next[state, byte] = child
        self.shorter = shorter
        """By state, the next shorter one."""

    def state(self, text: bytes) -> int:
        """The state behind a text."""
        state = 0
        for byte in text[-self.longest :]:
            state = int(self.next[state, byte])
        return state

    def follow(self, state: int, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """For every token behind this state: the new state, and whether a phrase ended in the token."""
        states = np.full(len(vocabulary.surfaces), state, dtype=np.int32)
        found = np.zeros(len(states), dtype=bool)
        for ids, column in vocabulary.columns:
            states[ids] = self.next[states[ids], column]
            found[ids] |= self.found[states[ids]]
        return states, found


class Forbidden:
    """Phrases that no output holds."""

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[bytes]) -> None:
        self.vocabulary, self.matcher = vocabulary, Matcher(phrases)
        self._row = lru_cache(maxsize=256)(self._ruled_out)

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, the tokens that would complete a phrase behind it."""
        return torch.stack([self._row(self.matcher.state(self.vocabulary.text(tokens))) for tokens in rows])

    def _ruled_out(self, state: int) -> Bool[Tensor, " V"]:
        return torch.from_numpy(self.matcher.follow(state, self.vocabulary)[1])


class Required:
    """Phrases that the output of each sentence must hold, and how far hypotheses are with them.

    Progress is the bytes of the phrases that are there, and of the longest beginning of another one at the end from where
    it can be finished. A token of it is always there to go on with, so whoever is furthest and takes it, gets to the end.

    Args:
        phrases: those of each sentence.

    Raises:
        InputError: no tokens write one of them.
    """

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[Sequence[bytes]]) -> None:
        self.vocabulary, self.phrases = vocabulary, [tuple(dict.fromkeys(each)) for each in phrases]
        self.totals = [sum(map(len, each)) for each in self.phrases]
        self._of: dict[bytes, tuple[Matcher, np.ndarray]] = {}
        self._row = lru_cache(maxsize=256)(self._progress)
        for phrase in dict.fromkeys(phrase for each in self.phrases for phrase in each):
            matcher, ways = Matcher([phrase]), vocabulary.ways(phrase)
            useful = np.arange(len(phrase) + 1)
            for state in range(1, len(phrase)):  # the longest end from where the phrase can be finished
                useful[state] = state if ways[state] else useful[matcher.shorter[state]]
            self._of[phrase] = matcher, useful
            if not self._progress(((phrase, 0),)).any():
                raise InputError(
                    f"a required phrase must be made of tokens, but this vocabulary cannot spell {phrase.decode()!r}"
                )

    def progress(self, rows: Sequence[Sequence[int]], sentences: Sequence[int]) -> Int[Tensor, "N V"]:
        """For every row of tokens, the progress that each next token would bring it to.

        Args:
            sentences: their numbers, each of len(rows) / len(sentences) neighbouring rows.
        """
        n_rows, found = len(rows) // len(sentences), []
        for row, tokens in enumerate(rows):
            text, own = self.vocabulary.text(tokens), self.phrases[sentences[row // n_rows]]
            states = ((each, -1 if each in text else self._of[each][0].state(text)) for each in own)
            found.append(self._row(tuple(states)))
        return torch.from_numpy(np.stack(found))

    def _progress(self, states: tuple[tuple[bytes, int], ...]) -> np.ndarray:
        """The progress behind every token, from the state in every phrase, or -1 where it is there."""
        there = begun = np.zeros(len(self.vocabulary.surfaces), dtype=np.int64)
        for phrase, state in states:
            matcher, useful = self._of[phrase]
            after, found = matcher.follow(max(state, 0), self.vocabulary)
            found |= state < 0
            there = there + len(phrase) * found
            begun = np.maximum(begun, np.where(found, 0, useful[after]))
        return there + begun


def in_banks(
    total: Float[Tensor, "A M"],
    progress: Int[Tensor, "A M"],
    needed: Int[Tensor, " A"],
    last: Bool[Tensor, " A"],
    empty: Bool[Tensor, " A"],
    beam_size: int,
    eos_id: int,
    vocab_size: int,
) -> tuple[Float[Tensor, "A n"], Int[Tensor, "A n"]]:
    """The continuations of every sentence that a beam should weigh, where phrases are required: n = 2 * beam_size.

    They are shared out among banks by their progress, from none to all: a place for the best of each bank, then one for
    the second best of each, and so on; and the furthest of all always has one. Only what has all may end. The first
    half are ends, the second half what goes on.

    Args:
        total: log-probability of every continuation.
        progress: as `Required` counts it.
        needed: progress that has all phrases.
        last: the step is the last one of the sentence: what has not all is left out if anything has.
        empty: nothing of the sentence has ended. If rules leave it nothing but ends, they come, so that something does.

    Source: Post and Vilar (2018), Fast lexically constrained decoding with dynamic beam allocation; Hu et al. (2019),
    Improved lexically constrained decoding for translation and monolingual rewriting, for the batch.
    """
    n, n_banks = 2 * beam_size, max(1, beam_size - 1)
    all_there = progress >= needed[:, None]
    ends = (torch.arange(total.size(1), device=total.device) % vocab_size == eos_id).expand_as(total)
    stuck = empty & (total.masked_fill(ends, -torch.inf) == -torch.inf).all(dim=1)
    all_there |= stuck[:, None]
    total = total.masked_fill(ends & ~all_there, -torch.inf)
    over = last & (all_there & (total > -torch.inf)).any(dim=1)
    total = total.masked_fill(over[:, None] & ~all_there, -torch.inf)
    if total.size(1) < n:
        pad = (0, n - total.size(1))
        total, progress, ends = F.pad(total, pad, value=-torch.inf), F.pad(progress, pad), F.pad(ends, pad)
        all_there = F.pad(all_there, pad)
    bank = (progress * (n_banks - 1) // needed.clamp_min(1)[:, None]).masked_fill(all_there, n_banks - 1)
    best = [total.masked_fill(bank != i, -torch.inf).topk(n) for i in range(n_banks)]

    goes_on = (total > -torch.inf) & ~ends
    reached = progress.masked_fill(~goes_on, -1)
    furthest = total.masked_fill(~goes_on | (reached != reached.amax(dim=1, keepdim=True)), -torch.inf).max(dim=1)
    log_prob = torch.cat([each.values for each in best] + [furthest.values[:, None]], dim=1)
    index = torch.cat([each.indices for each in best] + [furthest.indices[:, None]], dim=1)
    is_end = ends.gather(1, index)
    rank = torch.cat([torch.arange(n, device=total.device)] * n_banks + [index.new_zeros(1)]).expand_as(index)
    finished = log_prob.masked_fill(~is_end | (rank >= beam_size), -torch.inf)
    finished[:, -1] = -torch.inf
    finished_best = finished.topk(beam_size)

    on = ~is_end & (log_prob > -torch.inf)
    place = torch.cat([on[:, i * n : (i + 1) * n].long().cumsum(dim=1) for i in range(n_banks)], dim=1)
    order = place * n_banks + torch.arange(n_banks, device=total.device).flip(0).repeat_interleave(n)
    is_furthest = index == furthest.indices[:, None]
    known = (is_furthest & on)[:, :-1].any(dim=1, keepdim=True)
    order = torch.cat((order, torch.zeros_like(order[:, :1]).masked_fill_(known, sys.maxsize)), dim=1)
    order[:, :-1].masked_fill_(is_furthest[:, :-1], 0)
    chosen = order.masked_fill(~on, sys.maxsize).topk(beam_size, largest=False)
    going = log_prob.gather(1, chosen.indices).masked_fill(chosen.values == sys.maxsize, -torch.inf)
    return (
        torch.cat((finished_best.values, going), dim=1),
        torch.cat((index.gather(1, finished_best.indices), index.gather(1, chosen.indices)), dim=1),
    )
