"""CTC on the encoder beside cross-entropy on the decoder: the first learns to align, and teaches the second."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transduce.train.loss import Seq2SeqBatch, balanced, projected_cross_entropy, sequence_loss


@torch.compiler.disable
def ctc_loss(
    logits: Float[Tensor, "B S V"],
    source_lengths: Int[Tensor, " B"] | None,
    target_out: Int[Tensor, "B T"],
    target_lengths: Int[Tensor, " B"],
    *,
    blank_id: int = 0,
) -> Float[Tensor, ""]:
    """-log p(target | source) over all alignments, in nats, summed; in float32 or wider, and outside compiled graphs.

    A source with too few positions for its target has no alignment and contributes neither loss nor gradient;
    data/speech.py leaves such recordings out.

    Args:
        source_lengths: real positions of `logits`; without, all are.
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


def hybrid_loss(
    model: Any,
    batch: Seq2SeqBatch,
    *,
    label_smoothing: float = 0.0,
    ctc_weight: float = 0.3,
    blank_id: int = 0,
) -> Float[Tensor, ""]:
    """(1 - ctc_weight) * cross-entropy + ctc_weight * CTC, both in nats, summed; with weight 0 `sequence_loss`.

    Args:
        model: a Transformer with ctc=True; it encodes once.

    Raises:
        ValueError: ctc_weight is not in [0, 1], or the model has no CTC head.
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech recognition.
    """
    if not 0 <= ctc_weight <= 1:
        raise ValueError(f"ctc_weight must lie in [0, 1], but ctc_weight={ctc_weight}")
    if ctc_weight == 0:
        return sequence_loss(model, batch, label_smoothing=label_smoothing)
    balance: list[Tensor] | None = [] if model.training else None
    memory = model.encode(batch.source, batch.source_lengths, balance=balance)
    states = model.decoder_states(batch.target_in, memory=memory, lengths=batch.target_lengths, balance=balance)
    entropy = projected_cross_entropy(
        states, model.output, batch.target_out, n_classes=model.vocab_size, label_smoothing=label_smoothing
    )
    logits = model.ctc_logits(memory.states)
    ctc = ctc_loss(logits, memory.lengths, batch.target_out, batch.target_lengths, blank_id=blank_id)
    return balanced((1 - ctc_weight) * entropy + ctc_weight * ctc, balance, batch)
