"""003_487b902510e8368a.txt, "Easy Transformer": its figures that concern the model; a section is named by its title.

Where it prints numbers drawn without a seed, what can be known of them is tested: their inputs are printed with them,
or they must lie where such numbers lie.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.seeds.figures import assert_prints, config, weights_of
from transduce.model.attention import SelfAttention
from transduce.model.config import Tokens
from transduce.model.inputs import TokenInput, sinusoidal
from transduce.model.layers import FeedForward, Layer, Sublayer


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_transformer_block():
    """Seed 003, "Transformer Block": (2, 10, 64) in and out, 49,984 parameters."""
    layer = Layer(config(d_model=64, n_heads=4, d_ff=256, activation="gelu"), causal=False, cross=False)
    assert parameters(layer) == 49_984
    assert layer(torch.randn(2, 10, 64)).shape == (2, 10, 64)


def test_self_attention():
    """Seed 003, "Self Attention": the printed weights are the softmax of the printed scores."""
    scores = torch.tensor(
        [
            [6.5752, -0.7889, 14.6079, 27.1378],
            [-3.8368, 0.7991, -5.4737, -11.2404],
            [3.4245, -0.5925, 9.8516, 21.3384],
            [-1.3650, 0.1074, 4.8432, 13.4147],
        ],
        dtype=torch.float64,
    )
    weights = torch.tensor(
        [
            [1.1742e-09, 7.4398e-13, 3.6167e-06, 1.0000e00],
            [9.5864e-03, 9.8854e-01, 1.8653e-03, 5.8384e-06],
            [1.6598e-08, 2.9891e-10, 1.0265e-05, 9.9999e-01],
            [3.8122e-07, 1.6620e-06, 1.8940e-04, 9.9981e-01],
        ],
        dtype=torch.float64,
    )
    # Two scores of four decimals leave an error of 1e-4 in their difference, and the fifth digit is rounded.
    torch.testing.assert_close(weights_of(scores), weights, rtol=1.6e-4, atol=0)


def test_multi_head_attention():
    """Seed 003, "Multi Head Attention": (2, 8, 64) in and out, 16,640 parameters."""
    attention = SelfAttention(config(d_model=64, n_heads=4), causal=False)
    assert parameters(attention) == 16_640
    assert attention(torch.randn(2, 8, 64)).shape == (2, 8, 64)


def test_softmax_cross_entropy():
    """Seed 003, "Softmax Crossentropy": probabilities, loss, the gradient p - y, through our attention's softmax."""
    logits = torch.tensor([[2.0, 1.0, 0.1]], requires_grad=True)
    probabilities = weights_of(logits)
    assert_prints(probabilities, [[0.6590, 0.2424, 0.0986]])
    assert_prints(probabilities.sum(), 1.0)
    loss = -probabilities[0, 0].log()
    assert_prints(loss, 0.4170)
    loss.backward()
    assert_prints(logits.grad, [[-0.3410, 0.2424, 0.0986]])
    torch.testing.assert_close(logits.grad, probabilities.detach() - torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.tensor([0])))


def only_the_activation(name: str) -> FeedForward:
    """Our feed-forward layer of width 1, with weights of one and biases of zero."""
    layer = FeedForward(config(d_model=1, n_heads=1, d_ff=1, activation=name))
    for linear in (layer.wide, layer.narrow):
        nn.init.ones_(linear.weight)
        nn.init.zeros_(linear.bias)
    return layer


@pytest.mark.parametrize(
    ("name", "printed", "slope_at_zero"),
    [
        ("relu", [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0], 0.0),
        ("gelu", [-0.004, -0.046, -0.159, 0.000, 0.841, 1.954, 2.996], 0.5),
        ("silu", [-0.142, -0.238, -0.269, 0.000, 0.731, 1.762, 2.858], 0.5),
    ],
)
def test_activations(name, printed, slope_at_zero):
    """Seed 003, "Activations": ReLU, GELU and Swish (silu) at -3 ... 3, and their slopes at 0."""
    x = torch.linspace(-3, 3, 7).view(1, 7, 1).requires_grad_()
    y = only_the_activation(name)(x)
    assert_prints(y.flatten(), printed, digits=3)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert_prints(slope[0, 3, 0], slope_at_zero)


def test_ffn():
    """Seed 003, "Ffn": 768 -> 3072 -> 768, 2,362,368 + 2,360,064 = 4,722,432 parameters."""
    layer = FeedForward(config(d_model=768, n_heads=12, d_ff=3072, activation="gelu"))
    assert (parameters(layer.wide), parameters(layer.narrow)) == (2_362_368, 2_360_064)
    assert parameters(layer) == 4_722_432
    assert layer(torch.randn(2, 10, 768)).shape == (2, 10, 768)


def test_layer_norm():
    """Seed 003, "Layer Norm": our sublayer around nothing is the norm alone.

    Four of the eight numbers of the first position are printed, before and after. The first and last pair tells mean
    and deviation; with any other four numbers that give the same two, all four come out as printed.
    """
    before = [20.94530487060547, 24.30544090270996, -5.878896713256836, -13.407829284667969]
    after = [1.326, 1.557, -0.525, -1.044]
    deviation = (before[1] - before[3]) / (after[1] - after[3])
    mean = before[1] - after[1] * deviation
    # The four that are not printed: middle - spread twice, middle + spread twice.
    middle = (8 * mean - sum(before)) / 4
    spread = math.sqrt((8 * deviation**2 - sum((x - mean) ** 2 for x in before)) / 4 - (middle - mean) ** 2)
    x = torch.tensor([*before, middle - spread, middle - spread, middle + spread, middle + spread])

    sublayer = Sublayer(config(d_model=8, n_heads=1))
    y = sublayer(x.view(1, 1, 8), torch.zeros_like)[0, 0]
    torch.testing.assert_close(y[:4], torch.tensor(after), rtol=0, atol=1.5e-3)  # mean and deviation are rounded, too

    # Whatever goes in: mean 0, and a deviation of 1 in every position; 1.0079 of all 64 numbers is sqrt(64 / 63).
    y = sublayer(torch.randn(2, 4, 8) * 10 + 5, torch.zeros_like)
    assert_prints(y.mean(), 0.0)
    assert_prints(y.std(), 1.0079)
    assert_prints(y[0, 0].mean(), 0.0, digits=6)
    assert_prints(y[0, 0].std(unbiased=False), 1.0, digits=6)


def test_positional_encoding():
    """Seed 003, "Positional Encoding": ten positions of width 8."""
    table = sinusoidal(0, 10, 8)
    assert table.shape == (10, 8)
    assert_prints(table[0], [0.000, 1.000, 0.000, 1.000, 0.000, 1.000, 0.000, 1.000], digits=3)
    assert_prints(table[1], [0.841, 0.540, 0.100, 0.995, 0.010, 1.000, 0.001, 1.000], digits=3)
    assert_prints(table[9], [0.412, -0.911, 0.783, 0.622, 0.090, 0.996, 0.009, 1.000], digits=3)
    assert len({tuple(row) for row in table.tolist()}) == 10
    assert_prints(table[:5, 0], [0.00, 0.84, 0.91, 0.14, -0.76], digits=2)
    assert_prints(table[:5, 6], [0.00, 0.00, 0.00, 0.00, 0.00], digits=2)


def test_gradient_flow():
    """Seed 003, "Gradient Flow": 28.0388 with residuals, 0.0360 without, after ten linear layers of 64.

    The text draws without a seed. So: our residual gives the gradient that the chain rule gives, and over many draws
    the printed norms lie among those of our layers, with residual and without.
    """
    sublayer = Sublayer(config(d_model=64, n_heads=1))
    sublayer.norm = nn.Identity()  # the text has none here
    norms: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(40):
        torch.manual_seed(seed)
        layers, x = [nn.Linear(64, 64) for _ in range(10)], torch.randn(1, 1, 64, requires_grad=True)
        for residual in (True, False):
            y = x
            for layer in layers:
                y = sublayer(y, layer) if residual else layer(y)
            (gradient,) = torch.autograd.grad(y.sum(), x)
            # d sum(y) / d x = (1 + W_1)^T ... (1 + W_10)^T (1, ..., 1), without the 1 where there is no residual.
            want = torch.ones(64)
            for layer in reversed(layers):
                want = layer.weight.T @ want + (want if residual else 0)
            torch.testing.assert_close(gradient[0, 0], want, rtol=1e-4, atol=1e-6)
            norms[residual].append(gradient.norm().item())
    assert min(norms[True]) < 28.0388 < max(norms[True])
    assert min(norms[False]) < 0.0360 < max(norms[False])
    assert min(norms[True]) > 100 * max(norms[False])


def test_causal_mask():
    """Seed 003, "Causal Mask": what may be seen, and the printed weights from the printed scores."""
    assert (weights_of(torch.zeros(5, 5), causal=True) > 0).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]
    scores = torch.tensor(
        [
            [-0.72, -0.81, -0.84, -1.48, -0.68],
            [1.23, -1.05, -3.02, 1.00, 2.49],
            [-1.31, 1.48, 1.54, -0.09, -0.93],
            [-1.25, 0.91, 0.38, 0.03, 0.78],
            [0.46, -0.63, 1.60, 0.61, -1.37],
        ]
    )
    weights = torch.tensor(
        [
            [1.00, 0.00, 0.00, 0.00, 0.00],
            [0.91, 0.09, 0.00, 0.00, 0.00],
            [0.03, 0.47, 0.50, 0.00, 0.00],
            [0.05, 0.47, 0.28, 0.20, 0.00],
            [0.17, 0.06, 0.54, 0.20, 0.03],
        ]
    )
    # Both are rounded to two decimals: 0.005 of the weight, and 0.005 of each score, 2 p (1 - p) * 0.005 in a weight.
    torch.testing.assert_close(weights_of(scores, causal=True), weights, rtol=0, atol=0.0075)


def test_embedding_lookup():
    """Seed 003, "Embedding Lookup": 64,000 parameters; the same token, the same vector."""

    embedding = TokenInput(Tokens(vocab_size=1000), 64, scaled=False)
    nn.init.normal_(embedding.weight)
    vectors, _ = embedding(torch.tensor([[42, 123, 7, 500], [99, 42, 200, 1]]))
    assert vectors.shape == (2, 4, 64)
    assert torch.equal(vectors[0, 0], vectors[1, 1])
    assert parameters(embedding) == 64_000
