"""The quick step of a search computes what the layers compute: the model's contract holds for it, too."""

import pytest
import torch

from tests import contract
from tests.model.test_contract import CASES
from transduce.model.packed import PackedTransformer
from transduce.model.step import DecoderStep

FIT = {name: config for name, config in CASES.items() if DecoderStep.fits(config)}


class Counting(DecoderStep):
    """A step that counts how often it was taken."""

    taken = 0

    def __call__(self, *arguments):
        self.taken += 1
        return super().__call__(*arguments)


@pytest.mark.parametrize("config", FIT.values(), ids=FIT.keys())
@pytest.mark.parametrize("rule", [contract.whole_equals_step_by_step, contract.beams_fold])
def test_it_keeps_the_contract(config, rule, rng):
    model = contract.random_model(config, rng)
    model.__class__, model.logits, model.step = PackedTransformer, None, Counting(model)
    with torch.inference_mode():
        rule(model, rng)
    assert model.step.taken >= 2


def test_it_is_there_for_some_and_not_for_all():
    others = [config for config in CASES.values() if config.decoder and not DecoderStep.fits(config)]
    assert len(FIT) >= 4 and any(c.encoder for c in FIT.values()) and not all(c.encoder for c in FIT.values())
    assert {"rotary", "sinusoidal"} <= {config.positions for config in others}


def test_whoever_watches_a_layer_still_sees_it(rng):
    config = next(config for config in FIT.values() if config.encoder)
    model = contract.random_model(config, rng)
    model.__class__, model.logits, model.step = PackedTransformer, None, Counting(model)
    example, seen = contract.random_example(config, rng), []
    cross = model.decoder.layers[0].cross
    hook = cross.register_forward_hook(lambda *_: seen.append(1))
    contract.in_pieces(model, example.target, example.memory(model), (1,) * contract.TARGET)
    assert len(seen) == contract.TARGET and not model.step.taken
    hook.remove()
    contract.in_pieces(model, example.target, example.memory(model), (1,) * contract.TARGET)
    assert len(seen) == contract.TARGET and model.step.taken == contract.TARGET - 1
