"""What the trainer looks at: held-out loss, the score of real decoding, and the same few sample outputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transduce.data.batch import Epoch
from transduce.model.transformer import Transformer
from transduce.pipeline import GREEDY, Decoding, Translator
from transduce.score.bleu import bleu
from transduce.train.loss import sequence_loss
from transduce.train.state import Validation


@torch.no_grad()
def held_out_loss(model: Transformer, batches: Epoch) -> float:
    """Cross-entropy without smoothing, in nats per token."""
    model.eval()
    losses = [sequence_loss(model, batch.to(model.device)).item() for batch in batches]
    return sum(losses) / sum(batch.n_tokens for batch in batches)


@dataclass(frozen=True)
class TranslationValidation:
    """Loss and BLEU of a translation model on held-out pairs."""

    translator: Translator
    source: Sequence[str]
    target: Sequence[str]
    batches: Epoch
    decoding: Decoding = GREEDY
    lowercase: bool = False
    n_samples: int = 3

    def __call__(self, model: Transformer) -> Validation:
        """Decode everything; BLEU decides."""
        hypotheses = self.translator(self.source, self.decoding)
        loss = held_out_loss(model, self.batches)
        score = bleu(hypotheses, [list(self.target)], lowercase=self.lowercase, resamples=0).value
        step = max(1, len(self.source) // self.n_samples)
        chosen = range(0, len(self.source), step)[: self.n_samples]
        samples = [(self.source[i], self.target[i], hypotheses[i]) for i in chosen]
        return Validation({"loss": loss, "perplexity": math.exp(min(loss, 50)), "bleu": score}, score, samples)
