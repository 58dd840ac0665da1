"""The Transformer of Vaswani et al. (2017), "Attention Is All You Need", in NumPy float64 and loops.

One sentence at a time, and only its real positions: so there is no padding, and no mask. A key that a query may not
see is never looped over. It shares nothing with the package but the names of the weights.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]


@dataclass(frozen=True)
class Reference:
    """The choices that the weights do not show."""

    n_heads: int
    pre_norm: bool = False
    activation: str = "relu"
    positions: str = "sinusoidal"
    scale_embeddings: bool = True
    eps: float = 1e-5

    def logits(self, weights: Weights, source: Array | None, target: Array | None) -> Array:
        """Figure 1, for one row: ids (S) or frames (S, F), and ids (T), to logits (T, V); without a target, (S, V)."""
        memory = None
        if source is not None:
            x = self.embed(weights, "source_input", source)
            memory = self.stack(weights, "encoder", x, None, causal=False)
        if target is None:
            states = memory
        else:
            states = self.stack(weights, "decoder", self.embed(weights, "target_input", target), memory, causal=True)
        return np.array([[np.dot(row, state) for row in weights["output"]] for state in states])

    def embed(self, weights: Weights, name: str, flow: Array) -> Array:
        """Section 3.4 for ids. Frames are linearly projected, or, without such weights, embeddings already."""
        if flow.ndim == 1:
            table = weights[f"{name}.weight"]
            factor = math.sqrt(table.shape[1]) if self.scale_embeddings else 1.0
            return np.array([table[token] * factor for token in flow])
        if f"{name}.projection.weight" not in weights:
            return flow
        return np.array([linear(weights, f"{name}.projection", frame) for frame in flow])

    def stack(self, weights: Weights, name: str, x: Array, memory: Array | None, *, causal: bool) -> Array:
        """Section 3.1: the sum with the positions, then identical layers."""
        if self.positions == "learned":
            x = np.array([x_t + weights[f"{name}.positions.learned"][t] for t, x_t in enumerate(x)])
        elif self.positions == "sinusoidal":
            x = np.array([x_t + sinusoid(t, len(x_t)) for t, x_t in enumerate(x)])
        layer = 0
        while f"{name}.layers.{layer}.attention.qkv.weight" in weights:
            x = self.layer(weights, f"{name}.layers.{layer}", x, memory, causal=causal)
            layer += 1
        assert layer > 0
        return self.normed(weights, f"{name}.norm", x) if self.pre_norm else x

    def layer(self, weights: Weights, name: str, x: Array, memory: Array | None, *, causal: bool) -> Array:
        """Two sublayers in the encoder, three in the decoder."""
        x = self.sublayer(
            weights, f"{name}.attention_sublayer.norm", x, lambda y: self.self_attention(weights, name, y, causal)
        )
        if memory is not None:
            x = self.sublayer(
                weights, f"{name}.cross_sublayer.norm", x, lambda y: self.cross_attention(weights, name, y, memory)
            )
        return self.sublayer(
            weights, f"{name}.feed_forward_sublayer.norm", x, lambda y: self.feed_forward(weights, name, y)
        )

    def sublayer(self, weights: Weights, norm: str, x: Array, function) -> Array:
        """LayerNorm(x + Sublayer(x)); with pre-norm, x + Sublayer(LayerNorm(x))."""
        if self.pre_norm:
            return x + function(self.normed(weights, norm, x))
        return self.normed(weights, norm, x + function(x))

    def normed(self, weights: Weights, name: str, x: Array) -> Array:
        """Ba et al. (2016), equation 4, at every position."""
        rows = []
        for row in x:
            mean = sum(row) / len(row)
            variance = sum((number - mean) ** 2 for number in row) / len(row)
            rows.append((row - mean) / math.sqrt(variance + self.eps))
        return np.array(rows) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def self_attention(self, weights: Weights, name: str, x: Array, causal: bool) -> Array:
        """The fused matrix is W^Q, W^K and W^V one below the other."""
        fused = np.array([linear(weights, f"{name}.attention.qkv", x_t) for x_t in x])
        query, key, value = np.split(fused, 3, axis=1)
        return self.multi_head(weights, f"{name}.attention.output", query, key, value, causal)

    def cross_attention(self, weights: Weights, name: str, x: Array, memory: Array) -> Array:
        """Queries from the decoder, keys and values from the memory (section 3.2.3)."""
        query = np.array([linear(weights, f"{name}.cross.q", x_t) for x_t in x])
        fused = np.array([linear(weights, f"{name}.cross.kv", state) for state in memory])
        key, value = np.split(fused, 2, axis=1)
        return self.multi_head(weights, f"{name}.cross.output", query, key, value, False)

    def multi_head(self, weights: Weights, output: str, query: Array, key: Array, value: Array, causal: bool) -> Array:
        """Sections 3.2.1 and 3.2.2: every head, every query, every key it may see."""
        d_k = query.shape[1] // self.n_heads
        concatenated = np.zeros_like(query)
        for head in range(self.n_heads):
            part = slice(head * d_k, (head + 1) * d_k)
            for t in range(len(query)):
                seen = range(t + 1) if causal else range(len(key))
                scores = [np.dot(query[t, part], key[s, part]) / math.sqrt(d_k) for s in seen]
                exponentials = [math.exp(score - max(scores)) for score in scores]
                for s in seen:
                    concatenated[t, part] += exponentials[s] / sum(exponentials) * value[s, part]
        return np.array([linear(weights, output, row) for row in concatenated])

    def feed_forward(self, weights: Weights, name: str, x: Array) -> Array:
        """Equation 2, with the activation in the place of max(0, .)."""
        rows = []
        for x_t in x:
            inner = [activate(self.activation, number) for number in linear(weights, f"{name}.feed_forward.wide", x_t)]
            rows.append(linear(weights, f"{name}.feed_forward.narrow", np.array(inner)))
        return np.array(rows)


def linear(weights: Weights, name: str, x: Array) -> Array:
    """W x + b, one output after the other."""
    return np.array([np.dot(row, x) for row in weights[f"{name}.weight"]]) + weights[f"{name}.bias"]


def activate(kind: str, x: float) -> float:
    """max(0, x); x * Phi(x); and the approximation of Phi by tanh, both of Hendrycks and Gimpel (2016)."""
    if kind == "relu":
        return max(0.0, x)
    if kind == "gelu":
        return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sinusoid(position: int, d_model: int) -> Array:
    """Section 3.5. The package tabulates positions in single precision, so they are rounded here too."""
    row = np.zeros(d_model)
    for i in range(d_model // 2):
        row[2 * i] = math.sin(position / 10000 ** (2 * i / d_model))
        row[2 * i + 1] = math.cos(position / 10000 ** (2 * i / d_model))
    return row.astype(np.float32).astype(np.float64)
