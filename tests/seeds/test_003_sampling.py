"""003_487b902510e8368a.txt, "Easy Transformer": its figures that concern generation; a section is named by its title."""

import numpy as np
import pytest
import torch

from tests.seeds.figures import assert_prints
from transduce.decode.config import SamplingConfig
from transduce.decode.sample import draw, probabilities

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.1, -0.5]])


@pytest.mark.parametrize(
    ("temperature", "printed"),
    [
        (0.5, [0.824, 0.111, 0.041, 0.018, 0.006]),
        (1.0, [0.549, 0.202, 0.122, 0.082, 0.045]),
        (2.0, [0.363, 0.220, 0.172, 0.141, 0.104]),
    ],
)
def test_temperature_sampling(temperature, printed):
    """Seed 003, "Temperature Sampling": the printed probabilities; 2,000 draws have them as their shares."""
    probs = probabilities(LOGITS, SamplingConfig(temperature=temperature))
    assert_prints(probs[0], printed, digits=3)
    uniform = torch.from_numpy(np.random.default_rng(3).random(2000))
    shares = draw(probs.expand(2000, -1), uniform).bincount(minlength=5) / 2000
    deviation = (probs[0] * (1 - probs[0]) / 2000).sqrt()
    assert ((shares - probs[0]).abs() < 4 * deviation).all()
