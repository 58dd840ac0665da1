"""How often does a speech run write text where nobody speaks, and what does a threshold cost? On sounds made here.

    python scripts/bench no_speech runs/speech recipes/data/commands/sound/test.tsv --threshold 0.45

Prints, by kind of sound, how many inputs have a text without the threshold and with it, and the least and the greatest
no_speech_prob; then the same for the recordings of the manifest, with their WER.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

import transduce as td
from transduce.data.manifest import read_manifest
from transduce.score.wer import wer
from transduce.tasks.sound import Audio

RATE = 16_000
Wave = Float[np.ndarray, " n"]


def main() -> None:
    """Read the command line, make the sounds, transcribe and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of speech to text with a CTC head, or an imported Whisper")
    parser.add_argument("manifest", type=Path, help="recordings of speech; those of validation to choose a threshold")
    parser.add_argument("--threshold", type=float, default=0.45)
    parser.add_argument("--each", type=int, default=10, help="sounds of each kind")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    transcriber, rng = td.load_transcriber(asked.run), np.random.default_rng(asked.seed)
    made: dict[str, list[Audio]] = {}
    for _ in range(asked.each):
        for kind, wave in sounds(rng, round(rng.uniform(0.8, 4.5) * RATE)):
            made.setdefault(kind, []).append((wave.astype(np.float32), RATE))
    print("sound\tinputs\twith text\twith text and threshold\tno_speech_prob")
    for kind, waves in made.items():
        report(kind, transcriber, waves, asked.threshold)
    recordings = read_manifest(asked.manifest)
    texts = report(asked.manifest.name, transcriber, [r.audio for r in recordings], asked.threshold)
    for name, own in zip(("without", "with"), texts, strict=True):
        print(f"WER {name} the threshold: {wer(own, [r.text for r in recordings])}")


def report(kind: str, transcriber: td.Transcriber, waves: list[Audio], threshold: float) -> tuple[list[str], list[str]]:
    """Print a line of the table; give the texts without the threshold and with it."""
    outputs = [
        [segment.outputs[0] for segment in transcript.segments]
        for transcript in transcriber.transcribe(waves, no_speech_threshold=1.0)
    ]
    every = [[output.text for output in some] for some in outputs]
    kept = [[output.text for output in some if (output.no_speech_prob or 0) <= threshold] for some in outputs]
    plain, left = ([" ".join(filter(None, some)) for some in texts] for texts in (every, kept))
    probs = [output.no_speech_prob or 0.0 for some in outputs for output in some]
    counts = f"{sum(map(bool, plain))}\t{sum(map(bool, left))}"
    print(f"{kind}\t{len(waves)}\t{counts}\t{min(probs):.2f} to {max(probs):.2f}", flush=True)
    return plain, left


def sounds(rng: np.random.Generator, n: int) -> Iterator[tuple[str, Wave]]:
    """One sound of every kind, of n samples."""
    t = np.arange(n) / RATE
    yield "digital silence", np.zeros(n)
    yield "dither of one bit", rng.integers(-1, 2, n) / 32768
    for decibels in (-70, -50, -30, -10):
        yield f"white noise, {decibels} dB", level(rng.standard_normal(n), decibels)
        yield f"pink noise, {decibels} dB", level(coloured(rng, n, 1), decibels)
    yield "brown noise", level(coloured(rng, n, 2), -30)
    yield (
        "noise that swells 2 to 5 times a second",
        level(rng.standard_normal(n) * (1 + np.sin(2 * np.pi * rng.uniform(2, 5) * t)), -25),
    )
    for hertz in (50, 60, 100):
        for harmonics in (1, 8):
            tones = sum(np.sin(2 * np.pi * (hertz * h * t + rng.random())) / h for h in range(1, harmonics + 1))
            yield f"hum, {hertz} Hz, {harmonics} harmonics", level(tones + 1e-3 * rng.standard_normal(n), -25)
    yield "sine, 440 Hz", level(np.sin(2 * np.pi * 440 * t), -20)
    yield "sweep, 100 to 3,000 Hz", level(np.sin(2 * np.pi * (100 * t + 1450 * t**2 / t[-1])), -20)
    yield "melody", level(notes(rng, n, (0,)), -20)
    yield "chords", level(notes(rng, n, (0, 4, 7)), -20)
    impulses = 1e-4 * rng.standard_normal(n)
    impulses[rng.integers(0, n, max(1, round(rng.uniform(1, 6) * n / RATE)))] = 1
    yield "clicks", level(np.convolve(impulses, np.exp(-np.arange(100) / 15))[:n], -30)


def level(wave: Wave, decibels: float) -> Wave:
    """The same sound with this effective value below full scale, clipped there."""
    return np.clip(wave / np.sqrt(np.mean(wave**2)) * 10 ** (decibels / 20), -1, 1)


def coloured(rng: np.random.Generator, n: int, slope: float) -> Wave:
    """Noise whose power falls with frequency to this power: 1 is pink, 2 brown."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-slope / 2)
    spectrum[0] = 0
    return np.fft.irfft(spectrum, n)


def notes(rng: np.random.Generator, n: int, chord: tuple[int, ...]) -> Wave:
    """Plucked notes of a major scale, one after the other, of 0.15 to 0.6 s; `chord` has semitones above each."""
    wave, at = np.zeros(n), 0
    while at < n:
        size = min(n - at, round(rng.uniform(0.15, 0.6) * RATE))
        t, root = np.arange(size) / RATE, 220 * 2 ** (rng.choice((0, 2, 4, 5, 7, 9, 11, 12)) / 12)
        tones = sum(np.sin(2 * np.pi * root * 2 ** (s / 12) * h * t) / h**2 for s in chord for h in range(1, 5))
        wave[at : at + size] = np.minimum(1, t / 0.01) * np.exp(-3 * t) * tones
        at += size
    return wave


if __name__ == "__main__":
    main()
