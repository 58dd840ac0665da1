"""Rows from which a cache continues: any integer type, but only existing rows. Windows bound its size."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import BASE, CASES, DECODER
from transduce.engine.cache import KVCache
from transduce.engine.cpu import CPUEngine
from transduce.model.cache import Cache


def filled(n_rows):
    """A cache of one layer, whose row m has the number m."""
    cache = Cache(1)
    numbers = torch.arange(float(n_rows))[:, None, None, None].expand(n_rows, 2, 3, 4)
    cache.layers[0].append(numbers.contiguous(), -numbers.contiguous())
    return cache


def rows_of(cache):
    return cache.layers[0].buffers[0][:, 0, 0, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("rows", [[3, 0, 0, 2], [1, 1], [2, 1, 0, 3, 3, 3]])
def test_reorder_accepts_any_integer_type(dtype, rows):
    cache = filled(4)
    cache.reorder(torch.tensor(rows, dtype=dtype))
    assert rows_of(cache) == rows


@pytest.mark.parametrize("rows", [[0, 1, 2, 4], [-1, 1, 2, 3], [0, 1, 2, 1 << 40], [9], [0] * 5 + [4]])
def test_reorder_refuses_missing_rows(rows):
    with pytest.raises((IndexError, RuntimeError)):
        filled(4).reorder(torch.tensor(rows))


@needs_cpp
@pytest.mark.parametrize("rows", [[0, 1, 2, 4], [-1, 1, 2, 3], [0, 1, 2, 1 << 40], [9], [0] * 5 + [4]])
def test_reorder_refuses_missing_rows_in_cpp(rows):
    cache = KVCache()
    cache.make_room(4, 3, (1, 2, 4)).zero_()
    cache.advance(3)
    with pytest.raises((IndexError, RuntimeError)):
        cache.reorder(torch.tensor(rows))


@needs_cpp
def test_linear_attention_states_are_reordered(rng):
    """Also with one key head and one row, where their memory layout is that of keys."""
    config = replace(BASE, decoder=replace(DECODER, n_layers=1), attention="linear", n_heads=2, n_kv_heads=1)
    model = contract.random_model(config, rng).float()
    example = contract.random_example(config, rng, rows=1)
    memory, cache = model.encode(example.source.clone(), example.source_lengths), model.new_cache()
    with torch.no_grad():
        whole = model.decoder_states(example.target, memory=memory)
        for t in range(example.target.size(1)):
            step = model.decoder_states(example.target[:, t : t + 1], memory=memory, cache=cache)
            torch.testing.assert_close(step[:, 0], whole[:, t], rtol=1e-4, atol=1e-4)
            cache.reorder(torch.tensor([0]))


@pytest.mark.parametrize("name", ["decoder-window", "tokens-tokens-grouped-window"])
@pytest.mark.parametrize("kind", [lambda model: model, pytest.param(CPUEngine, marks=needs_cpp)])
def test_a_window_bounds_the_cache_in_pytorch_and_cpp(name, kind, rng):
    """100 positions with windows of 5, by a prompt and one by one: the states are those without a cache."""
    plain = contract.random_model(replace(CASES[name], max_positions=200), rng).float()
    model, memory = kind(deepcopy(plain)), None
    if plain.encoder is not None:
        memory = plain.encode(torch.randint(5, 9, (2, 6), generator=rng))
    target, cache = torch.randint(5, 9, (2, 100), generator=rng), model.new_cache()
    with torch.no_grad():
        want = plain.decoder_states(target, memory=memory)
        parts = [
            model.decoder_states(part, memory=memory, cache=cache) for part in target.split((40, *[1] * 60), dim=1)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), want, rtol=1e-4, atol=1e-4)
    if isinstance(cache, KVCache):
        assert cache.past.size(2) <= 10
    else:
        assert all(buffer.size(2) <= 10 for layer in cache.layers for buffer in layer.buffers)
