"""The configuration of a Transformer: frozen dataclasses that check themselves."""

from dataclasses import dataclass, replace
from typing import Literal

from transduce.config import Common, at_least, check_choices, divides, shown, within
from transduce.errors import InputError
from transduce.model.front_ends import Frames as Frames, Tokens as Tokens

Attention = Literal["softmax", "linear"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["post", "pre"]
PositionKind = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
Sinusoids = Literal["paper", "tensor2tensor"]
Init = Literal["xavier", "he", "gpt2"]
Tie = Literal["all", "output", "none"]


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One half of the Transformer: its input and its number of layers."""

    input: Tokens | Frames
    n_layers: int = 6
    """Layers of this half."""
    positions: PositionKind | None = None
    """The kind of positions in this half; None: as in the model."""
    max_positions: int | None = None
    """Rows of this half's table of positions; None: as many as in the model."""

    def __post_init__(self) -> None:
        check_choices(self)
        at_least(1, self, "max_positions")
        within("[1, 1000]", self, "n_layers")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The defaults are the base model of Vaswani et al. (2017), table 3.

    The halves that exist decide what the model is: with both, the decoder has cross-attention; a
    decoder alone is a language model; an encoder alone is for masked language modelling.

    Raises:
        InputError: a field is out of its range, or two fields contradict each other.
    """

    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    d_model: Common[int] = 512
    """Width of the vectors between layers."""
    n_heads: int = 8
    """Attention heads of every layer."""
    n_kv_heads: int | None = None
    """Heads of keys and values, each shared by n_heads / n_kv_heads heads of queries; None: as many
    as n_heads. Grouped-query attention (Ainslie et al. 2023); with 1, multi-query attention
    (Shazeer 2019)."""
    head_width: int | None = None
    """Width of one head; None: d_model / n_heads."""
    attention: Attention = "softmax"
    """Kind of self-attention. linear: the weights are products of elu(x) + 1 of queries and keys,
    without softmax. Time grows with the length, not with its square, and decoding keeps a state of
    constant size instead of keys and values (Katharopoulos et al. 2020, Transformers are RNNs).
    Cross-attention always uses softmax, so alignments remain available."""
    qk_norm: bool = False
    """RMSNorm over every head of the queries and keys, before rotation (Henry et al. 2020; as in
    Qwen3)."""
    window: int | None = None
    """In self-attention, a position sees `window` - 1 positions on each side, in a decoder only
    before it; None: all. The decoding cache has room for 2 * `window` positions, however long the
    output is. Source: Beltagy et al. (2020), Longformer; Jiang et al. (2023), Mistral 7B."""
    d_ff: int = 2048
    """Inner width of the feed-forward."""
    dropout: Common[float] = 0.1
    """Dropout on every sublayer's output and on the sum of embedding and position (paper, section
    5.4)."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights; not in the paper, but in many later systems. Linear
    attention has no weights to drop."""
    activation: Activation = "relu"
    """The nonlinearity of the feed-forward."""
    gated: bool = False
    """W2 (activation(W1 x) * V x) in the feed-forward; with silu it is SwiGLU (Shazeer 2020)."""
    n_experts: int = 0
    """Expert feed-forwards per layer, among which a router chooses for every position; 0: one
    feed-forward and no router."""
    experts_per_token: int = 2
    """Experts that the router chooses for each position."""
    balance_weight: float = 0.01
    """Weight of the load-balancing loss of experts; cross-entropy per token has weight 1 (Fedus et
    al. 2021)."""
    bias: bool = True
    """Whether linear maps and norms have biases."""
    qkv_bias: bool | None = None
    """Whether the maps to queries, keys and values have a bias; None: as `bias`. Qwen2 has only
    these biases."""
    norm: Norm = "layer"
    """LayerNorm, or RMSNorm, without mean and bias (Zhang and Sennrich 2019)."""
    norm_position: NormPosition = "post"
    """Where the norms are: post is norm(x + f(x)), as in the paper; pre is x + f(norm(x)), with one
    more norm at the end of the stack."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    positions: PositionKind = "sinusoidal"
    """The positional encoding: sinusoidal (added, as in the paper), learned (an added table),
    rotary (queries and keys are rotated), relative (each head learns a bias on attention scores by
    the distance of query and key; T5, Raffel et al. 2020), or none."""
    max_positions: int = 1024
    """Rows of the learned table, and tokens of a language model's windows; sinusoidal and rotary
    positions are unlimited."""
    sinusoids: Sinusoids = "paper"
    """Wavelengths of sinusoidal positions: 2 pi 10000^(2i / d_model), as in the paper, or 2 pi
    10000^(i / (d_model // 2 - 1)), as in its code, tensor2tensor, and in the models of fairseq,
    M2M-100 and NLLB."""
    first_position: int = 0
    """Number of the first sinusoidal position; 2 in fairseq's models."""
    embedding_norm: bool = False
    """A norm over the sum of embedding and position, as in BART (Lewis et al. 2020)."""
    rotary_theta: float = 10000.0
    """Base of rotary frequencies: the slowest pair of a head turns by about 1 / rotary_theta
    radians per position."""
    rotary_factor: float = 1.0
    """Divides the angles of rotation, for texts longer than those that a model was first trained on
    (Chen et al. 2023)."""
    rotary_bands: tuple[float, float, int] | None = None
    """(low, high, n): `rotary_factor` slows the pairs that turn less than `low` times in n
    positions, does not change those that turn more than `high` times, and slows those between them
    in part, as in Llama 3.1; None: it slows all pairs."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) (paper, section 3.4)."""
    tie: Tie = "output"
    """Which tables are shared: all (encoder, decoder and output), output (decoder and output), or
    none."""
    output_bias: bool = False
    """Whether logits have a bias, one number per token, as in Marian's models."""
    conformer_kernel: int = 0
    """Kernel size, an odd number, of the convolution in the encoder's Conformer layers (Gulati et
    al. 2020; their activation is silu); 0: the encoder has plain layers."""
    ctc: bool = False
    """A linear map from the memory to the decoder's vocabulary, for a CTC loss in addition to
    cross-entropy."""
    ctc_layers: tuple[int, ...] = ()
    """Encoder layers, from 1 to the last but one, that also get a CTC loss: intermediate CTC (Lee
    and Watanabe 2021)."""
    ctc_conditioning: bool = False
    """After each of ctc_layers, a linear map of its CTC probabilities is added to the states:
    self-conditioned CTC (Nozaki and Komatsu 2021)."""
    init: Init = "xavier"
    """Initial weights. xavier: uniform, scaled by the sizes of each matrix and by init_gain; he:
    the same with the variance 2 / inputs, made for ReLU (He et al. 2015); gpt2: normal with
    standard deviation 0.02, divided by sqrt(sublayers of the stack) in maps that end a sublayer."""
    init_gain: float = 1.0
    """Factor on the initial matrices inside the layers, for xavier and he. Below 1, every layer
    begins close to the identity, and a post-norm stack can take a higher learning rate (Zhang et
    al. 2019, Fixup; Wang et al. 2022, DeepNet)."""
    recompute: bool = False
    """Activation checkpointing: training keeps only the input of each layer and computes the layer
    again in the backward pass. The result is the same, with less memory and in more time (Chen et
    al. 2016)."""

    def __post_init__(self) -> None:
        heads = "n_heads", "n_kv_heads", "head_width"
        at_least(1, self, "d_model", *heads, "d_ff", "max_positions", "experts_per_token")
        at_least(0, self, "conformer_kernel", "balance_weight")
        within("[1, 1000000]", self, "window")
        within("[0, 1000000000]", self, "first_position")
        within("[0, 10000]", self, "n_experts")
        within("[0, 1)", self, "dropout", "attention_dropout")
        within("(0, inf)", self, "norm_eps")
        within("(0, 1000]", self, "init_gain")
        within("(1, inf)", self, "rotary_theta")
        within("[1, inf)", self, "rotary_factor")
        check_choices(self)
        self._check_attention()
        self._check_positions()
        self._check_halves()
        self._check_encoder()

    def _check_attention(self) -> None:
        if self.head_width is None:
            divides(d_model=self.d_model, n_heads=self.n_heads)
        divides(n_heads=self.n_heads, n_kv_heads=self.kv_heads)
        if self.n_experts:
            within(f"[1, {self.n_experts}]", self, "experts_per_token")

    def _check_positions(self) -> None:
        if self.rotary_bands is not None:
            low, high, n = self.rotary_bands
            if not 0 < low < high or n < 1:
                raise InputError(
                    f"rotary_bands must be 0 < low < high and n >= 1, but they are {low}, {high} "
                    f"and {n}"
                )
        kinds = {
            self.positions,
            *(stack.positions for stack in (self.encoder, self.decoder) if stack),
        }
        if "rotary" in kinds and self.d_head % 2:
            raise InputError(
                f"rotary positions need heads of an even width, but theirs is {self.d_head}; set "
                "head_width"
            )
        linear, windowed = self.attention == "linear", self.window is not None
        if linear and windowed:
            raise InputError(
                "linear attention sums over all positions, without a window, but "
                f"window={self.window}; use window=None (--model.window None), or "
                "attention='softmax'"
            )
        refused = {"rotary", "relative"} if linear else {"relative"} if windowed else set()
        for kind in kinds & refused:
            raise InputError(
                "rotary positions are for softmax attention, and relative ones for softmax "
                f"attention without a window, but positions={kind!r}, "
                f"attention={self.attention!r} and window={self.window}; use other positions "
                f"({self._flag_of(kind)} sinusoidal), or attention='softmax' without a window"
            )

    def _flag_of(self, kind: PositionKind | None) -> str:
        """The flag that sets this kind of positions: that of a half if the half sets its own."""
        for half, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if stack is not None and stack.positions == kind:
                return f"--model.{half}.positions"
        return "--model.positions"

    def _check_halves(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise InputError("a Transformer needs an encoder, a decoder or both, but both are None")
        if self.decoder is not None and not isinstance(self.decoder.input, Tokens):
            raise InputError(f"a decoder takes Tokens, but decoder.input={self.decoder.input}")
        if (
            self.tie == "all"
            and self.encoder
            and self.decoder
            and self.encoder.input != self.decoder.input
        ):
            raise InputError(
                "tie='all' needs one vocabulary on both sides, but "
                f"encoder.input={self.encoder.input} and decoder.input={self.decoder.input}; use "
                "tie='output'"
            )
        if self.ctc and (self.encoder is None or self.decoder is None):
            raise InputError(
                "ctc=True maps the encoder's memory to the decoder's vocabulary and needs both, "
                f"but there is no {'decoder' if self.encoder else 'encoder'}; use ctc=False"
            )

    def _check_encoder(self) -> None:
        n_layers = self.encoder.n_layers if self.encoder else 0
        below_last = range(1, n_layers) if self.ctc else ()
        if list(self.ctc_layers) != sorted({*self.ctc_layers} & {*below_last}):
            raise InputError(
                "ctc_layers must be layers below the last one of an encoder with ctc=True, in "
                f"order, but ctc_layers={shown(self.ctc_layers)}, ctc={self.ctc} and there are "
                f"{n_layers} layers; name others (--model.ctc-layers 1), or none "
                "(--model.ctc-layers --model.no-ctc-conditioning)"
            )
        if self.ctc_conditioning and not self.ctc_layers:
            raise InputError(
                "ctc_conditioning takes place after ctc_layers, but there are none; name some "
                "(--model.ctc-layers), or go without (--model.no-ctc-conditioning)"
            )
        fits = self.encoder is not None and self.norm_position == "pre" and not self.n_experts
        if self.conformer_kernel and not (fits and self.conformer_kernel % 2):
            raise InputError(
                "Conformer layers need an encoder with pre-norm, no experts and an odd "
                f"conformer_kernel, but there is {'an' if self.encoder else 'no'} encoder, "
                f"norm_position={self.norm_position}, n_experts={self.n_experts} and "
                f"conformer_kernel={self.conformer_kernel}; use conformer_kernel=0 "
                "(--model.conformer-kernel 0)"
            )

    def for_stack(self, stack: StackConfig | None) -> "TransformerConfig":
        """This configuration, with the positions of one half."""
        if stack is None:
            return self
        return replace(
            self,
            positions=stack.positions or self.positions,
            max_positions=stack.max_positions or self.max_positions,
        )

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads if self.head_width is None else self.head_width

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def attention_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def vocab_size(self) -> int:
        """Number of logits: tokens of the decoder, or of an encoder alone; 0 if it takes frames."""
        stack = self.decoder or self.encoder
        return (
            stack.input.vocab_size if stack is not None and isinstance(stack.input, Tokens) else 0
        )

    @property
    def frames(self) -> Frames:
        """The input of a speech model's encoder.

        Raises:
            InputError: there is no encoder, or its input is not frames.
        """
        if self.encoder is None or not isinstance(self.encoder.input, Frames):
            other = "tokens" if self.encoder else "nothing, as there is none"
            raise InputError(
                f"speech needs an encoder that takes Frames, but this model's takes {other}"
            )
        return self.encoder.input

    @property
    def input_description(self) -> str:
        """How frames become the encoder's vectors, and the d_model that needs no linear map."""
        frames = self.frames
        if frames.conv_strides:
            strides = " and ".join(map(str, frames.conv_strides))
            return (
                f"{frames.n_features} features, convolutions with strides {strides}: a position "
                f"for {frames.per_position} frames"
            )
        product = f"{frames.n_features} features x {frames.stack} frames = {frames.width} numbers"
        product += " per position"
        if frames.width != self.d_model:
            needed = (
                f"one linear map to d_model={self.d_model}; d_model={frames.width} would need none"
            )
            return f"{product}, {needed}"
        return f"{product} = d_model: " + (
            "one linear map, as project=True" if frames.project else "straight in"
        )
