"""002_dbf29007b3f7ae8f.txt, "Understanding self-attention": its modules are configurations of one attention.

A section is named by its English title. Two of its printed results do not follow from their inputs; that is asserted.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.seeds.figures import assert_prints, attended, config, prints, weights_of
from transduce.model.attention import SelfAttention
from transduce.model.cache import Context
from transduce.model.inputs import Distances, rotary

B, T, WIDTH, HEAD, HEADS = 2, 4, 64, 16, 4
"""The text's numbers: x [2, 4, 64], heads of 16, four of them."""


def one_head(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V over the past, (B, T, E): one position after the other."""
    q, k, v = x @ query.T, x @ key.T, x @ value.T
    rows = []
    for t in range(x.size(1)):
        scores = (k[:, : t + 1] * q[:, t : t + 1]).sum(dim=-1) / math.sqrt(q.size(-1))
        odds = scores.exp()
        rows.append((odds[..., None] * v[:, : t + 1]).sum(dim=1) / odds.sum(dim=1, keepdim=True))
    return torch.stack(rows, dim=1)


def matrices(rng: torch.Generator, *shapes: tuple[int, int]) -> list[Tensor]:
    return [torch.randn(*shape, generator=rng) / math.sqrt(shape[1]) for shape in shapes]


def load(module: SelfAttention, fused: Tensor, output: Tensor, bias: Tensor | None = None) -> None:
    weights = {"qkv.weight": fused, "output.weight": output}
    if bias is not None:
        weights |= {"qkv.bias": torch.zeros(len(fused)), "output.bias": bias}
    module.load_state_dict(weights)


def test_self_attention_looks_at_everything(rng):
    """Seed 002, "Self-attention": 0.1 The + 0.7 cat + 0.2 sat."""
    words = torch.randn(3, 5, generator=rng)
    want = 0.1 * words[0] + 0.7 * words[1] + 0.2 * words[2]
    scores = torch.tensor([[0.1, 0.7, 0.2]]).log()
    torch.testing.assert_close((weights_of(scores) @ words)[0], want)


def test_step_1_qkv(rng):
    """Seed 002, step 1: q = W_q x, k = W_k x, v = W_v x, from [2, 4, 64] to [2, 4, 16], without biases."""
    query, key, value = matrices(rng, *[(HEAD, WIDTH)] * 3)
    module = SelfAttention(config(d_model=WIDTH, n_heads=1, head_width=HEAD, bias=False), causal=True)
    load(module, torch.cat((query, key, value)), torch.eye(WIDTH, HEAD))
    x = torch.randn(B, T, WIDTH, generator=rng)
    for got, matrix in zip(
        module.qkv(x).split(list(module.qkv.widths.values()), dim=-1), (query, key, value), strict=True
    ):
        want = [[[math.fsum((row * x[b, t]).tolist()) for row in matrix] for t in range(T)] for b in range(B)]
        torch.testing.assert_close(got, torch.tensor(want), rtol=0, atol=1e-5)


def test_step_2_scores():
    """Seed 002, step 2: "0.2*0.3 + 0.5*0.4 + (-0.3)*(-0.2) + 0.8*0.9 + ..." is 1.04 as far as it is written."""
    query, key = torch.tensor([0.2, 0.5, -0.3, 0.8]), torch.tensor([0.3, 0.4, -0.2, 0.9])
    assert_prints(query @ key, 1.04, 2)
    assert not prints(query @ key, 1.12, 2)  # printed: of more numbers than four


def test_step_3_scaling():
    """Seed 002, step 3: 64 ones, and [64, 5, 10] / sqrt(64) = [8, 0.625, 1.25]; the printed softmaxes are rounder."""
    ones = torch.ones(1, 64)
    assert (ones @ ones.T).item() == 64
    scores = torch.tensor([[64.0, 5.0, 10.0]])
    assert_prints(scores / math.sqrt(64), [[8, 0.625, 1.25]], 3)
    # Keys along the first axis that multiply with the ones to these scores; attend() divides them by sqrt(64).
    keys = torch.zeros(3, 64)
    keys[:, 0] = scores[0]
    got = attended(ones, keys, torch.eye(3))
    odds = [math.exp(x) for x in (8, 0.625, 1.25)]
    torch.testing.assert_close(got, torch.tensor([[x / sum(odds) for x in odds]]))
    assert_prints(got, [[0.9982, 0.0006, 0.0012]])
    assert not prints(got, [[0.997, 0.001, 0.002]], 3)
    assert torch.allclose(got, torch.tensor([[0.997, 0.001, 0.002]]), atol=2e-3)
    unscaled = attended(ones, keys, torch.eye(3), scaled=False)
    assert torch.equal(unscaled.round(decimals=4), torch.tensor([[1.0, 0.0, 0.0]]))  # 0.9999 and 0.0001 were printed


def test_step_4_causal_masking_and_step_5_softmax(rng):
    """Seed 002, steps 4 and 5: torch.tril(torch.ones(4, 4)) says who sees whom; what is alone has weight 1."""
    scores = torch.randn(4, 4, generator=rng)
    scores.diagonal().copy_(torch.tensor([5.2, 4.5, 5.1, 4.9]))
    scores[1, 0], scores[2, :2], scores[3, :3] = 3.1, torch.tensor([2.8, 3.9]), torch.tensor([4.2, 6.1, 3.7])
    weights = weights_of(scores, causal=True)
    assert torch.equal((weights > 0).float(), torch.tril(torch.ones(4, 4)))
    assert_prints(weights[0], [1.0, 0.0, 0.0, 0.0], 1)
    for t in range(4):
        odds = [math.exp(x) for x in scores[t, : t + 1].tolist()]
        torch.testing.assert_close(weights[t, : t + 1], torch.tensor([x / sum(odds) for x in odds]))


def test_step_6_values(rng):
    """Seed 002, step 6: 0.05 The + 0.70 cat + 0.10 sat + 0.15 on."""
    shares, words = torch.tensor([[0.05, 0.70, 0.10, 0.15]]), torch.randn(4, 7, generator=rng)
    want = 0.05 * words[0] + 0.70 * words[1] + 0.10 * words[2] + 0.15 * words[3]
    torch.testing.assert_close(attended(shares.log(), torch.eye(4), words, scaled=False)[0], want)


def test_single_head_attention(rng):
    """Seed 002, "The whole": one head of 16 in a model of 64; ours has an output map, here the identity."""
    query, key, value = matrices(rng, *[(HEAD, WIDTH)] * 3)
    module = SelfAttention(config(d_model=WIDTH, n_heads=1, head_width=HEAD, bias=False), causal=True)
    load(module, torch.cat((query, key, value)), torch.eye(WIDTH, HEAD))
    x = torch.randn(B, T, WIDTH, generator=rng)
    got = module(x)
    torch.testing.assert_close(got[..., :HEAD], one_head(x, query, key, value), rtol=0, atol=1e-5)
    assert torch.all(got[..., HEAD:] == 0)


@pytest.mark.parametrize("size", [HEAD, 10], ids=["4 heads of 16", "4 heads of 10"])
def test_multi_head_attention(size, rng):
    """Seed 002, "Multi-head attention": heads side by side through one map with a bias; 4 x 16 = 64, or another width."""
    heads = [matrices(rng, *[(size, WIDTH)] * 3) for _ in range(HEADS)]
    proj = nn.Linear(HEADS * size, WIDTH)
    module = SelfAttention(config(d_model=WIDTH, n_heads=HEADS, head_width=size), causal=True)
    fused = torch.cat([head[part] for part in range(3) for head in heads])
    load(module, fused, proj.weight.detach(), proj.bias.detach())
    x = torch.randn(B, T, WIDTH, generator=rng)
    concatenated = torch.cat([one_head(x, *head) for head in heads], dim=-1)
    assert concatenated.shape == (B, T, HEADS * size)
    got = module(x)
    assert got.shape == x.shape
    torch.testing.assert_close(got, proj(concatenated), rtol=0, atol=1e-5)


def test_attention_of_nanochat(rng):
    """Seed 002, "Attention of nanochat": one map for all, n_kv_head < n_head, rotation, no biases.

    The rotation is checked number by number in tests/model; here, that it reaches queries and keys, and not values.
    """
    fields = {"d_model": WIDTH, "n_heads": HEADS, "n_kv_heads": 2, "bias": False}
    module = SelfAttention(config(**fields), causal=True)
    assert module.qkv.weight.shape == (WIDTH + 2 * 2 * HEAD, WIDTH)
    x = torch.randn(B, T, WIDTH, generator=rng)
    query, key, value = module.qkv(x).split([WIDTH, 2 * HEAD, 2 * HEAD], dim=-1)
    cos, sin = rotary(0, T, HEAD, 10000.0)

    def turned(head: Tensor) -> Tensor:
        pairs = torch.complex(head[..., : HEAD // 2], head[..., HEAD // 2 :]) * torch.complex(cos, sin)
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    outputs = []
    for head in range(HEADS):
        part, shared = slice(head * HEAD, (head + 1) * HEAD), slice(head // 2 * HEAD, (head // 2 + 1) * HEAD)
        scores = turned(query[..., part]) @ turned(key[..., shared]).transpose(-1, -2) / math.sqrt(HEAD)
        odds = torch.tril(scores.exp())
        outputs.append(odds / odds.sum(dim=-1, keepdim=True) @ value[..., shared])
    got = module(x, Context(distances=Distances(rotary(0, T, HEAD, 10000.0))))
    torch.testing.assert_close(got, module.output(torch.cat(outputs, dim=-1)), rtol=0, atol=1e-5)
