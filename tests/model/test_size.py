"""A model's size follows from its configuration, and a model that cannot fit is refused before it takes memory."""

from dataclasses import replace

import pytest
import torch

from transduce.device import memory
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.meta import TRAINING, check_fits, n_parameters
from transduce.model.transformer import Transformer

TEXT = StackConfig(input=Tokens(vocab_size=11), n_layers=2)
OTHER = StackConfig(input=Tokens(vocab_size=13, multiple=4), n_layers=3)
SOUND = StackConfig(input=Frames(n_features=3, stack=2), n_layers=2)
BASE = TransformerConfig(encoder=TEXT, decoder=TEXT, d_model=12, n_heads=2, d_ff=20, max_positions=9)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie": "all"},
        {"encoder": replace(TEXT, positions="learned", max_positions=5)},
        {"tie": "none", "decoder": OTHER},
        {"encoder": None, "positions": "learned", "norm_position": "pre"},
        {"encoder": None, "tie": "none"},
        {"decoder": None},
        {"decoder": None, "tie": "none"},
        {"encoder": SOUND, "ctc": True},
        {"encoder": SOUND, "ctc": True, "ctc_layers": (1,)},
        {"encoder": replace(TEXT, n_layers=5), "ctc": True, "ctc_layers": (2, 4), "ctc_conditioning": True},
        {"decoder": OTHER, "ctc": True, "ctc_layers": (1,), "ctc_conditioning": True},
        {"encoder": SOUND, "ctc": True, "ctc_layers": (1,), "ctc_conditioning": True, "bias": False},
        {"encoder": SOUND, "decoder": None, "bias": False},
        {"encoder": replace(SOUND, input=Frames(n_features=6, stack=2)), "decoder": OTHER},
        {"encoder": replace(SOUND, input=Frames(n_features=6, stack=2, project=True))},
        {"encoder": replace(SOUND, input=Frames(n_features=6, conv_strides=(1, 2, 2), conv_channels=7))},
        {
            "encoder": replace(SOUND, input=Frames(n_features=12, conv_strides=(2,), conv_activation="glu")),
            "bias": False,
        },
        {"bias": False, "gated": True, "norm_position": "pre"},
        {"norm": "rms", "n_kv_heads": 1, "head_width": 4, "qk_norm": True, "positions": "rotary"},
        {"bias": False, "qkv_bias": True},
        {"attention": "linear"},
        {"conformer_kernel": 5, "norm_position": "pre", "decoder": OTHER},
        {"conformer_kernel": 3, "norm_position": "pre", "decoder": None, "bias": False, "gated": True, "norm": "rms"},
        {"n_experts": 3, "gated": True, "bias": False, "ctc": True},
        {"output_bias": True, "embedding_norm": True, "decoder": OTHER},
    ],
    ids=str,
)
def test_parameter_count_equals_the_models(changes):
    config = replace(BASE, **changes)
    assert n_parameters(config) == sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"d_ff": 10**15},
        {"encoder": replace(TEXT, n_layers=1000), "d_model": 10**6},
        {"decoder": StackConfig(input=Tokens(vocab_size=10**15))},
        {"encoder": StackConfig(input=Frames(n_features=10**15))},
        {"encoder": StackConfig(input=Frames(n_features=1, conv_strides=(2,), conv_kernel=10**15 + 1))},
        {"positions": "learned", "max_positions": 10**15},
        {"encoder": replace(TEXT, max_positions=10**15)},
        {"positions": "sinusoidal", "max_positions": 10**15},
        {"positions": "rotary", "max_positions": 10**15},
        {"head_width": 10**15},
        {"conformer_kernel": 10**15 + 1, "norm_position": "pre"},
    ],
    ids=str,
)
def test_models_larger_than_memory_are_refused(changes):
    with pytest.raises(ValueError, match=r"a model must fit into memory, but this one has [\d,]+ parameters and its "):
        check_fits(replace(BASE, **changes), torch.device("cpu"))


@pytest.mark.parametrize("changes", [{"d_model": 10**15}, {"n_heads": 1, "head_width": 2**62 - 1}], ids=str)
def test_impossibly_large_weights_are_refused(changes):
    with pytest.raises(ValueError) as caught:
        check_fits(replace(BASE, **changes), torch.device("cpu"))
    assert str(caught.value) == (
        "a model must fit into memory, but one weight of this one has 2**63 bytes or more; take smaller layers"
    )


def test_memory_error_names_the_size_and_the_memory(monkeypatch):
    monkeypatch.setattr("transduce.model.meta.memory", lambda device: 3 * 2**30 // 2)
    config = TransformerConfig(encoder=None, decoder=TEXT, d_model=4096, n_heads=8, d_ff=16384, positions="none")
    layer = 4 * (4096 * 4096 + 4096) + 2 * 4096 * 16384 + 16384 + 4096 + 2 * 2 * 4096  # attention, feed-forward, norms
    n = 11 * 4096 + 2 * layer
    assert 1.5 * 2**30 < 4 * n < 1.6 * 2**30
    with pytest.raises(ValueError) as caught:
        check_fits(config, torch.device("cpu"), bytes_each=TRAINING)
    assert str(caught.value) == (
        f"a model must fit into memory, but this one has {n:,} parameters and training takes {16 * n / 2**30:.1f} GiB, "
        "where cpu has 1.5 GiB; take fewer layers or smaller ones"
    )
    check_fits(replace(config, d_ff=8192), torch.device("cpu"))
    monkeypatch.setattr("transduce.model.meta.memory", lambda device: None)  # unknown
    check_fits(config, torch.device("cpu"), bytes_each=TRAINING)


def test_memory_is_at_most_that_of_proc_meminfo():
    with open("/proc/meminfo") as file:
        (total,) = (int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:"))
    assert 0 < memory(torch.device("cpu")) <= total
    assert memory(torch.device("meta")) is None
