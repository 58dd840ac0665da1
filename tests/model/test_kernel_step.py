"""Stacks in C++ compute what the layers compute, whatever is asked of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import CASES, CHOSEN, one_layer
from transduce.model.kernel_step import KernelEncoder, KernelStep
from transduce.model.packed import pack
from transduce.model.transformer import Memory

pytestmark = needs_cpp

FIT = {name: config for name, config in CASES.items() if KernelStep.fits(config, config.decoder)}
HEARD = {name: config for name, config in CASES.items() if KernelEncoder.fits(config, config.encoder)}
IN_LAYERS = [name for name in CHOSEN if "-tie-" not in name and "-conv" not in name]
"""Tables, and what becomes of frames: a stack of layers does not see them."""
BEAMED = [
    "tokens-tokens-post-sinusoidal", "tokens-tokens-rotary", "decoder-pre-none", "decoder-rotary-bands",
    "stacked-frames-tokens-pre-none", "tokens-tokens-odd-width",
]  # fmt: skip

some_fit = pytest.mark.parametrize("name", [name for name in IN_LAYERS if name in FIT])
some_heard = pytest.mark.parametrize("name", [name for name in IN_LAYERS if name in HEARD])
BEAMS = 5


class Counting(KernelStep):
    """A step that counts how often it was taken."""

    taken = 0

    def __call__(self, *arguments):
        self.taken += 1
        return super().__call__(*arguments)


def both(config, rng):
    """A model in float64, as its layers compute, and packed in float32, with a step that counts."""
    plain = contract.random_model(config, rng)
    packed = pack(deepcopy(plain).float())
    if packed.step is not None:
        packed.step = Counting(*packed.step.made_of)
    return plain, packed


def near(got, want):
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5 * float(want.abs().max()))


def single(memory):
    return None if memory is None else Memory(memory.states.float(), memory.lengths)


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def a_position_is_that_of_the_whole(config, rng, pieces=((1,) * contract.TARGET, (5, 1, 11, 2), (18, 1))):
    plain, packed = both(config, rng)
    example = contract.random_example(config, rng, rows=9)  # two threads take four rows each and more
    memory = example.memory(plain)
    want = plain(source=example.source, source_lengths=example.source_lengths, target_in=example.target)
    with torch.inference_mode():
        for each in pieces:
            near(contract.in_pieces(packed, example.target, single(memory), each), want)
    assert packed.step.taken == sum(length == 1 for each in pieces for length in each)


@some_fit
def test_a_position_is_that_of_the_whole(name, rng):
    with threads(1):
        a_position_is_that_of_the_whole(CASES[name], rng)


@pytest.mark.parametrize("name", ["tokens-tokens-post-sinusoidal", "decoder-rotary"])
def test_two_threads_share_the_rows(name, rng):
    with threads(2):
        config = one_layer(CASES[name])
        a_position_is_that_of_the_whole(config, rng, pieces=((1, 1, contract.TARGET - 2),))
        if name in HEARD:
            an_encoder_is_that_of_the_layers(config, rng)


@pytest.mark.parametrize("name", BEAMED)
def test_beams_that_change_places(name, rng):
    beams_that_change_places(CASES[name], rng)


def beams_that_change_places(config, rng):
    """Rows multiply, change places and leave, sentences too: the same as decoding each row's tokens alone."""
    plain, packed = both(config, rng)
    example = contract.random_example(config, rng)
    memory, n = example.memory(plain), len(example.target)
    cache = packed.new_cache()
    history, sentence = example.target[:, :1], torch.arange(n)
    with torch.inference_mode():
        states = packed.decoder_states(history, memory=single(memory), cache=cache)
        rows = torch.arange(n).repeat_interleave(BEAMS)
        for step in range(1, contract.TARGET):
            cache.reorder(rows)
            if step == 9:  # the second sentence is done
                keep = torch.tensor([0, 2])
                cache.keep(keep)
            history, sentence = history[rows], sentence[rows]
            new = torch.randint(config.decoder.input.vocab_size, (len(rows), 1), generator=rng)
            history = torch.cat((history, new), dim=1)
            states = packed.decoder_states(new, cache=cache)
            own = None if memory is None else Memory(memory.states[sentence], memory.lengths[sentence])
            near(packed.project(states)[:, 0].float(), plain.decode(history, memory=own)[:, -1])
            left = sentence.unique_consecutive().numel()
            rows = torch.arange(left)[:, None] * BEAMS + torch.randint(BEAMS, (left, BEAMS), generator=rng)
            rows = (rows[[0, 2]] if step == 8 else rows).flatten()
    assert packed.step.taken == contract.TARGET


def an_encoder_is_that_of_the_layers(config, rng):
    plain, packed = both(config, rng)
    assert isinstance(packed.whole, KernelEncoder)
    example = contract.random_example(config, rng, rows=9)
    source = example.source.float() if example.source.is_floating_point() else example.source
    with torch.inference_mode():
        for lengths in (example.source_lengths, None):
            want, got = plain.encode(example.source, lengths), packed.encode(source, lengths)
            assert (got.lengths is None) == (lengths is None)
            n_positions = [want.states.size(1)] * 9 if lengths is None else want.lengths.tolist()
            for row, n in enumerate(n_positions):
                near(got.states[row, :n], want.states[row, :n])
                assert not got.states[row, n:].any()


@some_heard
def test_an_encoder_is_that_of_the_layers(name, rng):
    with threads(1):
        an_encoder_is_that_of_the_layers(CASES[name], rng)


@pytest.mark.long
def test_every_other_model_too(rng):
    for name, config in CASES.items():
        print(name)
        with threads(1):
            if name in FIT:
                a_position_is_that_of_the_whole(config, rng)
                beams_that_change_places(config, rng)
            if name in HEARD:
                an_encoder_is_that_of_the_layers(config, rng)
        if name not in IN_LAYERS or config.ctc_layers:  # which lie below the last layer
            continue
        with threads(2):
            if name in FIT:
                a_position_is_that_of_the_whole(one_layer(config), rng, pieces=((1, 1, contract.TARGET - 2),))
            if name in HEARD:
                an_encoder_is_that_of_the_layers(one_layer(config), rng)
