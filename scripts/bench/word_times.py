"""How well does a speech run know when words are said, and which of its words are right? On joined digits.

    python scripts/corpora/make_digits.py FSDD DIGITS; python recipes/speech_to_text.py digits --data DIGITS
    python scripts/bench word_times runs/digits DIGITS/test.tsv

The manifest has a column `times`, as scripts/corpora/make_digits.py writes it: the start and stop of every word. Prints by how
much the boundaries of the words of the given texts are wrong, and how often words of the transcripts are right, by their
confidence, with the area under the ROC curve: how often a right word has more confidence than a wrong one.
"""

import argparse
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

import transduce as td
from transduce.data.manifest import Recording, read_manifest
from transduce.score.wer import align

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


def main() -> None:
    """Read the command line, transcribe and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of speech to text with a CTC head")
    parser.add_argument("manifest", type=Path, help="test recordings of scripts/corpora/make_digits.py")
    asked = parser.parse_args()
    transcriber, recordings = td.load_transcriber(asked.run), read_manifest(asked.manifest)
    found = transcriber.words([r.audio for r in recordings], [r.text for r in recordings])
    times = [[(word.start, word.stop) for word in words] for words in found]
    wrong = np.concatenate([np.subtract(some, said(r)) for some, r in zip(times, recordings, strict=True)])
    for name, errors in (("all", wrong.ravel()), ("starts", wrong[:, 0]), ("stops", wrong[:, 1])):
        told = ", ".join(f"{share} % within {np.percentile(np.abs(errors), share) * 1000:.0f} ms" for share in (50, 90))
        print(f"{name}: {len(errors):,} boundaries, {told}, median {np.median(errors) * 1000:+.0f} ms")
    confidence, right = judged(transcriber, recordings)
    print(f"{len(right):,} words, {right.mean():.1%} right, area under the ROC curve {area(confidence, right):.3f}")
    bins = np.digitize(confidence, EDGES[1:-1])
    for i in np.unique(bins):
        mean, share, n = confidence[bins == i].mean(), right[bins == i].mean(), (bins == i).sum()
        print(f"confidence {EDGES[i]:.2f} to {EDGES[i + 1]:.2f}: mean {mean:.3f}, right {share:.3f}, {n:,} words")


def said(recording: Recording) -> list[tuple[float, float]]:
    """When each word begins and ends."""
    start_stop = (each.split("-") for each in recording.columns["times"].split())
    return [(float(start), float(stop)) for start, stop in start_stop]


def judged(
    transcriber: td.Transcriber, recordings: list[Recording]
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The confidence of every word that is transcribed, and whether it is right where the fewest errors align it."""
    found = transcriber.transcribe([r.audio for r in recordings], word_times=True)
    words = [[word for segment in each.segments for word in segment.outputs[0].words] for each in found]
    aligned = align([" ".join(word.text for word in some) for some in words], [r.text for r in recordings])
    right = [np.zeros(len(some), dtype=bool) for some in words]
    for own, chunks in zip(right, aligned.alignments, strict=True):
        for chunk in chunks:
            own[chunk.hyp_start_idx : chunk.hyp_end_idx] = chunk.type == "equal"
    return np.array([word.confidence for some in words for word in some]), np.concatenate(right)


def area(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> float:
    """How often a right word has more confidence than a wrong one; equal ones count half."""
    difference = confidence[right][:, None] - confidence[~right]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


if __name__ == "__main__":
    main()
