"""Greedy search in one call of C++, against the layers in float64, and against the same search step by step."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import contract
from tests.engine.test_cpu import BEAMED, CASES, TEXT, Counting, single, threads
from tests.kernels import needs_cpp
from transduce.decode.beam import Hypothesis
from transduce.decode.config import BeamConfig, RulesConfig, SamplingConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Memory, Transformer

pytestmark = needs_cpp

N = 9
BOUNDS = [1, 12, 7, 2, 12, 12, 3, 9, 12]
SUPPRESSED = [2, 5]
SCORE = BeamConfig(alpha=0.6)


def models(config: TransformerConfig, rng, *, int8: bool = False) -> tuple[Transformer, Counting]:
    """As in test_cpu, but with a larger influence of the last token and smaller biases, so that outputs vary."""
    plain = contract.random_model(replace(config, tie="none"), rng)
    with torch.no_grad():
        plain.target_input.weight *= 5
        for name, parameter in plain.named_parameters():
            if name.endswith("bias"):
                parameter *= 0.1
    return plain, Counting(deepcopy(plain).float(), int8=int8)


def by_layers(model: Transformer, memory: Memory | None, prompts: Tensor, eos_id: int | None) -> list[list[int]]:
    """The definition, for each row alone, without a cache."""
    outputs = []
    for row, bound in enumerate(BOUNDS):
        own = None
        if memory is not None:
            own = Memory(memory.states[row : row + 1, : int(memory.lengths[row])], memory.lengths[row : row + 1])
        tokens = prompts[row].tolist()
        while len(tokens) < prompts.size(1) + bound and eos_id not in tokens[prompts.size(1) :]:
            logits = model.decode(torch.tensor([tokens]), memory=own)[0, -1]
            logits[SUPPRESSED] = -math.inf
            tokens.append(int(logits.argmax()))
        outputs.append(tokens[prompts.size(1) :])
    return outputs


def greedy(engine, memory, prompts: Tensor, eos_id: int | None, *, step_by_step=False, **settings) -> list[Hypothesis]:
    """The search, in one call or with one Python step per token."""
    constraints = Constraints(
        torch.tensor(BOUNDS), eos_id=eos_id, suppressed=SUPPRESSED, prompts=prompts,
        config=settings.pop("rules", RulesConfig()),
    )  # fmt: skip
    settings = {"sampling": GREEDY, "score": SCORE, "ends": (lambda *_: False) if step_by_step else None} | settings
    with torch.inference_mode():
        return [
            h for (h,) in Sampler(ModelScorer(engine, memory, prompts=prompts), prompts, constraints, **settings).run()
        ]


def example_of(plain: Transformer, engine: Counting, rng, n_prompt: int) -> tuple[Memory | None, Memory | None, Tensor]:
    """The memory in float64, the engine's memory, and prompts."""
    example = contract.random_example(plain.config, rng, rows=N)
    memory = example.memory(plain)
    return memory, single(memory), example.target[:, :n_prompt]


def choose_eos(outputs: Sequence[list[int]]) -> int:
    """The token that ends these outputs at the most different lengths."""
    ends = {token: {row.index(token) for row in outputs if token in row} for token in sorted(set(chain(*outputs)))}
    return max(ends, key=lambda token: len(ends[token]))


@pytest.mark.parametrize("n_prompt", [1, 4])
@pytest.mark.parametrize("name", BEAMED)
def test_greedy_search_equals_that_of_the_layers(name, n_prompt, rng, monkeypatch):
    """Rows end at their own bounds or with EOS, in a cache that grows."""
    monkeypatch.setattr("transduce.engine.cache.CAPACITY", 3)
    plain, engine = models(CASES[name], rng)
    memory, singles, prompts = example_of(plain, engine, rng, n_prompt)
    with torch.inference_mode():
        free = by_layers(plain, memory, prompts, None)
        assert [h.tokens for h in greedy(engine, singles, prompts, None)] == free
        eos = choose_eos(free)
        want = by_layers(plain, memory, prompts, eos)
        got = greedy(engine, singles, prompts, eos)
        assert [h.tokens + [eos] * h.finished for h in got] == want
        assert any(h.finished and len(h.tokens) + 1 < bound for h, bound in zip(got, BOUNDS, strict=True))
        for row, h in enumerate(got):
            own = None if memory is None else Memory(memory.states[[row]], memory.lengths[[row]])
            text = torch.tensor([[*prompts[row].tolist(), *want[row]]])
            log_probs = plain.decode(text[:, :-1], memory=own)[0, n_prompt - 1 :].log_softmax(-1)
            assert h.log_prob == pytest.approx(
                float(log_probs.gather(1, text[0, n_prompt:, None]).sum()), rel=1e-3, abs=1e-3
            )
    assert engine.calls < 3 * 4  # none of the three searches took one call per token


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("int8", [False, True])
def test_one_call_equals_step_by_step_search(int8, n_threads, rng):
    """To the last bit, texts and log-probabilities."""
    plain, engine = models(TEXT, rng, int8=int8)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    with threads(n_threads):
        steps = greedy(engine, memory, prompts, None, step_by_step=True)
        eos = choose_eos([h.tokens for h in steps])
        for end in (None, eos):
            engine.calls = 0
            want = greedy(engine, memory, prompts, end, step_by_step=True)
            n_steps = max(len(h.tokens) + h.finished for h in want)
            assert engine.calls == n_steps and (end is not None or n_steps == max(BOUNDS))
            assert greedy(engine, memory, prompts, end) == want
            assert engine.calls == n_steps + min(n_steps, 2)  # the prompt, and all that follows, if anything does


def test_the_memory_is_not_modified(rng):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    before = memory.lengths.clone()
    assert greedy(engine, memory, prompts, None) == greedy(engine, memory, prompts, None)
    assert torch.equal(memory.lengths, before)


def test_without_a_score_no_log_probability_is_computed(rng):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    want, got = (greedy(engine, memory, prompts, None, score=score) for score in (SCORE, None))
    assert [h.tokens for h in got] == [h.tokens for h in want]
    assert all(math.isnan(h.log_prob) for h in got)


def bias_logits(engine: Counting, tokens: list[int] | slice, value: float) -> None:
    """Add a number to the logits of some tokens."""
    bias = torch.zeros(engine.vocab_size)
    bias[tokens] = value
    engine.output.linear.bias = bias


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tokens", [[3], [2, 4], slice(None)])
def test_non_finite_logits(value, tokens, rng):
    """The tokens are those of the search step by step; if all logits are NaN, it is the first token."""
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)
    bias_logits(engine, tokens, value)
    want, got = (greedy(engine, memory, prompts, None, step_by_step=each) for each in (True, False))
    assert [h.tokens for h in got] == [h.tokens for h in want]
    np.testing.assert_array_equal([h.log_prob for h in got], [h.log_prob for h in want])


@pytest.mark.parametrize(
    "settings",
    [{"rules": RulesConfig(min_length=20)}, {"rules": RulesConfig(repetition_penalty=2.0)},
     {"rules": RulesConfig(no_repeat_ngram=1)}, {"sampling": SamplingConfig(), "rngs": [np.random.default_rng(i) for i in range(N)]}],
    ids=["min_length", "repetition_penalty", "no_repeat_ngram", "sample"],
)  # fmt: skip
def test_rules_and_sampling_fall_back_to_step_by_step_search(settings, rng, monkeypatch):
    plain, engine = models(TEXT, rng)
    _, memory, prompts = example_of(plain, engine, rng, 1)

    def called(*_: object, **__: object) -> None:
        raise RuntimeError("one call")

    monkeypatch.setattr(Counting, "greedy", called)
    assert len(greedy(engine, memory, prompts, 1, **settings)) == N
    with pytest.raises(RuntimeError, match="one call"):
        greedy(engine, memory, prompts, None)
