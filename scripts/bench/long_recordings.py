"""How well does a speech run transcribe long recordings? Test recordings are joined, with pauses between them.

    python scripts/bench long_recordings RUN recipes/data/commands/sound/test.tsv --n 64 --joined 8

Prints the WER of the single files, and of the joined ones in segments of several lengths.
"""

import argparse
from pathlib import Path

import numpy as np

import transduce as td
from transduce.data.audio import read_audio
from transduce.data.manifest import read_manifest
from transduce.score.wer import wer


def main() -> None:
    """Read the command line, transcribe and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of speech to text")
    parser.add_argument("manifest", type=Path, help="its test recordings")
    parser.add_argument("--n", type=int, default=64, help="how many recordings, from the first on")
    parser.add_argument("--joined", type=int, default=8, help="how many of them become one file")
    parser.add_argument(
        "--max-seconds", type=float, nargs="*", default=[], help="longest segments to try; the run's first"
    )
    asked = parser.parse_args()
    transcriber = td.load(asked.run)
    assert isinstance(transcriber, td.Transcriber)
    recordings, rate = read_manifest(asked.manifest)[: asked.n], transcriber.feature_extractor.config.sample_rate
    texts = [r.text for r in recordings]
    print("single files:", wer(transcriber([r.audio for r in recordings]), texts, resamples=0))
    rng = np.random.default_rng(0)
    sounds, right = [], []
    for start in range(0, len(recordings), asked.joined):
        parts = []
        for r in recordings[start : start + asked.joined]:
            pause = 1e-3 * rng.standard_normal(int(rate * rng.uniform(0.4, 1.0)))  # seconds of faint noise
            parts += [read_audio(r.audio, rate).numpy(), pause.astype(np.float32)]
        sounds.append((np.concatenate(parts), rate))
        right.append(" ".join(texts[start : start + asked.joined]))
    lengths = [len(samples) / rate for samples, _ in sounds]
    print(f"{len(sounds)} joined files of {min(lengths):.0f} to {max(lengths):.0f} s")
    for seconds in [transcriber.decoding.max_seconds, *asked.max_seconds]:
        print(f"segments of up to {seconds:g} s:", wer(transcriber(sounds, max_seconds=seconds), right, resamples=0))


if __name__ == "__main__":
    main()
