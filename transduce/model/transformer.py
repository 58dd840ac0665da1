"""The Transformer: an encoder stack, a decoder stack, or both; its attention weights. Reading
order: attention, layers, then this."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transduce.device import without_cudnn_attention
from transduce.errors import InputError
from transduce.model.cache import NO_TAPS, Cache, Context, Memory as Memory, Taps
from transduce.model.config import Frames, StackConfig, TransformerConfig
from transduce.model.inputs import (
    ConvolvedInput,
    FrameInput,
    Lengths,
    Positions,
    States,
    TokenInput,
)
from transduce.model.layers import ConformerLayer, Dropout, Layer, balance_loss, initialize, norm
from transduce.model.linear import Linear
from transduce.products import linear


class Stack(nn.Module):
    """Positions, an optional norm, dropout, the layers, and a final norm if norms are pre."""

    def __init__(self, config: TransformerConfig, stack: StackConfig, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.config = config
        self.positions = Positions(config.for_stack(stack), causal=causal)
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        cross = causal and config.encoder is not None
        plain = causal or not config.conformer_kernel
        self.layers = nn.ModuleList(
            Layer(config, causal=causal, cross=cross) if plain else ConformerLayer(config)
            for _ in range(stack.n_layers)
        )
        self.norm = norm(config) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        x: States,
        *,
        lengths: Lengths | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        taps: Taps = NO_TAPS,
        after_layer: Callable[[int, Tensor], Tensor] | None = None,
    ) -> States:
        """Vectors to states. With a cache, `x` holds only the positions after the cached ones.

        Args:
            lengths: hides padding. In a causal stack padding lies in the future, and only the
                balance losses use it.
            memory: what cross-attention attends to.
            cache: keys and values of the positions before `x`, to which those of `x` are added.
            taps: collect attention weights and balance losses.
            after_layer: called with the number of a layer, from 1, and its states; returns the next
                layer's input.
        """
        start = cache.length if cache else 0
        context = Context(
            lengths=None if self.causal else lengths,
            memory=memory,
            distances=self.positions.distances(start, start + x.size(1)),
            taps=taps,
        )

        recompute = self.config.recompute and self.training and torch.is_grad_enabled()
        layer = self._layer
        if recompute and cache is None:
            layer = partial(checkpoint, self._layer, use_reentrant=False)
        x = self.dropout(self.embedding_norm(self.positions(x, start)))
        # lengths vary in evaluation; in training, the trainer decides on cuDNN's attention
        fixed = self.training or torch.compiler.is_compiling()
        with nullcontext() if fixed else without_cudnn_attention:
            for number in range(len(self.layers)):
                x, balance_losses = layer(number, x, context, cache, lengths)
                if taps.balance_losses is not None:
                    taps.balance_losses += balance_losses
                if after_layer is not None:
                    x = after_layer(number + 1, x)
        return self.norm(x)

    def _layer(
        self,
        number: int,
        x: Tensor,
        context: Context,
        cache: Cache | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The states after a layer, and its weighted balance loss, not counting padding, if it has
        experts."""
        taps = context.taps.of_layer()
        layer_cache = None if cache is None else cache.layers[number]
        # torch.compile would lose the fields of a named tuple that _replace makes
        own = Context(context.lengths, context.memory, layer_cache, context.distances, taps)
        x = self.layers[number](x, own)
        n_chosen, weight = self.config.experts_per_token, self.config.balance_weight
        scores = taps.router_scores or []
        return x, [weight * balance_loss(each, n_chosen, lengths) for each in scores]


class Transformer(nn.Module):
    """A Transformer with an encoder, a decoder, or both, as its config says (see
    TransformerConfig).

    Source: Vaswani et al. (2017), "Attention Is All You Need".
    """

    name = "layers"
    """Its name as an engine (engine/select.py): it computes layer by layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = self.decoder = self.source_input = self.target_input = None
        self.ctc = self.ctc_condition = self.output = self.output_bias = None
        if config.encoder is not None:
            self.source_input = self._input(config.encoder)
            self.encoder = Stack(config, config.encoder, causal=False)
        if config.decoder is not None:
            shared = config.tie == "all" and config.encoder is not None
            self.target_input = self.source_input if shared else self._input(config.decoder)
            self.decoder = Stack(config, config.decoder, causal=True)
        last = self.target_input or self.source_input
        self.vocab_size = config.vocab_size
        """Rows of `output` that stand for tokens; more may follow."""
        if isinstance(last, TokenInput):
            self.output = (
                nn.Parameter(torch.empty_like(last.weight)) if config.tie == "none" else last.weight
            )
        if config.output_bias and self.output is not None:
            self.output_bias = nn.Parameter(torch.empty(self.vocab_size))
        if config.ctc:
            self.ctc = Linear(config.d_model, self.vocab_size, bias=config.bias)
        if config.ctc_conditioning:
            self.ctc_condition = Linear(self.vocab_size, config.d_model, bias=config.bias)
        initialize(self, config)

    def _input(self, stack: StackConfig) -> TokenInput | FrameInput | ConvolvedInput:
        if isinstance(stack.input, Frames):
            kind = ConvolvedInput if stack.input.conv_strides else FrameInput
            return kind(stack.input, self.config.d_model, bias=self.config.bias)
        return TokenInput(stack.input, self.config.d_model, scaled=self.config.scale_embeddings)

    def forward(
        self,
        *,
        source: Shaped[Tensor, "B S *F"] | None = None,
        source_lengths: Int[Tensor, " B"] | None = None,
        target_in: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the next token at every target position (of every source position in an encoder
        alone).

        Raises:
            InputError: an encoder without a source, a decoder without target_in, or a source
                without an encoder.
        """
        memory = None
        if source is not None or self.encoder is not None:
            memory = self.encode(source, source_lengths)
        if self.decoder is None:
            assert memory is not None
            return self.project(memory.states)
        if target_in is None:
            raise InputError("this model has a decoder, so it needs target_in, but target_in=None")
        return self.decode(target_in, memory=memory)

    def encode(
        self,
        source: Shaped[Tensor, "B S *F"] | None,
        source_lengths: Int[Tensor, " B"] | None = None,
        *,
        taps: Taps | None = None,
    ) -> Memory:
        """Ids (B, S) or frames (B, S, F) to memory. Without lengths there is no padding.

        Raises:
            InputError: there is no source, or this model has no encoder.
        """
        if self.encoder is None or self.source_input is None:
            raise InputError(
                "this model has no encoder, so it takes no source; give the text as target_in"
            )
        if source is None:
            raise InputError("this model has an encoder, so it needs a source, but source=None")
        vectors, lengths = self.source_input(source, source_lengths)
        taps = taps or NO_TAPS
        read = partial(self._read_ctc, taps.ctc_logits)
        return Memory(self.encoder(vectors, lengths=lengths, taps=taps, after_layer=read), lengths)

    def _read_ctc(self, collected: list[Tensor] | None, layer: int, states: Tensor) -> Tensor:
        """Return the input of the encoder's next layer; the CTC head reads the states of this one
        if it is among ctc_layers."""
        unread = collected is None and self.ctc_condition is None
        if unread or layer not in self.config.ctc_layers:
            return states
        assert self.encoder is not None
        logits = self.ctc_logits(self.encoder.norm(states))
        if collected is not None:
            collected.append(logits)
        if self.ctc_condition is None:
            return states
        return states + self.ctc_condition(logits.softmax(-1))

    def decode(
        self,
        target_in: Int[Tensor, "N T"],
        *,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "N T V"]:
        """Logits at every position of `target_in`.

        With a cache, `target_in` holds only the tokens after the cached positions, and only the
        first call reads the memory. N may be B * beams: rows b * beams ... (b + 1) * beams - 1
        attend to sentence b.
        """
        return self.project(self.decoder_states(target_in, memory=memory, cache=cache))

    def decoder_states(
        self,
        target_in: Int[Tensor, "N T"],
        *,
        memory: Memory | None = None,
        cache: Cache | None = None,
        lengths: Lengths | None = None,
        taps: Taps | None = None,
    ) -> States:
        """The states that `decode` projects to logits.

        Args:
            lengths: only the balance losses need them, as padding lies to the right of what a
                causal decoder sees.
            taps: collect attention weights and balance losses.
        """
        if self.decoder is None or self.target_input is None:
            raise InputError("decode() needs a decoder, but this model was built with decoder=None")
        taps = taps or NO_TAPS
        vectors, _ = self.target_input(target_in)
        return self.decoder(vectors, lengths=lengths, memory=memory, cache=cache, taps=taps)

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """States to logits of the vocabulary, without the padding rows of the table.

        Raises:
            InputError: the model is an encoder alone over frames, which has no vocabulary.
        """
        if self.output is None:
            raise InputError(
                "logits need a vocabulary, but this model has only an encoder over frames; use "
                "states()"
            )
        return linear(states, self.output[: self.vocab_size], self.output_bias)

    def ctc_logits(self, memory_states: Float[Tensor, "B S D"]) -> Float[Tensor, "B S V"]:
        """The memory's states to logits of the tokens and the blank symbol at every source
        position.

        They are computed in the type of the weights, also under autocast.

        Raises:
            InputError: this model has no CTC head.
        Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech
        recognition.
        """
        if self.ctc is None:
            raise InputError(
                "ctc_logits() needs a CTC head, but this model was built with ctc=False"
            )
        with torch.autocast(memory_states.device.type, enabled=False):
            return self.ctc(memory_states.to(self.ctc.weight.dtype))

    def new_taps(self, *, balance_losses: bool, ctc_logits: bool) -> Taps:
        """New, empty lists for the balance losses and CTC logits that a loss needs."""
        return Taps(
            balance_losses=[] if balance_losses else None, ctc_logits=[] if ctc_logits else None
        )

    def new_cache(self) -> Cache:
        """A new, empty cache for `decode`."""
        if self.decoder is None:
            raise InputError(
                "a cache belongs to a decoder, but this model was built with decoder=None"
            )
        return Cache(len(self.decoder.layers), self.config.window)

    @property
    def n_parameters(self) -> int:
        """The number of parameters; a shared table counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device


@torch.no_grad()
def cross_attention(
    model: Transformer, memory: Memory, target_in: Int[Tensor, "B T"]
) -> Float[Tensor, "L B H T S"]:
    """The cross-attention weights of every layer and head; weights on padding are 0.

    Raises:
        InputError: the model has no encoder or no decoder.
    """
    if model.encoder is None or model.decoder is None:
        raise InputError(
            "cross-attention needs an encoder and a decoder, but this model has one of them only"
        )
    taps = Taps(cross_attention=[])
    model.decoder_states(target_in, memory=memory, taps=taps)
    assert taps.cross_attention
    return torch.stack(taps.cross_attention)


@torch.no_grad()
def self_attention(
    model: Transformer,
    *,
    source: Tensor | None = None,
    source_lengths: Int[Tensor, " B"] | None = None,
    target_in: Int[Tensor, "B T"] | None = None,
    memory: Memory | None = None,
) -> Float[Tensor, "L B H T T"]:
    """The self-attention weights of every layer and head: of the encoder for `source`, or of the
    decoder for `target_in`.

    Args:
        source: ids (B, S) or frames (B, S, F), as for `model.encode`.
        memory: what the decoder's cross-attention attends to, where it has one.

    Raises:
        InputError: none or both of source and target_in are given, the model lacks that half, or
            attention is linear.
    """
    stack = model.encoder if target_in is None else model.decoder
    if (source is None) == (target_in is None) or stack is None:
        raise InputError(
            "self_attention() takes source for an encoder, or target_in for a decoder, but given "
            f"are source={source is not None} and target_in={target_in is not None}, and the model "
            f"has encoder={model.encoder is not None} and decoder={model.decoder is not None}; "
            "give the one that fits"
        )
    if model.config.attention == "linear":
        raise InputError(
            "attention weights need softmax attention, but attention='linear' has no weights"
        )
    taps = Taps(self_attention=[])
    if target_in is None:
        model.encode(source, source_lengths, taps=taps)
    else:
        model.decoder_states(target_in, memory=memory, taps=taps)
    assert taps.self_attention
    return torch.stack(taps.self_attention)
