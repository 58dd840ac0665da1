"""The contract of tests/contract.py, over every shape of model and every setting that could break it."""

from dataclasses import replace

import pytest

from tests import contract
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig

# Different primes wherever the model allows: 2 heads of 7, 23 inside, vocabularies of 29 and 31, 3 and 2 layers.
BASE = TransformerConfig(d_model=14, n_heads=2, d_ff=23, encoder=StackConfig(input=Tokens(vocab_size=29), n_layers=3))
DECODER = StackConfig(input=Tokens(vocab_size=31), n_layers=2)

SHAPES = {
    "tokens-tokens": replace(BASE, decoder=DECODER),
    "frames-tokens": replace(
        BASE, encoder=StackConfig(input=Frames(n_features=14, stack=1), n_layers=3), decoder=DECODER
    ),
    "stacked-frames-tokens": replace(
        BASE, encoder=StackConfig(input=Frames(n_features=5, stack=3), n_layers=3), decoder=DECODER
    ),
    "decoder": replace(BASE, encoder=None, decoder=DECODER),
    "encoder": BASE,
}

# The sinusoidal table of 7 rows ends in the middle of every sequence; the learned one has room for the longest.
POSITIONS = {
    "sinusoidal": {"positions": "sinusoidal", "max_positions": 7},
    "learned": {"positions": "learned", "max_positions": 31},
    "none": {"positions": "none"},
    "relative": {"positions": "relative"},
}

# The rotary table, too, ends in the middle; layers of windows of 5 do not reach the whole sequence.
ROTARY = {"positions": "rotary", "max_positions": 7, "head_width": 6}
VARIANTS = {
    "rotary": ROTARY,
    "grouped-queries": {"n_heads": 6, "n_kv_heads": 2, "head_width": 3},
    "multi-query": {"n_heads": 3, "n_kv_heads": 1, "head_width": 5},
    "narrowest-heads": {"n_heads": 6, "n_kv_heads": 2, "head_width": 1},
    "relative-grouped": {"positions": "relative", "n_heads": 6, "n_kv_heads": 2, "head_width": 3},
    "qk-norm": {"qk_norm": True},
    "rms": {"norm": "rms"},
    "gated": {"gated": True, "activation": "silu"},
    "no-bias": {"bias": False},
    "qkv-bias": {"bias": False, "qkv_bias": True},
    "rotary-bands": {**ROTARY, "rotary_theta": 50.0, "rotary_factor": 4.0, "rotary_bands": (0.5, 2.0, 9)},
    "window": {"window": 5},
    "grouped-window": {"window": 5, "n_heads": 6, "n_kv_heads": 2, "head_width": 3},
    "linear": {"attention": "linear"},
    "experts": {"n_experts": 5, "experts_per_token": 2},
    "bart": {"embedding_norm": True, "output_bias": True},
    "tensor2tensor": {"sinusoids": "tensor2tensor", "first_position": 2, "max_positions": 7},
}
# As Whisper has them, as Speech2Text has them, and more of them than a row of 23 frames has positions for.
CONVOLUTIONS = {
    "conv-1-2": {"conv_strides": (1, 2)},
    "conv-2-2-gated": {"conv_strides": (2, 2), "conv_kernel": 5, "conv_channels": 11, "conv_activation": "glu"},
    "conv-3-2-2-2": {"conv_strides": (3, 2, 2, 2), "conv_kernel": 7, "conv_activation": "relu"},
}
# A kernel wider than the shortest row, and beside other settings that an encoder's layers have.
CONFORMERS = {
    "conformer": {"conformer_kernel": 5, "activation": "silu"},
    "conformer-wide": {"conformer_kernel": 37, "bias": False, "norm": "rms", "gated": True, **ROTARY},
}
EVERYTHING = {name: value for fields in VARIANTS.values() for name, value in fields.items()} | ROTARY
EVERYTHING["attention"] = "softmax"  # linear attention does not rotate
VARIANTS["odd-width"] = {"d_model": 15, "n_heads": 3, "max_positions": 7}
VARIANTS["everything"] = EVERYTHING | {"norm_position": "pre", "n_heads": 6, "n_kv_heads": 2}


def _cases() -> dict[str, TransformerConfig]:
    """Every shape with both places of the norm and all positions; then one other setting at a time, and all."""
    cases = {}
    for shape, config in SHAPES.items():
        for norm in ("post", "pre"):
            for kind, positions in POSITIONS.items():
                cases[f"{shape}-{norm}-{kind}"] = replace(config, norm_position=norm, **positions)
        for activation in ("gelu", "gelu_tanh"):
            cases[f"{shape}-{activation}"] = replace(config, activation=activation)
        for variant, fields in VARIANTS.items():
            if variant == "everything" or shape in ("tokens-tokens", "frames-tokens", "decoder"):
                cases[f"{shape}-{variant}"] = replace(config, **fields)
        cases[f"{shape}-tie-none"] = replace(config, tie="none", scale_embeddings=False)
        if shape == "frames-tokens":
            projected = replace(config.encoder, input=replace(config.encoder.input, project=True))
            cases[f"{shape}-projected-ctc"] = replace(config, encoder=projected, ctc=True)
            for norm in ("post", "pre"):
                conditioned = {"ctc": True, "ctc_layers": (1,), "ctc_conditioning": True, "norm_position": norm}
                cases[f"{shape}-self-conditioned-{norm}"] = replace(config, **conditioned)
            for name, conv in CONVOLUTIONS.items():
                convolved = replace(config.encoder, input=Frames(n_features=5, **conv))
                cases[f"{shape}-{name}"] = replace(config, encoder=convolved, norm_position="pre")
            for name, fields in CONFORMERS.items():
                cases[f"{shape}-{name}"] = replace(config, norm_position="pre", **fields)
        if shape == "tokens-tokens":
            halves = {"encoder": replace(config.encoder, max_positions=5)}  # as in Whisper
            halves["decoder"] = replace(DECODER, positions="learned", max_positions=31)
            cases[f"{shape}-halves"] = replace(config, **halves, norm_position="pre")
            cases[f"{shape}-tie-all"] = replace(config, encoder=replace(DECODER, n_layers=3), tie="all")
        elif "frames" not in shape:
            cases[f"{shape}-tie-all"] = replace(config, tie="all")
    return cases


CASES = _cases()
"""By name: a shape, and what is special about it."""

CHOSEN = [
    "tokens-tokens-post-sinusoidal", "tokens-tokens-pre-learned", "tokens-tokens-post-none",
    "frames-tokens-pre-sinusoidal", "frames-tokens-post-learned", "frames-tokens-pre-none",
    "stacked-frames-tokens-post-sinusoidal", "stacked-frames-tokens-pre-none", "decoder-pre-sinusoidal",
    "decoder-post-learned", "decoder-pre-none", "encoder-post-sinusoidal", "encoder-pre-learned", "encoder-post-none",
    "encoder-gelu", "decoder-gelu_tanh", "tokens-tokens-rotary", "tokens-tokens-grouped-queries",
    "tokens-tokens-qk-norm", "tokens-tokens-rms", "tokens-tokens-gated", "tokens-tokens-no-bias",
    "tokens-tokens-qkv-bias", "tokens-tokens-window", "tokens-tokens-linear", "tokens-tokens-experts",
    "tokens-tokens-bart", "tokens-tokens-tensor2tensor", "tokens-tokens-odd-width", "tokens-tokens-everything",
    "tokens-tokens-halves", "tokens-tokens-tie-none", "tokens-tokens-tie-all", "decoder-rotary",
    "decoder-multi-query", "decoder-rotary-bands", "decoder-window", "decoder-grouped-window", "decoder-linear",
    "decoder-tie-none", "decoder-tie-all", "decoder-everything", "encoder-tie-none", "encoder-everything",
    "stacked-frames-tokens-everything", "frames-tokens-projected-ctc", "frames-tokens-self-conditioned-post",
    "frames-tokens-self-conditioned-pre", "frames-tokens-conv-1-2", "frames-tokens-conv-2-2-gated",
    "frames-tokens-conv-3-2-2-2", "frames-tokens-conformer", "frames-tokens-conformer-wide",
    "tokens-tokens-relative-grouped", "tokens-tokens-pre-relative", "decoder-post-relative", "encoder-pre-relative",
]  # fmt: skip
"""Every two of shape, place of the norm and positions, and every other setting where it means most; the rest is `long`."""

OTHERS = [name for name in CASES if name not in CHOSEN]

BETWEEN = [
    "tokens-tokens-post-sinusoidal", "tokens-tokens-pre-learned", "tokens-tokens-post-none",
    "frames-tokens-pre-sinusoidal", "stacked-frames-tokens-post-sinusoidal", "stacked-frames-tokens-pre-none",
    "decoder-pre-sinusoidal", "decoder-post-learned", "encoder-post-sinusoidal", "encoder-pre-learned",
    "tokens-tokens-rotary", "tokens-tokens-grouped-queries", "tokens-tokens-window", "tokens-tokens-linear",
    "tokens-tokens-experts", "tokens-tokens-tensor2tensor", "tokens-tokens-everything", "tokens-tokens-halves",
    "decoder-multi-query", "decoder-rotary-bands", "decoder-grouped-window", "decoder-everything",
    "frames-tokens-self-conditioned-pre", "stacked-frames-tokens-everything", "tokens-tokens-relative-grouped",
    "tokens-tokens-pre-relative", "decoder-post-relative", "encoder-pre-relative", "tokens-tokens-narrowest-heads",
]  # fmt: skip
"""What positions have to do with each other; what is done at every position by itself is in test_transformer.py."""

CONVOLVED = [name for name in CHOSEN if "-conv" in name or "-conformer" in name]


def one_layer(config: TransformerConfig) -> TransformerConfig:
    stacks = {half: getattr(config, half) for half in ("encoder", "decoder")}
    return replace(config, **{half: stack and replace(stack, n_layers=1) for half, stack in stacks.items()})


@pytest.mark.parametrize("name", BETWEEN)
def test_a_model_keeps_the_contract(name, rng):
    contract.keeps_it(contract.random_model(CASES[name], rng), rng)


@pytest.mark.parametrize("name", CONVOLVED)
def test_convolutional_encoders_keep_the_contract(name, rng):
    contract.encodes_alike(contract.random_model(CASES[name], rng), rng)


@pytest.mark.long
def test_all_other_models_keep_the_contract(rng):
    for name in [name for name in CASES if name not in BETWEEN]:
        print(name)
        contract.keeps_it(contract.random_model(CASES[name], rng), rng)
