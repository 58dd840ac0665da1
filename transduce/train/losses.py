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

from transduce.products import linear

IGNORE = -100
"""The target of positions without a loss: as in data/batch.py, and in torch's own losses."""

CHUNK = {"cpu": 256, "cuda": 4096}
"""Positions whose logits exist at once: few enough for a CPU's caches, enough for a GPU."""


class _ChunkedLoss(torch.autograd.Function):
    """Sum a loss of the logits states @ weight.T over chunks of positions.

    The forward pass takes the gradient of each chunk, so that the logits of all positions never
    exist at once, and are computed once.

    Args:
        loss: see `projected_loss`.
        n_classes: the first rows of `weight` that are classes.
        wanted: the arguments that need a gradient: 0 is `states`, 1 is `weight`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[..., tuple[Tensor, ...]],
        n_classes: int | None,
        wanted: tuple[int, ...],
        targets: Tensor,
        states: Tensor,
        weight: Tensor,
        *teacher_states: Tensor,
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(states.dtype, torch.float32)

        def of_chunk(states: Tensor, weight: Tensor, *inputs: Tensor) -> tuple[Any, ...]:
            values = loss(linear(states, weight)[..., :n_classes].to(dtype), *inputs)
            return values[0], values

        size = CHUNK.get(states.device.type, 256)
        others = (x.split(size) for x in (targets, *teacher_states))
        chunks = zip(states.split(size, dim=-2), *others, strict=True)
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
            *[None] * 4,
            None if of_states is None else gradient * of_states,
            None if of_weight is None else (gradient * of_weight).to(ctx.weight_dtype),
            *[None] * (len(ctx.needs_input_grad) - 6),
        )


def projected_loss(
    loss: Callable[..., tuple[Tensor, ...]],
    states: Float[Tensor, "*V B D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, " B"],
    *teacher_states: Tensor,
    n_classes: int | None = None,
    n_targets: int | None = None,
) -> tuple[Tensor, ...]:
    """Sum a loss of the logits states @ weight.T over all targets.

    The products are computed in autocast's type where autocast is on, softmax and sums in float32
    or wider.

    Args:
        loss: `cross_entropy`, `consistent_cross_entropy` or `distilled_cross_entropy`, called with
            the logits of some positions, their targets and their rows of `teacher_states`.
        teacher_states: (B, _) of each teacher.
        n_classes: number of rows of `weight` that are classes; padding rows after them have no
            probability, and get a gradient of zero. None: all rows are classes.
        n_targets: number of targets that are not IGNORE. The other positions are left out before
            the projection, so padding costs nothing here. None: every position has a target, and
            torch.compile may take the loss into its graph.

    Returns:
        The numbers of `loss`; the first one has a gradient.
    """
    if n_targets is not None:  # as the number is known, the host need not wait for a GPU
        real = torch.nonzero_static(targets != IGNORE, size=n_targets)[:, 0]
        states, targets = states[..., real, :], targets[real]
        teacher_states = tuple(x[real] for x in teacher_states)
    device = states.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else states.dtype
    arguments = (states, weight) if torch.is_grad_enabled() else ()
    wanted = tuple(i for i, tensor in enumerate(arguments) if tensor.requires_grad)
    products = [x.to(dtype) for x in (states, weight, *teacher_states)]
    with torch.autocast(device, enabled=False):
        sums: tuple[Tensor, ...] = _ChunkedLoss.apply(loss, n_classes, wanted, targets, *products)
    return sums


def cross_entropy(
    logits: Float[Tensor, "B V"], targets: Int[Tensor, " B"], *, smoothing: float = 0.0
) -> tuple[Tensor]:
    """Cross-entropy with smoothed targets, in nats.

    Source: Szegedy et al. (2016), label smoothing; Vaswani et al. (2017), section 5.4.
    """
    return (F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum"),)


def consistent_cross_entropy(
    logits: Float[Tensor, "2 B V"],
    targets: Int[Tensor, " B"],
    *,
    alpha: float,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of two views plus alpha times the divergence between their predictions.

    Returns:
        The loss, the cross-entropy, and the divergence KL(p || q) + KL(q || p).

    Source: Liang et al. (2021), R-Drop: Regularized dropout for neural networks.
    """
    (entropy,) = cross_entropy(logits.flatten(0, 1), targets.repeat(2), smoothing=smoothing)
    log_p, log_q = logits.log_softmax(-1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    return entropy + alpha * divergence, entropy, divergence


def distilled_cross_entropy(
    logits: Float[Tensor, "B V"],
    targets: Int[Tensor, " B"],
    *states: Float[Tensor, "B _"],
    tables: Sequence[Float[Tensor, "_ _"]],
    share: float,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(1 - share) * cross-entropy + share * KL(q || p), q the mean prediction of teachers.

    Args:
        states, tables: of each teacher; their product is its logits.

    Returns:
        The loss, the cross-entropy, and the divergence KL(q || p).

    Source: Hinton et al. (2015), Distilling the knowledge in a neural network; Kim and Rush
    (2016), Sequence-level knowledge distillation, at word level; Freitag et al. (2017), Ensemble
    distillation for neural machine translation.
    """
    predictions = [
        (s @ table.to(s.dtype).T)[:, : logits.size(1)].to(logits.dtype).softmax(-1)
        for s, table in zip(states, tables, strict=True)
    ]
    q = torch.stack(predictions).mean(dim=0)
    (entropy,) = cross_entropy(logits, targets, smoothing=smoothing)
    divergence = F.kl_div(logits.log_softmax(-1), q, reduction="sum")
    return (1 - share) * entropy + share * divergence, entropy, divergence


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
    nor gradient; `data.speech_batches` leaves such recordings out.

    Args:
        source_lengths: real positions of `logits`; None: all of them. PyTorch reads both lengths
            on the host, so it waits for a GPU that holds them.
        targets: each ends with EOS, which CTC leaves out; the padding after it is not read.
        target_lengths: including EOS.
        blank_id: an id that no target contains, such as that of the padding.

    Source: Graves et al. (2006), Connectionist temporal classification.
    """
    if source_lengths is None:
        source_lengths = torch.full_like(target_lengths, logits.size(1))
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
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    kl = partial(F.kl_div, reduction="none", log_target=True)
    divergence = kl(log_q, log_p.detach()).sum(-1) + kl(log_p, log_q.detach()).sum(-1)
    if lengths is not None:
        padding = torch.arange(first.size(1), device=first.device) >= lengths[:, None]
        divergence = divergence.masked_fill(padding, 0.0)
    return divergence.sum()


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
