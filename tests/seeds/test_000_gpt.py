"""000_a9f6fb881bdd4810.txt, chapter 1: the whole GPT of its first 80 lines is one configuration."""

import pytest
import torch
from torch import Tensor

from tests.seeds.gpt import GPT, names
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.losses import cross_entropy, projected_loss

LAYERS, WIDTH, CONTEXT, VOCABULARY = 3, 28, 23, 47


def reference() -> GPT:
    return GPT(vocabulary=VOCABULARY, context=CONTEXT, layers=LAYERS, heads=4, width=WIDTH)


def ours() -> Transformer:
    """Pre-norm, learned positions, exact GELU; dropout off, as there in evaluation."""
    return Transformer(
        TransformerConfig(
            decoder=StackConfig(input=Tokens(vocab_size=VOCABULARY), n_layers=LAYERS),
            d_model=WIDTH,
            n_heads=4,
            d_ff=4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            norm_position="pre",
            positions="learned",
            max_positions=CONTEXT,
            scale_embeddings=False,
        )
    )


def randomise(model: torch.nn.Module, rng: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.1)


def loss_of(model: Transformer, ids: Tensor, targets: Tensor) -> Tensor:
    states = model.decoder_states(ids).flatten(0, 1)
    (loss,) = projected_loss(cross_entropy, states, model.output, targets.flatten())
    return loss / targets.numel()


def copied(direction: str, rng: torch.Generator) -> tuple[GPT, Transformer]:
    """Weights of one, random, in both."""
    theirs, model = reference(), ours()
    both = names(LAYERS)
    if direction == "theirs to ours":
        randomise(theirs, rng)
        given = theirs.state_dict()
        model.load_state_dict({name: given[here] for name, here in both.items()})
    else:
        randomise(model, rng)
        given = model.state_dict()
        kept = dict(theirs.named_buffers())
        theirs.load_state_dict({here: given[name] for name, here in both.items()} | kept)
    return theirs, model


@pytest.mark.parametrize("direction", ["theirs to ours", "ours to theirs"])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["single", "double"])
def test_1_logits_loss_and_gradients_are_those_of_the_80_lines(direction, dtype, within, rng):
    """Seed 000, chapter 1: weights copied over, either way; contexts shorter than and as long as the table."""
    theirs, model = (module.to(dtype) for module in copied(direction, rng))
    for steps in (7, CONTEXT):
        ids, targets = torch.randint(VOCABULARY, (2, 3, steps), generator=rng)
        logits, loss = theirs(ids, targets)
        torch.testing.assert_close(model(target_in=ids), logits, rtol=0, atol=within)
        torch.testing.assert_close(loss_of(model, ids, targets), loss, rtol=0, atol=within)
        theirs.zero_grad()
        model.zero_grad()
        loss.backward()
        loss_of(model, ids, targets).backward()
        gradients = dict(theirs.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[names(LAYERS)[name]].grad, rtol=0, atol=within)


def test_1_same_number_of_parameters():
    """Seed 000, chapter 1: no weight more, and none less."""
    assert sum(p.numel() for p in ours().parameters()) == sum(p.numel() for p in reference().parameters())
