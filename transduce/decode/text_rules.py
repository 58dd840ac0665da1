"""Rules that read what tokens write: phrases that are forbidden or likelier, and known words."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.decode.phrases import (
    LEXICON,
    Matcher,
    Trie,
    Vocabulary,
    phrase_bytes,
    vocabulary,
)
from transduce.decode.rules import Rule, behind_prompt
from transduce.decode.scorer import Prompts
from transduce.errors import InputError, logger

StateT = TypeVar("StateT", bound=Hashable)


TextRule = Callable[[Sequence[int]], Float[Tensor, " V"]]
"""What is added to the score of every token behind a row of tokens; -inf rules it out."""


def text_rule(
    vocabulary: Vocabulary,
    state: Callable[[bytes], StateT],
    added_behind: Callable[[StateT], np.ndarray],
) -> TextRule:
    """A rule that reads what a row of tokens writes.

    Args:
        state: gives all that matters of a text for the next token.
        added_behind: gives what is added to the score of each token, (V,), from a state.
    """
    behind = lru_cache(maxsize=1024)(lambda state: torch.from_numpy(added_behind(state)))
    return lambda tokens: behind(state(vocabulary.text(tokens)))


def by_sentence(rules: Sequence[TextRule | None], prompts: Prompts | None = None) -> Rule:
    """The rule of each sentence, if it has one, for outputs behind these prompts."""

    def apply(scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        rows = behind_prompt(prompts, tokens, sentences).tolist()
        n_rows = len(rows) // len(sentences)
        for row, written in enumerate(rows):
            if rule := rules[sentences[row // n_rows]]:
                scores[row] += rule(written).to(scores)
        return scores

    return apply


def biased_phrases(vocabulary: Vocabulary, bias: Mapping[bytes, float]) -> TextRule:
    """An output has a bonus for each of these phrases that it holds, in nats, or pays for each that
    comes: with -inf, none comes. A bonus counts once, so that nothing comes again and again.

    A beginning of a phrase has a share of its bonus by its length, the largest of all that the text
    ends with, which is given back where the phrase does not go on.

    Source: Zhao et al. (2019), Shallow-fusion end-to-end contextual biasing.
    """
    matcher = Matcher(bias)
    wanted = {phrase: nats for phrase, nats in bias.items() if nats > 0}
    penalty = matcher.values([min(nats, 0.0) for nats in bias.values()])
    counted = bias if wanted else ()  # the beginnings of long phrases take time
    beginnings = {matcher.state(p[:n]): p[:n] for p in counted for n in range(len(p) + 1)}
    paths = {p: [matcher.state(p[:n]) for n in range(1, len(p))] for p in wanted}

    def complete(text: bytes, before: frozenset[bytes] = frozenset()) -> frozenset[bytes]:
        """The phrases whose bonus was given."""
        return before | {phrase for phrase in wanted if phrase in text}

    @lru_cache(maxsize=64)
    def tables(done: frozenset[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """By state, how many bonuses are given where it is reached, and the share of what has
        begun."""
        left = {phrase: nats for phrase, nats in wanted.items() if phrase not in done}
        share = np.zeros(len(matcher.next), dtype=np.float32)
        for phrase, nats in left.items():
            path = paths[phrase]
            growing = nats * np.arange(1, len(path) + 1) / (len(path) + 1)
            share[path] = np.maximum(share[path], growing)
        share[matcher.state(b" ")] = 0.0  # behind a space, texts and all words begin alike
        for state in matcher.order:
            share[state] = max(share[state], share[matcher.shorter[state]])
        return matcher.values([float(phrase in left) for phrase in bias]), share

    def added_behind(progress: tuple[frozenset[bytes], int]) -> np.ndarray:
        done, state = progress
        states, total = matcher.walk(state, vocabulary, penalty)
        bonuses, share = tables(done)
        _, n_bonuses = matcher.walk(state, vocabulary, bonuses)
        begun = share[states]
        for token in np.flatnonzero(n_bonuses):
            after = complete(beginnings[state] + vocabulary.surfaces[token], done)
            total[token] += math.fsum(bias[phrase] for phrase in after - done)
            begun[token] = tables(after)[1][states[token]]
        if vocabulary.eos_id is not None:
            begun[vocabulary.eos_id] = 0.0
        return total + begun - share[state]

    return text_rule(vocabulary, lambda text: (complete(text), matcher.state(text)), added_behind)


def spellings(tokenizer: Tokenizer, phrases: Iterable[str]) -> dict[str, bytes]:
    """Each phrase as the tokenizer normalizes it; one that is not made of tokens is left out."""
    spelled = dict[str, bytes]()
    for phrase in phrases:
        with suppress(InputError):
            spelled[phrase] = phrase_bytes(tokenizer, phrase)
    return spelled


@lru_cache(maxsize=4)
def forbidden(tokenizer: Tokenizer, phrases: tuple[str, ...], size: int = 0) -> TextRule:
    """The phrases as they stand, and as the tokenizer normalizes them."""
    strings = {phrase.encode() for phrase in phrases}
    strings.update(spellings(tokenizer, phrases).values())
    return biased_phrases(vocabulary(tokenizer, size), dict.fromkeys(sorted(strings), -math.inf))


def known_words(vocabulary: Vocabulary, words: Sequence[bytes]) -> TextRule:
    """Outputs are made of these words, with spaces between them.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural
    networks, section 4, for a search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """
    trie = Trie(words, b" ")
    trie.next[[0, *trie.ends], trie.column[ord(" ")]] = 0
    value = np.zeros(len(trie.next), dtype=np.float32)
    value[trie.nowhere] = -math.inf
    return text_rule(
        vocabulary,
        lambda text: text.rpartition(b" ")[2],
        lambda begun: trie.walk(trie.state(begun), vocabulary, value)[1],
    )


@lru_cache(maxsize=64)
def biased(
    tokenizer: Tokenizer, bias: tuple[tuple[str, float], ...], size: int = 0
) -> TextRule | None:
    """The rule of these phrases and their bias; None for none. A warning names those that no tokens
    write."""
    spelled = spellings(tokenizer, dict(bias))
    for phrase, _ in bias:
        if phrase not in spelled:
            logger.warning("this vocabulary cannot spell %r, which is left out", phrase)
    phrases = {spelled[phrase]: nats for phrase, nats in bias if phrase in spelled}
    return biased_phrases(vocabulary(tokenizer, size), phrases) if phrases else None


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> TextRule:
    """The words as the tokenizer normalizes them.

    Raises:
        InputError: none of them has tokens.
    """
    spelled = spellings(tokenizer, words).values()
    known = {word for phrase in spelled for word in phrase.split()}
    if not known:
        raise InputError(
            f"known words must be such as the run's tokenizer can spell, but of {len(words)} it "
            f"can spell none; write others into the run's {LEXICON}, or say words=any"
        )
    return known_words(vocabulary(tokenizer), sorted(known))
