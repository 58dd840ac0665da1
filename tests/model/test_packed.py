"""A packed model is the plain one, whatever its shape, and says what it cannot do."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.contract import random_example, random_model
from tests.model.test_contract import CASES, every
from tests.runs import random_run
from transduce.model import packed as packing
from transduce.model.config import TransformerConfig
from transduce.model.packed import SMALLEST, PackedLinear, can_pack, pack
from transduce.model.transformer import Transformer

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="needs PyTorch with oneDNN")


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    monkeypatch.setattr(packing, "SMALLEST", 0)


def both(config: TransformerConfig, rng: torch.Generator, dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    """A model with random weights, plain and packed."""
    plain = random_model(config, rng).to(dtype)
    return plain, pack(deepcopy(plain))


def packed_maps(model: torch.nn.Module) -> int:
    return sum(isinstance(module, PackedLinear) for module in model.modules())


@needs_kernels
@every
def test_it_gives_the_plain_models_logits(config, rng):
    plain, packed = both(config, rng, torch.float32)
    assert packed_maps(packed) and not any(type(module) is torch.nn.Linear for module in packed.modules())
    example = random_example(config, rng)
    if example.source is not None and example.source.is_floating_point():
        example = replace(example, source=example.source.float())
    with torch.inference_mode():
        want, got = example.logits(plain), example.logits(packed)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
        if config.ctc:
            memory = example.memory(plain).states
            torch.testing.assert_close(packed.ctc_logits(memory), plain.ctc_logits(memory), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not can_pack(CPU, torch.bfloat16), reason="needs a CPU with bfloat16")
def test_bfloat16_rounds_alike(rng):
    plain, packed = both(CASES["decoder-pre-learned"], rng, torch.bfloat16)
    assert packed_maps(packed)
    example = random_example(plain.config, rng)
    with torch.inference_mode():
        want, got = example.logits(plain), example.logits(packed)
    assert got.dtype == torch.bfloat16
    assert (got - want).abs().max() <= 0.02 * want.abs().max()


@needs_kernels
def test_its_state_is_the_plain_models(rng):
    plain, packed = both(CASES["tokens-tokens-tie-none"], rng, torch.float32)
    want, got = plain.state_dict(), deepcopy(packed).state_dict()
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


@needs_kernels
def test_what_it_cannot_do_it_refuses_and_stays_whole(rng):
    plain, packed = both(CASES["decoder-pre-learned"], rng, torch.float32)
    with pytest.raises(RuntimeError, match="does not require grad"):
        packed(target_in=torch.tensor([[1, 2, 3]])).sum().backward()
    with pytest.raises(RuntimeError, match=r"packed for this CPU.*td\.load\(RUN, device, dtype\)"):
        packed.double()
    with pytest.raises(RuntimeError, match=r"packed and stay as they are; td\.load_model gives others"):
        packed.load_state_dict(plain.state_dict())
    assert all(torch.equal(weight, plain.state_dict()[name]) for name, weight in packed.state_dict().items())


def test_where_the_kernels_are_not_nothing_changes(rng, monkeypatch):
    _, packed = both(CASES["decoder-pre-learned"], rng, torch.float64)
    assert type(packed) is Transformer and not packed_maps(packed)
    assert not can_pack(torch.device("cuda"), torch.float32)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    _, packed = both(CASES["decoder-pre-learned"], rng, torch.float32)
    assert type(packed) is Transformer and not packed_maps(packed)


@needs_kernels
def test_what_is_loaded_to_be_used_is_packed_and_what_is_loaded_to_be_trained_is_not(tmp_path):
    run = random_run(tmp_path)
    used, trained = td.load(run).model, td.load_model(run)
    assert packed_maps(used) and used.logits is not None
    assert type(trained) is Transformer and not packed_maps(trained)


@needs_kernels
def test_a_small_weight_stays_as_it_is(monkeypatch, rng):
    monkeypatch.setattr(packing, "SMALLEST", SMALLEST)
    config = replace(CASES["decoder-pre-learned"], d_model=128, d_ff=1024)  # 128 x 1024 is the smallest to be packed
    plain, packed = both(config, rng, torch.float32)
    layer = packed.decoder.layers[0]
    assert isinstance(layer.feed_forward.wide, PackedLinear) and isinstance(layer.feed_forward.narrow, PackedLinear)
    assert packed_maps(packed) == 2 * len(packed.decoder.layers) and packed.logits is None
    example = random_example(config, rng)
    with torch.inference_mode():
        want, got = example.logits(plain), example.logits(packed)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
