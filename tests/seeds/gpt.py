"""The GPT of 000_a9f6fb881bdd4810.txt, section 1, in plain PyTorch: written anew from what the text describes.

It shares nothing with the package: attention as two products and a softmax, PyTorch's own embedding and norm.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)); four times as wide inside, with the exact GELU."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.from_heads = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        later = torch.arange(context)[None, :] > torch.arange(context)[:, None]
        self.register_buffer("later", later)

    def attention(self, x: Tensor) -> Tensor:
        """Every head by itself, side by side in the end; a later position weighs nothing."""
        size = x.size(1)
        outputs = []
        query, key, value = self.to_qkv(x).tensor_split(3, dim=-1)
        for q, k, v in zip(*(part.tensor_split(self.heads, dim=-1) for part in (query, key, value)), strict=True):
            scores = torch.einsum("bte,bse->bts", q, k) / math.sqrt(q.size(-1))
            outputs.append(scores.masked_fill(self.later[:size, :size], -math.inf).softmax(dim=-1) @ v)
        return self.from_heads(torch.cat(outputs, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    """Words plus places, blocks, a last norm, and the table of words once more for the logits."""

    def __init__(self, *, vocabulary: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the mean cross-entropy."""
        x = self.blocks(self.words(ids) + self.places.weight[: ids.size(1)])
        logits = self.last(x) @ self.words.weight.T
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


NAMES = {
    "attention_sublayer.norm": "before_attention",
    "attention.qkv": "to_qkv",
    "attention.output": "from_heads",
    "feed_forward_sublayer.norm": "before_mlp",
    "feed_forward.wide": "up",
    "feed_forward.narrow": "down",
}
"""Of a layer: the package's to the names here."""


def names(n_layers: int) -> dict[str, str]:
    """Every parameter: the package's name to the one here."""
    both = {"target_input.weight": "words.weight", "output": "words.weight"}
    both["decoder.positions.learned"] = "places.weight"
    for kind in ("weight", "bias"):
        both[f"decoder.norm.{kind}"] = f"last.{kind}"
        for i in range(n_layers):
            both |= {f"decoder.layers.{i}.{ours}.{kind}": f"blocks.{i}.{here}.{kind}" for ours, here in NAMES.items()}
    return both
