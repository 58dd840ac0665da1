"""How exact are a speech run's word times and confidences on joined digits?

    python scripts/corpora/make_digits.py FSDD DIGITS
    python recipes/speech_to_text.py digits --data DIGITS
    python scripts/bench word_times runs/digits DIGITS/test.tsv

The manifest has a column `times`, as scripts/corpora/make_digits.py writes it: the start and stop
of every word. Prints the errors of the word boundaries of the references, and how often words of
the transcripts are right, by their confidence, with the area under the ROC curve: how often a right
word has more confidence than a false one.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

import transduce as td
from transduce.data.manifest import Recording, read_manifest
from transduce.score.wer import align

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


def main(run: Path, manifest: Path, /) -> None:
    """Align, transcribe and print.

    Args:
        run: a run of speech to text with a CTC head.
        manifest: test recordings of scripts/corpora/make_digits.py.
    """
    transcriber = td.load_transcriber(run)
    recordings = read_manifest(manifest)
    words = transcriber.words([r.audio for r in recordings], [r.text for r in recordings])
    times = [[(word.start, word.stop) for word in each] for each in words]
    errors = np.concatenate(
        [np.subtract(each, true_times(r)) for each, r in zip(times, recordings, strict=True)]
    )
    sides = (("all", errors.ravel()), ("starts", errors[:, 0]), ("stops", errors[:, 1]))
    for name, seconds in sides:
        percentiles = ", ".join(
            f"{share} % within {np.percentile(np.abs(seconds), share) * 1000:.0f} ms"
            for share in (50, 90)
        )
        median = np.median(seconds) * 1000
        print(f"{name}: {len(seconds):,} boundaries, {percentiles}, median {median:+.0f} ms")
    confidence, right = confidences(transcriber, recordings)
    print(
        f"{len(right):,} words, {right.mean():.1%} right, area under the ROC curve "
        f"{area(confidence, right):.3f}"
    )
    bins = np.digitize(confidence, EDGES[1:-1])
    for i in np.unique(bins):
        inside = bins == i
        print(
            f"confidence {EDGES[i]:.2f} to {EDGES[i + 1]:.2f}: "
            f"mean {confidence[inside].mean():.3f}, right {right[inside].mean():.3f}, "
            f"{inside.sum():,} words"
        )


def true_times(recording: Recording) -> list[tuple[float, float]]:
    """The start and stop of each word, in seconds."""
    start_stop = (each.split("-") for each in recording.columns["times"].split())
    return [(float(start), float(stop)) for start, stop in start_stop]


def confidences(
    transcriber: td.Transcriber, recordings: list[Recording]
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The confidence of every transcribed word, and whether it is correct in the best alignment."""
    transcripts = transcriber.transcribe([r.audio for r in recordings], word_times=True)
    words = [
        [word for segment in each.segments for word in segment.outputs[0].words]
        for each in transcripts
    ]
    texts = [" ".join(word.text for word in each) for each in words]
    aligned = align(texts, [r.text for r in recordings])
    right = [np.zeros(len(each), dtype=bool) for each in words]
    for row, chunks in zip(right, aligned.alignments, strict=True):
        for chunk in chunks:
            row[chunk.hyp_start_idx : chunk.hyp_end_idx] = chunk.type == "equal"
    confidence = np.array([word.confidence for each in words for word in each])
    return confidence, np.concatenate(right)


def area(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> float:
    """How often a right word has more confidence than a false one; equal ones count half."""
    difference = confidence[right][:, None] - confidence[~right]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)
