"""Printed figures, and the ways by which the seeds' small examples go through the package's attention."""

import math

import torch
from torch import Tensor

from transduce.model.attention import SelfAttention, attend
from transduce.model.config import StackConfig, Tokens, TransformerConfig


def config(**fields) -> TransformerConfig:
    """The smallest whole configuration around the fields that an example fixes."""
    return TransformerConfig(
        decoder=StackConfig(input=Tokens(vocab_size=5), n_layers=1), positions="none", dropout=0.0, **fields
    )


def prints(got: Tensor, figures: list | float, digits: int = 4) -> bool:
    """Whether `got`, rounded to so many decimals, is what was printed."""
    want = torch.as_tensor(figures, dtype=torch.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    return torch.allclose(got.detach().double(), want, rtol=0, atol=0.5001 * 10**-digits)


def assert_prints(got: Tensor, figures: list | float, digits: int = 4) -> None:
    assert prints(got, figures, digits), f"got\n{got}\nbut printed was\n{torch.as_tensor(figures)}"


def attended(query: Tensor, key: Tensor, value: Tensor, *, scaled: bool = True, **options) -> Tensor:
    """attend() for one head of one sentence: (T, E), (S, E), (S, V) -> (T, V), with V other than E too.

    Zeros fill all up to one width W, where attend() divides by sqrt(W): so the query is multiplied by
    sqrt(W / E), or, where the example does not scale at all, by sqrt(W).
    """
    width = max(query.size(-1), value.size(-1))
    factor = math.sqrt(width / query.size(-1)) if scaled else math.sqrt(width)
    query, key, out = (
        torch.nn.functional.pad(x, (0, width - x.size(-1)))[None, None] for x in (query * factor, key, value)
    )
    return attend(query, key, out, **options)[0, 0, :, : value.size(-1)]


def attention_weights(query: Tensor, key: Tensor, **options) -> Tensor:
    """(T, S): values that are unit vectors show the weights."""
    return attended(query, key, torch.eye(key.size(0), dtype=key.dtype), **options)


def weights_of(scores: Tensor, **options) -> Tensor:
    """The attention weights of scores that are given, (T, S)."""
    return attention_weights(scores, torch.eye(scores.size(1), dtype=scores.dtype), scaled=False, **options)


def self_attention(
    query: list[Tensor], key: list[Tensor], value: list[Tensor], output: torch.nn.Linear | None, *, causal: bool
) -> SelfAttention:
    """Our module with one matrix (E, D) per head, as in torch.nn.Linear; `output` mixes the heads, or nothing does.

    Zeros fill every head up to one width W, and the queries are multiplied by sqrt(W / E) to undo attend()'s sqrt(W).
    """
    heads, (d_head, d_in) = len(query), query[0].shape
    width = max(d_head, -(-d_in // heads))
    d_model = heads * width
    module = SelfAttention(config(d_model=d_model, n_heads=heads), causal=causal)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for i, matrices in enumerate(([w * math.sqrt(width / d_head) for w in query], key, value)):
            for h, matrix in enumerate(matrices):
                start = i * d_model + h * width
                module.qkv.weight[start : start + d_head, :d_in] = matrix
        for column in range(heads * d_head):
            source = column // d_head * width + column % d_head
            if output is None:
                module.output.weight[column, source] = 1.0
            else:
                module.output.weight[: len(output.weight), source] = output.weight[:, column]
        if output is not None:
            module.output.bias[: len(output.bias)] = output.bias
    return module


def through(module: SelfAttention, x: Tensor, d_out: int) -> Tensor:
    """x (B, T, D), filled with zeros up to the module's width; the first d_out numbers of what comes out."""
    return module(torch.nn.functional.pad(x, (0, module.output.in_features - x.size(-1))))[..., :d_out]
