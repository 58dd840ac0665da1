"""What a configuration and a model refuse: the rule, the values, the way out."""

import re
from dataclasses import replace

import jaxtyping
import pytest
import torch

from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

TOKENS = StackConfig(input=Tokens(vocab_size=29))
TRANSLATION = TransformerConfig(
    d_model=14, n_heads=2, d_ff=23, encoder=TOKENS, decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=3)
)
LANGUAGE = replace(TRANSLATION, encoder=None)
MASKED = replace(TRANSLATION, decoder=None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokens(vocab_size=0), "vocab_size=0"),
        (lambda: Tokens(vocab_size=5, multiple=0), "multiple=0"),
        (lambda: Frames(n_features=0), "n_features=0"),
        (lambda: Frames(n_features=13, stack=-1), "stack=-1"),
        (lambda: Frames(n_features=13, conv_strides=(2, 0)), "conv_strides=0"),
        (lambda: Frames(n_features=13, conv_channels=0), "conv_channels=0"),
        (
            lambda: Frames(n_features=13, conv_kernel=4),
            "conv_kernel must be odd, with a frame in its middle, but conv_kernel=4",
        ),
        (
            lambda: Frames(n_features=13, conv_strides=(2, 2), stack=4),
            "convolutions take frames one by one and give d_model numbers, but conv_strides=(2, 2), stack=4 and "
            "project=False; use stack=1 and project=False",
        ),
        (
            lambda: StackConfig(input=Tokens(vocab_size=29), n_layers=0),
            "n_layers=0",
        ),
        (lambda: TransformerConfig(decoder=TOKENS, d_model=0), "d_model=0"),
        (lambda: TransformerConfig(decoder=TOKENS, n_heads=0), "n_heads=0"),
        (lambda: TransformerConfig(decoder=TOKENS, d_ff=0), "d_ff=0"),
        (
            lambda: TransformerConfig(decoder=TOKENS, max_positions=0),
            "max_positions=0",
        ),
        (lambda: TransformerConfig(decoder=TOKENS, dropout=1.0), "dropout=1.0"),
        (
            lambda: TransformerConfig(decoder=TOKENS, attention_dropout=-0.1),
            "attention_dropout=-0.1",
        ),
        (lambda: TransformerConfig(decoder=TOKENS, init_gain=0.0), "init_gain=0.0"),
        (lambda: TransformerConfig(decoder=TOKENS, norm_eps=0.0), "norm_eps=0.0"),
        (
            lambda: TransformerConfig(decoder=TOKENS, d_model=14, n_heads=4),
            "n_heads must divide d_model, but n_heads=4 and d_model=14",
        ),
        (
            lambda: TransformerConfig(decoder=TOKENS, first_position=-1),
            "first_position=-1",
        ),
        (lambda: TransformerConfig(), "a Transformer needs an encoder, a decoder or both, but both are None"),
        (
            lambda: TransformerConfig(decoder=StackConfig(input=Frames(n_features=13, stack=3))),
            f"a decoder takes Tokens, but decoder.input={Frames(n_features=13, stack=3)}",
        ),
        (
            lambda: replace(TRANSLATION, tie="all"),
            (
                "tie='all' needs one vocabulary on both sides, but encoder.input=Tokens(vocab_size=29, multiple=1) "
                "and decoder.input=Tokens(vocab_size=31, multiple=1); use tie='output'"
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_configurations_are_refused(monkeypatch, make, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # some types are wrong on purpose
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


IDS = torch.zeros(1, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("config", "use", "message"),
    [
        (
            TRANSLATION,
            lambda model: model(target_in=IDS),
            "this model has an encoder, so it needs a source, but source=None",
        ),
        (
            TRANSLATION,
            lambda model: model(source=IDS),
            "this model has a decoder, so it needs target_in, but target_in=None",
        ),
        (
            TRANSLATION,
            lambda model: model.decode(IDS),
            "a decoder with cross-attention needs a memory, but memory=None; call encode() first",
        ),
        (
            LANGUAGE,
            lambda model: model.encode(IDS),
            "this model has no encoder, so it takes no source; give the text as target_in",
        ),
        (
            LANGUAGE,
            lambda model: model(source=IDS, target_in=IDS),
            "this model has no encoder, so it takes no source; give the text as target_in",
        ),
        (
            MASKED,
            lambda model: model.decode(IDS),
            "decode() needs a decoder, but this model was built with decoder=None",
        ),
        (
            MASKED,
            lambda model: model.new_cache(),
            "a cache belongs to a decoder, but this model was built with decoder=None",
        ),
        (
            replace(LANGUAGE, positions="learned", max_positions=4),
            lambda model: model(target_in=IDS),
            "learned positions end at max_positions=4, but the sequence has 5; leave out what is longer, or train with more "
            "(--model.max-positions)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_or_missing_inputs_are_refused(config, use, message):
    model = Transformer(config)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        use(model)


def test_learned_positions_end_within_a_cached_sequence():
    model = Transformer(replace(LANGUAGE, positions="learned", max_positions=7))
    cache = model.new_cache()
    model.decode(IDS, cache=cache)
    with pytest.raises(
        ValueError, match=r"^learned positions end at max_positions=7, but the sequence has 10; leave out"
    ):
        model.decode(IDS, cache=cache)


@pytest.mark.parametrize("field", ["activation", "norm", "norm_position", "positions", "tie", "init"])
def test_unknown_choices_are_refused(field):
    config = TransformerConfig(decoder=TOKENS)
    vars(config)[field] = "outptu"  # where shapes are checked, the type checker would refuse it as an argument
    with pytest.raises(ValueError, match=f"{field}='outptu'"):
        config.__post_init__()
