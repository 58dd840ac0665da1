"""Sampling against formulas, brute force, transformers' logits processors, and exact probabilities by chi-square."""

import itertools
import math
import os
import re

import numpy as np
import pytest
import torch
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer
from tests.decode.test_beam import RULES, constrained, starts
from transduce.decode.beam import Hypothesis
from transduce.decode.config import BeamConfig, SamplingConfig
from transduce.decode.sample import GREEDY, Sampler, draw, nucleus, probabilities
from transduce.decode.scorer import ModelScorer
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

NOTHING = torch.zeros(1, 1, dtype=torch.long)
"""Earlier tokens, an argument that transformers requires and does not use."""

# Probabilities after each filter


def exact(logits: list[float], x: SamplingConfig, before: list[int], penalty: float = 1.0) -> list[float]:
    """The definitions, one after the other, in lists and float64."""
    scores = [(s * penalty if s < 0 else s / penalty) if i in before else s for i, s in enumerate(logits)]
    weights = [math.exp(s / x.temperature) for s in scores]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if x.top_k:
        order = order[: x.top_k]
    total, mass, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if mass >= x.top_p * total and x.top_p < 1:  # rounding could reach all of it early
            break
        kept.append(i)
        mass += weights[i]
    return [weights[i] / mass if i in kept else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_probabilities_equal_the_definitions(rng, temperature):
    for top_k, top_p in itertools.product([0, 1, 4, 50], [1.0, 0.8, 0.05]):
        x = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
        logits = 3 * torch.randn(5, 11, generator=rng, dtype=torch.float64)
        kept = logits.clone()
        got = probabilities(logits, x)
        for row in range(5):
            assert got[row].tolist() == pytest.approx(exact(logits[row].tolist(), x, []), rel=1e-12, abs=0), x
        assert torch.equal(logits, kept), x


@pytest.mark.parametrize("top_p", [0.01, 0.2, 0.5, 0.77, 0.99])
def test_the_nucleus_is_the_smallest_of_all_subsets(rng, top_p):
    for probs in torch.rand(6, 9, generator=rng, dtype=torch.float64).softmax(-1):
        big_enough = [
            (len(subset), -math.fsum(probs[list(subset)].tolist()), subset)
            for n in range(1, 10)
            for subset in itertools.combinations(range(9), n)
            if math.fsum(probs[list(subset)].tolist()) >= top_p
        ]
        _, mass, subset = min(big_enough)
        got = nucleus(probs[None], top_p)[0]
        assert got.nonzero().flatten().tolist() == list(subset)
        torch.testing.assert_close(got[list(subset)], probs[list(subset)] / -mass, rtol=1e-12, atol=0)


def test_the_nucleus_of_equal_probabilities_has_minimal_size():
    assert (nucleus(torch.full((1, 8), 0.125), 0.5) > 0).sum() == 4


@pytest.mark.parametrize("top_k", [1, 3, 200])
def test_top_k_equals_transformers(rng, top_k):
    logits = torch.randn(7, 53, generator=rng)
    logits[0, :20] = logits[0].topk(3).values[-1]  # equally likely ones stay together
    want = TopKLogitsWarper(top_k)(NOTHING, logits.clone()).softmax(-1)
    assert torch.equal(probabilities(logits, SamplingConfig(top_k=top_k)), want)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(rng, top_p):
    logits = 2 * torch.randn(7, 53, generator=rng, dtype=torch.float64)
    want = TopPLogitsWarper(top_p)(NOTHING, logits.clone()).softmax(-1)
    got = probabilities(logits, SamplingConfig(top_p=top_p))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_min_p_equals_transformers(rng, min_p, top_p):
    logits = 2 * torch.randn(7, 53, generator=rng, dtype=torch.float64)
    nucleus_of = TopPLogitsWarper(top_p)(NOTHING, logits.clone() / 1.7) if top_p < 1 else logits / 1.7
    want = MinPLogitsWarper(min_p)(NOTHING, nucleus_of).softmax(-1)
    got = probabilities(logits, SamplingConfig(min_p=min_p, top_p=top_p, temperature=1.7))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    assert (got == 0).any() and (min_p < 1 or ((got > 0).sum(1) == 1).all())


# Drawing


def test_a_draw_inverts_the_distribution_function():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    for uniform, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (1 - 2**-53, 4)):
        assert draw(probs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


def test_tokens_of_probability_0_are_never_drawn(rng):
    probs = torch.rand(2000, 31, generator=rng)
    probs = torch.where(torch.rand(2000, 31, generator=rng) < 0.7, 0.0, probs)
    probs[:, 7] += 0.01
    probs /= probs.sum(-1, keepdim=True)
    for uniform in (torch.zeros(2000), torch.full((2000,), 1 - 2**-53, dtype=torch.float64)):
        assert (probs.gather(1, draw(probs, uniform)[:, None]) > 0).all()


def rngs(seed: int, n: int) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, i)) for i in range(n)]


def sampled(language: Language, sentences: list[int], bounds: list[int], n: int = 1, **settings) -> list[Hypothesis]:
    rules = {name: settings.pop(name) for name in RULES | {"eos_id", "suppressed"} if name in settings}
    settings = {"rngs": rngs(1, n * len(sentences))} | settings
    scorer, constraints = LanguageScorer(language, sentences), constrained(bounds, **rules)
    return [*itertools.chain(*Sampler(scorer, starts(len(sentences)), constraints, **settings).run())]


def chi_square_bound(n: int) -> float:
    """Wilson and Hilferty's approximation of the value that n degrees of freedom exceed once in 10,000 times."""
    return n * (1 - 2 / (9 * n) + 3.719 * math.sqrt(2 / (9 * n))) ** 3


@pytest.mark.parametrize(
    ("x", "penalty"),
    [
        (SamplingConfig(), 1.0),
        (SamplingConfig(top_k=3, temperature=1.5), 1.0),
        (SamplingConfig(top_p=0.95, temperature=2.0), 1.0),
        (SamplingConfig(top_k=4), 1.6),
    ],
)
def test_sample_frequencies_match_exact_probabilities(x, penalty):
    """4,000 samples of up to three tokens, each sequence with its exact probability, chi-square with a fixed seed."""
    language, n, bound = Language(seed=8), 4_000, 3
    probability: dict[tuple[int, ...], float] = {}

    def follow(prefix: tuple[int, ...], mass: float) -> None:
        logits = [-math.inf if i == PAD else s for i, s in enumerate(language.logits(0, prefix))]
        for token, p in enumerate(exact(logits, x, [BOS, *prefix], penalty)):
            longer = (*prefix, token)
            if p and token != EOS and len(longer) < bound:
                follow(longer, mass * p)
            elif p:
                probability[longer] = mass * p

    follow((), 1.0)
    counts = dict.fromkeys(probability, 0)
    for h in sampled(language, [0], [bound], n=n, sampling=x, suppressed=[PAD], repetition_penalty=penalty):
        counts[(*h.tokens, EOS) if h.finished else tuple(h.tokens)] += 1  # a KeyError: it should be impossible
    common = [key for key, p in probability.items() if p * n >= 5]
    cells = [(counts[key], probability[key] * n) for key in common]
    rest = n - sum(want for _, want in cells)
    if rest > 1:
        cells.append((n - sum(got for got, _ in cells), rest))
    assert len(cells) > 5
    assert sum((got - want) ** 2 / want for got, want in cells) < chi_square_bound(len(cells) - 1)


# The batch


def test_a_sample_does_not_depend_on_its_neighbours():
    language, bounds = Language(seed=4), [1 + 5 * i % 13 for i in range(40)]
    together = sampled(language, list(range(40)), bounds)
    for i, bound in enumerate(bounds):
        (alone,) = sampled(language, [i], [bound], rngs=[np.random.default_rng((1, i))])
        assert (alone.tokens, alone.finished) == (together[i].tokens, together[i].finished)
    assert {h.finished for h in together} == {True, False}


def test_n_samples_equal_n_copies_of_the_sentence():
    language = Language(seed=6)
    one = [h.tokens for h in sampled(language, [3, 5], [9, 7], n=4)]
    other = [h.tokens for h in sampled(language, [3] * 4 + [5] * 4, [9] * 4 + [7] * 4)]
    assert one == other
    assert len(set(map(tuple, one[:4]))) > 1


def test_a_longer_sample_begins_like_the_shorter_one():
    short, long = (sampled(Language(seed=2), list(range(9)), [bound] * 9, eos_id=None) for bound in (5, 33))
    assert [h.tokens for h in short] == [h.tokens[:5] for h in long]
    assert {len(h.tokens) for h in long} == {33} and not any(h.finished for h in long)


def test_temperature_0_is_greedy_and_needs_no_generator():
    language, bounds = Language(seed=5), [1 + i % 9 for i in range(50)]
    settings = {"sampling": GREEDY, "suppressed": [PAD], "score": BeamConfig(alpha=0.0)}
    got = sampled(language, list(range(50)), bounds, rngs=[], **settings)
    for sentence, (h, bound) in enumerate(zip(got, bounds, strict=True)):
        tokens, log_prob = (), 0.0
        while len(tokens) < bound and EOS not in tokens:
            p = language.log_probs(sentence, tokens)
            best = max((i for i in range(5) if i != PAD), key=lambda i: p[i])
            tokens, log_prob = (*tokens, best), log_prob + p[best]
        assert tuple(h.tokens) + (EOS,) * h.finished == tokens
        assert h.log_prob == h.score == pytest.approx(log_prob, rel=1e-12)
    assert {h.finished for h in got} == {True, False}


def test_log_prob_is_of_the_untruncated_distribution():
    language = Language(seed=7)
    settings = {"sampling": SamplingConfig(top_k=2, temperature=0.7), "suppressed": [PAD], "no_repeat_ngram": 2}
    for sentence, h in enumerate(sampled(language, list(range(20)), [9] * 20, score=BeamConfig(alpha=0.0), **settings)):
        tokens = [*h.tokens, *[EOS] * h.finished]
        want = sum(language.log_probs(sentence, tuple(tokens[:t]))[token] for t, token in enumerate(tokens))
        assert h.log_prob == pytest.approx(want, rel=1e-12)
        assert len(set(itertools.pairwise(h.tokens))) == max(0, len(h.tokens) - 1)
    assert all(math.isnan(h.log_prob) for h in sampled(language, [0, 1], [9, 9]))


def test_stepwise_sampling_equals_run():
    tokens: dict[int, list[int]] = {i: [] for i in range(12)}
    scorer = LanguageScorer(Language(seed=3), list(range(6)))
    sampler = Sampler(scorer, starts(6), constrained([7] * 6), rngs=rngs(1, 12))
    while sampler.running:
        for row, token in zip(sampler.running, sampler.step().tolist(), strict=True):
            tokens[row].append(token)
    got = sampled(Language(seed=3), list(range(6)), [7] * 6, n=2)
    assert [h.tokens for h in itertools.chain(*sampler.run())] == [h.tokens for h in got]
    assert [tokens[i] for i in range(12)] == [h.tokens + [EOS] * h.finished for h in got]


def test_an_empty_batch_has_no_samples():
    assert sampled(Language(seed=0), [], []) == []


# Real Transformers


def decoder(**changes) -> Transformer:
    torch.manual_seed(5)
    stack = StackConfig(input=Tokens(vocab_size=13), n_layers=2)
    return Transformer(TransformerConfig(decoder=stack, d_model=8, n_heads=2, d_ff=12, dropout=0.0, **changes)).eval()


@pytest.mark.parametrize("length", [1, 6])
def test_a_model_continues_its_prompt(rng, length):
    model, prompts = decoder(), torch.randint(13, (3, length), generator=rng)
    scorer, constraints = ModelScorer(model, prompts=prompts), constrained([9, 4, 9], eos_id=2)
    got = [*itertools.chain(*Sampler(scorer, prompts, constraints, rngs=rngs(0, 6)).run())]
    assert [len(h.tokens) for h in got if not h.finished]
    for row, h in enumerate(got):
        uniforms, tokens = np.random.default_rng((0, row)).random(9), prompts[row // 2].tolist()
        for uniform in uniforms[: len(h.tokens) + h.finished]:  # without a cache, and without a batch
            with torch.no_grad():
                probs = model(target_in=torch.tensor([tokens]))[0, -1].double().softmax(-1)
            tokens.append(next(i for i, up_to in enumerate(probs.cumsum(0).tolist()) if up_to > uniform))
        assert tokens[length:] == h.tokens + [2] * h.finished


def test_samples_of_a_translation_share_its_memory(rng):
    """The n samples of a sentence attend to that sentence's memory."""
    torch.manual_seed(3)
    stack = StackConfig(input=Tokens(vocab_size=13), n_layers=1)
    model = Transformer(TransformerConfig(encoder=stack, decoder=stack, d_model=8, n_heads=2, d_ff=12)).eval()
    source, lengths = torch.randint(4, 13, (3, 7), generator=rng), torch.tensor([7, 2, 5])

    def got(rows: Tensor, n: int) -> list[list[int]]:
        with torch.no_grad():
            memory = model.encode(source[rows], lengths[rows])
        scorer, constraints = ModelScorer(model, memory), constrained([12] * len(rows))
        by_sentence = Sampler(scorer, starts(len(rows)), constraints, rngs=rngs(0, n * len(rows))).run()
        return [h.tokens for h in itertools.chain(*by_sentence)]

    assert got(torch.tensor([0, 1, 2]), 3) == got(torch.tensor([0] * 3 + [1] * 3 + [2] * 3), 1)


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.5}, "temperature=-0.5"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0.0}, "top_p=0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SamplingConfig(**settings)


def test_a_wrong_number_of_generators_is_refused():
    with pytest.raises(ValueError, match=r"^rngs must be n for every sentence, but there are 3 for 2 sentences$"):
        sampled(Language(seed=0), [0, 1], [4, 4], rngs=rngs(0, 3))
