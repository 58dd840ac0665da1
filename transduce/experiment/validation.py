"""What the trainer looks at: held-out loss, the score of real decoding, and the same few sample outputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batch import IGNORE, Batch, Epoch, pad, pad_frames
from transduce.data.speech.pairs import SpeechPairs
from transduce.data.text.masking import MaskedBatches, decode_masked
from transduce.data.text.sentencepiece_bpe import BOS
from transduce.data.text.stream import Stream
from transduce.model.attention_maps import cross_attention, diagonality
from transduce.model.transformer import Transformer
from transduce.score.bleu import bleu
from transduce.score.wer import cer, wer
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.search import GREEDY, SearchConfig
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator
from transduce.train.objectives import CrossEntropy
from transduce.train.plot import attention_map
from transduce.train.state import Validation


@torch.no_grad()
def held_out_loss(model: Transformer, batches: Sequence[Batch]) -> float:
    """Cross-entropy without smoothing, in nats per token."""
    objective = CrossEntropy(model.eval())
    losses = [objective(batch.to(model.device)).total.item() for batch in batches]
    return sum(losses) / sum(batch.n_tokens for batch in batches)


@dataclass(frozen=True)
class TranslationValidation:
    """Loss and BLEU of a translation model on held-out pairs."""

    translator: Translator
    source: Sequence[str]
    target: Sequence[str]
    batches: Epoch
    decoding: SearchConfig = GREEDY
    lowercase: bool = False
    n_samples: int = 3

    def __call__(self, model: Transformer) -> Validation:
        """Decode everything; BLEU decides."""
        hypotheses = self.translator(self.source, self.decoding)
        loss = held_out_loss(model, self.batches)
        score = replace(bleu, lowercase=self.lowercase)(hypotheses, self.target, resamples=0).value
        step = max(1, len(self.source) // self.n_samples)
        chosen = range(0, len(self.source), step)[: self.n_samples]
        samples = [(self.source[i], self.target[i], hypotheses[i]) for i in chosen]
        return Validation({"loss": loss, "perplexity": math.exp(min(loss, 50)), "bleu": score}, score, samples)


@dataclass(frozen=True)
class LanguageValidation:
    """Loss of a language model on held-out text, and how it goes on from places in it."""

    generator: Generator
    batches: Sequence[Batch]
    valid: Stream
    generation: GenerationConfig
    n_samples: int = 2

    def __call__(self, model: Transformer) -> Validation:
        """The loss decides, the lower the better."""
        loss = held_out_loss(model, self.batches)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 50))}
        return Validation(metrics, -loss, self._samples())

    def _samples(self) -> list[tuple[str, str, str]]:
        """Of every place, in one line each: the tokens before it, those that follow, and those that the model draws."""
        half = self.generator.model.config.max_positions // 2  # so that both fit
        length = max(1, min(self.generation.max_length, half, len(self.valid) // 2))
        step = max(1, (len(self.valid) - 2 * length) // max(1, self.n_samples - 1))
        starts = range(0, len(self.valid) - 2 * length + 1, step)[: self.n_samples]
        decode = self.generator.tokenizer.decode
        before = decode([self.valid.read(start, start + length).tolist() for start in starts])
        after = decode([self.valid.read(start + length, start + 2 * length).tolist() for start in starts])
        drawn = self.generator(before, replace(self.generation, max_length=length))
        return [(_one_line(b), _one_line(a), _one_line(d)) for b, a, d in zip(before, after, drawn, strict=True)]


def held_out_accuracy(fill_mask: FillMask, batches: MaskedBatches) -> float:
    """The share of the chosen tokens that are found again."""
    right = 0
    for batch in (batch.to(fill_mask.model.device) for batch in batches):
        right += int((_found(fill_mask, batch) == batch.target_out[batch.target_out != IGNORE]).sum())
    return right / sum(batch.n_tokens for batch in batches)


def _found(fill_mask: FillMask, batch: Batch) -> Int[Tensor, " n"]:
    assert batch.source is not None and batch.source_lengths is not None
    return fill_mask.likeliest(batch.source, batch.source_lengths, batch.target_out != IGNORE)


@dataclass(frozen=True)
class MaskedLanguageValidation:
    """Loss and accuracy of masked language modelling on held-out text, and how it fills gaps there."""

    fill_mask: FillMask
    batches: MaskedBatches
    n_samples: int = 3
    sample_tokens: int = 32

    def __call__(self, model: Transformer) -> Validation:
        """The loss decides, the lower the better."""
        loss = held_out_loss(model, self.batches)
        accuracy = held_out_accuracy(self.fill_mask, self.batches)
        return Validation({"loss": loss, "accuracy": 100 * accuracy}, -loss, self._samples())

    def _samples(self) -> list[tuple[str, str, str]]:
        """The beginning of some windows, in one line each: with gaps, as it should be, and as the model fills it."""
        step = max(1, len(self.batches) // self.n_samples)
        samples = []
        for i in range(0, len(self.batches), step)[: self.n_samples]:
            batch, whole = self.batches[i].to(self.fill_mask.model.device), self.batches.texts[i].target_out
            assert batch.source is not None
            filled = batch.source.clone()
            filled[batch.target_out != IGNORE] = _found(self.fill_mask, batch)
            rows = [
                rows[0, : int(batch.target_lengths[0])][: self.sample_tokens] for rows in (batch.source, whole, filled)
            ]
            gaps, true, found = (_one_line(decode_masked(self.fill_mask.tokenizer, row.tolist(), "_")) for row in rows)
            samples.append((gaps, true, found))
        return samples


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


@dataclass(frozen=True)
class SpeechValidation:
    """Loss and error rates of a speech model on held-out recordings, and how it aligns them."""

    transcriber: Transcriber
    pairs: SpeechPairs
    batches: Epoch
    decoding: SearchConfig = GREEDY
    n_samples: int = 3
    bleu: bool = False
    """Speech translation: BLEU decides, not WER."""

    def __call__(self, model: Transformer) -> Validation:
        """Decode everything; the error rate decides, the lower the better."""
        recordings = self.pairs.recordings
        frames = [self.pairs.reader(r.audio) for r in recordings]
        references = [r.text for r in recordings]
        hypotheses = [outputs[0].text for outputs in self.transcriber.decode(frames, self.decoding)]
        metrics = {"loss": held_out_loss(model, self.batches)}
        if self.bleu:
            metrics["bleu"] = bleu(hypotheses, references, resamples=0).value
        else:
            metrics["wer"] = wer(hypotheses, references, resamples=0).value
            metrics["cer"] = cer(hypotheses, references, resamples=0).value
        step = max(1, len(recordings) // self.n_samples)
        chosen = range(0, len(recordings), step)[: self.n_samples]
        metrics["diagonality"], draw = self._alignment(model, [frames[i] for i in chosen], chosen)
        samples = [(recordings[i].id, references[i], hypotheses[i]) for i in chosen]
        score = metrics["bleu"] if self.bleu else -metrics["wer"]
        return Validation(metrics, score, samples, {"attention": draw})

    def _alignment(
        self, model: Transformer, frames: Sequence[Float[Tensor, "_ F"]], chosen: Sequence[int]
    ) -> tuple[float, Callable[[Path], None]]:
        """Diagonality of the straightest head over some utterances, and what draws that head on the first of them."""
        targets = [self.pairs.target[i] for i in chosen]
        source, lengths = pad_frames(frames)
        target_in, target_lengths = pad([[BOS, *row[:-1]] for row in targets], 0)
        memory = model.encode(source.to(model.device), lengths.to(model.device))
        weights = cross_attention(model, memory, target_in.to(model.device)).float().cpu()
        assert memory.lengths is not None
        sizes = list(zip(target_lengths.tolist(), memory.lengths.tolist(), strict=True))
        heads: dict[tuple[int, int], float] = {}
        for layer in range(weights.size(0)):
            for head in range(weights.size(2)):
                values = [diagonality(weights[layer, b, head, :t, :s]) for b, (t, s) in enumerate(sizes)]
                heads[layer, head] = sum(values) / len(values)
        layer, head = max(heads, key=heads.__getitem__)
        n_steps, n_places = sizes[0]
        picture = weights[layer, 0, head, :n_steps, :n_places]
        seconds = self.pairs.reader.feature_extractor.config.hop * model.config.frames.stack
        title = f"{self.pairs.recordings[chosen[0]].id}: layer {layer + 1}, head {head + 1}"
        tokens = self.transcriber.tokenizer.tokens(targets[0])
        return heads[layer, head], lambda path: attention_map(picture, tokens, seconds, title, path)
