"""Layers: sublayers of attention, feed-forward and, in a Conformer, convolution; and the initial
values of all weights."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transduce.model.attention import CrossAttention, SelfAttention
from transduce.model.cache import NO_CONTEXT, NO_TAPS, Context, Taps
from transduce.model.config import TransformerConfig
from transduce.model.inputs import (
    ACTIVATIONS,
    Lengths,
    Positions,
    States,
    TokenInput,
    zero_padding,
)
from transduce.model.linear import FusedLinear, Linear, split_rows


def norm(config: TransformerConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over d_model."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


class Dropout(nn.Module):
    """Zero each value with probability p while training, and scale the others by 1 / (1 - p).

    On a CPU, one random byte decides about each value, so p (and the scale with it) is rounded to a
    256th, from 1 / 256 to 255 / 256. PyTorch draws its Bernoulli numbers one after the other, which
    took an eighth of a small model's training time. Compiled code uses PyTorch's dropout, which
    torch.compile makes fast.

    Source: Srivastava et al. (2014).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        n_dropped = min(max(1, round(self.p * 256)), 255)  # of 256
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(1 << 63), None)
        mask = words.view(torch.uint8)[: x.numel()].view(x.shape) >= n_dropped
        return x * mask.to(x.dtype) * (256 / (256 - n_dropped))  # torch.where is not vectorized


class FeedForward(nn.Module):
    """Two linear maps with an activation between them (paper, section 3.3).

    If it is gated, the output of the activation is multiplied by a third map; one matrix product
    computes both.

    Source: Shazeer (2020), GLU variants improve Transformer.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gated = config.gated
        widths = dict.fromkeys(("gate", "value") if config.gated else ("wide",), config.d_ff)
        self.wide = FusedLinear(config.d_model, widths, bias=config.bias)
        self.narrow = Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        x = self.wide(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            return self.narrow(self.activation(gate) * value)
        return self.narrow(self.activation(x))


class Experts(nn.Module):
    """Several feed-forwards; for every position, a router chooses a few and mixes their outputs.

    No position is ever dropped, so the result of one position does not depend on the others.

    Source: Shazeer et al. (2017), Outrageously large neural networks; softmax over the chosen, as
    in Jiang et al. (2024), Mixtral of experts.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_chosen = config.experts_per_token
        self.router = nn.Linear(config.d_model, config.n_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.n_experts))

    def forward(self, x: States, taps: Taps = NO_TAPS) -> States:
        """Pass every position through its experts; `taps` collect the scores for `balance_loss`."""
        with torch.autocast(x.device.type, enabled=False):  # rounding must not change the choice
            scores = self.router(x.to(self.router.weight.dtype))
        if taps.router_scores is not None:
            taps.router_scores.append(scores)
        weights, chosen = scores.topk(self.n_chosen)
        choices, order = chosen.flatten().sort(stable=True)  # positions of the first expert first
        counts = choices.bincount(minlength=len(self.experts)).tolist()
        parts = x.flatten(0, 1)[order // self.n_chosen].split(counts)
        outputs = torch.cat(
            [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        )
        outputs = outputs[order.argsort()].view(*chosen.shape, -1)
        return (outputs * weights.softmax(-1).to(outputs.dtype)[..., None]).sum(dim=-2)


def balance_loss(
    scores: Float[Tensor, "N T X"], n_chosen: int, lengths: Lengths | None = None
) -> Float[Tensor, ""]:
    """X * sum_x f_x P_x: f_x, the share of positions that chose expert x; P_x, its mean
    probability.

    Its minimum is n_chosen. With `lengths`, padding does not count.

    Source: Fedus et al. (2021), Switch Transformers, equations 4 to 6.
    """
    probabilities = scores.softmax(dim=-1)
    choices = torch.zeros_like(scores).scatter(-1, scores.topk(n_chosen).indices, 1.0)
    weights = torch.ones_like(scores[..., :1])
    if lengths is not None:
        real = torch.arange(scores.size(1), device=scores.device) < lengths[:, None]
        weights = real[..., None].to(scores.dtype)
    shares, means = (
        (x * weights).sum(dim=(0, 1)) / weights.sum() for x in (choices, probabilities)
    )
    return scores.size(-1) * (shares * means).sum()


class Sublayer(nn.Module):
    """The residual around one function: norm(x + f(x)) after the paper, or x + f(norm(x)).

    Source: pre-norm is Xiong et al. (2020), "On Layer Normalization in the Transformer
    Architecture".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm(config)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm_position == "pre"

    def forward(self, x: States, function: Callable[[Tensor], Tensor]) -> States:
        if self.pre:
            return x + self.dropout(function(self.norm(x)))
        return self.norm(x + self.dropout(function(x)))


class Layer(nn.Module):
    """Self-attention, cross-attention if there is a memory, and feed-forward."""

    def __init__(self, config: TransformerConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(config, causal=causal)
        self.attention_sublayer = Sublayer(config)
        self.cross = CrossAttention(config) if cross else None
        self.cross_sublayer = Sublayer(config) if cross else None
        self.feed_forward = Experts(config) if config.n_experts else FeedForward(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(self, x: States, context: Context = NO_CONTEXT) -> States:
        """One layer."""
        x = self.attention_sublayer(x, lambda y: self.attention(y, context))
        cross = self.cross
        if cross is not None and self.cross_sublayer is not None:
            x = self.cross_sublayer(x, lambda y: cross(y, context))
        if isinstance(self.feed_forward, Experts):
            return self.feed_forward_sublayer(x, partial(self.feed_forward, taps=context.taps))
        return self.feed_forward_sublayer(x, self.feed_forward)


class ConvolutionModule(nn.Module):
    """A gated linear map, a depthwise convolution over time, norm, Swish, and another linear map.

    The norm is that of the other sublayers, over the channels of one position, and not the paper's
    BatchNorm. So an utterance's result does not depend on its batch, and training and decoding
    compute the same. Padding is set to zero before the convolution, which also sees positions to
    the right.

    Source: Gulati et al. (2020), section 2.2.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, kernel = config.d_model, config.conformer_kernel
        self.pointwise = Linear(d, 2 * d, bias=config.bias)
        self.depthwise = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d, bias=config.bias)
        self.norm = norm(config)
        self.output = Linear(d, d, bias=config.bias)

    def forward(self, x: States, lengths: Lengths | None = None) -> States:
        """As many positions as before; each has seen conformer_kernel // 2 on either side."""
        channels = zero_padding(F.glu(self.pointwise(x)), lengths).transpose(1, 2)
        return self.output(F.silu(self.norm(self._depthwise(channels).transpose(1, 2))))

    def _depthwise(self, channels: Float[Tensor, "N D T"]) -> Float[Tensor, "N D T"]:
        """Convolve an image of height 1, for which PyTorch has a fast CPU kernel."""
        conv = self.depthwise
        # that kernel never returns for so few channels in bf16 (PyTorch 2.11, over 32 positions)
        if conv.groups <= 16:
            return conv(channels)
        plane, weight = channels[:, :, None], conv.weight[:, :, None]
        padding = (0, conv.kernel_size[0] // 2)
        return F.conv2d(plane, weight, conv.bias, padding=padding, groups=conv.groups)[:, :, 0]


class ConformerLayer(Layer):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, each residual; a norm.

    Positions are encoded as in the other layers; rotary ones are relative, like the paper's.

    Source: Gulati et al. (2020), Conformer: Convolution-augmented Transformer for speech
    recognition.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, causal=False, cross=False)
        self.first_feed_forward = FeedForward(config)
        self.first_feed_forward_sublayer = Sublayer(config)
        self.convolution = ConvolutionModule(config)
        self.convolution_sublayer = Sublayer(config)
        self.norm = norm(config)

    def forward(self, x: States, context: Context = NO_CONTEXT) -> States:
        """One layer of an encoder."""
        x = self.first_feed_forward_sublayer(x, lambda y: self.first_feed_forward(y) / 2)
        x = self.attention_sublayer(x, lambda y: self.attention(y, context))
        x = self.convolution_sublayer(x, lambda y: self.convolution(y, context.lengths))
        return self.norm(self.feed_forward_sublayer(x, lambda y: self.feed_forward(y) / 2))


@torch.no_grad()
def initialize(module: nn.Module, config: TransformerConfig) -> None:
    """Set biases to zero and matrices as config.init says; norms are one from the start.

    With xavier and he, each of several fused maps is initialized by itself, and the maps of the
    layers are multiplied by config.init_gain. Embeddings get variance 1 / d_model: the paper's
    scaling turns them into unit variance, and unscaled they are good output weights. For gpt2 see
    `_initialize_as_gpt2`.

    Args:
        module: a Transformer, whose output table is the parameter named "output"; on the device
            meta it stays as it is.

    Source: Glorot and Bengio (2010); He et al. (2015), equation 10; embeddings as in tensor2tensor.
    """
    parameters = dict(module.named_parameters())
    if next(iter(parameters.values())).is_meta:
        return
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    tables = {
        part.weight: part.tokens.vocab_size
        for part in module.modules()
        if isinstance(part, TokenInput)
    }
    if "output" in parameters:
        tables.setdefault(parameters["output"], config.vocab_size)
    if config.init == "gpt2":
        _initialize_as_gpt2(module, tables)
        return
    for name, part in module.named_modules():
        _initialize_by_sizes(name, part, config)
    if "output" in parameters and config.tie == "none":
        _fill_normally(parameters["output"], config.vocab_size, std=config.d_model**-0.5)


def _initialize_by_sizes(name: str, part: nn.Module, config: TransformerConfig) -> None:
    match part:
        case nn.Linear():
            fused = split_rows(part, part.weight).values()
            gain = config.init_gain if ".layers." in name else 1.0
            # value and gate of a Conformer's convolution, which LoRA and Muon take as one map
            for matrix in part.weight.chunk(2) if name.endswith(".pointwise") else fused:
                if config.init == "xavier":
                    nn.init.xavier_uniform_(matrix, gain=gain)
                else:
                    nn.init.kaiming_uniform_(matrix, nonlinearity="relu").mul_(gain)
        case nn.Conv1d() if part.groups > 1:  # depthwise: fan_in = fan_out = kernel size
            bound = (3 / part.kernel_size[0]) ** 0.5
            nn.init.uniform_(part.weight, -bound, bound)
        case nn.Conv1d():
            nn.init.xavier_uniform_(part.weight)
        case Positions():
            for table in part.parameters():
                nn.init.normal_(table, std=0.02)
        case TokenInput():
            _fill_normally(part.weight, part.tokens.vocab_size, std=config.d_model**-0.5)


def _fill_normally(weight: Tensor, vocab_size: int, *, std: float) -> None:
    """Normal for the rows of tokens, zero for padding rows, which draw no random numbers."""
    nn.init.normal_(weight[:vocab_size], std=std)
    nn.init.zeros_(weight[vocab_size:])


def _initialize_as_gpt2(module: nn.Module, tables: dict[nn.Parameter, int]) -> None:
    """Normal, deviation 0.02; maps that end a sublayer are divided by sqrt(sublayers of the stack).

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    for parameter in module.parameters():
        if parameter.dim() > 1:
            _fill_normally(parameter, tables.get(parameter, len(parameter)), std=0.02)
    for stack in module.children():
        n_sublayers = sum(isinstance(part, Sublayer) for part in stack.modules())
        for name, part in stack.named_modules():
            if isinstance(part, nn.Linear) and name.endswith((".output", ".narrow")):
                part.weight.mul_(n_sublayers**-0.5)
