"""How often does a speech run write text for sounds without speech, and what does a threshold cost?

    python scripts/bench no_speech runs/speech recipes/data/commands/sound/test.tsv --threshold 0.45

Makes sounds of many kinds. Prints for each kind how many inputs get a text without and with the
threshold, and the minimum and maximum of no_speech_prob; then the same for the recordings of the
manifest, with their WER.
"""

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


def main(
    run: Path, manifest: Path, /, *, threshold: float = 0.45, each: int = 10, seed: int = 1
) -> None:
    """Make the sounds, transcribe and print.

    Args:
        run: a run of speech to text with a CTC head, or an imported Whisper.
        manifest: recordings of speech; those of validation to choose a threshold.
        threshold: of no_speech_prob, above which an input has no text.
        each: sounds of each kind.
        seed: of the sounds.
    """
    transcriber = td.load_transcriber(run)
    rng = np.random.default_rng(seed)
    waves: dict[str, list[Audio]] = {}
    for _ in range(each):
        for kind, wave in sounds(rng, round(rng.uniform(0.8, 4.5) * RATE)):
            waves.setdefault(kind, []).append((wave.astype(np.float32), RATE))
    print("sound\tinputs\twith text\twith text and threshold\tno_speech_prob")
    for kind, inputs in waves.items():
        report(kind, transcriber, inputs, threshold)
    recordings = read_manifest(manifest)
    texts = report(manifest.name, transcriber, [r.audio for r in recordings], threshold)
    for name, lines in zip(("without", "with"), texts, strict=True):
        print(f"WER {name} the threshold: {wer(lines, [r.text for r in recordings])}")


def report(
    kind: str, transcriber: td.Transcriber, inputs: list[Audio], threshold: float
) -> tuple[list[str], list[str]]:
    """Print a row of the table; return the texts without the threshold and with it."""
    outputs = [
        [segment.outputs[0] for segment in transcript.segments]
        for transcript in transcriber.transcribe(inputs, no_speech_threshold=1.0)
    ]
    without, with_threshold = (
        [
            " ".join(
                output.text
                for output in each
                if output.text and (output.no_speech_prob or 0) <= limit
            )
            for each in outputs
        ]
        for limit in (1.0, threshold)
    )
    probs = [output.no_speech_prob or 0.0 for each in outputs for output in each]
    counts = f"{sum(map(bool, without))}\t{sum(map(bool, with_threshold))}"
    print(f"{kind}\t{len(inputs)}\t{counts}\t{min(probs):.2f} to {max(probs):.2f}", flush=True)
    return without, with_threshold


def sounds(rng: np.random.Generator, n: int) -> Iterator[tuple[str, Wave]]:
    """One sound of every kind, of n samples."""
    t = np.arange(n) / RATE
    yield "digital silence", np.zeros(n)
    yield "dither of one bit", rng.integers(-1, 2, n) / 32768
    for decibels in (-70, -50, -30, -10):
        yield f"white noise, {decibels} dB", level(rng.standard_normal(n), decibels)
        yield f"pink noise, {decibels} dB", level(coloured(rng, n, 1), decibels)
    yield "brown noise", level(coloured(rng, n, 2), -30)
    noise = rng.standard_normal(n)
    swell = 1 + np.sin(2 * np.pi * rng.uniform(2, 5) * t)
    yield "noise that swells 2 to 5 times a second", level(noise * swell, -25)
    for hertz in (50, 60, 100):
        for harmonics in (1, 8):
            tones = sum(
                np.sin(2 * np.pi * (hertz * h * t + rng.random())) / h
                for h in range(1, harmonics + 1)
            )
            noise = 1e-3 * rng.standard_normal(n)
            yield f"hum, {hertz} Hz, {harmonics} harmonics", level(tones + noise, -25)
    yield "sine, 440 Hz", level(np.sin(2 * np.pi * 440 * t), -20)
    sweep = np.sin(2 * np.pi * (100 * t + 1450 * t**2 / t[-1]))
    yield "sweep, 100 to 3,000 Hz", level(sweep, -20)
    yield "melody", level(notes(rng, n, (0,)), -20)
    yield "chords", level(notes(rng, n, (0, 4, 7)), -20)
    impulses = 1e-4 * rng.standard_normal(n)
    impulses[rng.integers(0, n, max(1, round(rng.uniform(1, 6) * n / RATE)))] = 1
    yield "clicks", level(np.convolve(impulses, np.exp(-np.arange(100) / 15))[:n], -30)


def level(wave: Wave, decibels: float) -> Wave:
    """The same sound with this RMS relative to full scale, clipped at full scale."""
    return np.clip(wave / np.sqrt(np.mean(wave**2)) * 10 ** (decibels / 20), -1, 1)


def coloured(rng: np.random.Generator, n: int, slope: float) -> Wave:
    """Noise whose power falls with frequency to this power: 1 is pink, 2 brown."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-slope / 2)
    spectrum[0] = 0
    return np.fft.irfft(spectrum, n)


def notes(rng: np.random.Generator, n: int, chord: tuple[int, ...]) -> Wave:
    """Plucked notes of a major scale in a row, of 0.15 to 0.6 s.

    Args:
        chord: semitones above each note.
    """
    wave = np.zeros(n)
    start = 0
    while start < n:
        size = min(n - start, round(rng.uniform(0.15, 0.6) * RATE))
        t = np.arange(size) / RATE
        root = 220 * 2 ** (rng.choice((0, 2, 4, 5, 7, 9, 11, 12)) / 12)
        tones = sum(
            np.sin(2 * np.pi * root * 2 ** (s / 12) * h * t) / h**2
            for s in chord
            for h in range(1, 5)
        )
        wave[start : start + size] = np.minimum(1, t / 0.01) * np.exp(-3 * t) * tones
        start += size
    return wave
