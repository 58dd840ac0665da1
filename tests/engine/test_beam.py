"""Beam search in one call of C++, against the layers in float64, and against the same search step by step."""

import math
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor

from tests.engine.test_cpu import BEAMED, CASES, LANGUAGE, TEXT, Counting, threads
from tests.engine.test_greedy import SUPPRESSED, N, bias_logits, choose_eos, example_of, models
from tests.kernels import needs_cpp
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer

pytestmark = needs_cpp

BOUNDS = [1, 12, 7, 2, 12, 11, 3, 9, 12]
ALL = BeamConfig(beam_size=4, n_best=4)


def search(
    engine, memory, prompts: Tensor, eos_id: int | None, beam: BeamConfig = ALL, *, step_by_step=False, **settings
) -> list[list[Hypothesis]]:
    """All hypotheses, found in one call or with one Python step per token."""
    settings = {"suppressed": SUPPRESSED, "prompts": prompts} | settings
    constraints = Constraints(torch.tensor(BOUNDS), eos_id=eos_id, **settings)
    if step_by_step:
        constraints.engine_scorer = lambda _: None
    return beam_search(ModelScorer(engine, memory, prompts=prompts), prompts, constraints, beam)


def tokens_of(outputs: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[h.tokens for h in some] for some in outputs]


def ranked(outputs: list[Hypothesis]) -> list[tuple[float, float, list[int]]]:
    """Scores, log-probabilities and tokens, sorted: equal scores come in any order, and at the end of the beam any of them."""
    last = min(h.score for h in outputs)
    kept = [h.tokens if h.score > last or len(outputs) == 1 else [] for h in outputs]
    return sorted((h.score, h.log_prob, tokens) for h, tokens in zip(outputs, kept, strict=True))


@torch.no_grad()
def without_near_ties(plain, memory, prompts: Tensor, eos_id: int | None, rng) -> list[int]:
    """The sentences whose outputs stay if all weights change by 1e-5: in others, rounding may decide."""
    before = {name: weight.clone() for name, weight in plain.state_dict().items()}
    tokens = []
    for scale in (0, *[1e-5] * 8):
        for name, weight in plain.state_dict().items():
            noise = torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
            weight.copy_(before[name] * (1 + scale * noise))
        tokens.append(tokens_of(search(plain, memory, prompts, eos_id)))
    plain.load_state_dict(before)
    clear = [i for i, ways in enumerate(zip(*tokens, strict=True)) if all(way == ways[0] for way in ways)]
    assert 2 * len(clear) > len(BOUNDS)
    return clear


@pytest.fixture
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_search_works_with_default_dtype_float64(rng, float64_by_default):
    """C++ reads float32 tables, but a caller may have set another default type."""
    plain, engine = models(TEXT, rng)
    memory, singles, prompts = example_of(plain, engine, rng, 1)
    eos = choose_eos([*chain(*tokens_of(search(plain, memory, prompts, None)))])
    want, got = search(plain, memory, prompts, eos), search(engine, singles, prompts, eos)
    assert tokens_of(got) == tokens_of(want)
    assert [h.score for h in chain(*got)] == pytest.approx([h.score for h in chain(*want)], rel=1e-3, abs=1e-3)
    constraints = [Constraints(torch.tensor(BOUNDS), eos_id=eos, suppressed=SUPPRESSED) for _ in range(2)]
    each = [(plain, memory), (engine, singles)]
    greedy = [
        Sampler(ModelScorer(*pair, prompts=prompts), prompts, bounds, GREEDY, score=ALL).run()
        for pair, bounds in zip(each, constraints, strict=True)
    ]
    want, got = ([h.log_prob for h in chain(*some)] for some in greedy)
    assert got == pytest.approx(want, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("n_prompt", [1, 4])
@pytest.mark.parametrize("name", BEAMED)
def test_beam_search_equals_that_of_the_layers(name, n_prompt, rng, monkeypatch):
    """Sentences end at their own bounds, or when no better hypothesis can come, in a cache that grows."""
    monkeypatch.setattr("transduce.engine.cache.CAPACITY", 3)
    plain, engine = models(CASES[name], rng)
    memory, singles, prompts = example_of(plain, engine, rng, n_prompt)
    free = tokens_of(search(plain, memory, prompts, None))
    eos = choose_eos([*chain(*free)])
    for end in (None, eos):
        clear = without_near_ties(plain, memory, prompts, end, rng)
        both = search(plain, memory, prompts, end), search(engine, singles, prompts, end)
        want, got = ([outputs[i] for i in clear] for outputs in both)
        assert tokens_of(got) == tokens_of(want)
    pairs = [*zip(chain(*got), chain(*want), strict=True)]
    assert [h.finished for h, _ in pairs] == [h.finished for _, h in pairs] and {h.finished for h, _ in pairs} == {
        True,
        False,
    }
    assert [h.log_prob for h, _ in pairs] == pytest.approx([h.log_prob for _, h in pairs], rel=1e-3, abs=1e-3)
    assert [h.score for h, _ in pairs] == pytest.approx([h.score for _, h in pairs], rel=1e-3, abs=1e-3)
    assert engine.calls < 2 * 5  # neither search took one call per token


@pytest.mark.parametrize("n_threads", [1, 2, 7])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("config", [TEXT, LANGUAGE], ids=["text", "language"])
def test_one_call_equals_step_by_step_search(config, int8, n_threads, rng):
    """To the last bit: texts, log-probabilities and scores."""
    plain, engine = models(config, rng, int8=int8)
    _, memory, prompts = example_of(plain, engine, rng, 2)
    eos = choose_eos([*chain(*tokens_of(search(engine, memory, prompts, None)))])
    ways = (ALL, BeamConfig(beam_size=2, alpha=0.0), BeamConfig(beam_size=5, n_best=5, at_max_length="by_score"))
    for way in (*ways, BeamConfig(beam_size=3, alpha=1.0, length_offset=0.0)):
        for end in (None, eos):
            want = search(engine, memory, prompts, end, way, step_by_step=True)
            engine.calls = 0
            with threads(n_threads):
                assert [*map(ranked, search(engine, memory, prompts, end, way))] == [*map(ranked, want)], (way, end)
            assert engine.calls == 2  # the prompt, and all that follows


@pytest.mark.parametrize(
    ("limit", "value", "n_calls"),
    [
        ("MAX_PRODUCTS", 0, range(12, 13)),
        ("MAX_PRODUCTS", 1 << 20, range(3, 12)),
        ("INITIAL_LENGTH", 1, range(5, 6)),
        ("INITIAL_LENGTH", 3, range(4, 5)),
    ],
)
def test_calls_are_short_and_tables_grow_on_demand(limit, value, n_calls, rng, monkeypatch):
    """For Ctrl-C, a call runs one or a few steps; tables grow to 2, 4, 8 and 12 tokens, or to 3, 6 and 12."""
    monkeypatch.setattr(f"transduce.engine.cpu.{limit}", value)
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 2)
    want = search(engine, memory, prompts, None, step_by_step=True)
    n_steps = engine.calls
    assert search(engine, memory, prompts, None) == want
    assert n_steps == max(BOUNDS) and engine.calls - n_steps in n_calls


def test_the_memory_is_not_modified(rng):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    before = memory.lengths.clone()
    assert search(engine, memory, prompts, None) == search(engine, memory, prompts, None)
    assert torch.equal(memory.lengths, before)


def test_a_beam_larger_than_the_number_of_hypotheses(rng):
    """With few tokens, most of them suppressed, there are fewer hypotheses than the beam has room for."""
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    never = [i for i in range(plain.vocab_size) if i not in (3, 7)]
    wide = BeamConfig(beam_size=6, n_best=6)
    want, got = (
        search(engine, memory, prompts, 3, wide, step_by_step=each, suppressed=never) for each in (True, False)
    )
    assert got == want and min(map(len, got)) < 6
    assert {token for some in got for h in some for token in h.tokens} == {7}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tokens", [[3], [2, 4], slice(None)])
def test_non_finite_logits(value, tokens, rng):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    bias_logits(engine, tokens, value)
    want, got = (search(engine, memory, prompts, None, step_by_step=each) for each in (True, False))
    assert repr(got) == repr(want)


RULES = [{"config": RulesConfig(min_length=20)}, {"config": RulesConfig(repetition_penalty=2.0)}]
RULES += [{"config": RulesConfig(renormalize=True)}, {"rules": [lambda scores, *_: scores]}]


@pytest.mark.parametrize("settings", RULES, ids=["min_length", "repetition_penalty", "renormalize", "own"])
def test_python_rules_fall_back_to_step_by_step_search(settings, rng, monkeypatch):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)

    def called(*_: object, **__: object) -> None:
        raise RuntimeError("one call")

    monkeypatch.setattr(Counting, "beam", called)
    assert len(search(engine, memory, prompts, 1, **settings)) == N
    assert len(search(engine, memory, prompts, 1, replace(ALL, early_stopping=True))) == N
    with pytest.raises(RuntimeError, match="one call"):
        search(engine, memory, prompts, None)
