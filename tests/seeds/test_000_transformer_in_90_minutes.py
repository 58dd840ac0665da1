"""000_a9f6fb881bdd4810.txt, the GPT-2 tutorial: the worked attention, its mask, its heads.

Chapters 5 and 6 print tensors that do not follow from their own inputs and their own seed. What the text describes is
computed here, by our code and in plain loops, and that the printed numbers are something else is asserted too.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.seeds.figures import assert_prints, attended, attention_weights, config, prints, self_attention, weights_of
from transduce.model.attention import SelfAttention, attend
from transduce.model.config import Tokens
from transduce.model.inputs import Positions, TokenInput

X = torch.tensor([[0.1, 0.1], [1.0, 0.2], [0.1, 0.9], [0.8, 0.0]])
"""5.1: "A crane ate fish", four words of two dimensions."""

SCORES_5_1 = [
    [0.0531, 0.4137, 0.1802, 0.2721],
    [0.1782, 1.3888, 0.6053, 0.9101],
    [0.0618, 0.4815, 0.2098, 0.3151],
    [0.1260, 0.9822, 0.4280, 0.6433],
]
OUTPUT_5_1 = [[0.0652, -0.1691], [0.1147, -0.2974], [0.0768, -0.1991], [0.1005, -0.2607]]
SCALED_6_1 = [
    [0.0375, 0.2925, 0.1274, 0.1924],
    [0.1260, 0.9822, 0.4280, 0.6433],
    [0.0437, 0.3405, 0.1484, 0.2228],
    [0.0891, 0.6945, 0.3023, 0.4549],
]
WEIGHTS_6_1 = [
    [1.0000, 0.0000, 0.0000, 0.0000],
    [0.2995, 0.7005, 0.0000, 0.0000],
    [0.3129, 0.3807, 0.3064, 0.0000],
    [0.2186, 0.3999, 0.2445, 0.1370],
]


def projections() -> list[torch.Tensor]:
    """5.1, step 1: the weights of q_proj, k_proj and v_proj."""
    torch.manual_seed(42)
    return [torch.randn(2, 2) for _ in range(3)]


def in_loops(causal: bool) -> torch.Tensor:
    """softmax(Q K^T / sqrt(2)) V for the four words, one number at a time."""
    q, k, v = (
        [[sum(w * x_i for w, x_i in zip(row, x, strict=True)) for row in matrix.tolist()] for x in X.tolist()]
        for matrix in projections()
    )
    rows = []
    for t in range(4):
        seen = range(t + 1 if causal else 4)
        weights = [math.exp((q[t][0] * k[s][0] + q[t][1] * k[s][1]) / math.sqrt(2)) for s in seen]
        rows.append([sum(weights[s] * v[s][i] for s in seen) / sum(weights) for i in range(2)])
    return torch.tensor(rows)


def test_2_4_and_3_3_embeddings_and_positions():
    """Seed 000, sections 2.4 and 3.3: the printed shapes, of a table of 10 words and one of 8 positions."""
    table = TokenInput(Tokens(vocab_size=10), 3, scaled=False)
    places = Positions(replace(config(d_model=3, n_heads=1), positions="learned", max_positions=8))
    nn.init.normal_(table.weight)
    nn.init.normal_(places.learned)
    assert table.weight.shape == (10, 3)
    assert table(torch.randint(10, (2, 4)))[0].shape == (2, 4, 3)
    ids = torch.randint(10, (2, 5))
    x = places(table(ids)[0])
    assert x.shape == (2, 5, 3)
    assert torch.equal(x[1, 4], table.weight[ids[1, 4]] + places.learned[4])


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([([0.9, 0.1], [0.9, 0.1]), ([0.9, 0.1], [0.8, 0.2])], [0.71, 0.29]),  # ate, fish: a bird
        ([([0.1, 0.9], [0.1, 0.9]), ([0.1, 0.9], [0.2, 0.8])], [0.29, 0.71]),  # lifted, steel: a machine
    ],
    ids=["crane ate fish", "crane lifted steel"],
)
def test_4_1_crane(words, printed):
    """Seed 000, section 4.1: the vector of "crane" after its neighbours; the text does not scale here."""
    query = torch.tensor([[0.7, 0.7]])
    key = torch.cat((query, torch.tensor([k for k, _ in words])))
    value = torch.tensor([[0.5, 0.5], *(v for _, v in words)])
    assert_prints(query @ key.T, [[0.98, 0.70, 0.70]], digits=2)
    assert_prints(attention_weights(query, key, scaled=False), [[0.4, 0.3, 0.3]], digits=1)
    assert_prints(attended(query, key, value, scaled=False), [printed], digits=2)


def test_5_1_raw_tensors():
    """Seed 000, section 5.1: scores, weights and output of four words.

    The printed scores and output do not follow: not from the seed 42 of the text, and not from any weights.
    """
    query, key, value = (X @ w.T for w in projections())
    got = attended(query, key, value)
    torch.testing.assert_close(got, in_loops(causal=False), rtol=0, atol=1e-6)
    assert not prints(query @ key.T, SCORES_5_1, digits=1)
    assert not prints(got, OUTPUT_5_1, digits=1)

    # scores = X M X^T for one 2 x 2 matrix M, whatever W_q and W_k are. The nearest such scores are far away:
    # the digits that were not printed account for 16 * 0.00005 at most.
    x, scores = X.double(), torch.tensor(SCORES_5_1, dtype=torch.float64)
    pairs = torch.kron(x, x)
    nearest = pairs @ torch.linalg.lstsq(pairs, scores.reshape(16, 1)).solution
    assert (nearest - scores.reshape(16, 1)).norm() > 0.1
    # output = weights X W for one 2 x 2 matrix W, also if the weights are those of the printed scores.
    mixed, output = weights_of(scores / math.sqrt(2)) @ x, torch.tensor(OUTPUT_5_1, dtype=torch.float64)
    assert (mixed @ torch.linalg.lstsq(mixed, output).solution - output).norm() > 0.01


def test_5_2_fused_projection():
    """Seed 000, section 5.2: one fused linear layer gives what the three gave ("True")."""
    module = self_attention(*([w] for w in projections()), None, causal=False)
    torch.testing.assert_close(module.qkv.weight, torch.cat(projections()))
    torch.testing.assert_close(module(X[None])[0], in_loops(causal=False), rtol=0, atol=1e-6)


def test_6_1_mask():
    """Seed 000, section 6.1, steps 1 and 2: the lower triangle; and the scores it leaves, as printed."""
    scores = torch.tensor(SCALED_6_1)
    mask = weights_of(scores, causal=True) > 0
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    # These scores are those printed in 5.1 over sqrt(2), but for three that are off by more than rounding.
    off = (torch.tensor(SCORES_5_1) / math.sqrt(2) - scores).abs()
    assert (off > 1e-4).sum() == 3
    assert off.max() < 4e-4


def test_6_1_causal_weights():
    """Seed 000, section 6.1, step 3: softmax of the masked scores.

    Of the printed weights only the first row follows from the printed scores. In the last, "fish" has a higher score
    than "ate" and a lower weight, so it is the softmax of no such scores at all.
    """
    got = weights_of(torch.tensor(SCALED_6_1), causal=True)
    for t, scores in enumerate(SCALED_6_1):
        exponentials = [math.exp(score) for score in scores[: t + 1]]
        want = [x / sum(exponentials) for x in exponentials] + [0.0] * (3 - t)
        torch.testing.assert_close(got[t], torch.tensor(want))
    assert [prints(row, figures, digits=3) for row, figures in zip(got, WEIGHTS_6_1, strict=True)] == [
        True,
        False,
        False,
        False,
    ]
    assert_prints(got[1, :2], [0.2981, 0.7019])
    assert_prints(got[3], [0.1814, 0.3324, 0.2246, 0.2616])
    assert SCALED_6_1[3][3] > SCALED_6_1[3][2]
    assert WEIGHTS_6_1[3][3] < WEIGHTS_6_1[3][2]
    # The text around it reads 100 %, then 30 % and 70 %: so far it is right.
    assert_prints(got[1, :2], [0.3, 0.7], digits=1)


def test_6_2_causal_self_attention():
    """Seed 000, section 6.2: the module with its mask, on the four words of chapter 5."""
    module = self_attention(*([w] for w in projections()), None, causal=True)
    torch.testing.assert_close(module(X[None])[0], in_loops(causal=True), rtol=0, atol=1e-6)


def test_7_1_heads():
    """Seed 000, section 7.1: 768 numbers are 12 heads of 64, and 768 numbers again; the shapes it prints."""
    q, k, v = (torch.randn(1, 4, 768) for _ in range(3))
    heads = [x.view(1, 4, 12, 64).transpose(1, 2) for x in (q, k, v)]
    assert heads[0].shape == attend(*heads).shape == (1, 12, 4, 64)
    module = SelfAttention(config(d_model=768, n_heads=12), causal=True)
    assert module(q).shape == (1, 4, 768)

    # The module's heads are those of the text: its output before the last projection, head by head.
    with torch.no_grad():
        module.output.weight.copy_(torch.eye(768))
        module.output.bias.zero_()
        parts = [x.view(1, 4, 12, 64).transpose(1, 2) for x in module.qkv(q).split(768, dim=2)]
        for head in range(12):
            want = attended(*(part[0, head] for part in parts), causal=True)
            torch.testing.assert_close(module(q)[0, :, 64 * head : 64 * (head + 1)], want, rtol=0, atol=1e-5)
