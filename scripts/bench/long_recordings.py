"""How well does a speech run transcribe long recordings? Test recordings are joined, with pauses.

    python scripts/bench long_recordings RUN recipes/data/commands/sound/test.tsv --n 64 --joined 8

Prints the WER of the single files, and of the joined ones in segments of several lengths.
"""

from pathlib import Path

import numpy as np

import transduce as td
from transduce.data.audio import read_audio
from transduce.data.manifest import read_manifest
from transduce.score.wer import wer


def main(
    run: Path,
    manifest: Path,
    /,
    *,
    n: int = 64,
    joined: int = 8,
    max_seconds: tuple[float, ...] = (),
) -> None:
    """Transcribe and print.

    Args:
        run: a run of speech to text.
        manifest: its test recordings.
        n: how many recordings, from the first on.
        joined: how many of them become one file.
        max_seconds: further maximum segment lengths to try, after the run's own.
    """
    transcriber = td.load_transcriber(run)
    recordings = read_manifest(manifest)[:n]
    rate = transcriber.feature_extractor.config.sample_rate
    texts = [r.text for r in recordings]
    print("single files:", wer(transcriber([r.audio for r in recordings]), texts, resamples=0))
    rng = np.random.default_rng(0)
    sounds = []
    references = []
    for start in range(0, len(recordings), joined):
        parts = []
        for r in recordings[start : start + joined]:
            pause = 1e-3 * rng.standard_normal(int(rate * rng.uniform(0.4, 1.0)))  # faint noise
            parts += [read_audio(r.audio, rate).numpy(), pause.astype(np.float32)]
        sounds.append((np.concatenate(parts), rate))
        references.append(" ".join(texts[start : start + joined]))
    lengths = [len(samples) / rate for samples, _ in sounds]
    print(f"{len(sounds)} joined files of {min(lengths):.0f} to {max(lengths):.0f} s")
    for seconds in [transcriber.decoding.max_seconds, *max_seconds]:
        score = wer(transcriber(sounds, max_seconds=seconds), references, resamples=0)
        print(f"segments of up to {seconds:g} s:", score)
