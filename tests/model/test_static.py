"""Decoding in slots of fixed shape computes what the layers compute, and its step never changes its shape."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import transduce as td
from tests import contract
from tests.decode.test_beam import constrained, greedy, same, starts
from tests.language_runs import language_run
from tests.model.test_contract import CASES, one_layer
from tests.runs import random_run
from transduce.decode.beam import beam_search
from transduce.decode.sample import Sampler
from transduce.decode.scorer import ModelScorer
from transduce.model import static
from transduce.model.static import StaticTransformer, graphed, make_static
from transduce.model.transformer import Transformer
from transduce.tasks import load as loading

CASES = CASES | {
    f"{shape}-most": replace(CASES[f"{shape}-everything"], window=None, n_experts=0)
    for shape in ("tokens-tokens", "decoder")
}
# the tables of positions of the first two end in the middle, where the layers' own way goes on
ENDING = ["tokens-tokens-pre-sinusoidal", "decoder-most"]
WHOLE = [
    "tokens-tokens-post-sinusoidal", "frames-tokens-pre-learned", "stacked-frames-tokens-post-none", "decoder-rotary",
    "tokens-tokens-grouped-queries", "tokens-tokens-most", "decoder-most",
]  # fmt: skip
GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def small_rooms(monkeypatch):
    """So small that an example fills several."""
    monkeypatch.setattr(static, "POSITIONS", 4)
    monkeypatch.setattr(static, "KEYS", 4)


def model_of(name: str, rng: torch.Generator, n_positions: int = 31) -> Transformer:
    return contract.random_model(replace(CASES[name], max_positions=n_positions), rng)


class Counting:
    """Does not make steps quick, but counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, step):
        def counted() -> None:
            self.taken += 1
            step()

        return counted


# What it computes


@pytest.mark.parametrize(("name", "n_positions"), [*((n, 7) for n in ENDING), *((n, 31) for n in WHOLE)])
@pytest.mark.parametrize("rule", [contract.whole_equals_step_by_step, contract.beams_fold])
def test_it_keeps_the_contract(name, n_positions, rule, rng):
    counting = Counting()
    model = make_static(model_of(name, rng, n_positions), counting)
    with torch.inference_mode():
        rule(model, rng)
    # positions that come alone behind others: of 1 + ... + 1 + 8 + 1 + 1, 5 + 1 + ... and 18 + 1, or of 3 + 1 + 14 + 1
    whole = rule is contract.whole_equals_step_by_step
    assert counting.taken == ({7: 6 + 1, 31: 8 + 2 + 1 + 1} if whole else {7: 1, 31: 2})[n_positions]


BOUNDS = [3, 10, 9, 10, 6, 8, 4, 10]


def found(model: Transformer, rng: torch.Generator) -> list[list]:
    """What beam search, greedy search and sampling find for a batch whose rows end one after the other."""
    config = model.config
    memory, prompts = None, torch.randint(3, 31, (8, 5), generator=rng)
    if config.encoder is not None:
        example = contract.random_example(config, rng, rows=8)
        with torch.inference_mode():
            memory, prompts = model.encode(example.source, example.source_lengths), starts(8)

    def scorer() -> ModelScorer:
        return ModelScorer(model, memory, prompts=None if memory else prompts)

    beams = beam_search(scorer(), prompts, constrained(BOUNDS), beam_size=3, n_best=3)
    likeliest = greedy(scorer(), BOUNDS) if memory else []  # it begins with one token
    rngs = [np.random.default_rng((0, i)) for i in range(24)]
    sampled = Sampler(scorer(), prompts, constrained(BOUNDS), rngs=rngs, alpha=1.0).run()
    return [*beams, likeliest, sampled]


@pytest.mark.parametrize("name", ["frames-tokens-pre-learned", "decoder-most"])
def test_searches_find_the_same(name, rng):
    """Twice, as the second time all slots are there and hold what the first left; it is NaN, which padding must not show."""
    model, seed = model_of(name, rng), rng.initial_seed()
    counting = Counting()
    quick = make_static(deepcopy(model), counting)
    n_slots = []
    for _ in range(2):
        for want, got in zip(*(found(each, rng.manual_seed(seed)) for each in (model, quick)), strict=True):
            same(got, want)
        n_slots.append(len(quick.slots.known))
        for slot in quick.slots.known:
            assert slot.is_free
            slot.past.fill_(torch.nan)
            slot.memory.fill_(torch.nan)
    assert n_slots[0] == n_slots[1] and counting.taken > 30
    shapes = {slot.shape for slot in quick.slots.known}
    assert len(shapes) == n_slots[0] and len({shape.n_sentences for shape in shapes}) > 1  # batches that shrink move


def test_searches_that_take_turns_do_not_meet(rng):
    """Two caches of one shape have two slots; the slot of a search that was given up is free again."""
    model = model_of("decoder-pre-none", rng)
    quick, prompts = make_static(deepcopy(model)), torch.randint(3, 31, (2, 1, 5), generator=rng)
    told: dict[Transformer, list[list[int]]] = {}
    for each in (model, quick):
        samplers = [
            Sampler(ModelScorer(each, prompts=own), own, constrained([9], eos_id=None), rngs=[np.random.default_rng(3)])
            for own in prompts
        ]
        told[each] = [[int(sampler.step()) for sampler in samplers] for _ in range(9)]
    assert told[quick] == told[model]
    assert [shape.n_positions for shape in sorted(slot.shape for slot in quick.slots.known)] == [8, 8, 16, 16]
    assert sum(not slot.is_free for slot in quick.slots.known) == 2
    del samplers
    assert all(slot.is_free for slot in quick.slots.known)


def test_idle_slots_are_dropped_where_they_take_too_much(rng, monkeypatch):
    model = make_static(model_of("decoder-pre-none", rng))
    with torch.inference_mode():
        for n_rows in (1, 2, 4):
            target = torch.randint(31, (n_rows, contract.TARGET), generator=rng)
            contract.in_pieces(model, target, None, (1,) * contract.TARGET)
        before = [(slot.shape.n_sentences, slot.shape.n_positions) for slot in model.slots.known]
        assert before == [(n, room) for n in (1, 2, 4) for room in (4, 8, 16, 32)]
        sizes = [slot.n_bytes for slot in model.slots.known]
        monkeypatch.setattr(static, "IDLE_BYTES", sum(sizes[-3:]))
        contract.in_pieces(model, target[:, :2], None, (1, 1))
    after = [(slot.shape.n_sentences, slot.shape.n_positions) for slot in model.slots.known]
    assert after == [(4, 8), (4, 16), (4, 32), (4, 4)]


def test_states_stay_when_the_next_position_comes(rng):
    model, target = make_static(model_of("decoder-pre-none", rng)), torch.randint(31, (2, 4), generator=rng)
    with torch.inference_mode():
        cache, whole = model.new_cache(), model.decoder_states(target)
        parts = [model.decoder_states(target[:, i : i + 1], cache=cache) for i in range(4)]
    contract.same(torch.cat(parts, dim=1), whole)


# That its shape is one


class Operators(TorchDispatchMode):
    """Notes every operator with the shapes that it is given, and where tensors from outside lie."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple] = []
        self.made: dict[int, Tensor] = {}
        """By address; kept, so that no address is used twice."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = tree_leaves((args, kwargs))
        tensors = [x for x in given if isinstance(x, Tensor)]
        outside = [x.data_ptr() for x in tensors if x.untyped_storage().data_ptr() not in self.made]
        others = repr([x for x in given if not isinstance(x, Tensor)])
        self.seen.append((function, [(x.shape, x.stride()) for x in tensors], others, outside))
        result = function(*args, **(kwargs or {}))
        self.made |= {x.untyped_storage().data_ptr(): x for x in tree_leaves(result) if isinstance(x, Tensor)}
        return result


@pytest.mark.parametrize("name", ["tokens-tokens-pre-learned", "decoder-most"])
def test_a_step_is_the_same_operators_on_the_same_tensors(name, rng):
    """At every position of a bucket, and for another batch in it: that is what a graph replays."""
    steps: dict[static.Shape, list[list[tuple]]] = {}
    model = model_of(name, rng)

    def capture(step):
        def watched() -> None:
            with Operators() as operators:
                step()
            last = model.slots.known[-1]
            steps.setdefault(last.shape, []).append(operators.seen)

        return watched

    make_static(model, capture)
    with torch.inference_mode():
        for n_rows in (3, 4):
            example = contract.random_example(model.config, rng, rows=n_rows)
            contract.in_pieces(model, example.target[:, :10], example.memory(model), (1,) * 10)
    assert [len(each) for each in steps.values()] == [2 * 3, 2 * 4, 2 * 2]  # room for 4, 8 and 16
    for first, *others in steps.values():
        assert len(first) > 50 and all(other == first for other in others)


def test_nothing_of_a_step_is_read_by_the_host():
    """Fake tensors have a device, but no numbers: to read one is an error, and so is another device's tensor."""
    with FakeTensorMode():
        with GPU:
            model = Transformer(one_layer(CASES["tokens-tokens-most"])).eval()
            rows = torch.tensor([2, 0, 1, 1])
        make_static(model, lambda step: step)
        example = contract.random_example(model.config, torch.Generator())
        target = example.target.to(GPU)
        with torch.inference_mode():
            memory, cache = model.encode(example.source.to(GPU), example.source_lengths.to(GPU)), model.new_cache()
            for i in range(3):
                logits = model.decode(target[:, i : i + 1], memory=memory, cache=cache)
                cache.reorder(rows[:3])
            assert logits.device == GPU and cache.slot is not None and cache.slot.states.device == GPU


@pytest.mark.process
@pytest.mark.long
def test_compiled_it_is_compiled_once_for_every_bucket():
    """Two batches in the same buckets; the program prints graphs, compilations after the first batch, and differences."""
    command = [sys.executable, "-m", "tests.model.compiled_static"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        name, n_slots, n_graphs, n_frames, later, apart = line.split()
        assert int(n_slots) >= 3 and n_graphs == n_frames == n_slots and later == "0", name
        assert float(apart) < 1e-9, name
    assert len(done.stdout.splitlines()) == 2


# Where it is used


@pytest.mark.parametrize("name", ["tokens-tokens-window", "decoder-experts", "decoder-linear", "encoder-pre-none"])
def test_what_does_not_fit_is_left_as_it_is(name):
    assert type(make_static(Transformer(CASES[name]))) is Transformer


def test_whoever_watches_a_layer_or_wants_gradients_gets_the_layers_way(rng):
    counting = Counting()
    model = make_static(model_of("tokens-tokens-pre-learned", rng), counting)
    example, seen = contract.random_example(model.config, rng), []
    want, cache = example.logits(model).detach(), model.new_cache()

    def step(i: int) -> None:
        memory = example.memory(model) if i == 0 else None
        logits = model.decode(example.target[:, i : i + 1], memory=memory, cache=cache)
        contract.same(logits[:, 0], want[:, i])
        assert logits.requires_grad == torch.is_grad_enabled()

    for i in range(9):
        hook = model.decoder.layers[1].cross.register_forward_hook(lambda *_: seen.append(1))
        if i in (1, 2, 5, 8):
            hook.remove()
        with torch.set_grad_enabled(i == 8):
            step(i)
        hook.remove()
    assert len(seen) == 5 and counting.taken == 3


def test_a_model_that_moves_or_is_copied_forgets_its_slots(rng):
    model = make_static(model_of("decoder-pre-none", rng))
    example = contract.random_example(model.config, rng)

    def logits(model: Transformer) -> Tensor:
        with torch.no_grad():
            return contract.in_pieces(model, example.target, None, (1,) * contract.TARGET)

    want, n_slots, copy = logits(model), len(model.slots.known), deepcopy(model)
    assert n_slots == 4 and not copy.slots.known
    with torch.no_grad():
        copy.output.zero_()
    contract.same(logits(copy), torch.zeros_like(want))
    contract.same(logits(model), want)
    model.float()
    assert logits(model).dtype == torch.float32 and {slot.past.dtype for slot in model.slots.known} == {torch.float32}


@pytest.mark.parametrize("kind", ["translator", "generator"])
def test_what_is_loaded_onto_a_gpu_decodes_so_where_the_user_asks(tmp_path, monkeypatch, kind):
    run = random_run(tmp_path / "run") if kind == "translator" else language_run(tmp_path / "run", "pieces")
    assert not isinstance(td.load(run).model, StaticTransformer)
    with FakeTensorMode():
        with GPU:
            fake = Transformer(loading.load_run(run).model)
        monkeypatch.setattr(fake, "to", lambda dtype: fake)  # fake parameters have nowhere to go
        monkeypatch.setattr(loading, "load_model", lambda *_: fake)
        assert not isinstance(td.load(run, "cuda").model, StaticTransformer)
        monkeypatch.setenv("TRANSDUCE_CUDA_GRAPHS", "1")
        assert isinstance(td.load(run, "cuda").model, StaticTransformer)


def test_a_graph_is_captured_after_the_step_has_run_aside(monkeypatch):
    calls: list[str] = []

    @contextmanager
    def inside(name: str) -> Iterator[None]:
        calls.append(f"{name} {{")
        yield
        calls.append("}")

    graph = MagicMock()
    monkeypatch.setattr(static, "side_stream", lambda device: graph)
    for name in ("current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, create_autospec(getattr(torch.cuda, name), return_value=graph))
    for name in ("device", "stream", "graph"):
        specified = create_autospec(getattr(torch.cuda, name), side_effect=lambda *_, name=name, **__: inside(name))
        monkeypatch.setattr(torch.cuda, name, specified)
    replay = graphed(lambda: calls.append("step"), GPU)
    assert calls == ["device {", "stream {", "step", "step", "}", "graph {", "step", "}", "}"]
    assert replay is graph.replay
