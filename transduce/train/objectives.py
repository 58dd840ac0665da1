"""What a training minimizes: objectives are modules that own the model and give the loss of a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.config import within
from transduce.train.ctc import ctc_loss
from transduce.train.loss import projected_cross_entropy


class Loss(NamedTuple):
    """The loss of a batch in nats, summed over its n_tokens."""

    total: Tensor
    """What the gradient is taken of: a scalar."""
    parts: dict[str, Tensor]
    """Named sums that the log shows beside the total, before their weights; without a gradient."""

    def times(self, factor: float) -> "Loss":
        """The loss and its parts times a factor."""
        return Loss(self.total * factor, {name: part * factor for name, part in self.parts.items()})


@runtime_checkable
class Seq2SeqBatch(Protocol):
    """What the objectives read of a batch; see data/batch.py."""

    source: Tensor | None
    source_lengths: Tensor | None
    target_in: Tensor
    target_out: Tensor
    target_lengths: Tensor
    n_tokens: int
    host_lengths: tuple[Tensor | None, Tensor] | None
    heard: Tensor | None
    heard_lengths: Tensor | None


class Objective(nn.Module):
    """A model and the loss that trains it. A subclass says in `forward(batch) -> Loss` what the loss is.

    Args:
        model: the model to train. Checkpoints hold its parameters under its own names; an objective adds none.
    """

    eager: tuple[str, ...] = ()
    """The methods that torch.compile leaves outside its graphs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile `forward` in place, as nn.Module does."""
        for name in self.eager:
            setattr(self, name, torch.compiler.disable(getattr(self, name)))
        super().compile(*args, **kwargs)

    def compile_layers(self, **how: Any) -> None:
        """Compile every layer of the model's stacks by itself, for updates alone: in a search lengths grow by one."""
        for stack in (self.model.encoder, self.model.decoder):
            for layer in () if stack is None else stack.layers:
                layer.forward = _only_in_training(layer, torch.compile(layer.forward, **how))


def _only_in_training(module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
    plain = module.forward
    return lambda *args, **kwargs: (compiled if module.training else plain)(*args, **kwargs)


class CrossEntropy(Objective):
    """Cross-entropy of a batch's target_out: the next token of a text or a translation.

    Positions with IGNORE in target_out ask for nothing. So for an encoder alone this is the loss of masked language
    modelling, where target_out holds the chosen tokens and nothing else. In training, a model with experts adds their
    balance losses.

    Args:
        model: a Transformer (model/transformer.py).
        label_smoothing: the share of a target's probability that is spread evenly over the vocabulary.
    """

    eager: tuple[str, ...] = ("ragged",)
    ragged = staticmethod(projected_cross_entropy)
    """The loss where only some positions have targets. Graphs of it would each hold one loop of chunks, and be compiled
    anew for other numbers of them."""

    def __init__(self, model: Any, *, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def forward(self, batch: Seq2SeqBatch) -> Loss:
        """The loss of a batch that has what the model reads."""
        balance: list[Tensor] | None = [] if self.model.training else None
        memory: Any = None
        if self.model.encoder is not None or batch.source is not None:
            memory = self.model.encode(batch.source, batch.source_lengths, balance=balance)
        if self.model.decoder is None:
            states = memory.states
        else:
            states = self.model.decoder_states(
                batch.target_in, memory=memory, lengths=batch.target_lengths, balance=balance
            )
        total, parts = self.terms(memory, states, batch)
        if balance:  # per token; only layers with experts have any
            parts["balance"] = batch.n_tokens * torch.stack(balance).sum()
            total = total + parts["balance"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def terms(self, memory: Any, states: Tensor, batch: Seq2SeqBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the encoder's output and of the states (B, T, D) that the model projects; and its parts."""
        entropy = self.cross_entropy(states, batch)
        return entropy, {"cross_entropy": entropy}

    def cross_entropy(self, states: Tensor, batch: Seq2SeqBatch) -> Tensor:
        """Cross-entropy of target_out, where the model projects these states (B, T, D) to its vocabulary."""
        # windows of a text have no padding; if pairs have none it is chance, and compiled code would branch on it
        windows = batch.source is None and batch.n_tokens == batch.target_out.numel()
        weight, bias = self.model.output, self.model.output_bias
        if bias is not None:  # [states 1] [weight bias]^T
            states = F.pad(states, (0, 1), value=1.0)
            weight = torch.cat((weight, F.pad(bias, (0, len(weight) - len(bias)))[:, None]), dim=1)
        loss = projected_cross_entropy if windows else self.ragged
        return loss(
            states,
            weight,
            batch.target_out,
            n_classes=self.model.vocab_size,
            label_smoothing=self.label_smoothing,
            n_targets=None if windows else batch.n_tokens,
        )


class HybridCTC(CrossEntropy):
    """(1 - ctc_weight) * cross-entropy + ctc_weight * CTC: the encoder learns to align, and teaches the decoder.

    CTC learns the target, or what a batch has as `heard`: in speech translation, what was said.

    Args:
        model: a Transformer with an encoder, a decoder and ctc=True. It encodes once for both losses.
        ctc_weight: the weight of CTC, in (0, 1]; without CTC the loss is CrossEntropy.
        blank_id: an id that no target contains, such as that of the padding.

    Raises:
        ValueError: ctc_weight is not in (0, 1].
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech recognition.
    """

    eager = ("ragged", "ctc")

    def __init__(self, model: Any, *, ctc_weight: float, label_smoothing: float = 0.0, blank_id: int = 0) -> None:
        super().__init__(model, label_smoothing=label_smoothing)
        within("(0, 1]", ctc_weight=ctc_weight)
        self.ctc_weight, self.blank_id = ctc_weight, blank_id

    def terms(self, memory: Any, states: Tensor, batch: Seq2SeqBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Both losses, weighted.

        Raises:
            ValueError: the model has no CTC head.
        """
        entropy, parts = super().terms(memory, states, batch)
        ctc = self.ctc(self.model.ctc_logits(memory.states), batch)
        return (1 - self.ctc_weight) * entropy + self.ctc_weight * ctc, parts | {"ctc": ctc}

    def ctc(self, logits: Tensor, batch: Seq2SeqBatch) -> Tensor:
        """CTC of what is heard, or else of the target, where these are the logits (B, S, V) of the model's CTC head."""
        source_lengths, target_lengths = batch.host_lengths or (batch.source_lengths, batch.target_lengths)
        if source_lengths is not None:
            source_lengths = self.model.config.encoder.input.out_lengths(source_lengths)
        labels = batch.target_out
        if batch.heard is not None:
            assert batch.heard_lengths is not None
            labels, target_lengths = batch.heard, batch.heard_lengths
        return ctc_loss(logits, source_lengths, labels, target_lengths, blank_id=self.blank_id)
