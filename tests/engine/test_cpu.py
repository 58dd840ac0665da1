"""C++ computes what the layers compute, for every model that it supports; the layers compute the others."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import CASES, CHOSEN, one_layer
from transduce.engine.cpu import CPUEngine
from transduce.engine.support import unsupported
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Memory, Transformer

pytestmark = needs_cpp

DECODERS = {
    name: config for name, config in CASES.items() if config.decoder and not unsupported(config, config.decoder)
}
ENCODERS = {
    name: config for name, config in CASES.items() if config.encoder and not unsupported(config, config.encoder)
}
IN_LAYERS = [name for name in CHOSEN if "-tie-" not in name and "-conv" not in name]
"""Tables, and what becomes of frames: a stack of layers does not see them."""
BEAMED = [
    "tokens-tokens-post-sinusoidal", "tokens-tokens-rotary", "decoder-pre-none", "decoder-rotary-bands",
    "stacked-frames-tokens-pre-none", "tokens-tokens-odd-width", "tokens-tokens-grouped-window",
]  # fmt: skip
BEAMS = 5
TEXT = next(config for config in DECODERS.values() if config.encoder and isinstance(config.encoder.input, Tokens))
LANGUAGE = next(config for config in DECODERS.values() if not config.encoder)

some_decoders = pytest.mark.parametrize("name", [name for name in IN_LAYERS if name in DECODERS])
some_encoders = pytest.mark.parametrize("name", [name for name in IN_LAYERS if name in ENCODERS])


class Counting(CPUEngine):
    """An engine that counts its calls of C++."""

    calls = 0

    def _fill(self, *arguments):
        self.calls += 1
        return super()._fill(*arguments)


def both(config: TransformerConfig, rng, *, int8: bool = False) -> tuple[Transformer, Counting]:
    """A model in float64, as its layers compute, and an engine in float32."""
    plain = contract.random_model(config, rng)
    return plain, Counting(deepcopy(plain).float(), int8=int8)


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


def logits(engine, example):
    """The logits of a model, as Example.logits computes them."""
    source = example.source
    memory = None
    if source is not None:
        memory = engine.encode(source.float() if source.is_floating_point() else source, example.source_lengths)
    return (
        engine.project(memory.states)
        if example.target is None
        else contract.decode(engine, example.target, memory=memory)
    )


def check_decoding_in_pieces(config, rng, pieces=((1,) * contract.TARGET, (5, 1, 11, 2), (18, 1))):
    plain, engine = both(config, rng)
    example = contract.random_example(config, rng, rows=9)  # two threads take at least four rows each
    memory = example.memory(plain)
    want = example.logits(plain)
    with torch.inference_mode():
        for each in pieces:
            near(contract.in_pieces(engine, example.target, single(memory), each), want)
        near(contract.decode(engine, example.target, memory=single(memory)), want)
    assert engine.calls == sum(map(len, pieces)) + 1


@some_decoders
def test_decoding_in_pieces_equals_the_layers(name, rng):
    with threads(1):
        check_decoding_in_pieces(CASES[name], rng)


@pytest.mark.parametrize("name", ["tokens-tokens-post-sinusoidal", "decoder-rotary"])
def test_two_threads_equal_the_layers(name, rng):
    with threads(2):
        config = one_layer(CASES[name])
        check_decoding_in_pieces(config, rng, pieces=((1, 1, contract.TARGET - 2),))
        if name in ENCODERS:
            check_encoder(config, rng)


@pytest.mark.parametrize("name", BEAMED)
def test_reordered_beams_are_decoded_as_if_alone(name, rng, monkeypatch):
    """In a cache that grows three times."""
    monkeypatch.setattr("transduce.engine.cache.CAPACITY", 3)
    check_reordered_beams(CASES[name], rng)


def check_reordered_beams(config, rng):
    """Rows multiply, change places and leave, and so do sentences: as if each row were decoded alone."""
    plain, engine = both(config, rng)
    example = contract.random_example(config, rng)
    memory, n = example.memory(plain), len(example.target)
    cache = engine.new_cache()
    history, sentence = example.target[:, :1], torch.arange(n)
    with torch.inference_mode():
        states = engine.decoder_states(history, memory=single(memory), cache=cache)
        rows = torch.arange(n).repeat_interleave(BEAMS)
        for step in range(1, contract.TARGET):
            cache.reorder(rows)
            if step == 9:  # the second sentence is done
                keep = torch.tensor([0, 2])
                cache.keep(keep)
            history, sentence = history[rows], sentence[rows]
            new = torch.randint(config.decoder.input.vocab_size, (len(rows), 1), generator=rng)
            history = torch.cat((history, new), dim=1)
            states = engine.decoder_states(new, cache=cache)
            own = None if memory is None else Memory(memory.states[sentence], memory.lengths[sentence])
            near(engine.project(states)[:, 0].float(), plain.decode(history, memory=own)[:, -1])
            left = sentence.unique_consecutive().numel()
            rows = torch.arange(left)[:, None] * BEAMS + torch.randint(BEAMS, (left, BEAMS), generator=rng)
            rows = (rows[[0, 2]] if step == 8 else rows).flatten()
    assert engine.calls == contract.TARGET


def check_encoder(config, rng):
    plain, engine = both(config, rng)
    assert engine.encoder is not None
    example = contract.random_example(config, rng, rows=9)
    source = example.source.float() if example.source.is_floating_point() else example.source
    with torch.inference_mode():
        for lengths in (example.source_lengths, None):
            want, got = plain.encode(example.source, lengths), engine.encode(source, lengths)
            assert (got.lengths is None) == (lengths is None)
            n_positions = [want.states.size(1)] * 9 if lengths is None else want.lengths.tolist()
            for row, n in enumerate(n_positions):
                near(got.states[row, :n], want.states[row, :n])
                assert not got.states[row, n:].any()


@some_encoders
def test_encoder_equals_that_of_the_layers(name, rng):
    with threads(1):
        check_encoder(CASES[name], rng)


def check_logits(config, rng):
    plain, engine = both(config, rng)
    example = contract.random_example(config, rng)
    with torch.inference_mode():
        want, got = example.logits(plain), logits(engine, example)
        for row, n in enumerate(contract.output_lengths(config, example)):
            near(got[row, :n], want[row, :n])
        if config.ctc:
            memory = example.memory(plain).states
            near(engine.ctc_logits(memory.float()), plain.ctc_logits(memory))


@pytest.mark.parametrize("name", [name for name in CHOSEN if name not in DECODERS or name not in ENCODERS])
def test_unsupported_models_are_computed_by_the_layers(name, rng):
    check_logits(CASES[name], rng)


@pytest.mark.long
def test_all_models_equal_the_layers(rng):
    for name, config in CASES.items():
        print(name)
        check_logits(config, rng)
        check_int8_outputs(config, rng)
        with threads(1):
            if name in DECODERS:
                check_decoding_in_pieces(config, rng)
                check_reordered_beams(config, rng)
            if name in ENCODERS:
                check_encoder(config, rng)


def changed(name: str) -> TransformerConfig:
    """A configuration with another value of this field, on models of two layers."""
    values = {
        "encoder": None, "decoder": None, "d_model": 48, "n_heads": 2, "n_kv_heads": 2, "head_width": 6,
        "attention": "linear", "qk_norm": True, "window": 3, "d_ff": 24, "dropout": 0.5, "attention_dropout": 0.5,
        "activation": "gelu", "gated": True, "n_experts": 3, "experts_per_token": 1, "balance_weight": 0.5, "bias": False,
        "qkv_bias": False, "norm": "rms", "norm_position": "pre", "norm_eps": 0.1, "positions": "rotary",
        "max_positions": 2000, "sinusoids": "tensor2tensor", "first_position": 2, "embedding_norm": True,
        "rotary_theta": 500.0, "rotary_factor": 2.0, "rotary_bands": (1.0, 4.0, 64), "scale_embeddings": False,
        "tie": "none", "output_bias": True, "conformer_kernel": 3, "ctc": True, "ctc_layers": (1,),
        "ctc_conditioning": True, "init": "he", "init_gain": 0.5, "recompute": True,
    }  # fmt: skip
    needs = {
        "rotary_theta": {"positions": "rotary"}, "rotary_factor": {"positions": "rotary"},
        "rotary_bands": {"positions": "rotary"}, "conformer_kernel": {"norm_position": "pre"},
        "experts_per_token": {"n_experts": 3}, "balance_weight": {"n_experts": 3}, "ctc_layers": {"ctc": True},
        "ctc_conditioning": {"ctc": True, "ctc_layers": (1,)},
    }  # fmt: skip
    base = replace(TEXT, d_model=40, n_heads=4, n_kv_heads=None, d_ff=20, window=None, tie="output")
    if name == "decoder":
        base = replace(base, tie="none")
    return replace(base, **needs.get(name, {}), **{name: values[name]})


@pytest.mark.parametrize("name", [each.name for each in fields(TransformerConfig)])
def test_every_field_is_computed_or_refused_by_name(name, rng):
    """A field that C++ overlooked would silently give other numbers than the layers."""
    config = changed(name)
    for half in ("encoder", "decoder"):
        stack = getattr(config, half)
        refused = unsupported(config, stack)
        if stack is not None and refused:  # two fields are of experts, which are refused by theirs
            assert name in refused or name in ("experts_per_token", "balance_weight")
    check_logits(config, rng)
    _, engine = both(config, rng)
    halves = [half for half in ("encoder", "decoder") if getattr(config, half) is not None]
    for half in halves:
        assert (getattr(engine, half) is None) == bool(unsupported(config, getattr(config, half)))
        assert (
            not unsupported(config, getattr(config, half)) or unsupported(config, getattr(config, half)) in engine.name
        )


@pytest.mark.parametrize("int8", [False, True])
def test_a_row_does_not_depend_on_its_neighbours(int8, rng):
    """To the last bit, whichever rows share a tile or a thread."""
    _, engine = both(TEXT, rng, int8=int8)
    example = contract.random_example(TEXT, rng, rows=11)
    with torch.inference_mode():
        memory = engine.encode(example.source, example.source_lengths)
        together = contract.in_pieces(engine, example.target, memory, (1,) * contract.TARGET)
        for row in (0, 3, 10):
            length = example.source_lengths[row : row + 1]
            alone = engine.encode(example.source[row : row + 1, : int(length)], length)
            assert torch.equal(alone.states[0], memory.states[row, : int(length)])
            steps = contract.in_pieces(engine, example.target[row : row + 1], alone, (1,) * contract.TARGET)
            assert torch.equal(steps[0], together[row])


def check_int8_outputs(config, rng):
    """Most outputs are near: rounding may choose another expert at some positions, but not at half of them."""
    plain, engine = both(config, rng, int8=True)
    example = contract.random_example(config, rng)
    with torch.inference_mode():
        want, got = (
            torch.cat([row[:n] for row, n in zip(each, contract.output_lengths(config, example), strict=True)])
            for each in (example.logits(plain), logits(engine, example))
        )
    assert not torch.equal(got.double(), want)
    assert (got - want).square().mean(-1).median() <= 0.004 * want.var()


@pytest.mark.parametrize("name", ["tokens-tokens-bart", "frames-tokens-projected-ctc", "decoder-gelu_tanh"])
def test_int8_outputs_are_close(name, rng):
    check_int8_outputs(CASES[name], rng)


def test_some_but_not_all_models_are_supported():
    for some, half in ((DECODERS, "decoder"), (ENCODERS, "encoder")):
        others = [config for name, config in CASES.items() if getattr(config, half) and name not in some]
        assert others and {"rotary", "sinusoidal", "learned", "none"} <= {config.positions for config in some.values()}
    assert not all(config.encoder for config in DECODERS.values())


@pytest.mark.parametrize(
    ("activation", "gated", "norm"),
    [
        *[("relu", False, "layer"), ("gelu", False, "rms"), ("gelu_tanh", False, "layer"), ("silu", False, "rms")],
        *[("relu", True, "rms"), ("gelu", True, "layer"), ("gelu_tanh", True, "rms"), ("silu", True, "layer")],
    ],
)
def test_every_activation_and_norm(activation, gated, norm, rng):
    check_decoding_in_pieces(replace(TEXT, activation=activation, gated=gated, norm=norm), rng, pieces=())


@pytest.mark.parametrize("n_threads", [1, 2])
def test_long_texts_and_sources(n_threads, rng):
    """Threads share the positions of one text, and the heads of one source."""
    plain, engine = both(replace(TEXT, max_positions=2000), rng)
    sizes = {300: TEXT.encoder.input.vocab_size, 540: TEXT.decoder.input.vocab_size}
    source, target = (torch.randint(size, (1, n), generator=rng) for n, size in sizes.items())
    with torch.inference_mode(), threads(n_threads):
        want, got = plain.encode(source), engine.encode(source)
        near(got.states, want.states)
        near(contract.in_pieces(engine, target, got, (3, 532, 1, 4)), plain.decode(target, memory=want))
    assert engine.calls == 4


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("kind", [{}, {"n_kv_heads": 1}, {"head_width": 10}, {"positions": "rotary", "head_width": 8}])
def test_long_sources_beside_short_ones(kind, n_threads, rng):
    """Attention between many positions is computed by products of matrices."""
    config = replace(TEXT, max_positions=2000, **kind)
    plain, engine = both(config, rng)
    source, target = (torch.randint(stack.input.vocab_size, (4, n), generator=rng) for stack, n in
                      ((config.encoder, 131), (config.decoder, 3)))  # fmt: skip
    lengths = torch.tensor([131, 64, 1, 90])
    rows = target.repeat_interleave(3, dim=0)
    with torch.inference_mode(), threads(n_threads):
        want, got = plain.encode(source, lengths), engine.encode(source, lengths)
        for row, length in enumerate(lengths.tolist()):
            near(got.states[row, :length], want.states[row, :length])
        near(
            contract.in_pieces(engine, rows, got, (1, 2)), plain.decode(target, memory=want).repeat_interleave(3, dim=0)
        )


def test_changed_weights_are_an_error(rng):
    """The engine has a copy of them in another layout."""
    plain, engine = both(TEXT, rng)
    example = contract.random_example(TEXT, rng)
    engine.model.load_state_dict(plain.float().state_dict())
    with pytest.raises(RuntimeError, match=r"weights that its model had .* have changed; make another with engine_for"):
        engine.encode(example.source)
    with pytest.raises(RuntimeError, match="have changed"):
        engine.new_cache()
    with pytest.raises(RuntimeError, match="have changed"):
        contract.decode(engine, example.target, memory=example.memory(plain))


def test_a_copy_has_independent_weights(rng):
    _, engine = both(TEXT, rng)
    copied, example = deepcopy(engine), contract.random_example(TEXT, rng)
    with torch.no_grad():
        engine.model.target_input.weight.zero_()
    assert logits(copied, example).abs().sum() > 0


@pytest.mark.parametrize("int8", [False, True])
def test_an_engine_can_be_pickled_and_shared(int8, rng):
    engine, example = both(TEXT, rng, int8=int8)[1], contract.random_example(TEXT, rng)
    copied = pickle.loads(pickle.dumps(engine))
    assert copied.name == engine.name
    torch.testing.assert_close(logits(copied, example), want := logits(engine, example), rtol=0, atol=0)
    engine.model.share_memory()  # as multiprocessing does where it pickles
    torch.testing.assert_close(logits(engine, example), want, rtol=0, atol=0)


def test_tokens_out_of_range_are_refused(rng):
    _, engine = both(LANGUAGE, rng)
    with pytest.raises(IndexError, match=r"tokens are 0 to \d+, but there is -1 or 99999"):
        contract.decode(engine, torch.tensor([[-1], [99999]]), cache=engine.new_cache())


def test_wrong_shapes_dtypes_or_missing_memory_are_refused(rng):
    plain, engine = both(TEXT, rng)
    memory, cache = single(contract.random_example(TEXT, rng).memory(plain)), engine.new_cache()
    three = torch.tensor([[1], [2], [3]])
    contract.decode(engine, three, memory=memory, cache=cache)
    with pytest.raises(
        ValueError, match=r"rows must be as many as in the cache, and the same number for each of 3 sentences, .* are 2"
    ):
        contract.decode(engine, three[:2], cache=cache)
    with pytest.raises(
        ValueError,
        match=r"vectors must be float32 \(\.\.\., \d+\), as the weights are, but they are torch\.float64 \(3, 23, \d+\)",
    ):
        contract.decode(engine, three, memory=memory._replace(states=memory.states.double()), cache=engine.new_cache())
    with pytest.raises(ValueError, match="needs a memory, but memory=None"):
        contract.decode(engine, three)
    frames = next(config for config in ENCODERS.values() if not isinstance(config.encoder.input, Tokens))
    _, engine = both(frames, rng)
    with pytest.raises((ValueError, RuntimeError), match=r"float32|dtype"):
        engine.encode(contract.random_example(frames, rng).source)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@torch.inference_mode()
def test_int32_ids_and_lengths_beyond_the_memory(dtype, rng):
    """As PyTorch's layers: integers of 32 bits, and lengths beyond that of the memory."""
    plain, engine = both(TEXT, rng)
    example = contract.random_example(TEXT, rng)
    memory = Memory(example.memory(plain).states, torch.tensor([99, 21, 19]))
    want = plain.decode(example.target, memory=memory)
    same, target = single(memory)._replace(lengths=memory.lengths.to(dtype)), example.target.to(dtype)
    for pieces in ((1,) * contract.TARGET, (2,) + (1,) * (contract.TARGET - 2)):
        near(contract.in_pieces(engine, target, same, pieces), want)


def test_interleaved_searches_do_not_interfere(rng):
    """The positions that a step adds belong to its search, not to the model."""
    plain, engine = both(TEXT, rng)
    wide = single(contract.random_example(TEXT, rng).memory(plain))
    lengths = (wide.lengths - 1).clamp_min(1)
    narrow = wide._replace(states=wide.states[:, : int(lengths.max())], lengths=lengths)
    wide = wide._replace(lengths=lengths)
    target = contract.random_example(TEXT, rng).target

    def step_by_step(*memories):
        caches = [engine.new_cache() for _ in memories]
        for t in range(target.size(1)):
            part = target[:, t : t + 1]
            yield [engine.decoder_states(part, memory=m, cache=c) for m, c in zip(memories, caches, strict=True)]

    with torch.inference_mode():
        alone = zip(*(step_by_step(memory) for memory in (wide, narrow)), strict=True)
        for together, (one, other) in zip(step_by_step(wide, narrow), alone, strict=True):
            torch.testing.assert_close(together, one + other)
