"""Intermediate CTC: what its head reads inside the encoder, and what self-conditioning adds to the states."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import transduce as td
from tests.contract import random_example, random_model
from tests.runs import random_speech_run, record, sentences
from transduce.config import from_dict, to_dict
from transduce.files import save_weights
from transduce.interop.ctranslate2 import check_ctranslate2
from transduce.model.cache import Context, Taps
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.run import load_run, save_run

ENCODER = StackConfig(input=Frames(n_features=5, stack=3), n_layers=4)
CONFIG = TransformerConfig(
    encoder=ENCODER,
    decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=1),
    d_model=14,
    n_heads=2,
    d_ff=23,
    ctc=True,
    ctc_layers=(1, 3),
)


def layer_by_layer(model: Transformer, source: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The memory and the intermediate logits, computed with nothing but the layers and sums of products."""
    config, got = model.config, []
    x, lengths = model.source_input(source, lengths)
    x = model.encoder.positions(x, 0)
    for n, layer in enumerate(model.encoder.layers, start=1):
        x = layer(x, Context(lengths=lengths))
        if n in config.ctc_layers:
            seen = model.encoder.norm(x)
            logits = torch.einsum("bsd,vd->bsv", seen, model.ctc.weight) + model.ctc.bias
            got.append(logits)
            if config.ctc_conditioning:
                p = logits.exp() / logits.exp().sum(-1, keepdim=True)
                x = x + torch.einsum("bsv,dv->bsd", p, model.ctc_condition.weight) + model.ctc_condition.bias
    return model.encoder.norm(x), got


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("conditioning", [False, True])
def test_intermediate_ctc_equals_a_loop_over_layers(rng, norm, conditioning):
    config = replace(CONFIG, norm_position=norm, ctc_conditioning=conditioning)
    model, example = random_model(config, rng), random_example(config, rng)
    want, inside = layer_by_layer(model, example.source, example.source_lengths)
    taps = Taps(ctc_logits=[])
    memory = model.encode(example.source, example.source_lengths, taps=taps)
    assert len(taps.ctc_logits) == len(inside) == 2
    for got, wanted in zip([memory.states, *taps.ctc_logits], [want, *inside], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(example.memory(model).states, memory.states, rtol=0, atol=0)  # with taps or without
    plain = Transformer(replace(config, ctc_layers=(), ctc_conditioning=False)).double().eval()
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if not name.startswith("ctc_condition.")})
    alike = torch.equal(example.memory(plain).states, memory.states)
    assert alike == (not conditioning)  # the loss alone changes no output
    none = Taps(ctc_logits=[])
    plain.encode(example.source, example.source_lengths, taps=none)
    assert none.ctc_logits == []


@pytest.mark.parametrize("recompute", [False, True])
def test_intermediate_loss_has_gradients_only_below_its_layer(rng, recompute):
    """A loss after layer 1 has a gradient in layer 1 and in no later one, also with recomputation."""
    model = random_model(replace(CONFIG, recompute=recompute, dropout=0.0), rng).train()
    example, taps = random_example(CONFIG, rng), Taps(ctc_logits=[])
    model.encode(example.source, example.source_lengths, taps=taps)
    taps.ctc_logits[0].square().sum().backward()
    below, above = ([p.grad for p in layer.parameters()] for layer in model.encoder.layers[:2])
    assert all(gradient.count_nonzero() for gradient in below if gradient is not None) and any(
        gradient is not None for gradient in below
    )
    assert all(gradient is None or not gradient.count_nonzero() for gradient in above)


def test_old_configurations_have_no_intermediate_ctc():
    plain = to_dict(replace(CONFIG, ctc_layers=()))
    del plain["ctc_layers"], plain["ctc_conditioning"]
    assert from_dict(TransformerConfig, plain, "config.json") == replace(CONFIG, ctc_layers=())


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)], ids=str)
def test_self_conditioned_run_is_saved_loaded_and_transcribes(tmp_path, rng, dtype, close):
    """Transcribed by the engine that searches use; without the map, the output differs."""
    directory = random_speech_run(tmp_path / "run")
    run = load_run(directory)
    config = replace(run.model, ctc_layers=(1,), ctc_conditioning=True)
    model = random_model(config, rng).float()
    with torch.no_grad():
        model.ctc_condition.weight.mul_(30.0)
    save_run(directory, replace(run, model=config))
    save_weights(directory / "model.safetensors", model)
    transcriber = td.load_transcriber(directory, dtype=dtype)
    assert transcriber.model.config == config
    assert len(transcriber([recording.audio for recording in record(tmp_path, sentences(3))])) == 3
    frames = torch.randn(2, 21, 10, generator=rng)
    with torch.inference_mode():
        want, got = model.encode(frames).states, transcriber.model.encode(frames.to(dtype)).states.float()
        model.ctc_condition.weight.zero_()
        without = model.encode(frames).states
    assert (got - want).abs().max() < close < (got - without).abs().max()


def test_ctranslate2_refuses_ctc():
    text = StackConfig(input=Tokens(vocab_size=31), n_layers=2)
    config = replace(CONFIG, encoder=text, ctc_layers=(1,), ctc_conditioning=True)
    with pytest.raises(ValueError, match="CTranslate2 supports only ctc=False, but this model has ctc=True"):
        check_ctranslate2(config)


@pytest.mark.parametrize("layers", [(0,), (4,), (2, 1), (1, 1), (-1,)])
def test_ctc_layers_must_be_ordered_and_below_the_last(layers):
    with pytest.raises(ValueError, match=re.escape(f"ctc_layers={', '.join(map(str, layers))}, ctc=True")):
        replace(CONFIG, ctc_layers=layers)


def test_ctc_layers_need_ctc_and_conditioning_needs_layers():
    with pytest.raises(ValueError) as error:
        replace(CONFIG, ctc=False)
    assert str(error.value) == (
        "ctc_layers must be layers below the last one of an encoder with ctc=True, in order, but "
        f"ctc_layers=1, 3, ctc=False and there are {ENCODER.n_layers} layers; name others "
        "(--model.ctc-layers 1), or none (--model.ctc-layers --model.no-ctc-conditioning)"
    )
    with pytest.raises(ValueError) as error:
        replace(CONFIG, ctc_layers=(), ctc_conditioning=True)
    assert str(error.value) == (
        "ctc_conditioning takes place after ctc_layers, but there are none; name some (--model.ctc-layers), or go "
        "without (--model.no-ctc-conditioning)"
    )
