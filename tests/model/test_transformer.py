"""The model against the paper in NumPy loops, against torch.nn.Transformer, and against the papers' sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract import random_example, random_model
from tests.model.test_contract import CASES, CHOSEN, OTHERS
from tests.reference import Reference
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.layers import Dropout, Layer
from transduce.model.presets import transformer_base, transformer_big, transformer_tiny
from transduce.model.transformer import Transformer

TRANSLATION = TransformerConfig(
    d_model=14,
    n_heads=2,
    d_ff=23,
    encoder=StackConfig(input=Tokens(vocab_size=29), n_layers=2),
    decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=3),
)
LANGUAGE = replace(TRANSLATION, encoder=None)
MASKED = replace(TRANSLATION, decoder=None)


# The paper in loops


@pytest.mark.parametrize("name", CHOSEN)
def test_logits_equal_the_paper_in_loops(name, rng):
    check_logits_against_the_paper(CASES[name], rng, rows=[1])


@pytest.mark.long
def test_logits_of_all_other_models_equal_the_paper_in_loops(rng):
    for name in OTHERS:
        print(name)
        check_logits_against_the_paper(CASES[name], rng, rows=[0, 1])


def check_logits_against_the_paper(config, rng, rows):
    """Row 0 of a batch is whole, and row 1 ends before."""
    model, example = random_model(config, rng), random_example(config, rng, rows=2)
    with torch.no_grad():
        got = example.logits(model).numpy()
    conv = isinstance(config.encoder and config.encoder.input, Frames) and config.frames
    reference = Reference(
        n_heads=config.n_heads,
        pre_norm=config.norm_position == "pre",
        activation=config.activation,
        positions=config.positions,
        scale_embeddings=config.scale_embeddings,
        eps=config.norm_eps,
        norm=config.norm,
        n_kv_heads=config.n_kv_heads,
        window=config.window,
        attention=config.attention,
        rotary_theta=config.rotary_theta,
        rotary_factor=config.rotary_factor,
        rotary_bands=config.rotary_bands,
        gated=config.gated,
        experts_per_token=config.experts_per_token,
        **({"conv_strides": conv.conv_strides, "conv_activation": conv.conv_activation} if conv else {}),
        sinusoids=config.sinusoids,
        first_position=config.first_position,
        conditioned_layers=config.ctc_layers if config.ctc_conditioning else (),
    )
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for row in rows:
        source, target = (_row(example, name, row) for name in ("source", "target"))
        if source is not None and source.ndim == 2:
            source = _stacked(source, config.encoder.input.stack)
        want = reference.logits(weights, source, target)
        np.testing.assert_allclose(got[row, : len(want)], want, rtol=0, atol=1e-10)


def _row(example, name, row):
    """The real positions of one row; of the target, too, so that the batch has padding and the reference has none."""
    x, lengths = getattr(example, name), getattr(example, f"{name}_lengths")
    return None if x is None else x[row, : lengths[row]].numpy()


def _stacked(frames, stack):
    """Frame 0, 1 ... stack - 1 side by side, then the next ones; zeros where the last stack is not full."""
    rows = []
    for start in range(0, len(frames), stack):
        numbers = [number for frame in frames[start : start + stack] for number in frame]
        rows.append(numbers + [0.0] * (stack * frames.shape[1] - len(numbers)))
    return np.array(rows)


# torch.nn.Transformer


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch says that pre-norm takes its slower path
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_logits_equal_torch_nn_transformer(norm_position, activation, rng):
    config = replace(TRANSLATION, norm_position=norm_position, activation=activation, dropout=0.0, tie="none")
    config = replace(config, decoder=replace(config.decoder, n_layers=2))
    model, example = random_model(config, rng), random_example(config, rng)
    theirs = nn.Transformer(
        config.d_model,
        config.n_heads,
        config.encoder.n_layers,
        config.decoder.n_layers,
        config.d_ff,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_position == "pre",
        dtype=torch.float64,
    )
    _copy(model, theirs)
    with torch.no_grad():
        got = example.logits(model)
        source, lengths = model.source_input(example.source, example.source_lengths)
        target, _ = model.target_input(example.target)
        # There, True = ignore.
        padding = torch.arange(source.size(1)) >= lengths[:, None]
        future = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        states = theirs(
            model.encoder.positions(source),
            model.decoder.positions(target),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        torch.testing.assert_close(got, states @ model.output.T, rtol=0, atol=1e-10)


def _copy(model, theirs):
    """Our weights into torch.nn.Transformer, whose stacks end in one more norm; with post-norm ours do not."""
    theirs.encoder.norm, theirs.decoder.norm = model.encoder.norm, model.decoder.norm
    for ours, other in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        for a, b in zip(ours.layers, other.layers, strict=True):
            norms = [a.attention_sublayer.norm, a.feed_forward_sublayer.norm]
            b.self_attn.in_proj_weight, b.self_attn.in_proj_bias = a.attention.qkv.weight, a.attention.qkv.bias
            b.self_attn.out_proj = a.attention.output
            if a.cross is not None:
                norms.insert(1, a.cross_sublayer.norm)
                b.multihead_attn.in_proj_weight.data = torch.cat((a.cross.q.weight, a.cross.kv.weight))
                b.multihead_attn.in_proj_bias.data = torch.cat((a.cross.q.bias, a.cross.kv.bias))
                b.multihead_attn.out_proj = a.cross.output
            for i, norm in enumerate(norms, start=1):
                setattr(b, f"norm{i}", norm)
            b.linear1, b.linear2 = a.feed_forward.wide, a.feed_forward.narrow


# Sizes


def size(config: TransformerConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def size_by_formula(d_model: int, d_ff: int, encoder: int, decoder: int, tables: int) -> int:
    """Weights and biases counted from figure 1 and section 3; `tables` is the sum of the tables' rows."""
    attention, norm = 4 * (d_model * d_model + d_model), 2 * d_model
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    encoder_layer, decoder_layer = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    return encoder * encoder_layer + decoder * decoder_layer + tables * d_model


def test_size_of_tiny_is_that_of_wu_et_al_2021():
    """Wu et al. (2021), the model Tiny: 2.6M parameters, as rounded there, with a vocabulary of about 10,000."""
    assert round(size(transformer_tiny()) / 1e6, 1) == 2.6
    assert size(transformer_tiny()) == size_by_formula(128, 256, 4, 4, 10000)


@pytest.mark.parametrize(
    ("preset", "printed", "within"), [(transformer_base, 65e6, 0.03), (transformer_big, 213e6, 0.01)]
)
def test_sizes_are_those_of_the_papers_table_3(preset, printed, within):
    """Vaswani et al. (2017), table 3: 65 and 213 million.

    The paper rounds, and says "about 37000" of its vocabulary; hence the tolerance here, and the exact count below.
    """
    assert abs(size(preset()) / printed - 1) < within
    assert preset.__doc__.startswith(f"{size(preset()) / 1e6:.0f}M parameters ")


def test_sizes_by_formula():
    assert size(transformer_base()) == size_by_formula(512, 2048, 6, 6, 37000)
    assert size(transformer_big()) == size_by_formula(1024, 4096, 6, 6, 37000)
    assert size(transformer_base(101, 103)) == size_by_formula(512, 2048, 6, 6, 101 + 103)
    pre_norm_and_learned = replace(TRANSLATION, norm_position="pre", positions="learned", max_positions=37)
    assert size(pre_norm_and_learned) == size_by_formula(14, 23, 2, 3, 29 + 31 + 2 * 37) + 2 * 2 * 14
    assert size(LANGUAGE) == size_by_formula(14, 23, 3, 0, 31)
    assert size(MASKED) == size_by_formula(14, 23, 2, 0, 29)


def test_tie_shares_embedding_tables():
    shared = replace(TRANSLATION, encoder=replace(TRANSLATION.encoder, input=TRANSLATION.decoder.input))
    for tie, tables in (("all", 1), ("output", 2), ("none", 3)):
        assert size(replace(shared, tie=tie)) == size_by_formula(14, 23, 2, 3, tables * 31)
    model = Transformer(replace(shared, tie="all"))
    assert model.output is model.target_input.weight is model.source_input.weight
    for alone in (LANGUAGE, MASKED):
        assert size(replace(alone, tie="all")) == size(replace(alone, tie="output"))
        assert size(replace(alone, tie="none")) - size(alone) == 14 * (31 if alone is LANGUAGE else 29)


def test_frames_of_the_models_width_have_no_weights():
    straight = replace(TRANSLATION, encoder=StackConfig(input=Frames(n_features=7, stack=2), n_layers=2))
    assert size(straight) == size_by_formula(14, 23, 2, 3, 31)
    projected = replace(TRANSLATION, encoder=StackConfig(input=Frames(n_features=5, stack=3), n_layers=2))
    assert size(projected) == size_by_formula(14, 23, 2, 3, 31) + 14 * 15 + 14


# Initial values


@pytest.mark.parametrize(("init", "gain"), [("xavier", 1.0), ("xavier", 0.5), ("he", 1.0), ("he", 0.5)])
def test_initial_matrices_are_xavier_or_he_per_fused_part(init, gain):
    """Glorot and Bengio (2010), equation 16: uniform within sqrt(6 / (fan_in + fan_out)); He et al. (2015), equation 10: the
    variance 2 / fan_in, which is within sqrt(6 / fan_in); in the layers, times a gain."""
    torch.manual_seed(0)
    config = TransformerConfig(
        d_model=64,
        n_heads=4,
        d_ff=192,
        encoder=StackConfig(input=Frames(n_features=40, stack=3), n_layers=1),
        decoder=StackConfig(input=Tokens(vocab_size=211), n_layers=1),
        init=init,
        init_gain=gain,
    )
    model = Transformer(config)
    matrices = {"projection": model.source_input.projection.weight}
    for half, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        layer: Layer = stack.layers[0]
        for i, part in enumerate("qkv"):
            matrices[f"{half}.{part}"] = layer.attention.qkv.weight[64 * i : 64 * (i + 1)]
        matrices[f"{half}.output"] = layer.attention.output.weight
        matrices[f"{half}.wide"] = layer.feed_forward.wide.weight
        matrices[f"{half}.narrow"] = layer.feed_forward.narrow.weight
        if layer.cross is not None:
            matrices |= {"cross.q": layer.cross.q.weight, "cross.output": layer.cross.output.weight}
            matrices |= {"cross.k": layer.cross.kv.weight[:64], "cross.v": layer.cross.kv.weight[64:]}
    assert len(matrices) == 1 + 2 * 6 + 4
    for name, matrix in matrices.items():
        bound = math.sqrt(6 / (sum(matrix.shape) if init == "xavier" else matrix.size(1)))
        bound *= 1 if name == "projection" else gain
        assert 0.99 * bound < matrix.abs().max() <= bound, name
        assert abs(matrix.mean()) < 0.05 * bound, name
        assert abs(matrix.std() / (bound / math.sqrt(3)) - 1) < 0.05, name


def test_initial_biases_norms_and_embeddings():
    torch.manual_seed(0)
    config = replace(TRANSLATION, d_model=64, positions="learned", max_positions=97, tie="none", norm_position="pre")
    config = replace(config, encoder=StackConfig(input=Tokens(vocab_size=211), n_layers=1))
    model = Transformer(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.all(parameter == 1), name
        elif name.endswith("bias"):
            assert torch.all(parameter == 0), name
    for weight in (model.source_input.weight, model.target_input.weight, model.output):
        assert abs(weight.std() * math.sqrt(64) - 1) < 0.05
    assert model.output is not model.target_input.weight
    for stack in (model.encoder, model.decoder):
        assert abs(stack.positions.learned.std() / 0.02 - 1) < 0.05
    vectors, _ = model.source_input(torch.arange(211)[None])
    assert abs(vectors.std() - 1) < 0.05


# Dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.99, 0.999, 0.9999])
def test_dropout_keeps_the_mean_at_every_rate(p):
    """Within five standard deviations: with a share k kept, scaled by 1 / k, the variance of ones is (1 - k) / k."""
    torch.manual_seed(7)
    n, kept = 400_000, 1 - min(max(1, round(p * 256)), 255) / 256
    got = Dropout(p).train()(torch.ones(n))
    assert got.isfinite().all()
    assert abs((got != 0).double().mean() - kept) < 5 * (kept * (1 - kept) / n) ** 0.5
    assert abs(got.double().mean() - 1) < 5 * ((1 - kept) / kept / n) ** 0.5


@pytest.mark.parametrize("where", [{"dropout": 0.5}, {"attention_dropout": 0.5}], ids=lambda where: next(iter(where)))
def test_dropout_is_on_in_training_only(where, rng):
    config, example = replace(TRANSLATION, dropout=0.0), random_example(TRANSLATION, rng)
    keeping, dropping = random_model(config, rng), Transformer(replace(config, **where)).double()
    dropping.load_state_dict(keeping.state_dict())
    want = example.logits(keeping)
    torch.testing.assert_close(example.logits(dropping.eval()), want, rtol=0, atol=0)
    assert not torch.allclose(example.logits(dropping.train()), want)
