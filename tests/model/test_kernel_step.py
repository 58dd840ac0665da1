"""Stacks in C++ compute what the layers compute, whatever is asked of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import CASES, CHOSEN, one_layer
from transduce.model.config import Tokens
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


@pytest.mark.parametrize("int8", [False, True])
def test_a_row_knows_nothing_of_its_neighbours(int8, rng, monkeypatch):
    """To the last bit, whichever rows share a tile or a thread."""
    monkeypatch.setattr("transduce.model.packed.SMALLEST", 0)
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    model = pack(contract.random_model(config, rng).float(), int8=int8)
    example = contract.random_example(config, rng, rows=11)
    with torch.inference_mode():
        memory = model.encode(example.source, example.source_lengths)
        together = contract.in_pieces(model, example.target, memory, (1,) * contract.TARGET)
        for row in (0, 3, 10):
            length = example.source_lengths[row : row + 1]
            alone = model.encode(example.source[row : row + 1, : int(length)], length)
            assert torch.equal(alone.states[0], memory.states[row, : int(length)])
            steps = contract.in_pieces(model, example.target[row : row + 1], alone, (1,) * contract.TARGET)
            assert torch.equal(steps[0], together[row])


def test_it_is_there_for_some_and_not_for_all():
    others = [config for config in CASES.values() if config.decoder and not KernelStep.fits(config, config.decoder)]
    assert len(FIT) >= 4 and any(c.encoder for c in FIT.values()) and not all(c.encoder for c in FIT.values())
    assert len(HEARD) >= 4
    assert {"rotary", "sinusoidal"} <= {config.positions for config in others}
    for some in (FIT, HEARD):
        assert {"rotary", "sinusoidal", "learned", "none"} <= {config.positions for config in some.values()}
    assert {config.attention for config in FIT.values()} == {"softmax"}


@pytest.mark.parametrize(
    ("activation", "gated", "norm"),
    [
        *[("relu", False, "layer"), ("gelu", False, "rms"), ("gelu_tanh", False, "layer"), ("silu", False, "rms")],
        *[("relu", True, "rms"), ("gelu", True, "layer"), ("gelu_tanh", True, "rms"), ("silu", True, "layer")],
    ],
)
def test_every_activation_and_norm(activation, gated, norm, rng):
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    plain, packed = both(replace(config, activation=activation, gated=gated, norm=norm), rng)
    example = contract.random_example(config, rng)
    with torch.inference_mode():
        near(packed.encode(example.source).states, plain.encode(example.source).states)
        memory = example.memory(plain)
        pieces = (1,) * contract.TARGET
        near(contract.in_pieces(packed, example.target, single(memory), pieces), example.logits(plain))
    assert packed.step.taken == contract.TARGET


def test_whoever_watches_a_layer_still_sees_it(rng):
    config = next(config for config in FIT.values() if config.encoder)
    plain, model = both(config, rng)
    example, seen = contract.random_example(config, rng), []
    memory = single(example.memory(plain))
    hook = model.decoder.layers[0].cross.register_forward_hook(lambda *_: seen.append(1))
    contract.in_pieces(model, example.target, memory, (1,) * contract.TARGET)
    assert len(seen) == contract.TARGET and not model.step.taken
    hook.remove()
    contract.in_pieces(model, example.target, memory, (1,) * contract.TARGET)
    assert len(seen) == contract.TARGET and model.step.taken == contract.TARGET


def test_a_copy_has_a_step_of_its_own(rng):
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    model = pack(contract.random_model(config, rng).float())
    assert isinstance(model.step, KernelStep)
    copied, seen = deepcopy(model), []
    example = contract.random_example(config, rng)
    copied.decoder.layers[0].cross.register_forward_hook(lambda *_: seen.append(1))
    for each, times in ((model, 0), (copied, contract.TARGET)):
        contract.in_pieces(each, example.target, example.memory(each), (1,) * contract.TARGET)
        assert len(seen) == times


def test_tokens_that_are_none_are_refused(rng):
    config = next(config for config in FIT.values() if not config.encoder)
    _, model = both(config, rng)
    with pytest.raises(IndexError, match=r"tokens are 0 to \d+, but there is -1 or 99999"):
        model.decode(torch.tensor([[-1], [99999]]), cache=model.new_cache())


def test_what_c_would_read_wrongly_is_refused(rng):
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    plain, model = both(config, rng)
    memory, cache = single(contract.random_example(config, rng).memory(plain)), model.new_cache()
    model.decode(torch.tensor([[1], [2], [3]]), memory=memory, cache=cache)
    with pytest.raises(
        ValueError, match=r"rows must be those of the cache, 3, and as many for each of 3 sentences, .* are 2"
    ):
        model.decode(torch.tensor([[1], [2]]), cache=cache)
    with pytest.raises(ValueError, match=r"x must be float32 \(\.\.\., \d+\), but it is torch\.float64 \(3, 23, \d+\)"):
        model.decode(
            torch.tensor([[1], [2], [3]]),
            memory=memory._replace(states=memory.states.double()),
            cache=model.new_cache(),
        )
    with pytest.raises(ValueError, match=r"vectors must be float32, as the weights are, but they are torch\.float64"):
        model.whole(memory.states.double(), None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@torch.inference_mode()
def test_ids_and_lengths_of_either_type_and_lengths_beyond(dtype, rng):
    """What PyTorch's layers take: 32 bits, and lengths that are longer than the memory."""
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    plain, model = both(config, rng)
    example = contract.random_example(config, rng)
    memory = Memory(example.memory(plain).states, torch.tensor([99, 21, 19]))
    want = plain.decode(example.target, memory=memory)
    told, target = single(memory)._replace(lengths=memory.lengths.to(dtype)), example.target.to(dtype)
    for pieces in ((1,) * contract.TARGET, (2,) + (1,) * (contract.TARGET - 2)):
        near(contract.in_pieces(model, target, told, pieces), want)


def test_two_searches_take_turns(rng):
    """What a step adds belongs to a search, not to the model."""
    config = next(config for config in FIT.values() if config.encoder)
    plain, model = both(config, rng)
    wide = single(contract.random_example(config, rng).memory(plain))
    lengths = (wide.lengths - 1).clamp_min(1)
    narrow = wide._replace(states=wide.states[:, : int(lengths.max())], lengths=lengths)
    wide = wide._replace(lengths=lengths)
    target = contract.random_example(config, rng).target

    def step_by_step(*memories):
        caches = [model.new_cache() for _ in memories]
        for t in range(target.size(1)):
            part = target[:, t : t + 1]
            yield [model.decoder_states(part, memory=m, cache=c) for m, c in zip(memories, caches, strict=True)]

    with torch.inference_mode():
        alone = zip(*(step_by_step(memory) for memory in (wide, narrow)), strict=True)
        for together, (one, other) in zip(step_by_step(wide, narrow), alone, strict=True):
            torch.testing.assert_close(together, one + other)
