"""What recipes share: the operations of a model."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transduce.experiment import operations_per_token
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

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
    assert operations_per_token(model) == pytest.approx(counter.get_total_flops() / ids.numel(), rel=0.02)


def test_operations_want_a_decoder_alone():
    with pytest.raises(ValueError, match="takes a decoder alone, but the model is"):
        operations_per_token(Transformer(replace(DECODER, encoder=DECODER.decoder)))
