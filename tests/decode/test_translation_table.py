"""IBM model 1 against its equations written out with dictionaries."""

from collections import defaultdict

import numpy as np

from transduce.decode import shortlist
from transduce.decode.shortlist import likeliest_translations


def by_the_book(source, target, iterations):
    """t(target | source) by expectation maximization from equal probabilities; no empty word."""
    t = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, total = defaultdict(float), defaultdict(float)
        for s, e in zip(source, target, strict=True):
            for word in e:
                norm = sum(t[word, by] for by in s)
                for by in s:
                    counts[word, by] += t[word, by] / norm
                    total[by] += t[word, by] / norm
        t = defaultdict(float, {(word, by): count / total[by] for (word, by), count in counts.items()})
    return t


def random_text(rng, n):
    return [rng.integers(2, 12, size=rng.integers(0 if i % 5 == 0 else 1, 6)).tolist() for i in range(n)]


def test_the_likeliest_are_those_of_the_equations():
    rng = np.random.default_rng(3)
    source, target = random_text(rng, 40), random_text(rng, 40)
    table = likeliest_translations(source, target, source_size=13, target_size=12, n=4, iterations=3)
    t = by_the_book(source, target, 3)
    seen = {s for one, other in zip(source, target, strict=True) for s in one if other}
    for s in seen:
        best = sorted((t[e, s] for e in range(12)), reverse=True)[:4]
        got = [t[e, s] for e in table[s]]
        assert np.allclose(got, [p if p else got[0] for p in best])  # fewer than n: the likeliest again
    assert len(seen) > 5 and [list(table[s]) for s in (0, 12)] == [[0] * 4, [0] * 4]


def test_words_that_stand_for_each_other_find_each_other(monkeypatch):
    """Token s is always translated as s + 10, in any order, among others."""
    rng = np.random.default_rng(4)
    source = [rng.permutation(10)[: rng.integers(2, 6)].tolist() for _ in range(200)]
    target = [rng.permutation([s + 10 for s in row]).tolist() for row in source]
    sizes = {"source_size": 10, "target_size": 20}
    assert likeliest_translations(source, target, n=1, **sizes)[:, 0].tolist() == list(range(10, 20))
    monkeypatch.setattr(shortlist, "AT_ONCE", 600)  # a part of the sentences does
    assert likeliest_translations(source, target, n=1, **sizes)[:, 0].tolist() == list(range(10, 20))


def test_without_text_every_token_stands_for_itself():
    assert likeliest_translations([], [], source_size=3, target_size=2, n=2).tolist() == [[0, 0], [1, 1], [0, 0]]
