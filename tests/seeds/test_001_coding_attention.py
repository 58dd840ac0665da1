"""001_639e25a250099c1e.txt, "Coding Attention Mechanisms": every tensor it prints, to the last digit."""

import torch
from torch import nn

from tests.seeds.figures import (
    assert_prints,
    attended,
    attention_weights,
    self_attention,
    through,
    weights_of,
)
from transduce.model.attention import attend

INPUTS = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
BATCH = torch.stack((INPUTS, INPUTS))

CAUSAL_WEIGHTS = [
    [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.5517, 0.4483, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.3800, 0.3097, 0.3103, 0.0000, 0.0000, 0.0000],
    [0.2758, 0.2460, 0.2462, 0.2319, 0.0000, 0.0000],
    [0.2175, 0.1983, 0.1984, 0.1888, 0.1971, 0.0000],
    [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
]


def matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """3.4.1, [16]: W_query, W_key, W_value."""
    torch.manual_seed(123)
    return torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)


def linears(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """3.4.2, [24]: the same three as torch.nn.Linear begins them."""
    torch.manual_seed(seed)
    query, key, value = (nn.Linear(3, 2, bias=False).weight.detach() for _ in range(3))
    return query, key, value


def test_3_3_1_scores_of_the_second_word():
    """Seed 001, section 3.3.1, [3] and [4]: dot products."""
    query = INPUTS[1].tolist()
    scores = torch.tensor([sum(a * b for a, b in zip(x, query, strict=True)) for x in INPUTS.tolist()])
    assert_prints(scores, [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])
    assert_prints(INPUTS[0] @ INPUTS[1], 0.9544)
    # [5]: divided by their sum, before softmax takes its place
    assert_prints(scores / scores.sum(), [0.1455, 0.2278, 0.2249, 0.1285, 0.1077, 0.1656])


def test_3_3_1_simple_self_attention():
    """Seed 001, section 3.3.1, [6] to [8]: without weights and without scaling."""
    weights = attention_weights(INPUTS[1:2], INPUTS, scaled=False)[0]
    assert_prints(weights, [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])
    assert_prints(weights.sum(), 1.0)
    assert_prints(attended(INPUTS[1:2], INPUTS, INPUTS, scaled=False)[0], [0.4419, 0.6515, 0.5683])


def test_3_3_2_all_input_tokens():
    """Seed 001, section 3.3.2, [9] to [14]."""
    scores = [
        [0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310],
        [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],
        [0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605],
        [0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],
        [0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935],
        [0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450],
    ]
    assert_prints(torch.tensor([[torch.dot(x, y) for y in INPUTS] for x in INPUTS]), scores)
    assert_prints(INPUTS @ INPUTS.T, scores)
    weights = attention_weights(INPUTS, INPUTS, scaled=False)
    assert_prints(
        weights,
        [
            [0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452],
            [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
            [0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565],
            [0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],
            [0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295],
            [0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896],
        ],
    )
    assert_prints(weights.sum(dim=-1), [1.0] * 6)
    assert_prints(
        attended(INPUTS, INPUTS, INPUTS, scaled=False),
        [
            [0.4421, 0.5931, 0.5790],
            [0.4419, 0.6515, 0.5683],
            [0.4431, 0.6496, 0.5671],
            [0.4304, 0.6298, 0.5510],
            [0.4671, 0.5910, 0.5266],
            [0.4177, 0.6503, 0.5645],
        ],
    )


def test_3_4_1_attention_weights_step_by_step():
    """Seed 001, section 3.4.1, [15] to [22]: trainable weights, and scaling."""
    w_query, w_key, w_value = matrices()
    query, keys, values = INPUTS[1] @ w_query, INPUTS @ w_key, INPUTS @ w_value
    assert_prints(query, [0.4306, 1.4551])
    assert keys.shape == values.shape == (6, 2)
    assert_prints(query @ keys[1], 1.8524)
    assert_prints(query @ keys.T, [1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440])
    assert_prints(attention_weights(query[None], keys)[0], [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820])
    assert_prints(attended(query[None], keys, values)[0], [0.3061, 0.8210])


def test_3_4_2_compact_self_attention():
    """Seed 001, section 3.4.2, [23] and [24]: as parameters, and as torch.nn.Linear."""
    module = self_attention(*([w.T] for w in matrices()), None, causal=False)
    assert_prints(
        through(module, INPUTS[None], 2)[0],
        [
            [0.2996, 0.8053],
            [0.3061, 0.8210],
            [0.3058, 0.8203],
            [0.2948, 0.7939],
            [0.2927, 0.7891],
            [0.2990, 0.8040],
        ],
    )
    module = self_attention(*([w] for w in linears(789)), None, causal=False)
    assert_prints(
        through(module, INPUTS[None], 2)[0],
        [
            [-0.0739, 0.0713],
            [-0.0748, 0.0703],
            [-0.0749, 0.0702],
            [-0.0760, 0.0685],
            [-0.0763, 0.0679],
            [-0.0754, 0.0693],
        ],
    )


def test_3_5_1_mask_after_the_softmax():
    """Seed 001, section 3.5.1, [25] to [28]: zeros in the weights, and rows divided by their sums."""
    w_query, w_key, _ = linears(789)
    query, keys = INPUTS @ w_query.T, INPUTS @ w_key.T
    weights = attention_weights(query, keys)
    figures = [
        [0.1921, 0.1646, 0.1652, 0.1550, 0.1721, 0.1510],
        [0.2041, 0.1659, 0.1662, 0.1496, 0.1665, 0.1477],
        [0.2036, 0.1659, 0.1662, 0.1498, 0.1664, 0.1480],
        [0.1869, 0.1667, 0.1668, 0.1571, 0.1661, 0.1564],
        [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.1585],
        [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
    ]
    assert_prints(weights, figures)
    # What our causal attention may see is the printed mask, and masking the weights is masking the figures.
    mask = (attention_weights(query, keys, causal=True) > 0).float()
    assert mask.tolist() == [[1.0] * (t + 1) + [0.0] * (5 - t) for t in range(6)]
    masked = weights * mask
    assert_prints(masked, [[x if s <= t else 0.0 for s, x in enumerate(row)] for t, row in enumerate(figures)])
    assert_prints(masked / masked.sum(dim=-1, keepdim=True), CAUSAL_WEIGHTS)


def test_3_5_1_mask_before_the_softmax():
    """Seed 001, section 3.5.1, [29] and [30]: minus infinity in the scores, which is what our causal attention does."""
    w_query, w_key, _ = linears(789)
    query, keys = INPUTS @ w_query.T, INPUTS @ w_key.T
    figures = [
        [0.2899],
        [0.4656, 0.1723],
        [0.4594, 0.1703, 0.1731],
        [0.2642, 0.1024, 0.1036, 0.0186],
        [0.2183, 0.0874, 0.0882, 0.0177, 0.0786],
        [0.3408, 0.1270, 0.1290, 0.0198, 0.1290, 0.0078],
    ]
    for t, row in enumerate(figures):
        assert_prints((query @ keys.T)[t, : t + 1], row)
    assert_prints(attention_weights(query, keys, causal=True), CAUSAL_WEIGHTS)
    assert_prints(attended(query, keys, torch.eye(6), causal=True, key_lengths=torch.tensor([6])), CAUSAL_WEIGHTS)


def test_3_5_2_dropout():
    """Seed 001, section 3.5.2, [31] and [32]: half of the weights are dropped, the rest is doubled.

    The seed says that these may differ between operating systems; where these tests run they are as printed.
    """
    torch.manual_seed(123)
    assert_prints(
        6 * weights_of(torch.zeros(6, 6), dropout=0.5),  # equal weights, so ones before dropout
        [
            [2.0, 2.0, 0.0, 2.0, 2.0, 0.0],
            [0.0, 0.0, 0.0, 2.0, 0.0, 2.0],
            [2.0, 2.0, 2.0, 2.0, 0.0, 2.0],
            [0.0, 2.0, 2.0, 0.0, 0.0, 2.0],
            [0.0, 2.0, 0.0, 2.0, 0.0, 2.0],
            [0.0, 2.0, 2.0, 2.0, 2.0, 0.0],
        ],
    )
    w_query, w_key, _ = linears(789)
    torch.manual_seed(123)
    assert_prints(
        attention_weights(INPUTS @ w_query.T, INPUTS @ w_key.T, causal=True, dropout=0.5),
        [
            [2.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.7599, 0.6194, 0.6206, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.4921, 0.4925, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.3966, 0.0000, 0.3775, 0.0000, 0.0000],
            [0.0000, 0.3327, 0.3331, 0.3084, 0.3331, 0.0000],
        ],
    )


def test_3_5_3_compact_causal_attention():
    """Seed 001, section 3.5.3, [33] and [34]: a batch of two."""
    assert BATCH.shape == (2, 6, 3)
    module = self_attention(*([w] for w in linears(123)), None, causal=True)
    figures = [
        [-0.4519, 0.2216],
        [-0.5874, 0.0058],
        [-0.6300, -0.0632],
        [-0.5675, -0.0843],
        [-0.5526, -0.0981],
        [-0.5299, -0.1081],
    ]
    got = through(module, BATCH, 2)
    assert got.shape == (2, 6, 2)
    assert_prints(got, [figures, figures])


def test_3_6_1_stacked_heads():
    """Seed 001, section 3.6.1, [35]: two heads of width 2 side by side, in one fused matrix of ours."""
    torch.manual_seed(123)
    heads = [[nn.Linear(3, 2, bias=False).weight.detach() for _ in range(3)] for _ in range(2)]
    query, key, value = ([head[i] for head in heads] for i in range(3))
    got = through(self_attention(query, key, value, None, causal=True), BATCH, 4)
    figures = [
        [-0.4519, 0.2216, 0.4772, 0.1063],
        [-0.5874, 0.0058, 0.5891, 0.3257],
        [-0.6300, -0.0632, 0.6202, 0.3860],
        [-0.5675, -0.0843, 0.5478, 0.3589],
        [-0.5526, -0.0981, 0.5321, 0.3428],
        [-0.5299, -0.1081, 0.5077, 0.3493],
    ]
    assert got.shape == (2, 6, 4)
    assert_prints(got, [figures, figures])


def test_3_6_2_weight_splits():
    """Seed 001, section 3.6.2, [36]: one matrix split into two heads of width 1, and an output projection."""
    query, key, value = linears(123)
    output = nn.Linear(2, 2)
    module = self_attention(*(list(w.split(1)) for w in (query, key, value)), output, causal=True)
    got = through(module, BATCH, 2)
    figures = [
        [0.3190, 0.4858],
        [0.2943, 0.3897],
        [0.2856, 0.3593],
        [0.2693, 0.3873],
        [0.2639, 0.3928],
        [0.2575, 0.4028],
    ]
    assert got.shape == (2, 6, 2)
    assert_prints(got, [figures, figures])


def test_3_6_2_every_head_on_its_own():
    """Seed 001, section 3.6.2, [37] and [38]: (1, 2, 3, 4), multiplied head by head."""
    a = torch.tensor(
        [
            [
                [[0.2745, 0.6584, 0.2775, 0.8573], [0.8993, 0.0390, 0.9268, 0.7388], [0.7179, 0.7058, 0.9156, 0.4340]],
                [[0.0772, 0.3565, 0.1479, 0.5331], [0.4066, 0.2318, 0.4545, 0.9737], [0.4606, 0.5159, 0.4220, 0.5786]],
            ]
        ]
    )
    figures = [
        [[1.3208, 1.1631, 1.2879], [1.1631, 2.2150, 1.8424], [1.2879, 1.8424, 2.0402]],
        [[0.4391, 0.7003, 0.5903], [0.7003, 1.3737, 1.0620], [0.5903, 1.0620, 0.9912]],
    ]
    assert_prints(a @ a.transpose(2, 3), [figures])
    for head in range(2):
        assert_prints(a[0, head] @ a[0, head].T, figures[head])
    # Both heads at once in our attention are the softmax of each head's printed scores over sqrt(4).
    unit = torch.eye(4)[:3].expand(1, 2, 3, 4)
    want = [weights_of(torch.tensor(scores) / 2) for scores in figures]
    torch.testing.assert_close(attend(a, a, unit)[0, :, :, :3], torch.stack(want), rtol=0, atol=1e-4)
