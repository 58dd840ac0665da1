"""What a training looks at: the loss on held-out batches, measures of what the model writes, samples and pictures."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batch import IGNORE, Batch, pad, pad_frames
from transduce.data.speech.manifest import Recording
from transduce.data.speech.pairs import FrameReader, SpeechPairs
from transduce.data.text.parallel_text import ParallelText
from transduce.data.text.shards import Stream
from transduce.data.text.windows import MaskedBatches, decode_masked
from transduce.errors import InputError
from transduce.files import write_file
from transduce.model.attention_maps import cross_attention, diagonality
from transduce.model.transformer import Transformer
from transduce.plot import attention_map
from transduce.report.page import write_reports
from transduce.score.measures import MEASURES, get_measure
from transduce.score.score import Lines, Measure
from transduce.score.tokenization import Tokenization
from transduce.tasks.config import GenerationConfig, SearchConfig
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import Generator
from transduce.tasks.load import load
from transduce.tasks.search import GREEDY, last_position
from transduce.tasks.segmenting import group_by_duration
from transduce.tasks.transcribe import CHUNK, Transcriber
from transduce.tasks.translate import Translator
from transduce.train.distributed import world
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Called with a model, it gives the trainer the loss on held-out batches beside a look at the model's outputs.

    Raises:
        InputError: when called, if no metric has the name `by`.
    """

    batches: Sequence[Batch]
    look: Callable[[Transformer], Validation]
    """What a look at the model's own outputs gives; its score is not read."""
    by: str = "loss"
    """The metric that decides which checkpoint is best; lower is better for losses and error rates."""
    perplexity: bool = False
    """Whether e to the loss stands beside it."""

    def __call__(self, model: Transformer) -> Validation:
        """Metrics of this model, the score that decides (higher is better), samples and pictures."""
        loss = held_out_loss(model, self.batches)
        if not math.isfinite(loss):  # such a model writes nothing that one could look at
            return Validation({"loss": loss}, by=self.by)
        found = self.look(model)
        metrics = {"loss": loss} | ({"perplexity": math.exp(min(loss, 50))} if self.perplexity else {}) | found.metrics
        if self.by not in metrics:
            raise InputError(f"what decides must be one of {', '.join(metrics)}, but it is {self.by!r}")
        higher = MEASURES[self.by].higher_is_better if self.by in MEASURES else self.by == "accuracy"
        return replace(found, metrics=metrics, score=metrics[self.by] * (1 if higher else -1), by=self.by)


@torch.no_grad()
def held_out_loss(model: Transformer, batches: Sequence[Batch]) -> float:
    """Cross-entropy without label smoothing, in nats per token."""
    objective = CrossEntropy(model).eval()
    loss = n_tokens = 0.0
    for i in world().share(range(len(batches))):  # one at a time: batches of sound are made when they are asked for
        batch = batches[i]
        loss += objective(batch.to(model.device)).total.item()
        n_tokens += batch.n_tokens
    loss, n_tokens = world().all_reduce_sum(loss, n_tokens)
    return loss / n_tokens


def translation_validator(
    translator: Translator,
    text: ParallelText,
    batches: Sequence[Batch],
    *,
    by: str = "bleu",
    tokenize: Tokenization | None = None,
    n_samples: int = 3,
) -> Validator:
    """Loss and BLEU (greedy search) on held-out pairs, `by` where it is another measure, and a picture of attention."""
    measures = _measures(["bleu"], by, text.source, tokenize)

    def look(model: Transformer) -> Validation:
        outputs = world().gather(translator(world().share(text.source), GREEDY))
        metrics = {measure.name: measure(outputs, text.target, resamples=0).value for measure in measures}
        samples = [(text.source[i], text.target[i], outputs[i]) for i in _spread(len(outputs), n_samples)]
        return Validation(metrics, samples=samples, pictures=_aligned(translator, samples))

    return Validator(batches=batches, look=look, by=by, perplexity=True)


def _aligned(translator: Translator, samples: Sequence[tuple[str, str, str]]) -> dict[str, Callable[[Path], None]]:
    """What draws the alignment of the shortest sample with its reference, if the model has positions for it."""
    source, reference, _ = min(samples, key=lambda sample: len(sample[0]) + len(sample[1]))
    (ids,), (target,) = translator.sources([source]), translator.tokenizer.encode([reference])
    model = translator.model
    if len(ids) > last_position(model, source=True) or len(target) + 1 > last_position(model):
        return {}
    (found,) = translator.align([source], [reference])
    title = "mean over heads of the last layer but one"
    return {"attention": lambda path: attention_map(found.mean.float(), found.target, found.source, title, path)}


def speech_validator(
    transcriber: Transcriber,
    pairs: SpeechPairs,
    *,
    search: SearchConfig = GREEDY,
    by: str = "wer",
    tokenize: Tokenization | None = None,
    recordings: Sequence[Recording] | None = None,
    n_samples: int = 3,
) -> Validator:
    """Loss and error rates (BLEU, if BLEU or chrF decide) on held-out recordings, and how straight attention is.

    Args:
        recordings: what is transcribed and scored, whatever the loss leaves out; a blank transcript for a sound that
            cannot be used. By default those of `pairs`.
    """
    scored = pairs.recordings if recordings is None else recordings
    measures = _measures(["wer", "cer"] if by in ("loss", "wer", "cer") else [], by, None, tokenize)

    def look(model: Transformer) -> Validation:
        references = [recording.text for recording in scored]
        own: list[str] = []
        for some in group_by_duration(world().share(scored), CHUNK, lambda recording: recording.seconds):
            read = [_frames(pairs.reader, recording) for recording in some]
            found = iter(transcriber.decode([frames for frames in read if frames is not None], search))
            own += ["" if frames is None else next(found)[0].text for frames in read]
        outputs = world().gather(own)
        metrics = {measure.name: measure(outputs, references, resamples=0).value for measure in measures}
        chosen = _spread(len(pairs.recordings), n_samples)
        frames = [pairs.reader(pairs.recordings[i].audio) for i in chosen]
        metrics["diagonality"], draw = _alignment(transcriber, pairs, frames, chosen)
        written = {recording.audio: output for recording, output in zip(scored, outputs, strict=True)}
        samples = [(r.id, r.text, written[r.audio]) for r in (pairs.recordings[i] for i in chosen)]
        return Validation(metrics, samples=samples, pictures={"attention": draw})

    return Validator(batches=pairs.epoch(0), look=look, by=by)


def _frames(reader: FrameReader, recording: Recording) -> Float[Tensor, "S F"] | None:
    """The vectors of a recording; None where its sound cannot be used, of which a warning has told."""
    try:
        return reader(recording.audio)
    except InputError:
        return None


def _alignment(
    transcriber: Transcriber, pairs: SpeechPairs, frames: Sequence[Float[Tensor, "_ F"]], chosen: Sequence[int]
) -> tuple[float, Callable[[Path], None]]:
    """Diagonality of the straightest head over some utterances, and what draws that head on the first of them."""
    model, targets = transcriber.model, [pairs.target[i] for i in chosen]
    source, lengths = pad_frames(frames)
    target_in, target_lengths = pad([[pairs.bos_id, *row[:-1]] for row in targets], 0)
    memory = model.encode(source.to(model.device), lengths.to(model.device))
    assert memory.lengths is not None
    weights = cross_attention(model, memory, target_in.to(model.device)).float().cpu()
    sizes = list(zip(target_lengths.tolist(), memory.lengths.tolist(), strict=True))
    heads = {
        head: sum(diagonality(weights[head[0], b, head[1], :t, :s]) for b, (t, s) in enumerate(sizes)) / len(sizes)
        for head in product(range(weights.size(0)), range(weights.size(2)))
    }
    layer, head = max(heads, key=heads.__getitem__)
    picture = weights[layer, 0, head, : sizes[0][0], : sizes[0][1]]
    seconds = pairs.reader.feature_extractor.config.hop * model.config.frames.per_position
    title = f"{pairs.recordings[chosen[0]].id}: layer {layer + 1}, head {head + 1}"
    tokens = transcriber.tokenizer.tokens(targets[0])
    return heads[layer, head], lambda path: attention_map(picture, tokens, seconds, title, path)


def language_validator(
    generator: Generator, valid: Stream, batches: Sequence[Batch], generation: GenerationConfig, n_samples: int = 2
) -> Validator:
    """Loss on held-out text, and how the model goes on from places in it."""

    def look(model: Transformer) -> Validation:
        half = (
            model.config.of(model.config.decoder).max_positions // 2
        )  # so that both the text before and the text after fit
        length = max(1, min(generation.max_length, half, len(valid) // 2))
        step = max(1, (len(valid) - 2 * length) // max(1, n_samples - 1))
        starts = range(0, len(valid) - 2 * length + 1, step)[:n_samples]
        before, after = (
            generator.tokenizer.decode([valid.read(start + i, start + i + length).tolist() for start in starts])
            for i in (0, length)
        )
        drawn = generator(before, replace(generation, max_length=length))
        told = [(_one_line(b), _one_line(a), _one_line(d)) for b, a, d in zip(before, after, drawn, strict=True)]
        return Validation({}, samples=told)

    return Validator(batches=batches, look=look, perplexity=True)


def masked_language_validator(
    fill_mask: FillMask, batches: MaskedBatches, *, by: str = "loss", n_samples: int = 3, sample_tokens: int = 32
) -> Validator:
    """Loss and accuracy (percent) on the masked tokens of held-out text, and how the model fills some of them."""

    def look(model: Transformer) -> Validation:
        samples = []
        for i in _spread(len(batches), n_samples):
            # the beginning of a window: masked, as it was, as the model fills it
            batch, whole = batches[i].to(model.device), batches.texts[i].target_out
            assert batch.source is not None
            filled = batch.source.clone()
            filled[batch.target_out != IGNORE] = _filled(fill_mask, batch)
            n = min(sample_tokens, int(batch.target_lengths[0]))
            rows = [rows[0, :n].tolist() for rows in (batch.source, whole, filled)]
            masked, true, found = (_one_line(decode_masked(fill_mask.tokenizer, row, "_")) for row in rows)
            samples.append((masked, true, found))
        return Validation({"accuracy": 100 * masked_accuracy(fill_mask, batches)}, samples=samples)

    return Validator(batches=batches, look=look, by=by)


def masked_accuracy(fill_mask: FillMask, batches: MaskedBatches) -> float:
    """The share of the chosen tokens that are found again."""
    right = n_tokens = 0
    for batch in (batches[i].to(fill_mask.model.device) for i in world().share(range(len(batches)))):
        right += int((_filled(fill_mask, batch) == batch.target_out[batch.target_out != IGNORE]).sum())
        n_tokens += batch.n_tokens
    all_right, of = world().all_reduce_sum(right, n_tokens)
    return all_right / of


def _filled(fill_mask: FillMask, batch: Batch) -> Int[Tensor, " n"]:
    assert batch.source is not None and batch.source_lengths is not None
    return fill_mask.likeliest(batch.source, batch.source_lengths, batch.target_out != IGNORE)


def _measures(names: list[str], by: str, sources: Lines | None, tokenize: Tokenization | None = None) -> list[Measure]:
    """The measures of these names, and the one that decides where it is not among them, for outputs of these sources."""
    named = dict.fromkeys([*names, *([by] if by != "loss" else [])])
    return [get_measure(name, tokenize).with_sources(sources) for name in named]


def _spread(n: int, n_samples: int) -> range:
    """So many of n numbers, evenly spread."""
    return range(0, n, max(1, n // n_samples))[:n_samples]


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def held_out_report(
    directory: Path,
    name: str,
    batches: Sequence[Batch],
    device: str,
    *,
    baselines: Mapping[str, tuple[float, float | None]],
) -> dict[str, float]:
    """The finished model's loss on held-out batches beside that of baselines; print, and keep in NAME.json.

    Args:
        name: what the batches are, such as "validation".
        baselines: by name, nats per token, and for masked tokens the share of them that the baseline finds.

    Returns:
        Loss in nats per token, and perplexity or, for masked tokens, accuracy in percent; the same of every baseline.
    """
    task = load(directory, device)
    assert isinstance(task, Generator | FillMask)
    accuracy = None
    if isinstance(task, FillMask):
        assert isinstance(batches, MaskedBatches)
        accuracy = masked_accuracy(task, batches)
    n_tokens = sum(batch.n_tokens for batch in batches)
    print(f"{name}: {n_tokens:,} tokens to predict of {sum(int(batch.target_lengths.sum()) for batch in batches):,}")
    values: dict[str, float] = {}
    for which, (loss, share) in {"": (held_out_loss(task.model, batches), accuracy), **baselines}.items():
        other = ("perplexity", math.exp(min(loss, 50)), "") if share is None else ("accuracy", 100 * share, " %")
        print(f"  {which or 'loss'} {loss:.4f} nats per token, {other[0]} {other[1]:.3f}{other[2]}")
        prefix = f"{which}." if which else ""
        values |= {f"{prefix}loss": loss, f"{prefix}{other[0]}": other[1]}
    write_file(directory / f"{name}.json", json.dumps({**values, "tokens": n_tokens}, indent=2) + "\n")
    write_reports(directory)
    return values
