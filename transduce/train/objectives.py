"""Objectives: modules that own the model to train and compute the loss of a batch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.train.config import LossConfig
from transduce.train.losses import (
    consistent_cross_entropy,
    cross_entropy,
    ctc_consistency,
    ctc_loss,
    distilled_cross_entropy,
    projected_loss,
)


class Loss(NamedTuple):
    """The loss of a batch in nats, summed over its n_tokens."""

    total: Tensor
    """The scalar that is differentiated."""
    parts: dict[str, Tensor]
    """Named sums for the log, before their weights; without a gradient."""

    def times(self, factor: float) -> "Loss":
        """The loss and its parts times a factor."""
        return Loss(self.total * factor, {name: part * factor for name, part in self.parts.items()})


@runtime_checkable
class Seq2SeqBatch(Protocol):
    """The fields of a batch that the objectives read; see data/batch.py."""

    source: Tensor | None
    source_lengths: Tensor | None
    target_in: Tensor
    target_out: Tensor
    target_lengths: Tensor
    n_tokens: int
    host_lengths: tuple[Tensor | None, Tensor] | None
    ctc_targets: Tensor | None
    ctc_target_lengths: Tensor | None
    second_source: Tensor | None


class Objective(nn.Module):
    """A model and the loss that trains it; a subclass computes it in `forward(batch) -> Loss`.

    Args:
        model: the model to train. Checkpoints hold its parameters under its own names; an
            objective adds none.
    """

    eager: tuple[str, ...] = ()
    """Methods that torch.compile leaves outside its graphs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def compile(self, *, dynamic: bool | None = None) -> None:
        """Compile `forward` in place, as nn.Module does."""
        for name in self.eager:
            setattr(self, name, torch.compiler.disable(getattr(self, name)))
        super().compile(dynamic=dynamic)


class CrossEntropy(Objective):
    """Cross-entropy of a batch's target_out: the next token of a text or a translation.

    Positions whose target_out is IGNORE do not count. So for an encoder alone this is the loss of
    masked language modelling, where target_out holds only the tokens to predict. In training, the
    balance losses of a model with experts are added.

    With `losses.consistency`, every batch passes through the model twice in training, the second
    time with other dropout and with `second_source` if there is one, and the loss is
    (L1 + L2) / 2 + alpha (KL(P1 || P2) + KL(P2 || P1)) / 2. With `losses.teachers`, it is
    `distilled_cross_entropy`; teachers are not submodules, so they are neither trained nor saved.

    With `losses.ctc_weight`, the loss is (1 - ctc_weight) * cross-entropy + ctc_weight * CTC, which
    teaches the encoder to align; the model needs ctc=True, and encodes once for both. CTC's targets
    are the batch's `ctc_targets` if it has any, such as the transcript in speech translation, else
    its targets. If the model has ctc_layers, CTC is (1 - interctc_weight) * the loss of the last
    layer + interctc_weight * the mean loss of ctc_layers.

    Args:
        model: a Transformer (model/transformer.py).
        losses: the losses and their weights.
        label_smoothing: replaces that of `losses`.

    Source: Liang et al. (2021), R-Drop. They add L1 and L2, so their alpha, 5 for translation, is
    twice this one. Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech
    recognition; Lee and Watanabe (2021), Intermediate loss regularization for CTC-based speech
    recognition, whose interctc_weight is 0.3; Higuchi et al. (2022), Hierarchical conditional
    end-to-end ASR, for smaller units in inner layers; Yao et al. (2024), CR-CTC, whose
    ctc_consistency is 0.2.
    """

    eager = ("ragged_loss", "ctc")

    def __init__(
        self,
        model: Any,
        losses: LossConfig = LossConfig(),  # noqa: B008, it is frozen
        *,
        label_smoothing: float | None = None,
    ) -> None:
        super().__init__(model)
        if label_smoothing is not None:
            losses = replace(losses, label_smoothing=label_smoothing)
        self.losses = losses
        for teacher in losses.teachers:
            teacher.eval()

    def forward(self, batch: Seq2SeqBatch) -> Loss:
        """Compute the loss of a batch.

        Raises:
            InputError: the losses have CTC, and the model has no head for it.
        """
        if self.model.training and self.losses.two_views:
            return self.loss(two_views(batch)).times(0.5)
        return self.loss(batch)

    def loss(self, batch: Seq2SeqBatch) -> Loss:
        """Compute the loss of one pass over a batch, which may hold two views."""
        training, losses = self.model.training, self.losses
        taps = self.model.new_taps(balance_losses=training, ctc_logits=losses.ctc_weight > 0)
        memory, states = _states(self.model, batch, taps)
        # windows of a text never have padding; pairs may have none by chance, and compiled code
        # must not branch on that
        windows = batch.source is None and batch.n_tokens == batch.target_out.numel()
        if windows and not (training and (losses.two_views or losses.teachers)):
            total, parts = self.token_loss(states, batch)
        else:
            total, parts = self.ragged_loss(states, batch, n_targets=batch.n_tokens)
        if losses.ctc_weight:
            ctc, ctc_parts = self.ctc_loss(memory, batch, taps.ctc_logits or [])
            total = (1 - losses.ctc_weight) * total + losses.ctc_weight * ctc
            parts |= ctc_parts
        if taps.balance_losses:  # per token; only layers with experts have any
            parts["balance"] = batch.n_tokens * torch.stack(taps.balance_losses).sum()
            total = total + parts["balance"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def ragged_loss(
        self, states: Tensor, batch: Seq2SeqBatch, n_targets: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute `token_loss` outside of compiled graphs.

        A graph would contain the loop over chunks, and be compiled again for each number of chunks.
        """
        return self.token_loss(states, batch, n_targets)

    def token_loss(
        self, states: Tensor, batch: Seq2SeqBatch, n_targets: int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of the targets, and its parts; n_targets=None: there is no padding."""
        losses = self.losses
        training = self.model.training
        states, weight = with_bias(self.model, states)
        states, targets = states.flatten(0, -2), batch.target_out.flatten()
        teacher_states: tuple[Tensor, ...] = ()
        loss: Callable[..., Any] = cross_entropy
        names = ["cross_entropy"]
        if training and losses.consistency:
            states, targets = states.unflatten(0, (2, -1)), targets.chunk(2)[0]
            n_targets = batch.n_tokens // 2
            loss = partial(consistent_cross_entropy, alpha=losses.consistency)
            names += ["consistency"]
        elif training and losses.teachers:
            teacher_states, tables = zip(
                *(_predicted(t, batch) for t in losses.teachers), strict=True
            )
            loss = partial(distilled_cross_entropy, tables=tables, share=losses.distillation)
            names += ["distillation"]
        total, *parts = projected_loss(
            partial(loss, smoothing=losses.label_smoothing),
            states,
            weight,
            targets,
            *teacher_states,
            n_classes=self.model.vocab_size,
            n_targets=n_targets,
        )
        return total, dict(zip(names, parts or [total], strict=True))

    def ctc_loss(
        self, memory: Any, batch: Seq2SeqBatch, inner_logits: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of CTC and its parts.

        Args:
            memory: the output of the encoder.
            inner_logits: (B, S, V) of the CTC head between layers.
        """
        losses = self.losses
        logits = self.model.ctc_logits(memory.states)
        ctc = self.ctc(logits, batch)
        parts = {"ctc": ctc}
        if inner_logits:
            inner = torch.stack([self.ctc(each, batch) for each in inner_logits]).mean()
            parts["interctc"] = inner
            ctc = (1 - losses.interctc_weight) * ctc + losses.interctc_weight * inner
        if self.model.training and losses.ctc_consistency:
            lengths = None if memory.lengths is None else memory.lengths.chunk(2)[0]
            first, second = logits.chunk(2)
            divergence = ctc_consistency(first, second, lengths)
            parts["ctc_consistency"] = divergence
            ctc = ctc + losses.ctc_consistency * divergence
        return ctc, parts

    def ctc(self, logits: Tensor, batch: Seq2SeqBatch) -> Tensor:
        """Compute CTC of the logits (B, S, V) of the head."""
        source_lengths, target_lengths = batch.host_lengths or (
            batch.source_lengths,
            batch.target_lengths,
        )
        if source_lengths is not None:
            source_lengths = self.model.config.encoder.input.out_lengths(source_lengths)
        targets = batch.target_out
        if batch.ctc_targets is not None:
            assert batch.ctc_target_lengths is not None
            targets, target_lengths = batch.ctc_targets, batch.ctc_target_lengths
        return ctc_loss(
            logits, source_lengths, targets, target_lengths, blank_id=self.losses.blank_id
        )


def two_views(batch: Any) -> Any:
    """Return a batch of all rows twice, the second time with `second_source` if there is one.

    Args:
        batch: a dataclass whose tensors have a row for each example (data/batch.py).
    """
    tensors = {name: t for name, t in vars(batch).items() if isinstance(t, Tensor)}
    second_source = tensors.pop("second_source", batch.source)
    second = tensors | {"source": second_source}
    views: dict[str, Any] = {name: torch.cat((t, second[name])) for name, t in tensors.items()}
    if batch.host_lengths is not None:
        views["host_lengths"] = tuple(t if t is None else t.repeat(2) for t in batch.host_lengths)
    return replace(batch, **views, second_source=None, n_tokens=2 * batch.n_tokens)


def with_bias(model: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return states and a table whose product is the logits; a bias is one more column of both."""
    weight, bias = model.output, model.output_bias
    if bias is None:
        return states, weight
    column = F.pad(bias, (0, len(weight) - len(bias)))[:, None]
    return F.pad(states, (0, 1), value=1.0), torch.cat((weight, column), dim=1)


def _states(model: Any, batch: Seq2SeqBatch, taps: Any = None) -> tuple[Any, Tensor]:
    """Compute the output of the encoder, if there is one, and the states before the projection."""
    memory: Any = None
    if model.encoder is not None or batch.source is not None:
        memory = model.encode(batch.source, batch.source_lengths, taps=taps)
    if model.decoder is None:
        return memory, memory.states
    lengths = batch.target_lengths
    return memory, model.decoder_states(batch.target_in, memory=memory, lengths=lengths, taps=taps)


@torch.no_grad()
def _predicted(teacher: Any, batch: Seq2SeqBatch) -> tuple[Tensor, Tensor]:
    """Return a teacher's states at the targets of a batch, and its output table."""
    states, table = with_bias(teacher, _states(teacher, batch)[1])
    return states.flatten(0, -2), table
