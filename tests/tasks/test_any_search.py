"""Whatever is searched, in whatever way: properties of the outputs of drawn models and settings, not values."""

import math

import pytest
import torch

from tests.tasks.drawn import WORDS, Case
from transduce.tasks.outputs import Output

CLOSE = {"float64": 1e-9, "float32": 1e-4, "int8": 0.3, "bf16": 0.6}
"""How far the score of an output may be off, in nats: by rounding alone."""


def same(got: list[list[Output]], want: list[list[Output]], close: float, tied: float) -> None:
    for one, other in zip(got, want, strict=True):
        one, other = in_order(one, tied), in_order(other, tied)
        assert [(o.tokens, o.finished) for o in one] == [(o.tokens, o.finished) for o in other]
        assert [o.score for o in one] == pytest.approx([o.score for o in other], abs=close, nan_ok=True)
        assert [o.log_prob for o in one] == pytest.approx([o.log_prob for o in other], abs=close, nan_ok=True)


def in_order(outputs: list[Output], tied: float) -> list[Output]:
    """Outputs whose scores differ by the last bits alone in the order of their tokens: which is first, rounding decides."""
    groups: list[list[Output]] = []
    for output in outputs:
        if groups and abs(output.score - groups[-1][-1].score) <= tied * abs(output.score):
            groups[-1].append(output)
        else:
            groups.append([output])
    return [output for group in groups for output in sorted(group, key=lambda o: (o.tokens, o.finished))]


def check(seed: int, *, threads: float = 0.0) -> None:
    """Batch, order, neighbours, padding, threads and the cache change nothing; n best of n inputs come out, sorted and
    distinct; and each has the score that whole forward passes give it.

    Args:
        threads: how often the search is also made by two threads, which takes as long as the rest together.
    """
    case = Case(seed)
    got = case.search()
    close = CLOSE[case.precision]
    tied = 8 * torch.finfo(torch.float64 if case.precision == "float64" else torch.float32).eps
    assert len(got) == len(case.inputs)
    if case.exact:
        same(case.search(batch=case.rng.randint(1, 20)), got, close, tied)
        if case.rng.random() < threads:
            n_threads = torch.get_num_threads()
            torch.set_num_threads(2)
            try:
                same(case.search(), got, close, tied)
            finally:
                torch.set_num_threads(n_threads)
        if not case.drawn:
            numbers = range(len(got))
            same(case.search(case.rng.sample(numbers, len(got))), got, close, tied)
            i = case.rng.choice(numbers)
            same(case.search([i]), [got[i]], close, tied)
        same(case.search(uncached=True), got, close, tied)
    for i, outputs in enumerate(got):
        check_outputs(case, i, outputs, close)


def check_outputs(case: Case, i: int, outputs: list[Output], close: float) -> None:
    """The same of the outputs of input i."""
    way = case.way
    if case.task == "language":
        assert 1 <= len(outputs) <= way.n
    else:
        assert len(outputs) == way.n_best
    if case.task == "text" and not case.inputs[i].strip():
        assert [o.text for o in outputs] == [""] * way.n_best
        return
    if not case.drawn:
        while len(outputs) > 1 and outputs[-1] is outputs[-2]:  # no more exist
            outputs = outputs[:-1]
        assert len({(*o.tokens, o.finished) for o in outputs}) == len(outputs)
        assert [o.score for o in outputs] == sorted((o.score for o in outputs), reverse=True)
    for output in outputs:
        if getattr(way, "words", "any") == "known" and output.text.strip():
            *whole, last = output.text.split()
            assert {*whole} <= {*WORDS}
            assert any(word.startswith(last) for word in WORDS), "cut where nothing else was left"
        unknown = case.ctc_weight and (not output.finished or way.repetition_penalty != 1)
        if unknown or math.isnan(output.log_prob) or output.log_prob < -5000:  # what rules made impossible come
            continue
        log_prob, score = case.scores(i, output)
        assert output.log_prob == pytest.approx(log_prob, abs=close)
        assert output.score == pytest.approx(score, abs=close)


FEW = (37, 84, 97, 99, 104, 116, 175, 202, 208, 219, 234, 299, 410, 419, 440, 478, 490)
"""Quick ones that have everything in them; see the test below."""


@pytest.mark.parametrize("seed", FEW)
def test_few_random_searches_keep_the_invariants(seed):
    check(seed)


def test_threads_do_not_change_outputs():
    check(440, threads=1.0)


@pytest.mark.long
def test_chosen_seeds_cover_tasks_precisions_and_settings():
    cases = [Case(seed) for seed in FEW]
    for task in ("text", "speech", "language"):
        own = [case for case in cases if case.task == task]
        assert {"float64", "float32"} <= {case.precision for case in own}
        assert {case.drawn for case in own} == {False, True}
        settings = {name for case in own for name, value in vars(case.way).items() if value != plain(case.way, name)}
        wanted = {"min_length", "no_repeat_ngram", "repetition_penalty", "suppress", "beam_size"}
        if task != "language":
            wanted |= {"forbid", "lm_weight", "max_length", "at_max_length"}
        assert wanted <= settings, task
        assert any(case.n_models > 1 for case in own) or task == "speech"
        configs = [case.engines[0].config for case in own]
        assert {config.norm_position for config in configs} == {"pre", "post"}
        assert any(config.gated and config.window and config.positions in ("rotary", "none") for config in configs)
    assert {case.precision for case in cases} == {"float64", "float32", "int8", "bf16"}
    assert any(case.prefix and case.require for case in cases)
    assert any(case.ctc_weight and case.way.words == "known" for case in cases)


def plain(way: object, name: str) -> object:
    """What a setting is where nobody draws it."""
    return getattr(type(way)(), name)


def check_some(seeds: range) -> None:
    """Check several; the last one that is printed is the one that failed."""
    for seed in seeds:
        print("seed", seed)
        check(seed, threads=0.25)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(24 + 17 * k, 1000, 17 * 6) for k in range(6)], ids=str)
def test_some_random_searches_keep_the_invariants(seeds):
    check_some(seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [range(k, 1000, 61) for k in range(61)], ids=str)
def test_many_random_searches_keep_the_invariants(seeds):
    check_some(seeds)
