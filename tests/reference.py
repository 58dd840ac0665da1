"""The Transformer of Vaswani et al. (2017), "Attention Is All You Need", in NumPy float64 and loops.

One sentence at a time, and only its real positions: so there is no padding, and no mask. A key that a query may not
see is never looped over. It shares nothing with the package but the names of the weights.

And the variants that came after the paper, each after its own.
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
    norm: str = "layer"
    n_kv_heads: int | None = None
    window: int | None = None
    attention: str = "softmax"
    rotary_theta: float = 10000.0
    rotary_factor: float = 1.0
    rotary_bands: tuple[float, float, int] | None = None
    gated: bool = False
    experts_per_token: int = 2
    conv_strides: tuple[int, ...] = ()
    conv_activation: str = "gelu"
    sinusoids: str = "paper"
    first_position: int = 0
    conditioned_layers: tuple[int, ...] = ()

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
        logits = np.array([weights["output"] @ state for state in states])
        return logits + weights.get("output_bias", 0.0)

    def embed(self, weights: Weights, name: str, flow: Array) -> Array:
        """Section 3.4 for ids. Frames are linearly projected, or, without such weights, embeddings already."""
        if flow.ndim == 1:
            table = weights[f"{name}.weight"]
            factor = math.sqrt(table.shape[1]) if self.scale_embeddings else 1.0
            return np.array([table[token] * factor for token in flow])
        if f"{name}.convolutions.0.weight" in weights and weights[f"{name}.convolutions.0.weight"].ndim == 4:
            flow = flow[:, None]
        for i, stride in enumerate(self.conv_strides):
            flow = convolved(weights, f"{name}.convolutions.{i}", flow, stride, self.conv_activation)
        if flow.ndim == 3:
            flow = np.array([[number for channel in frame for number in channel] for frame in flow])
        if f"{name}.projection.weight" not in weights:
            return flow
        return np.array([linear(weights, f"{name}.projection", frame) for frame in flow])

    def stack(self, weights: Weights, name: str, x: Array, memory: Array | None, *, causal: bool) -> Array:
        """Section 3.1: the sum with the positions, then identical layers."""
        if f"{name}.positions.learned" in weights:
            x = np.array([x_t + weights[f"{name}.positions.learned"][t] for t, x_t in enumerate(x)])
        elif self.positions == "sinusoidal":
            x = np.array([x_t + sinusoid(self.first_position + t, len(x_t), self.sinusoids) for t, x_t in enumerate(x)])
        if f"{name}.embedding_norm.weight" in weights:
            x = self.normed(weights, f"{name}.embedding_norm", x)
        layer = 0
        while f"{name}.layers.{layer}.attention.qkv.weight" in weights:
            x = self.layer(weights, f"{name}.layers.{layer}", x, memory, causal=causal)
            layer += 1
            if name == "encoder" and layer in self.conditioned_layers:
                x = self.conditioned(weights, x)
        assert layer > 0
        return self.normed(weights, f"{name}.norm", x) if self.pre_norm else x

    def conditioned(self, weights: Weights, x: Array) -> Array:
        """Nozaki and Komatsu (2021), self-conditioned CTC: a map of the probabilities of CTC is added to the states."""
        rows = []
        for x_t, state in zip(x, self.normed(weights, "encoder.norm", x) if self.pre_norm else x, strict=True):
            exp = [math.exp(number) for number in linear(weights, "ctc", state)]
            rows.append(x_t + linear(weights, "ctc_condition", np.array(exp) / sum(exp)))
        return np.array(rows)

    def layer(self, weights: Weights, name: str, x: Array, memory: Array | None, *, causal: bool) -> Array:
        """Two sublayers in the encoder, three in the decoder."""
        if f"{name}.convolution.depthwise.weight" in weights:
            return self.conformer_layer(weights, name, x)
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

    def conformer_layer(self, weights: Weights, name: str, x: Array) -> Array:
        """Gulati et al. (2020), section 2.4, each with the norm before it."""
        steps = {
            "first_feed_forward": lambda y: np.array(
                [self.two_maps(weights, f"{name}.first_feed_forward", y_t) / 2 for y_t in y]
            ),
            "attention": lambda y: self.self_attention(weights, name, y, causal=False),
            "convolution": lambda y: self.convolution(weights, f"{name}.convolution", y),
            "feed_forward": lambda y: self.feed_forward(weights, name, y) / 2,
        }
        for step, function in steps.items():
            x = x + function(self.normed(weights, f"{name}.{step}_sublayer.norm", x))
        return self.normed(weights, f"{name}.norm", x)

    def convolution(self, weights: Weights, name: str, x: Array) -> Array:
        """Figure 2: gates, a convolution of each channel alone, zeros outside, norm (not BatchNorm), Swish, and a map."""
        kernel, d = weights[f"{name}.depthwise.weight"], x.shape[1]
        reach, gated = kernel.shape[2] // 2, []
        for x_t in x:
            y = linear(weights, f"{name}.pointwise", x_t)
            gated.append([a / (1 + math.exp(-b)) for a, b in zip(y[:d], y[d:], strict=True)])
        got = np.zeros((len(x), d))
        for t in range(len(x)):
            for c in range(d):
                offsets = [k for k in range(-reach, reach + 1) if 0 <= t + k < len(x)]
                got[t, c] = sum(kernel[c, 0, k + reach] * gated[t + k][c] for k in offsets)
            got[t] += weights.get(f"{name}.depthwise.bias", 0.0)
        through = [[activate("silu", number) for number in row] for row in self.normed(weights, f"{name}.norm", got)]
        return np.array([linear(weights, f"{name}.output", np.array(row)) for row in through])

    def sublayer(self, weights: Weights, norm: str, x: Array, function) -> Array:
        """LayerNorm(x + Sublayer(x)); with pre-norm, x + Sublayer(LayerNorm(x))."""
        if self.pre_norm:
            return x + function(self.normed(weights, norm, x))
        return self.normed(weights, norm, x + function(x))

    def normed(self, weights: Weights, name: str, x: Array) -> Array:
        """Ba et al. (2016), equation 4, at every position."""
        if self.norm == "rms":
            return np.array([rms(weights, name, row, self.eps) for row in x])
        rows = []
        for row in x:
            mean = sum(row) / len(row)
            variance = sum((number - mean) ** 2 for number in row) / len(row)
            rows.append((row - mean) / math.sqrt(variance + self.eps))
        return np.array(rows) * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)

    def self_attention(self, weights: Weights, name: str, x: Array, causal: bool) -> Array:
        """The fused matrix is W^Q, W^K and W^V one below the other."""
        name = f"{name}.attention"
        fused = np.array([linear(weights, f"{name}.qkv", x_t) for x_t in x])
        end = weights[f"{name}.output.weight"].shape[1]
        key_end = (end + fused.shape[1]) // 2
        query, key, value = fused[:, :end], fused[:, end:key_end], fused[:, key_end:]
        query, key = self.heads_normed(weights, name, query, key)
        if self.positions == "rotary":
            query, key = self.rotated(query, end // self.n_heads), self.rotated(key, end // self.n_heads)
        as_sums = self.attention == "linear"
        table = weights.get(f"{name.split('.')[0]}.positions.relative")
        return self.multi_head(weights, f"{name}.output", query, key, value, causal, self.window, as_sums, table)

    def cross_attention(self, weights: Weights, name: str, x: Array, memory: Array) -> Array:
        """Queries from the decoder, keys and values from the memory (section 3.2.3)."""
        name = f"{name}.cross"
        query = np.array([linear(weights, f"{name}.q", x_t) for x_t in x])
        fused = np.array([linear(weights, f"{name}.kv", state) for state in memory])
        key, value = np.split(fused, 2, axis=1)
        query, key = self.heads_normed(weights, name, query, key)
        return self.multi_head(weights, f"{name}.output", query, key, value, False, None)

    def heads_normed(self, weights: Weights, name: str, query: Array, key: Array) -> tuple[Array, Array]:
        """Zhang and Sennrich (2019), equation 4, over each head, where there are such weights."""
        if f"{name}.norm.query.weight" not in weights:
            return query, key
        width = query.shape[1] // self.n_heads
        parts = []
        for which, x in (("query", query), ("key", key)):
            heads = x.reshape(len(x), -1, width)
            normed = [[rms(weights, f"{name}.norm.{which}", head, self.eps) for head in row] for row in heads]
            parts.append(np.array(normed).reshape(x.shape))
        return parts[0], parts[1]

    def rotated(self, x: Array, width: int) -> Array:
        """Su et al. (2021), equation 15, where a pair is a complex number: times exp(i t theta_j).

        The package tabulates angles in single precision, so the factor is rounded here too.
        """
        out = np.zeros_like(x)
        for t, row in enumerate(x):
            for start in range(0, len(row), width):
                for j in range(width // 2):
                    angle = t * self.slowed(self.rotary_theta ** (-2 * j / width))
                    factor = complex(np.float32(math.cos(angle)), np.float32(math.sin(angle)))
                    pair = complex(row[start + j], row[start + j + width // 2]) * factor
                    out[t, start + j], out[t, start + j + width // 2] = pair.real, pair.imag
        return out

    def slowed(self, frequency: float) -> float:
        """Chen et al. (2023); with bands, only pairs of few turns in the length that was trained, as in Llama 3.1."""
        if self.rotary_bands is None:
            return frequency / self.rotary_factor
        low, high, n = self.rotary_bands
        share = min(max((n * frequency / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
        return share * frequency + (1 - share) * frequency / self.rotary_factor

    def multi_head(
        self,
        weights: Weights,
        output: str,
        query: Array,
        key: Array,
        value: Array,
        causal: bool,
        window: int | None,
        linear_weights: bool = False,
        table: Array | None = None,
    ) -> Array:
        """Sections 3.2.1 and 3.2.2: every head, every query, every key it may see.

        Ainslie et al. (2023): neighbouring heads of queries share a head of keys and values. Katharopoulos et al. (2020),
        equation 5: products of elu(x) + 1 are the weights. Raffel et al. (2020): a number of the table for each distance.
        """
        d_k = query.shape[1] // self.n_heads
        per_group = self.n_heads // (self.n_kv_heads or self.n_heads)
        concatenated = np.zeros_like(query)
        for head in range(self.n_heads):
            part = slice(head * d_k, (head + 1) * d_k)
            shared = slice(head // per_group * d_k, (head // per_group + 1) * d_k)
            for t in range(len(query)):
                seen = [s for s in range(len(key)) if s <= t or not causal]
                if window is not None:
                    seen = [s for s in seen if abs(t - s) < window]
                scores = [np.dot(query[t, part], key[s, shared]) / math.sqrt(d_k) for s in seen]
                if table is not None:
                    scores = [score + table[bucket(s - t, causal), head] for s, score in zip(seen, scores, strict=True)]
                highest = max(scores)
                exponentials = [math.exp(score - highest) for score in scores]
                if linear_weights:
                    exponentials = [np.dot(positive(query[t, part]), positive(key[s, shared])) for s in seen]
                total = sum(exponentials)
                for s, exponential in zip(seen, exponentials, strict=True):
                    concatenated[t, part] += exponential / total * value[s, shared]
        return np.array([linear(weights, output, row) for row in concatenated])

    def feed_forward(self, weights: Weights, name: str, x: Array) -> Array:
        """Equation 2 at every position; or the experts that its router likes best, by their renormalized share."""
        name = f"{name}.feed_forward"
        if f"{name}.router.weight" not in weights:
            return np.array([self.two_maps(weights, name, x_t) for x_t in x])
        rows = []
        for x_t in x:
            odds = [math.exp(np.dot(row, x_t)) for row in weights[f"{name}.router.weight"]]
            best = sorted(range(len(odds)), key=lambda e: -odds[e])[: self.experts_per_token]
            total = sum(odds[e] for e in best)
            rows.append(sum(odds[e] / total * self.two_maps(weights, f"{name}.experts.{e}", x_t) for e in best))
        return np.array(rows)

    def two_maps(self, weights: Weights, name: str, x_t: Array) -> Array:
        """Equation 2, with the activation in the place of max(0, .); gated, Shazeer (2020), equation 6."""
        inner = linear(weights, f"{name}.wide", x_t)
        width = len(inner) // 2 if self.gated else len(inner)
        through = np.array([activate(self.activation, number) for number in inner[:width]])
        return linear(weights, f"{name}.narrow", through * inner[width:] if self.gated else through)


def bucket(distance: int, causal: bool) -> int:
    """T5: 32 rows, of which keys behind the query have half, where there are any; from 128 on all share one."""
    rows = 32 if causal else 16
    first, far, exact = 16 if distance > 0 else 0, abs(distance), rows // 2
    if far < exact:
        return first + far
    return first + min(rows - 1, exact + int(math.log(far / exact) / math.log(128 / exact) * (rows - exact)))


def positive(x: Array) -> Array:
    """elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""
    return np.array([number + 1 if number > 0 else math.exp(number) for number in x])


def linear(weights: Weights, name: str, x: Array) -> Array:
    """W x + b."""
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def convolved(weights: Weights, name: str, x: Array, stride: int, activation: str) -> Array:
    """sum_k W_k x[t + k] + b around every stride-th frame t, zeros outside; gated, a * sigmoid(b) (Dauphin et al. 2016)."""
    kernel, got = weights[f"{name}.weight"], []
    reach = kernel.shape[2] // 2
    if kernel.ndim == 4:  # over features as well: a convolution over time at every stride-th of them
        for feature in range(0, x.shape[2], stride):
            near = [k for k in range(-reach, reach + 1) if 0 <= feature + k < x.shape[2]]
            beside = np.concatenate([kernel[:, :, :, k + reach] for k in near], axis=1)
            part = {"part.weight": beside} | (
                {"part.bias": weights[f"{name}.bias"]} if f"{name}.bias" in weights else {}
            )
            flow = np.concatenate([x[:, :, feature + k] for k in near], axis=1)
            got.append(convolved(part, "part", flow, stride, activation))
        return np.stack(got, axis=2)
    for t in range(0, len(x), stride):
        offsets = [k for k in range(-reach, reach + 1) if 0 <= t + k < len(x)]
        y = sum(kernel[:, :, k + reach] @ x[t + k] for k in offsets) + weights.get(f"{name}.bias", 0.0)
        if activation == "glu":
            half = len(y) // 2
            got.append([a / (1 + math.exp(-b)) for a, b in zip(y[:half], y[half:], strict=True)])
        else:
            got.append([activate(activation, number) for number in y])
    return np.array(got)


def rms(weights: Weights, name: str, x: Array, eps: float) -> Array:
    """Zhang and Sennrich (2019), equation 4."""
    return x / math.sqrt(sum(number**2 for number in x) / len(x) + eps) * weights[f"{name}.weight"]


def activate(kind: str, x: float) -> float:
    """max(0, x); x * Phi(x), and its approximation by tanh, and x * sigmoid(x), all of Hendrycks and Gimpel (2016)."""
    if kind == "relu":
        return max(0.0, x)
    if kind == "gelu":
        return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
    if kind == "silu":
        return x / (1 + math.exp(-x))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sinusoid(position: int, d_model: int, kind: str = "paper") -> Array:
    """Section 3.5, or tensor2tensor's. The package tabulates positions in single precision, so they are rounded too."""
    row = np.zeros(d_model)
    for i in range(d_model // 2):
        exponent = 2 * i / d_model if kind == "paper" else i / (d_model // 2 - 1)
        row[2 * i] = math.sin(position / 10000**exponent)
        row[2 * i + 1] = math.cos(position / 10000**exponent)
    if d_model % 2 and kind == "paper":
        row[-1] = math.sin(position / 10000 ** ((d_model - 1) / d_model))
    return row.astype(np.float32).astype(np.float64)
