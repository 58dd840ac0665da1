"""Every tensor that a model makes is on the model's device. Fake tensors show it without such a device.

PyTorch's fake tensors have shapes, types and devices, but no numbers; mixing devices is the error that a GPU would give.
"""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.contract import TARGET, in_pieces, random_example
from tests.model.test_contract import CASES, one_layer
from transduce.model.transformer import Transformer
from transduce.train.losses import cross_entropy, projected_loss

# models that make tables, angles, masks and sums; not experts, whose routing needs real numbers
FAKE = [
    "tokens-tokens-halves", "stacked-frames-tokens-post-none", "tokens-tokens-grouped-window", "tokens-tokens-linear",
    "decoder-rotary", "encoder-post-sinusoidal",
]  # fmt: skip
GPU = torch.device("cuda:0")


def on_gpu(value: Tensor | None) -> Tensor | None:
    if value is None:
        return None
    return value.to(GPU, torch.float32) if value.is_floating_point() else value.to(GPU)


@pytest.mark.parametrize("name", FAKE)
def test_outputs_and_loss_are_on_the_models_device(name):
    config = one_layer(CASES[name])
    with FakeTensorMode():
        with GPU:
            model = Transformer(config).eval()
        assert model.device == GPU
        example = random_example(config, torch.Generator())
        example = replace(example, **{f.name: on_gpu(getattr(example, f.name)) for f in fields(example)})
        assert example.logits(model).device == GPU
        if config.decoder is None:
            return
        memory = example.memory(model)
        with torch.no_grad():
            assert in_pieces(model, example.target, memory, (TARGET - 1, 1)).device == GPU
            states = model.decoder_states(example.target, memory=memory)  # autograd would start a GPU's queue
            states, targets = states.flatten(0, 1), example.target.flatten()
            (loss,) = projected_loss(cross_entropy, states, model.output, targets)
        assert loss.device == GPU


def test_reordered_caches_stay_on_their_device():
    with FakeTensorMode():
        with GPU:
            model = Transformer(one_layer(CASES["tokens-tokens-rotary"])).eval()
            source, target, rows = torch.ones(3, 7).long(), torch.ones(3, 4).long(), torch.tensor([2, 0, 1, 1])
            memory, cache = model.encode(source, torch.tensor([7, 5, 2])), model.new_cache()
            sentences = torch.tensor([1, 0])
        model.decode(target, memory=memory, cache=cache)
        cache.reorder(rows)
        cache.keep(sentences)
        assert model.decode(target[:, :1][rows], cache=cache).device == GPU


def test_fake_tensors_detect_mixed_devices():
    with FakeTensorMode(), pytest.raises(RuntimeError, match=r"two (different )?devices"):
        torch.ones(3, device=GPU) + torch.arange(3)
