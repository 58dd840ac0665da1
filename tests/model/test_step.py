"""The quick step of a search computes what the layers compute: the model's contract holds for it, too."""

from copy import deepcopy

import pytest
import torch

from tests import contract
from tests.model.test_contract import CASES
from transduce.model.config import Tokens
from transduce.model.packed import PackedTransformer, pack
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
    assert {config.attention for config in FIT.values()} == {"softmax"}


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


def test_a_copy_has_a_step_of_its_own(rng):
    config = next(config for config in FIT.values() if config.encoder and isinstance(config.encoder.input, Tokens))
    model = pack(contract.random_model(config, rng).float())
    assert isinstance(model.step, DecoderStep)
    copied, seen = deepcopy(model), []
    example = contract.random_example(config, rng)
    copied.decoder.layers[0].cross.register_forward_hook(lambda *_: seen.append(1))
    for each, times in ((model, 0), (copied, contract.TARGET)):
        contract.in_pieces(each, example.target, example.memory(each), (1,) * contract.TARGET)
        assert len(seen) == times


def test_two_searches_of_memories_with_the_same_lengths_take_turns(rng):
    """The padding that a step adds belongs to a search, not to the model."""
    config = next(config for config in FIT.values() if config.encoder)
    model = contract.random_model(config, rng)
    model.__class__, model.logits, model.step = PackedTransformer, None, Counting(model)
    wide = contract.random_example(config, rng).memory(model)
    lengths = (wide.lengths - 1).clamp_min(1)
    narrow = wide._replace(states=wide.states[:, : int(lengths.max())], lengths=lengths)
    wide = wide._replace(lengths=lengths)
    target = contract.random_example(config, rng).target

    def step_by_step(*memories):
        caches = [model.new_cache() for _ in memories]
        for t in range(target.size(1)):
            part = target[:, t : t + 1]
            yield [model.decoder_states(part, memory=m, cache=c) for m, c in zip(memories, caches, strict=True)]

    with torch.inference_mode():
        alone = zip(*(step_by_step(memory) for memory in (wide, narrow)), strict=True)
        for together, (one, other) in zip(step_by_step(wide, narrow), alone, strict=True):
            torch.testing.assert_close(together, one + other)
