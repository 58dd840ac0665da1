"""The host never waits for a number of the current update: numbers are read an update later."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train import toy
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.text_batches import MaskedWindows, MaskingConfig, Stream, TokenWindows
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.host import HostCopy
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation
from transduce.train.trainer import Data


def test_numbers_are_read_an_update_later_and_before_validations(tmp_path, monkeypatch):
    """With a toy of six batches per epoch. So a GPU has work while the host waits for it."""
    events = []
    data = toy.Backwards(n=14, tokens_per_batch=12)
    assert len(data.epoch(0)) == 6

    def read(late):
        events.append("read")
        return late.numbers.tolist()

    def validate(model):
        events.append("look")
        return Validation({"loss": 1.0}, 1.0)

    monkeypatch.setattr(HostCopy, "tolist", read)
    training = toy.trainer(tmp_path, data=data, validate=validate, config=toy.config(max_updates=8, validate_every=4))
    own = training.optimizer.step
    training.optimizer.step = lambda: (events.append("step"), own())
    training.run()
    four = ["step", *["step", "read"] * 3, "read"]
    rest = ["step", "step", "read", "read"]  # the end of an epoch, and two more
    assert events == [*four, "look", *rest, *rest, "look"]


def windows() -> TokenWindows:
    return TokenWindows(stream=Stream([np.arange(400).astype(np.uint16) % 12]), context=16, batch_size=2)


def settings(name: str) -> tuple[CrossEntropy, Data]:
    """Model, loss and data of a language model, a masked language model, translation, or translation with CTC."""
    torch.manual_seed(0)
    config = TransformerConfig(decoder=StackConfig(input=Tokens(vocab_size=13), n_layers=1), d_model=16, n_heads=2)
    if name == "language":
        return CrossEntropy(Transformer(config)), windows()
    if name == "masked":
        config = replace(config, encoder=config.decoder, decoder=None)
        letters = CharTokenizer.train("abcdefghijkl")
        masked = MaskedWindows(windows=windows(), masking=MaskingConfig(), tokenizer=letters)
        return CrossEntropy(Transformer(config), label_smoothing=0.1), masked
    if name == "ctc":
        return CrossEntropy(
            Transformer(replace(toy.model().config, ctc=True)), LossConfig(ctc_weight=0.3)
        ), toy.Backwards()
    return CrossEntropy(toy.model(), label_smoothing=0.1), toy.Backwards()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["language", "masked", "translation", "ctc"])
def test_updates_do_not_synchronize_with_the_device(tmp_path, name, precision):
    """With or without padding. On a GPU, reading a number waits until all queued work is done."""
    asked = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            asked.append(operation.name().split("::")[1])
            return operation(*args, **(kwargs or {}))

    objective, data = settings(name)
    batches = data.epoch(0)
    assert any(batch.n_tokens < batch.target_out.numel() for batch in batches) == (name != "language")
    training = toy.trainer(tmp_path, objective=objective, data=data, config=toy.config(precision=precision))
    training.log.open(training.progress)
    for batch in batches[0], batches[1]:
        with Watch():
            training._update([batch])
    training.log.close()
    assert "_fused_adamw_" in asked
    assert not {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal"} & set(asked)


@pytest.mark.parametrize("name", ["language", "masked", "translation", "ctc"])
def test_losses_do_not_synchronize_with_a_gpu(name, monkeypatch):
    """PyTorch's fake tensors show it, which have devices but no numbers. CTC gets its lengths on the host."""
    lengths: list[torch.Tensor] = []

    def ctc_loss(log_probabilities, targets, *both, **_):
        lengths.extend(both)
        return log_probabilities.sum()

    monkeypatch.setattr(F, "ctc_loss", ctc_loss)
    batch, gpu = settings(name)[1].epoch(0)[0], torch.device("cuda:0")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # without a GPU there is no such memory
    # without gradients, as autograd starts a GPU's queue; the test above has them
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with gpu:
            objective, _ = settings(name)
        moved = batch.to(gpu)
        assert moved.target_out.device == moved.target_lengths.device == objective.model.device == gpu
        assert objective(moved).total.device == gpu
    assert [n.device.type for n in lengths] == (["cpu", "cpu"] if name == "ctc" else [])
