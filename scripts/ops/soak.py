"""Send strange and long input through the command line: is anything lost or moved, and does memory stay constant?

    python scripts/ops/soak.py text RUN --lines 20000      # random Unicode through `transduce translate RUN --greedy`
    python scripts/ops/soak.py sound RUN MANIFEST --hours 2    # recordings joined to one through `transduce transcribe RUN`

Text: prints how many lines came out, whether some of them, translated alone, are the same, and how much memory was
resident while the first, the second, ... tenth of the time passed. Sound: the same of memory, the seconds of computing for
a second of sound, loading included, and how many of the words came out. Exits with 1 if anything is wrong. Linux.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jiwer
import numpy as np
import soundfile

import transduce as td
from transduce.data.audio import read_audio
from transduce.data.manifest import read_manifest

PAUSE = (0.4, 1.0)
"""Seconds between two recordings."""
ODD = [*" \t\u00a0\u200b\u2028\u0085\ufeff\u0301\u202e", "</s>", "<pad>", "<unk>", "▁", "\x00", "\x1b", "\r", "🏳️‍🌈"]
"""Pieces that break programs."""


def main() -> int:
    """Read the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    text = commands.add_parser("text")
    text.add_argument("run", type=Path)
    text.add_argument("--lines", type=int, default=20_000)
    text.add_argument("--alone", type=int, default=100, help="how many of them are translated alone, too")
    text.set_defaults(call=soak_text)
    sound = commands.add_parser("sound")
    sound.add_argument("run", type=Path)
    sound.add_argument("manifest", type=Path, help="what is joined, again and again")
    sound.add_argument("--hours", type=float, default=2.0)
    sound.set_defaults(call=soak_sound)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return int(not args.call(args, Path(folder)))


def soak_text(args: argparse.Namespace, folder: Path) -> bool:
    """Whether every line was translated, in the right order."""
    rng = random.Random(1)
    lines = [random_line(rng) for _ in range(args.lines)]
    (folder / "in").write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    arguments = ["translate", str(args.run), str(folder / "in"), "--greedy", "--workers", "1"]
    seconds, code = watched(arguments, folder / "out")
    outputs = (folder / "out").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    some = rng.sample(range(len(lines)), min(args.alone, len(lines)))
    translator = td.load_translator(args.run)
    differing = [i for i in some if translator([lines[i]], beam_size=1) != outputs[i : i + 1]]
    blank = [i for i, line in enumerate(lines) if not line.strip() and outputs[i : i + 1] != [""]]
    print(f"exit code {code}; {len(lines):,} lines in, {len(outputs):,} out, {seconds:.0f} s")
    print(
        f"translated alone, {len(differing)} of {len(some)} differ: {differing[:5]}; blank lines not blank: {len(blank)}"
    )
    return code == 0 and len(outputs) == len(lines) and not differing and not blank


def random_line(rng: random.Random) -> str:
    """0 to 12 words of random code points, of letters, or odd strings; never a line break."""
    kinds = (
        lambda: chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x110000)])),
        lambda: rng.choice("abcdefghijklmnopqrstuvwxyzäöüß"),
        lambda: rng.choice(ODD),
    )
    words = ("".join(rng.choice(kinds)() for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(0, 12)))
    return " ".join(words).replace("\n", " ")


def soak_sound(args: argparse.Namespace, folder: Path) -> bool:
    """Whether a long recording is transcribed."""
    recordings, rng = read_manifest(args.manifest), np.random.default_rng(1)
    rate, done, n = soundfile.info(recordings[0].audio).samplerate, 0, 0
    with soundfile.SoundFile(folder / "long.flac", "w", rate, 1) as file:
        while done < args.hours * 3600 * rate:
            samples = read_audio(recordings[n % len(recordings)].audio, rate).numpy()
            pause = 1e-3 * rng.standard_normal(int(rate * rng.uniform(*PAUSE)))  # seconds of faint noise
            file.write(samples)
            file.write(pause)
            done, n = done + len(samples) + len(pause), n + 1
    hours = done / rate / 3600
    print(f"{n:,} recordings, {hours:.2f} hours")
    seconds, code = watched(["transcribe", str(args.run), str(folder / "long.flac")], folder / "out")
    text, reference = (folder / "out").read_text(), " ".join(recordings[i % len(recordings)].text for i in range(n))
    share = len(text.split()) / len(reference.split())
    print(f"exit code {code}; {seconds:.0f} s, real-time factor {seconds / hours / 3600:.4f}")
    print(f"{share:.1%} as many words as were said; WER {jiwer.wer(reference, text):.1%}")
    return code == 0 and 0.9 < share < 1.1


def watched(arguments: list[str], output: Path) -> tuple[float, int]:
    """Run a transduce command with its output to a file, print its memory, and return its seconds and exit code."""
    start, resident = time.monotonic(), []
    with output.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "transduce.cli.main", *arguments], stdout=out)
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            resident += [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")]
            time.sleep(0.2)
    tenths = [max(part) for part in np.array_split(np.array(resident), 10) if len(part)]
    print("MiB resident at most, by tenths of the time:", *(f"{each:.0f}" for each in tenths))
    return time.monotonic() - start, process.returncode


if __name__ == "__main__":
    sys.exit(main())
