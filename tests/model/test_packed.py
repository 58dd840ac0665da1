"""A packed model is the plain one, whatever its shape, and says what it cannot do."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.contract import Example, output_lengths, random_example, random_model
from tests.kernels import needs_cpp
from tests.model.test_contract import CASES
from tests.runs import random_run
from transduce.model import packed as packing
from transduce.model.config import TransformerConfig
from transduce.model.kernel_weight import KernelInt8Weight
from transduce.model.packed import SMALLEST, Int8Weight, PackedLinear, can_pack, largest_weight, pack
from transduce.model.transformer import Transformer

CPU = torch.device("cpu")
SOME = [
    "tokens-tokens-post-sinusoidal", "tokens-tokens-grouped-queries", "tokens-tokens-no-bias", "tokens-tokens-bart",
    "tokens-tokens-experts", "tokens-tokens-tie-none", "tokens-tokens-everything", "frames-tokens-projected-ctc",
    "frames-tokens-self-conditioned-pre", "frames-tokens-conv2d-2-2", "frames-tokens-conformer-wide",
    "stacked-frames-tokens-pre-none", "decoder-linear", "decoder-gelu_tanh", "encoder-tie-none", "encoder-everything",
]  # fmt: skip
"""Every kind of weight, and every layer that has one."""
FEW = ["tokens-tokens-bart", "frames-tokens-projected-ctc", "tokens-tokens-everything", "decoder-gelu_tanh"]
needs_kernels = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="needs PyTorch with oneDNN")
needs_int8 = pytest.mark.skipif(not can_pack(CPU, torch.int8), reason="needs PyTorch with oneDNN's int8 kernels")


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    monkeypatch.setattr(packing, "SMALLEST", 0)


@pytest.fixture(params=[pytest.param(True, marks=needs_cpp), False], ids=["C++", "oneDNN"])
def either(request, monkeypatch):
    """Both kinds of packed weights; without a compiler it is the second."""
    if not request.param:
        monkeypatch.setenv("TRANSDUCE_KERNELS", "0")


@pytest.fixture
def without_cpp(monkeypatch):
    monkeypatch.setenv("TRANSDUCE_KERNELS", "0")


def both(config: TransformerConfig, rng: torch.Generator, dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    """A model with random weights, plain and packed."""
    plain = random_model(config, rng).to(dtype)
    return plain, pack(deepcopy(plain))


def packed_maps(model: torch.nn.Module) -> int:
    return sum(isinstance(module, PackedLinear) for module in model.modules())


def single(example: Example) -> Example:
    frames = example.source is not None and example.source.is_floating_point()
    return replace(example, source=example.source.float()) if frames else example


def it_gives_the_plain_models_logits(config: TransformerConfig, rng: torch.Generator) -> None:
    plain, packed = both(config, rng, torch.float32)
    assert packed_maps(packed) and not any(type(module) is torch.nn.Linear for module in packed.modules())
    example = single(random_example(config, rng))
    with torch.inference_mode():
        want, got = example.logits(plain), example.logits(packed)
        for row, n in enumerate(output_lengths(config, example)):
            torch.testing.assert_close(got[row, :n], want[row, :n], rtol=1e-5, atol=1e-5 * float(want.abs().max()))
        if config.ctc:
            memory = example.memory(plain).states
            torch.testing.assert_close(packed.ctc_logits(memory), plain.ctc_logits(memory), rtol=1e-5, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", SOME)
def test_it_gives_the_plain_models_logits(name, rng):
    it_gives_the_plain_models_logits(CASES[name], rng)


@needs_kernels
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("name", FEW)
def test_it_gives_the_plain_models_logits_by_onednn(name, rng):
    it_gives_the_plain_models_logits(CASES[name], rng)


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
@pytest.mark.usefixtures("either")
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
    monkeypatch.setenv("TRANSDUCE_KERNELS", "0")
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
@pytest.mark.usefixtures("without_cpp")
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


def integers(*shape: int, most: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of integers of -`most` to `most` which each have that, and scales for them that are powers of two."""
    rows = torch.randint(-most, most + 1, shape, generator=rng)
    rows[..., 0] = rows[0] = most
    return rows, 2.0 ** torch.randint(-9, 9, (*shape[:-1], 1), generator=rng)


@needs_int8
@pytest.mark.parametrize(
    "shape", [(1, 16, 24), (3, 7, 40, 24), (5, 1, 1000, 96), (64, 256, 256), (200, 1, 512, 2048), (1, 2048, 512)]
)
def test_int8_is_the_product_of_integers(shape, rng):
    *batch, n_out, n_in = shape
    x_int, x_scale = integers(*batch, n_in, most=127, rng=rng)
    w_int, w_scale = integers(n_out, n_in, most=largest_weight(), rng=rng)
    x, weight, bias = x_int * x_scale, w_int * w_scale, torch.randn(n_out, generator=rng)
    exact = (x_int.double() @ w_int.double().T) * x_scale * w_scale.T
    product = Int8Weight(weight)
    for got, want in ((product(x), exact), (product(x, bias), exact + bias)):
        torch.testing.assert_close(got.double(), want.double(), rtol=1e-6, atol=1e-6 * float(exact.abs().max()))
    assert torch.equal(product(x, bias, relu=True), product(x, bias).relu())
    assert torch.equal(product(torch.zeros(2, n_in)), torch.zeros(2, n_out))


@needs_int8
def test_int8_knows_nothing_of_the_batch(rng):
    product = Int8Weight(torch.randn(50, 64, generator=rng))
    x = torch.randn(200, 64, generator=rng) * torch.logspace(-3, 3, 200)[:, None]
    whole = product(x)
    assert all(torch.equal(product(x[i : i + n]), whole[i : i + n]) for n in (1, 3, 64) for i in range(0, 200 - n, 17))


def an_int8_model_is_near_the_plain_one(config: TransformerConfig, rng: torch.Generator) -> None:
    plain = random_model(config, rng).float()
    rounded = pack(deepcopy(plain), int8=True)
    example = single(random_example(config, rng))
    with torch.inference_mode():
        want, got = (
            torch.cat([row[:n] for row, n in zip(each, output_lengths(config, example), strict=True)])
            for each in (example.logits(plain), example.logits(rounded))
        )
    assert packed_maps(rounded) and not torch.equal(got, want)
    # rounding may choose another expert at some positions, but not at half of them
    coarse = 127 / largest_weight()  # where C++ does not compute, weights may have half as many steps
    assert (got - want).square().mean(-1).median() <= 0.004 * coarse**2 * want.var()


@needs_int8
@pytest.mark.parametrize("name", SOME)
def test_an_int8_model_is_near_the_plain_one(name, rng):
    an_int8_model_is_near_the_plain_one(CASES[name], rng)


@needs_int8
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("name", FEW)
def test_an_int8_model_is_near_the_plain_one_by_onednn(name, rng):
    an_int8_model_is_near_the_plain_one(CASES[name], rng)


@needs_int8
@needs_kernels
@pytest.mark.usefixtures("either")
@pytest.mark.long
def test_every_other_model_too(rng):
    for name, config in CASES.items():
        print(name)
        it_gives_the_plain_models_logits(config, rng)
        an_int8_model_is_near_the_plain_one(config, rng)


@needs_int8
def test_a_run_is_loaded_in_int8(tmp_path):
    run = random_run(tmp_path)
    translator = td.load(run, dtype=torch.int8)
    assert isinstance(translator.model.logits, (Int8Weight, KernelInt8Weight))
    assert (
        translator(["Print it."], beam_size=3, max_length=5)
        and next(translator.model.parameters()).dtype == torch.float32
    )


@needs_int8
@pytest.mark.parametrize(("least", "told"), [(0, []), (1 << 40, [f"no matrix of this model has {1 << 40:,} elements"])])
def test_int8_that_rounds_nothing_says_so(least, told, rng, monkeypatch, caplog):
    monkeypatch.setattr(packing, "SMALLEST", least)
    pack(random_model(CASES["decoder-pre-learned"], rng).float(), int8=True)
    assert [message for message in told if message in caplog.text] == told and bool(caplog.text) == bool(told)


def test_int8_is_refused_where_it_is_not(rng, monkeypatch):
    plain = random_model(CASES["decoder-pre-learned"], rng)
    with pytest.raises(
        ValueError, match=r"int8 computes with float32 on a CPU.*torch\.float64 on cpu.*use fp32 or bf16"
    ):
        pack(deepcopy(plain), int8=True)
    monkeypatch.setattr(packing, "can_pack", lambda *_: False)
    with pytest.raises(ValueError, match=r"in C\+\+ or with kernels of oneDNN"):
        pack(plain.float(), int8=True)
