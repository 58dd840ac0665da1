"""What a training minimizes: objectives are modules that own the model and give the loss of a batch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.config import at_least, within
from transduce.taps import Taps
from transduce.train.config import refuse_both
from transduce.train.consistency import divergence, projected_consistency, two_views
from transduce.train.ctc import ctc_loss
from transduce.train.distillation import projected_distillation
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
    second_source: Tensor | None


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
        consistency: alpha in (L1 + L2) / 2 + alpha (KL(P1 || P2) + KL(P2 || P1)) / 2: in training, every batch passes twice,
            with other dropout (and augmentation, where it has a second source), and the distributions P1 and P2 at its targets
            should agree. L1 and L2 are the losses of the two passes, so their scale is that of one. 0: one pass.
        teachers: models that read and write the same, whose predictions in evaluation are learned beside the targets; see
            `projected_distillation`. They are no part of this module, so neither trained nor saved.
        distillation: the weight of what the teachers predict, in (0, 1], beside the targets.

    Raises:
        InputError: a weight is out of its range, or there are both teachers and consistency.
    Source: Liang et al. (2021), R-Drop. They add L1 and L2, so their alpha, 5 for translation, is twice this one.
    """

    eager: tuple[str, ...] = ("ragged", "consistent", "distilled", "predicted")
    ragged = staticmethod(projected_cross_entropy)
    """The loss where only some positions have targets. Graphs of it would each hold one loop of chunks, and be compiled
    anew for other numbers of them."""
    consistent = staticmethod(projected_consistency)
    """The same of two views, and what they differ by."""
    distilled = staticmethod(projected_distillation)
    """The same with teachers."""
    hears = False
    """Whether the loss reads the CTC head."""

    def __init__(
        self,
        model: Any,
        *,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        teachers: Sequence[Any] = (),
        distillation: float = 0.5,
    ) -> None:
        super().__init__(model)
        at_least(0, consistency=consistency)
        within("(0, 1]", distillation=distillation)
        refuse_both(consistency, len(teachers))
        self.label_smoothing, self.consistency = label_smoothing, consistency
        self.teachers, self.distillation = tuple(teacher.eval() for teacher in teachers), distillation

    @property
    def compares(self) -> bool:
        """Whether batches pass twice."""
        return self.model.training and self.consistency > 0

    def forward(self, batch: Seq2SeqBatch) -> Loss:
        """The loss of a batch that has what the model reads."""
        # each view has its loss and what it differs from the other by, which both count; so half of all that
        return self.loss(two_views(batch)).times(0.5) if self.compares else self.loss(batch)

    def loss(self, batch: Seq2SeqBatch) -> Loss:
        """The loss of one pass; where views are compared, of a batch that holds both."""
        taps = Taps(balance_losses=self.model.training, ctc_logits=self.hears)
        memory: Any = None
        if self.model.encoder is not None or batch.source is not None:
            memory = self.model.encode(batch.source, batch.source_lengths, taps=taps)
        if self.model.decoder is None:
            states = memory.states
        else:
            states = self.model.decoder_states(batch.target_in, memory=memory, lengths=batch.target_lengths, taps=taps)
        total, parts = self.terms(memory, states, batch, taps.ctc_logits or [])
        if taps.balance_losses:  # per token; only layers with experts have any
            parts["balance"] = batch.n_tokens * torch.stack(taps.balance_losses).sum()
            total = total + parts["balance"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def terms(
        self, memory: Any, states: Tensor, batch: Seq2SeqBatch, heard: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the encoder's output and of the states (B, T, D) that the model projects; and its parts.

        Args:
            heard: logits (B, S, V) of the CTC head inside the encoder.
        """
        # windows of a text have no padding; if pairs have none it is chance, and compiled code would branch on it
        windows = batch.source is None and batch.n_tokens == batch.target_out.numel()
        states, weight = with_bias(self.model, states)
        how: dict[str, Any] = {"n_classes": self.model.vocab_size, "label_smoothing": self.label_smoothing}
        if self.compares and self.consistency:
            alpha, n_targets = self.consistency, batch.n_tokens
            total, apart = self.consistent(states, weight, batch.target_out, n_targets=n_targets, alpha=alpha, **how)
            return total, {"cross_entropy": total - alpha * apart, "consistency": apart}
        if self.model.training and self.teachers:
            taught, n_targets, share = self.predicted(batch), batch.n_tokens, self.distillation
            told = {"n_targets": n_targets, "share": share, **how}
            total, entropy, apart = self.distilled(states, weight, batch.target_out, taught, **told)
            return total, {"cross_entropy": entropy, "distillation": apart}
        loss = projected_cross_entropy if windows else self.ragged
        entropy = loss(states, weight, batch.target_out, n_targets=None if windows else batch.n_tokens, **how)
        return entropy, {"cross_entropy": entropy}

    @torch.no_grad()
    def predicted(self, batch: Seq2SeqBatch) -> list[tuple[Tensor, Tensor]]:
        """The states of each teacher at the batch's targets, and the table that makes them logits."""
        return [with_bias(teacher, states_of(teacher, batch)) for teacher in self.teachers]


def states_of(model: Any, batch: Seq2SeqBatch) -> Tensor:
    """What a model in evaluation projects at every target position of a batch."""
    memory: Any = None if model.encoder is None else model.encode(batch.source, batch.source_lengths)
    if model.decoder is None:
        return memory.states
    return model.decoder_states(batch.target_in, memory=memory, lengths=batch.target_lengths)


def with_bias(model: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    """States and the output table whose product are the logits; where there is a bias, [states 1] and [weight bias]."""
    weight, bias = model.output, model.output_bias
    if bias is None:
        return states, weight
    return (
        F.pad(states, (0, 1), value=1.0),
        torch.cat((weight, F.pad(bias, (0, len(weight) - len(bias)))[:, None]), dim=1),
    )


class HybridCTC(CrossEntropy):
    """(1 - ctc_weight) * cross-entropy + ctc_weight * CTC: the encoder learns to align, and teaches the decoder.

    CTC learns the target, or what a batch has as `heard`: in speech translation, what was said. With `heard_inside`, CTC in the
    middle of the encoder learns that, such as phones, and after the last layer the target.

    Args:
        model: a Transformer with an encoder, a decoder and ctc=True. It encodes once for both losses.
        ctc_weight: the weight of CTC, in (0, 1]; without CTC the loss is CrossEntropy.
        blank_id: an id that no target contains, such as that of the padding.
        interctc_weight: where the model has ctc_layers, w in (1 - w) * CTC of the last layer + w * mean CTC of those.
        heard_inside: see above, for a model with ctc_layers.
        consistency, teachers, distillation: as in CrossEntropy, of what the decoder gives.
        ctc_consistency: the same weight for what the CTC head gives at every source position. There each view learns from
            the other as from a constant.

    Raises:
        InputError: ctc_weight is not in (0, 1], interctc_weight not in [0, 1], or another weight is negative.
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech recognition; Lee and Watanabe
    (2021), Intermediate loss regularization for CTC-based speech recognition, whose w is 0.3; Higuchi et al. (2022),
    Hierarchical conditional end-to-end ASR, for smaller units inside; Yao et al. (2024), CR-CTC: Consistency regularization
    on CTC for improved speech recognition, whose alpha is 0.2.
    """

    eager = ("ragged", "consistent", "distilled", "predicted", "ctc")
    hears = True

    def __init__(
        self,
        model: Any,
        *,
        ctc_weight: float,
        label_smoothing: float = 0.0,
        blank_id: int = 0,
        interctc_weight: float = 0.5,
        heard_inside: bool = False,
        consistency: float = 0.0,
        ctc_consistency: float = 0.0,
        teachers: Sequence[Any] = (),
        distillation: float = 0.5,
    ) -> None:
        super().__init__(
            model,
            label_smoothing=label_smoothing,
            consistency=consistency,
            teachers=teachers,
            distillation=distillation,
        )
        within("(0, 1]", ctc_weight=ctc_weight)
        within("[0, 1]", interctc_weight=interctc_weight)
        at_least(0, ctc_consistency=ctc_consistency)
        self.ctc_weight, self.blank_id, self.interctc_weight = ctc_weight, blank_id, interctc_weight
        self.heard_inside, self.ctc_consistency = heard_inside, ctc_consistency

    @property
    def compares(self) -> bool:
        """Whether batches pass twice."""
        return self.model.training and max(self.consistency, self.ctc_consistency) > 0

    def terms(
        self, memory: Any, states: Tensor, batch: Seq2SeqBatch, heard: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Both losses, weighted.

        Raises:
            InputError: the model has no CTC head.
        """
        entropy, parts = super().terms(memory, states, batch, heard)
        logits = self.model.ctc_logits(memory.states)
        parts["ctc"] = ctc = self.ctc(logits, batch, heard=not self.heard_inside)
        if heard:
            parts["interctc"] = inside = torch.stack([self.ctc(each, batch, heard=True) for each in heard]).mean()
            ctc = (1 - self.interctc_weight) * ctc + self.interctc_weight * inside
        if self.compares and self.ctc_consistency:
            parts["ctc_consistency"] = apart = self.ctc_disagreement(logits, memory.lengths)
            ctc = ctc + self.ctc_consistency * apart
        return (1 - self.ctc_weight) * entropy + self.ctc_weight * ctc, parts

    def ctc_disagreement(self, logits: Tensor, lengths: Tensor | None) -> Tensor:
        """KL(P1 || P2) + KL(P2 || P1), summed over the real positions of a source, of two views with logits (2 B, S, V)."""
        apart = divergence(*logits.chunk(2), constant_target=True)
        if lengths is not None:
            beyond = torch.arange(apart.size(1), device=apart.device) >= lengths.chunk(2)[0][:, None]
            apart = apart.masked_fill(beyond, 0.0)
        return apart.sum()

    def ctc(self, logits: Tensor, batch: Seq2SeqBatch, *, heard: bool) -> Tensor:
        """CTC of what is heard, or of the target, where these are the logits (B, S, V) of the model's CTC head."""
        source_lengths, target_lengths = batch.host_lengths or (batch.source_lengths, batch.target_lengths)
        if source_lengths is not None:
            source_lengths = self.model.config.encoder.input.out_lengths(source_lengths)
        labels = batch.target_out
        if heard and batch.heard is not None:
            assert batch.heard_lengths is not None
            labels, target_lengths = batch.heard, batch.heard_lengths
        return ctc_loss(logits, source_lengths, labels, target_lengths, blank_id=self.blank_id)
