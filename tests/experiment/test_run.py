"""What recipes share: a command line, the operations of a model."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transduce.experiment.command import main
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.flops import flops_per_token
from transduce.train.trainer import TrainingConfig

DECODER = TransformerConfig(
    decoder=StackConfig(input=Tokens(vocab_size=311), n_layers=3),
    d_model=96,
    n_heads=4,
    d_ff=352,
    max_positions=64,
    positions="learned",
    dropout=0.0,
)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie": "none"}, {"positions": "sinusoidal"}, {"gated": True}, {"n_experts": 4, "experts_per_token": 2}],
    ids=str,
)
def test_operations_of_a_token_agree_with_torchs_count(changes):
    """Both count matrix products alone; biases and norms, which are in N, are 1 % of these sizes."""
    torch.manual_seed(0)
    model = Transformer(replace(DECODER, **changes))
    ids = torch.randint(311, (5, 64))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the CPU's kernel is not counted
        model(target_in=ids).sum().backward()
    assert flops_per_token(model) == pytest.approx(counter.get_total_flops() / ids.numel(), rel=0.02)


def test_operations_want_a_decoder_alone():
    with pytest.raises(ValueError, match="takes a decoder alone, but the model is"):
        flops_per_token(Transformer(replace(DECODER, encoder=DECODER.decoder)))


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """An experiment that only has what all have."""

    run: Path = Path("runs/nothing")
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = "cpu"


@pytest.mark.parametrize(("device", "code", "calls"), [("cpu", 0, 1), ("abacus", 2, 0)])
def test_a_device_that_is_not_there_is_named_before_any_work(monkeypatch, capsys, device, code, calls):
    called = []
    monkeypatch.setattr(sys, "argv", ["recipe", "--device", device])
    assert main(called.append, {"nothing": ("Nothing.", Nothing())}, default="nothing", description=None) == code
    assert len(called) == calls
    err = capsys.readouterr().err
    assert err.startswith("error: device must be one that this machine has, but 'abacus': ") if code else not err
