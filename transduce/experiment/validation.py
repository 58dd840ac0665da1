"""Validation: the loss on held-out batches, measures of the model's outputs, and samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.batch import IGNORE, Batch
from transduce.data.frame_reader import FrameReader
from transduce.data.language import Stream
from transduce.data.manifest import Recording
from transduce.data.parallel_text import ParallelText
from transduce.data.speech_batches import SpeechPairs
from transduce.data.text_batches import MaskedBatches
from transduce.errors import InputError
from transduce.experiment.start import folds_case
from transduce.files import write_json
from transduce.model.transformer import Transformer
from transduce.plot import spread
from transduce.report.documents import write_reports
from transduce.score.measures import MEASURES, Tokenization, get_measure, warn_without_words
from transduce.score.score import Lines
from transduce.tasks.config import GenerationConfig, SearchConfig
from transduce.tasks.fill_mask import FillMask, decode_masked
from transduce.tasks.generate import Generator
from transduce.tasks.load import load
from transduce.tasks.search import GREEDY
from transduce.tasks.sound import CHUNK, group_by_duration
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator
from transduce.train.distributed import world
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation

SAMPLES = 3
"""Number of samples (inputs with outputs) of every validation."""
SAMPLE_TOKENS = 32
"""Maximum tokens of a sample that is a window of a text."""


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Computes the loss of a model on held-out batches, and metrics and samples of its outputs.

    Raises:
        InputError: when called, if no metric has the name `by`.
    """

    batches: Sequence[Batch]
    look: Callable[[Transformer], Validation]
    """Gives metrics of the model's own outputs and samples, without a score."""
    by: str = "loss"
    """The metric that decides which checkpoint is best; lower is better for losses and error
    rates."""
    perplexity: bool = False
    """Whether the perplexity (e to the loss) is also a metric."""
    example: tuple[Any, str] | None = None
    """An input and its reference, for a picture of the finished model's attention."""

    def __call__(self, model: Transformer) -> Validation:
        """Return metrics of this model, its score (higher is better), and samples."""
        loss = held_out_loss(model, self.batches)
        if not math.isfinite(loss):  # such a model has no useful outputs
            return Validation({"loss": loss}, by=self.by)
        validation = self.look(model)
        metrics = {"loss": loss}
        if self.perplexity:
            metrics["perplexity"] = math.exp(min(loss, 50))
        metrics |= validation.metrics
        if self.by not in metrics:
            raise InputError(
                "the metric that chooses the best checkpoint must be one of "
                f"{', '.join(metrics)}, but it is {self.by!r}"
            )
        higher = (
            MEASURES[self.by].higher_is_better if self.by in MEASURES else self.by == "accuracy"
        )
        score = metrics[self.by] if higher else -metrics[self.by]
        samples: list[Any] = [tuple(map(_one_cell, sample)) for sample in validation.samples]
        return Validation(metrics, score, samples, self.by)


def _per_token(
    batches: Sequence[Batch], device: torch.device, value: Callable[[Batch], float]
) -> float:
    """The sum of a value over batches, divided by their tokens; processes share the batches."""
    total = n_tokens = 0.0
    # one at a time: batches of sound are made on access
    for i in world().share(range(len(batches))):
        batch = batches[i]
        total += value(batch.to(device))
        n_tokens += batch.n_tokens
    total, n_tokens = world().all_reduce_sum(total, n_tokens)
    return total / n_tokens


@torch.no_grad()
def held_out_loss(model: Transformer, batches: Sequence[Batch]) -> float:
    """Cross-entropy without label smoothing, in nats per token."""
    objective = CrossEntropy(model).eval()
    return _per_token(batches, model.device, lambda batch: objective(batch).total.item())


def masked_accuracy(fill_mask: FillMask, batches: Sequence[Batch]) -> float:
    """The share of masked tokens that are predicted correctly."""

    def n_right(batch: Batch) -> int:
        targets = batch.target_out[batch.target_out != IGNORE]
        return int((_filled(fill_mask, batch) == targets).sum())

    return _per_token(batches, fill_mask.model.device, n_right)


def translation_validator(
    translator: Translator,
    text: ParallelText,
    batches: Sequence[Batch],
    *,
    by: str = "bleu",
    tokenize: Tokenization | None = None,
) -> Validator:
    """Loss and BLEU (greedy search) on held-out pairs, and `by` if it is another measure.

    BLEU ignores the capitals of references if outputs can have none.
    """
    bleu = "bleu.lowercase" if folds_case(translator.tokenizer) else "bleu"
    score = _scoring([bleu], by, text.target, text.source, tokenize)
    examples = {
        i: (text.source[i], text.target[i]) for i in spread(range(len(text.source)), SAMPLES)
    }

    def look(model: Transformer) -> Validation:
        outputs = world().gather(translator(world().share(text.source), GREEDY))
        samples = [(*example, outputs[i]) for i, example in examples.items()]
        return Validation(score(outputs, text.target), samples=samples)

    shortest = min(examples.values(), key=lambda pair: len(pair[0]) + len(pair[1]))
    return Validator(batches=batches, look=look, by=by, perplexity=True, example=shortest)


def speech_validator(
    transcriber: Transcriber,
    pairs: SpeechPairs,
    *,
    search: SearchConfig = GREEDY,
    by: str = "wer",
    tokenize: Tokenization | None = None,
    recordings: Sequence[Recording] | None = None,
    canary: Sequence[Recording] = (),
) -> Validator:
    """Loss and error rates on held-out recordings.

    Args:
        recordings: those to transcribe and score, also if the loss leaves them out; a sound that
            cannot be used has a blank transcript. By default those of `pairs`.
        canary: other recordings, whose measures are reported separately, such as canary.wer.
    """
    scored = pairs.recordings if recordings is None else recordings
    names = ["wer", "cer"] if by in ("loss", "wer", "cer") else []
    score = _scoring(names, by, [recording.text for recording in scored], None, tokenize)
    if canary:  # names unusable ones, and raises if all are
        config = replace(pairs.config, max_seconds=math.inf, ctc_column="")
        SpeechPairs(canary, pairs.reader, transcriber.tokenizer, config)
    shown = spread(pairs.recordings, SAMPLES)

    def transcripts(part: Sequence[Recording]) -> tuple[list[str], dict[str, float]]:
        texts = _transcripts(transcriber, world().share(part), pairs.reader, search)
        outputs = world().gather(texts)
        return outputs, score(outputs, [recording.text for recording in part])

    def look(model: Transformer) -> Validation:
        outputs, metrics = transcripts(scored)
        if canary:
            metrics |= {f"canary.{name}": value for name, value in transcripts(canary)[1].items()}
        by_audio = {r.audio: output for r, output in zip(scored, outputs, strict=True)}
        samples = [(r.id, r.text, by_audio[r.audio]) for r in shown]
        return Validation(metrics, samples=samples)

    example = shown[0].audio, shown[0].text
    return Validator(batches=pairs.epoch(0), look=look, by=by, example=example)


def _transcripts(
    transcriber: Transcriber,
    recordings: Sequence[Recording],
    reader: FrameReader,
    search: SearchConfig,
) -> list[str]:
    """The transcript of every recording, which is only cut if it is longer than the segments of the
    search; "" if its sound cannot be used."""
    texts: list[str] = []
    for group in group_by_duration(recordings, CHUNK):
        frames: dict[int, Tensor] = {}
        by_place: dict[int, str] = {}
        for i, recording in enumerate(group):
            if recording.seconds > search.max_seconds:
                with torch.autocast("cpu", enabled=False):  # features are float32, as in the reader
                    (transcript,) = transcriber.transcribe([recording.audio], search)
                by_place[i] = transcript.text
                continue
            with suppress(InputError):
                frames[i] = reader(recording.audio)
        outputs = transcriber.decode([*frames.values()], search)
        by_place |= {i: output[0].text for i, output in zip(frames, outputs, strict=True)}
        texts += [by_place.get(i, "") for i in range(len(group))]
    return texts


def check_search(
    task: Translator | Transcriber | Generator,
    inputs: Sequence[Any],
    config: SearchConfig | GenerationConfig,
) -> None:
    """Search for a few tokens per output, so that invalid settings are refused before a training.

    Raises:
        InputError: the search lacks something, or names tokens that do not exist.
    """
    short: Any = replace(config, min_length=0, max_length=1)
    if isinstance(config, SearchConfig):  # must not depend on words, nor search twice
        short = replace(config, max_length=0, length_ratio=0.0, length_extra=1)
        short = replace(short, no_repeat_ngram=1, no_speech_threshold=0.0)
    task(inputs, short)


def draw_attention(task: Translator | Transcriber, example: tuple[Any, str], path: Path) -> None:
    """Draw a model's cross-attention for a reference, if that fits its positions."""
    source, reference = example
    with suppress(InputError):
        (alignment,) = task.align([source], [reference])
        alignment.draw(path)


def language_validator(
    generator: Generator,
    valid: Stream,
    batches: Sequence[Batch],
    generation: GenerationConfig,
) -> Validator:
    """Loss on held-out text, and continuations of excerpts from it as samples.

    Raises:
        InputError: see `check_search`.
    """
    check_search(generator, generator.tokenizer.decode([valid.read(0, 1).tolist()]), generation)

    def look(model: Transformer) -> Validation:
        # one half each for prompt and continuation
        half = model.config.for_stack(model.config.decoder).max_positions // 2
        length = max(1, min(generation.max_length, half, len(valid) // 2))
        places = sorted({0, len(valid) - 2 * length})
        windows = [valid.read(place, place + 2 * length).tolist() for place in places]
        before, after = (
            generator.tokenizer.decode([window[half] for window in windows])
            for half in (slice(length), slice(length, None))
        )
        shortest = min(generation.min_length, length)
        drawn = generator(before, replace(generation, min_length=shortest, max_length=length))
        return Validation({}, samples=list(zip(before, after, drawn, strict=True)))

    return Validator(batches=batches, look=look, perplexity=True)


def masked_language_validator(
    fill_mask: FillMask, batches: MaskedBatches, *, by: str = "loss"
) -> Validator:
    """Loss and accuracy (percent) on the masked tokens of held-out text, and filled masks as
    samples."""

    def sample(i: int) -> tuple[str, str, str]:
        """The beginning of a window: masked, original, and filled by the model."""
        batch = batches[i].to(fill_mask.model.device)
        assert batch.source is not None
        filled = batch.source.clone()
        filled[batch.target_out != IGNORE] = _filled(fill_mask, batch)
        n = min(SAMPLE_TOKENS, int(batch.target_lengths[0]))
        masked, true, predicted = (
            decode_masked(fill_mask.tokenizer, rows[0, :n].tolist(), "_")
            for rows in (batch.source, batches.texts[i].target_out, filled)
        )
        return masked, true, predicted

    def look(model: Transformer) -> Validation:
        samples = [sample(i) for i in spread(range(len(batches)), SAMPLES)]
        return Validation({"accuracy": 100 * masked_accuracy(fill_mask, batches)}, samples=samples)

    return Validator(batches=batches, look=look, by=by)


def _filled(fill_mask: FillMask, batch: Batch) -> Int[Tensor, " n"]:
    """The tokens that the model predicts at the masks."""
    assert batch.source is not None and batch.source_lengths is not None
    return fill_mask.likeliest(batch.source, batch.source_lengths, batch.target_out != IGNORE)


def _scoring(
    names: list[str],
    by: str,
    references: Lines,
    sources: Lines | None,
    tokenize: Tokenization | None,
) -> Callable[[Lines, Lines], dict[str, float]]:
    """Return a function that scores outputs by these measures and by `by`.

    Raises:
        InputError: a measure lacks a library, or cannot use the references.
    """
    warn_without_words(by, references)
    if by != "loss" and by not in names:
        names = [*names, by]
    measures = [get_measure(name, tokenize).with_sources(sources) for name in names]
    for measure in measures:
        measure.with_references([references])  # raises its error before a training
    return lambda outputs, references: {
        measure.name: measure(outputs, references, resamples=0).value for measure in measures
    }


def _one_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def held_out_report(
    directory: Path,
    name: str,
    batches: Sequence[Batch],
    device: str,
    *,
    baselines: Mapping[str, tuple[float, float | None]],
) -> dict[str, float]:
    """Print the loss of the finished model and of baselines on held-out batches; write NAME.json.

    Args:
        name: what the batches are, such as "validation".
        baselines: nats per token by name, and for masked tokens the share that the baseline
            predicts correctly.

    Returns:
        Loss in nats per token, and perplexity or, for masked tokens, accuracy in percent; the same
        of every baseline.
    """
    task = load(directory, device)
    accuracy = masked_accuracy(task, batches) if isinstance(task, FillMask) else None
    n_tokens = sum(batch.n_tokens for batch in batches)
    print(
        f"{name}: {n_tokens:,} tokens to predict of "
        f"{sum(int(batch.target_lengths.sum()) for batch in batches):,}"
    )
    values: dict[str, float] = {}
    results = {"": (held_out_loss(task.model, batches), accuracy), **baselines}
    for which, (loss, share) in results.items():
        second, value, unit = "perplexity", math.exp(min(loss, 50)), ""
        if share is not None:
            second, value, unit = "accuracy", 100 * share, " %"
        prefix = which and f"{which}."
        values |= {f"{prefix}loss": loss, f"{prefix}{second}": value}
        print(f"  {which or 'loss'} {loss:.4f} nats per token, {second} {value:.3f}{unit}")
    write_json(directory / f"{name}.json", {**values, "tokens": n_tokens})
    write_reports(directory)
    return values
