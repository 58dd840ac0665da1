"""Losses of tokens, fused with the output projection, and of alignments (CTC)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import grad_and_value

IGNORE = -100
"""A target without a prediction: as in data/batch.py, and in torch's own losses."""

CHUNK = {"cpu": 256, "cuda": 4096}
"""Positions whose logits exist at once, by device: few enough for a CPU's caches, enough for a GPU."""


class _ChunkedLoss(torch.autograd.Function):
    """Sum a loss of the logits states @ weight.T over chunks of positions.

    The forward pass takes the gradient of each chunk, so that the logits of all positions never
    exist at once, and are computed once.

    Args:
        loss: gives numbers, of logits and rows of `inputs`; the first one is differentiated.
        n_classes: the first rows of `weight` that are classes.
        wanted: of which arguments a gradient is needed: 0 is `states`, 1 is `weight`.
        states: (..., n, D).
        inputs: tensors of n rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[..., tuple[Tensor, ...]],
        n_classes: int | None,
        wanted: tuple[int, ...],
        states: Tensor,
        weight: Tensor,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(states.dtype, torch.float32)

        def of_chunk(states: Tensor, weight: Tensor, *inputs: Tensor) -> tuple[Any, ...]:
            values = loss((states @ weight.T)[..., :n_classes].to(dtype), *inputs)
            return values[0], values

        size = CHUNK.get(states.device.type, 256)
        chunks = zip(states.split(size, dim=-2), *(x.split(size) for x in inputs), strict=True)
        differentiated = grad_and_value(of_chunk, argnums=wanted, has_aux=True) if wanted else None
        values: list[tuple[Tensor, ...]] = []
        of_states: list[Tensor] = []
        of_weight = torch.zeros_like(weight, dtype=dtype) if 1 in wanted else None
        for rows, *more in chunks:
            if differentiated is None:
                values.append(of_chunk(rows, weight, *more)[1])
                continue
            gradients, (_, of_loss) = differentiated(rows, weight, *more)
            values.append(of_loss)
            if 0 in wanted:
                of_states.append(gradients[0])
            if of_weight is not None:
                of_weight += gradients[-1]
        sums = tuple(sum(column) for column in zip(*values, strict=True))
        ctx.save_for_backward(torch.cat(of_states, dim=-2) if of_states else None, of_weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(*sums[1:])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_weight = ctx.saved_tensors
        return (
            *[None] * 3,
            None if of_states is None else gradient * of_states,
            None if of_weight is None else (gradient * of_weight).to(ctx.weight_dtype),
            *[None] * (len(ctx.needs_input_grad) - 5),
        )


def _projected(
    loss: Callable[..., tuple[Tensor, ...]],
    states: Tensor,
    weight: Tensor,
    *inputs: Tensor,
    n_classes: int | None,
) -> Any:
    """Apply a chunked loss, in autocast's type where autocast is on."""
    dtype = _product_dtype(states)
    arguments = (states, weight) if torch.is_grad_enabled() else ()
    wanted = tuple(i for i, tensor in enumerate(arguments) if tensor.requires_grad)
    with torch.autocast(states.device.type, enabled=False):
        return _ChunkedLoss.apply(loss, n_classes, wanted, states.to(dtype), weight.to(dtype), *inputs)


def _product_dtype(x: Tensor) -> torch.dtype:
    """Return the type that products of x are computed in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _positions(targets: Int[Tensor, "*B"], n_targets: int) -> Int[Tensor, " n"]:
    """Find the targets that are not IGNORE; their number is known, so a GPU is not waited for."""
    return torch.nonzero_static(targets.flatten() != IGNORE, size=n_targets)[:, 0]


def _cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float) -> tuple[Tensor]:
    return (F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum"),)


def projected_cross_entropy(
    states: Float[Tensor, "*B D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "*B"],
    *,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
    n_targets: int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of softmax(states @ weight.T) with smoothed targets, in nats, summed.

    Computes in autocast's type where autocast is on, its softmax and sums in float32 or wider.

    Args:
        n_classes: number of rows of `weight` that are classes; rows behind them, which fill up a
            table, have neither probability nor a share in the smoothing. None: all of them.
        n_targets: number of targets that are not IGNORE. The other positions are left out before
            the projection, so padding costs nothing here. None: every position has a target, and
            torch.compile may take the loss into its graph.

    Source: Szegedy et al. (2016), label smoothing; Vaswani et al. (2017), section 5.4.
    """
    states, targets = states.flatten(0, -2), targets.flatten()
    if n_targets is not None:
        real = _positions(targets, n_targets)
        states, targets = states[real], targets[real]
    loss = partial(_cross_entropy, smoothing=label_smoothing)
    (total,) = _projected(loss, states, weight, targets, n_classes=n_classes)
    return total


def _consistency(logits: Tensor, targets: Tensor, *, smoothing: float, alpha: float) -> tuple[Tensor, ...]:
    """Cross-entropy of two views (2, n, V) + alpha * (KL(p || q) + KL(q || p))."""
    (entropy,) = _cross_entropy(logits.flatten(0, 1), targets.repeat(2), smoothing=smoothing)
    log_p, log_q = logits.log_softmax(-1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    return entropy + alpha * divergence, entropy, divergence


def projected_consistency(
    states: Float[Tensor, "B2 T D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "B2 T"],
    *,
    n_targets: int,
    alpha: float,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of two views and alpha times the divergence between their predictions.

    Args:
        states: B rows of the first view, then those of the second; so too the targets.
        n_targets: number of targets that are not IGNORE, of both views together.
        n_classes, label_smoothing: as in `projected_cross_entropy`.

    Returns:
        Sums over all targets: the loss, and without gradients the cross-entropy and the
        divergence KL(p || q) + KL(q || p).

    Source: Liang et al. (2021), R-Drop: Regularized dropout for neural networks.
    """
    targets = targets.chunk(2)[0].flatten()
    real = _positions(targets, n_targets // 2)
    views = states.unflatten(0, (2, -1)).flatten(1, 2)[:, real]
    loss = partial(_consistency, smoothing=label_smoothing, alpha=alpha)
    return _projected(loss, views, weight, targets[real], n_classes=n_classes)


def _distillation(
    logits: Tensor,
    targets: Tensor,
    *states: Tensor,
    tables: Sequence[Tensor],
    smoothing: float,
    share: float,
) -> tuple[Tensor, ...]:
    """(1 - share) * cross-entropy + share * KL(q || p), q the mean prediction of the teachers."""
    taught = [(s @ table.T)[:, : logits.size(1)] for s, table in zip(states, tables, strict=True)]
    q = torch.stack([each.to(logits.dtype).softmax(-1) for each in taught]).mean(dim=0)
    (entropy,) = _cross_entropy(logits, targets, smoothing=smoothing)
    divergence = F.kl_div(logits.log_softmax(-1), q, reduction="sum")
    return (1 - share) * entropy + share * divergence, entropy, divergence


def projected_distillation(
    states: Float[Tensor, "*B D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "*B"],
    teachers: Sequence[tuple[Float[Tensor, "*B _"], Float[Tensor, "_ _"]]],
    *,
    n_targets: int,
    share: float,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy with the targets and with the mean prediction of teachers.

    Args:
        teachers: for each, its states at the same positions and its output table; they get no
            gradient.
        n_targets: number of targets that are not IGNORE; the other positions are left out.
        n_classes, label_smoothing: as in `projected_cross_entropy`.

    Returns:
        Sums over all targets: the loss, and without gradients the cross-entropy and the
        divergence KL(q || p).

    Source: Hinton et al. (2015), Distilling the knowledge in a neural network; Kim and Rush
    (2016), Sequence-level knowledge distillation, at word level; Freitag et al. (2017), Ensemble
    distillation for neural machine translation.
    """
    dtype = _product_dtype(states)
    real = _positions(targets, n_targets)
    own, *taught = (s.flatten(0, -2)[real] for s in (states, *(s for s, _ in teachers)))
    tables = [table.detach().to(dtype) for _, table in teachers]
    loss = partial(_distillation, tables=tables, smoothing=label_smoothing, share=share)
    inputs = (targets.flatten()[real], *(s.detach().to(dtype) for s in taught))
    return _projected(loss, own, weight, *inputs, n_classes=n_classes)


def ctc_loss(
    logits: Float[Tensor, "B S V"],
    source_lengths: Int[Tensor, " B"] | None,
    targets: Int[Tensor, "B T"],
    target_lengths: Int[Tensor, " B"],
    *,
    blank_id: int = 0,
) -> Float[Tensor, ""]:
    """-log p(target | source) over all alignments, in nats, summed; in float32 or wider.

    A source with too few positions for its target has no alignment and contributes neither loss
    nor gradient; data/speech leaves such recordings out.

    Args:
        source_lengths: real positions of `logits`; None: all of them. PyTorch reads both lengths
            on the host, so it waits for a GPU that holds them.
        targets: each ends with EOS, which CTC does without; the padding behind is not read.
        target_lengths: with EOS.
        blank_id: an id that no target contains, such as that of the padding.

    Source: Graves et al. (2006), Connectionist temporal classification.
    """
    if source_lengths is None:
        source_lengths = torch.full_like(target_lengths, logits.size(1))
    with torch.autocast(logits.device.type, enabled=False):
        return F.ctc_loss(
            _log_probabilities(logits).transpose(0, 1),
            targets,
            source_lengths,
            target_lengths - 1,
            blank=blank_id,
            reduction="sum",
            zero_infinity=True,
        )


def ctc_consistency(
    first: Float[Tensor, "B S V"],
    second: Float[Tensor, "B S V"],
    lengths: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """KL(p || q) + KL(q || p) at every position of two views, in nats, summed.

    The first distribution of KL(a || b) gets no gradient: each view learns from the other as from
    a teacher.

    Args:
        lengths: real positions of each row; None: all of them.

    Source: Yao et al. (2024), CR-CTC: Consistency regularization on CTC for improved speech
    recognition.
    """
    with torch.autocast(first.device.type, enabled=False):
        log_p, log_q = _log_probabilities(first), _log_probabilities(second)
        ways = (
            F.kl_div(student, teacher.detach(), reduction="none", log_target=True).sum(-1)
            for student, teacher in ((log_q, log_p), (log_p, log_q))
        )
        divergence = sum(ways, start=log_p.new_zeros(()))
    if lengths is not None:
        padding = torch.arange(first.size(1), device=first.device) >= lengths[:, None]
        divergence = divergence.masked_fill(padding, 0.0)
    return divergence.sum()


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
