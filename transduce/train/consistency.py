"""Consistency of two views: a batch passes twice, with other dropout and other masks, and the outputs should agree."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from transduce.train.loss import CHUNK

BatchT = TypeVar("BatchT")


def two_views(batch: BatchT) -> BatchT:
    """A batch of all rows and then of all rows again, those with `second_source` as their source if there is one.

    Args:
        batch: a dataclass whose tensors have a row for each example (data/batch.py).
    """
    given: Any = batch
    tensors = {f.name: t for f in fields(given) if isinstance(t := getattr(given, f.name), Tensor)}
    second = tensors.pop("second_source", None)
    both: dict[str, Any] = {name: torch.cat((t, t)) for name, t in tensors.items()}
    if second is not None:
        both["source"] = torch.cat((tensors["source"], second))
    if given.host_lengths is not None:
        both["host_lengths"] = tuple(None if t is None else torch.cat((t, t)) for t in given.host_lengths)
    return cast(BatchT, replace(given, **both, second_source=None, n_tokens=2 * given.n_tokens))


def divergence(
    first: Float[Tensor, "*B V"], second: Float[Tensor, "*B V"], *, constant_target: bool = False
) -> Float[Tensor, "*B"]:
    """KL(p || q) + KL(q || p) where p and q are the softmax of these logits, in nats; in float32 or wider.

    Args:
        constant_target: the first distribution in KL(a || b) gets no gradient, so each view learns from the other as
            from a teacher.

    Source: Liang et al. (2021), R-Drop: Regularized dropout for neural networks, where both get a gradient;
    Yao et al. (2024), CR-CTC: Consistency regularization on CTC for improved speech recognition, where one does.
    """
    dtype = torch.promote_types(first.dtype, torch.float32)
    with torch.autocast(first.device.type, enabled=False):
        log_p, log_q = first.to(dtype).log_softmax(-1), second.to(dtype).log_softmax(-1)
        p, q = (log_p.detach(), log_q.detach()) if constant_target else (log_p, log_q)
        ways = (F.kl_div(log, target, reduction="none", log_target=True) for log, target in ((log_q, p), (log_p, q)))
        return torch.stack([way.sum(-1) for way in ways]).sum(0)


def projected_divergence(
    first: Float[Tensor, "n D"],
    second: Float[Tensor, "n D"],
    project: Callable[[Float[Tensor, "m D"]], Float[Tensor, "m V"]],
) -> Float[Tensor, ""]:
    """The sum of `divergence` over n pairs of states, which `project` maps to logits.

    It works in chunks and computes their logits again for the gradient, so (n, V) logits never exist as a whole.
    """

    def part(a: Tensor, b: Tensor) -> Tensor:
        return divergence(project(a), project(b)).sum()

    size = CHUNK.get(first.device.type, 256)
    parts = [
        checkpoint(part, a, b, use_reentrant=False, preserve_rng_state=False)
        for a, b in zip(first.split(size), second.split(size), strict=True)
    ]
    return torch.stack(parts).sum()
