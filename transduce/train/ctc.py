"""Connectionist temporal classification: the loss over all alignments of a source and its target."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def ctc_loss(
    logits: Float[Tensor, "B S V"],
    source_lengths: Int[Tensor, " B"] | None,
    target_out: Int[Tensor, "B T"],
    target_lengths: Int[Tensor, " B"],
    *,
    blank_id: int = 0,
) -> Float[Tensor, ""]:
    """-log p(target | source) over all alignments, in nats, summed; in float32 or wider.

    A source with too few positions for its target has no alignment and contributes neither loss nor gradient;
    data/speech leaves such recordings out.

    Args:
        source_lengths: real positions of `logits`; without, all are. PyTorch reads both lengths on the host, so it
            waits for a GPU that holds them, and not where they lie on the CPU.
        target_out: ends with EOS, which CTC does without; what follows is not read.
        target_lengths: with EOS.
        blank_id: an id that no target contains, such as that of the padding.

    Source: Graves et al. (2006), Connectionist temporal classification.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if source_lengths is None:
        source_lengths = torch.full_like(target_lengths, logits.size(1))
    with torch.autocast(logits.device.type, enabled=False):
        return F.ctc_loss(
            logits.log_softmax(-1).transpose(0, 1),
            target_out,
            source_lengths,
            target_lengths - 1,
            blank=blank_id,
            reduction="sum",
            zero_infinity=True,
        )
