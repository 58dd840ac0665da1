"""Rules for the text of outputs: phrases that are forbidden or have a bias, and known words."""

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
from transduce.decode.rules import Rule, with_prompt
from transduce.decode.scorer import Prompts
from transduce.errors import InputError, logger

StateT = TypeVar("StateT", bound=Hashable)


TextRule = Callable[[Sequence[int]], Float[Tensor, " V"]]
"""Returns what is added to the score of every next token after a row of tokens; -inf forbids it."""


def text_rule(
    vocabulary: Vocabulary,
    state: Callable[[bytes], StateT],
    bias_after: Callable[[StateT], np.ndarray],
) -> TextRule:
    """A rule that depends on the text that a row of tokens writes.

    Args:
        state: maps a text to what matters for the next token.
        bias_after: maps a state to what is added to the score of each token, (V,).
    """
    cached = lru_cache(maxsize=1024)(lambda state: torch.from_numpy(bias_after(state)))
    return lambda tokens: cached(state(vocabulary.text(tokens)))


def by_sentence(rules: Sequence[TextRule | None], prompts: Prompts | None = None) -> Rule:
    """A rule that applies each sentence's own rule, if it has one, to its prompt and output."""

    def apply(scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        rows = with_prompt(prompts, tokens, sentences).tolist()
        n_rows = len(rows) // len(sentences)
        for row, written in enumerate(rows):
            if rule := rules[sentences[row // n_rows]]:
                scores[row] += rule(written).to(scores)
        return scores

    return apply


def biased_phrases(vocabulary: Vocabulary, bias: Mapping[bytes, float]) -> TextRule:
    """A rule that gives phrases a bias in nats. A bonus counts once per output, so that phrases are
    not repeated; a negative bias counts for each occurrence, and -inf forbids a phrase.

    A text that ends with the beginning of a phrase gets a share of its bonus, in proportion to the
    beginning's length. The largest share counts, and is taken back if the phrase does not continue.

    Source: Zhao et al. (2019), Shallow-fusion end-to-end contextual biasing.
    """
    matcher = Matcher(bias)
    wanted = {phrase: nats for phrase, nats in bias.items() if nats > 0}
    penalty = matcher.values([min(nats, 0.0) for nats in bias.values()])
    counted = bias if wanted else ()  # the beginnings of long phrases take time
    beginnings = {matcher.state(p[:n]): p[:n] for p in counted for n in range(len(p) + 1)}
    paths = {p: [matcher.state(p[:n]) for n in range(1, len(p))] for p in wanted}

    def complete(text: bytes, before: frozenset[bytes] = frozenset()) -> frozenset[bytes]:
        """The phrases whose bonus has been given."""
        return before | {phrase for phrase in wanted if phrase in text}

    @lru_cache(maxsize=64)
    def tables(done: frozenset[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """By state, the number of phrases that it completes, whose bonus is due, and the share for
        the phrase that has begun."""
        left = {phrase: nats for phrase, nats in wanted.items() if phrase not in done}
        share = np.zeros(len(matcher.next), dtype=np.float32)
        for phrase, nats in left.items():
            path = paths[phrase]
            growing = nats * np.arange(1, len(path) + 1) / (len(path) + 1)
            share[path] = np.maximum(share[path], growing)
        share[matcher.state(b" ")] = 0.0  # a space alone begins no phrase: it precedes every word
        for state in matcher.order:
            share[state] = max(share[state], share[matcher.shorter[state]])
        return matcher.values([float(phrase in left) for phrase in bias]), share

    def bias_after(progress: tuple[frozenset[bytes], int]) -> np.ndarray:
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

    return text_rule(vocabulary, lambda text: (complete(text), matcher.state(text)), bias_after)


def spellings(tokenizer: Tokenizer, phrases: Iterable[str]) -> dict[str, bytes]:
    """Each phrase as the tokenizer normalizes it; those that tokens cannot write are left out."""
    spelled = dict[str, bytes]()
    for phrase in phrases:
        with suppress(InputError):
            spelled[phrase] = phrase_bytes(tokenizer, phrase)
    return spelled


@lru_cache(maxsize=4)
def forbidden(tokenizer: Tokenizer, phrases: tuple[str, ...], size: int = 0) -> TextRule:
    """A rule that forbids these phrases, as given and as the tokenizer normalizes them."""
    strings = {phrase.encode() for phrase in phrases}
    strings.update(spellings(tokenizer, phrases).values())
    return biased_phrases(vocabulary(tokenizer, size), dict.fromkeys(sorted(strings), -math.inf))


def known_words(vocabulary: Vocabulary, words: Sequence[bytes]) -> TextRule:
    """A rule that allows only these words, with spaces between them.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural
    networks, section 4, for a search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """
    trie = Trie(words, b" ")
    trie.next[[0, *trie.ends], trie.column[ord(" ")]] = 0
    value = np.zeros(len(trie.next), dtype=np.float32)
    value[trie.dead] = -math.inf
    return text_rule(
        vocabulary,
        lambda text: text.rpartition(b" ")[2],
        lambda begun: trie.walk(trie.state(begun), vocabulary, value)[1],
    )


@lru_cache(maxsize=64)
def biased(
    tokenizer: Tokenizer, bias: tuple[tuple[str, float], ...], size: int = 0
) -> TextRule | None:
    """The rule for phrases with a bias; None for no phrases. A warning names those that tokens
    cannot write."""
    spelled = spellings(tokenizer, dict(bias))
    for phrase, _ in bias:
        if phrase not in spelled:
            logger.warning("this vocabulary cannot spell %r, which is left out", phrase)
    phrases = {spelled[phrase]: nats for phrase, nats in bias if phrase in spelled}
    return biased_phrases(vocabulary(tokenizer, size), phrases) if phrases else None


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> TextRule:
    """A rule that allows only these words, as the tokenizer normalizes them.

    Raises:
        InputError: tokens can write none of them.
    """
    spelled = spellings(tokenizer, words).values()
    known = {word for phrase in spelled for word in phrase.split()}
    if not known:
        raise InputError(
            "the run's tokenizer must be able to spell known words, but it can spell none of "
            f"{len(words)}; write others into the run's {LEXICON}, or say words=any"
        )
    return known_words(vocabulary(tokenizer), sorted(known))
