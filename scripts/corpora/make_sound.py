"""Speak a part of the corpus `commands` with espeak-ng, as a small corpus of sound with many voices.

    python scripts/corpora/make_sound.py

The sentences have 3 to 8 words of a vocabulary of 110, so that every word is spoken often.
The sentences of a split come from the same split of the text: no noun and modifier that meet in test meet in training.
A voice is an accent with a variant of espeak-ng. No variant is in two splits, and the accents of test are in no other split.
Speed and pitch change from sentence to sentence.

The seed determines the voice, speed and pitch of each sentence, and every byte of the sound if the versions of espeak-ng and
libsndfile are the same. It needs espeak-ng, which is a package of most systems (Debian, Ubuntu: apt install espeak-ng).
"""

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np
import soundfile
import torch
from torchaudio.functional import resample

from transduce.data.lines import read_lines
from transduce.data.manifest import Recording, write_manifest
from transduce.errors import InputError

TEXT = Path(__file__).resolve().parents[2] / "recipes" / "data" / "commands"
SEED = 2017
SIZES = {"train": (1100, 1100), "valid": (100, 50), "test": (150, 75)}  # utterances, different sentences
N_WORDS = 110
SHORTEST, LONGEST = 3, 8  # words of a sentence
HOMOPHONES = {"two", "hour", "friends'", "parents'"}  # sound like to, our, friends, parents, which are kept
VOICES = {  # accent: variants
    "train": {
        "en-us": "m1 m5 f1 klatt Alex Lee belinda Alicia",
        "en-gb": "m2 m7 f3 f5 Mike aunty travis max",
        "en-gb-scotland": "m4 linda grandpa",
        "en-029": "croak grandma Denis",
        "en-gb-x-gbclan": "pablo boris",
    },
    "valid": {"en-us": "Michael Annie", "en-gb": "victor anika"},
    "test": {"en-us-nyc": "m3 f2 Mario", "en-gb-x-rp": "m6 f4 rob"},
}
SPEEDS = (140, 200)  # words per minute
PITCHES = (35, 65)  # of 0 to 99; 50 is the voice's own
RATE = 16000  # Hz
MARGIN = 0.1  # seconds of silence that are kept on either side
QUIET = 0.01  # of the peak: silence
PEAK = 0.7  # of full scale
COMPRESSION = 0.975  # of libsndfile: 12 kbit/s; from 10 down, Opus drops what is above 4 kHz


@dataclass(frozen=True)
class Utterance:
    """A sentence of the corpus, its translation, and the voice, speed and pitch that speak it."""

    id: str
    english: str
    german: str
    voice: str
    speed: int
    pitch: int

    @property
    def text(self) -> str:
        """The transcript: words in lower case, with apostrophes."""
        return " ".join(words(self.english))


def words(sentence: str) -> list[str]:
    """Lower-case words of an English sentence, without punctuation."""
    return re.findall(r"[a-z]+(?:'[a-z]*)?", sentence.lower())


def vocabulary(held_out: list[list[str]], train: list[list[str]]) -> set[str]:
    """A vocabulary of N_WORDS words: the word that costs the fewest held-out sentences is removed, again and again."""
    vocabulary_left = {word for sentence in held_out + train for word in sentence} - HOMOPHONES
    while True:
        held_out, train = ([s for s in side if vocabulary_left.issuperset(s)] for side in (held_out, train))
        if len(vocabulary_left) == N_WORDS:
            return vocabulary_left
        n_held_out, n_train = (Counter(w for s in side for w in set(s)) for side in (held_out, train))
        vocabulary_left.remove(min(vocabulary_left, key=lambda word: (n_held_out[word], n_train[word], word)))


def plan(seed: int) -> dict[str, list[Utterance]]:
    """The utterances of every split.

    In a split with fewer sentences than utterances, several voices speak each sentence.
    """
    pairs = {}
    for split in SIZES:
        both = zip(*(read_lines(TEXT / f"{split}.{language}") for language in ("en", "de")), strict=True)
        pairs[split] = [(en, de) for en, de in both if SHORTEST <= len(words(en)) <= LONGEST]
    bags = {split: [words(en) for en, _ in pairs[split]] for split in pairs}
    known = vocabulary(bags["valid"] + bags["test"], bags["train"])
    rng = Random(seed)
    planned = {}
    for split, (n_utterances, n_sentences) in SIZES.items():
        voices = [f"{accent}+{variant}" for accent, variants in VOICES[split].items() for variant in variants.split()]
        sentences = [pair for pair in pairs[split] if known.issuperset(words(pair[0]))]
        rng.shuffle(sentences)
        if len(sentences) < n_sentences:
            raise InputError(f"{split} needs {n_sentences} sentences, but {len(sentences)} have only known words")
        planned[split] = [
            Utterance(
                f"{split}-{i:04}",
                *sentences[i % n_sentences],
                voices[i % len(voices)],
                rng.randint(*SPEEDS),
                rng.randint(*PITCHES),
            )
            for i in range(n_utterances)
        ]
    return planned


def speak(text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """A sentence spoken by espeak-ng: RATE Hz, floats, trimmed to MARGIN of silence on either side.

    Raises:
        InputError: espeak-ng fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        wav = f"{folder}/said.wav"
        options = ["-v", voice, "-s", str(speed), "-p", str(pitch), "-w", wav]
        result = subprocess.run(["espeak-ng", *options, "--", text], capture_output=True, text=True)
        if result.returncode or result.stderr:  # for an unknown voice it writes to stderr only
            raise InputError(f"espeak-ng must speak as {voice}, but says {result.stderr.strip()!r}; try version 1.51")
        samples, rate = soundfile.read(wav, dtype="float32")
    sound = resample(torch.from_numpy(samples), rate, RATE).numpy()
    sound *= PEAK / np.abs(sound).max()
    loud = np.flatnonzero(np.abs(sound) > QUIET * PEAK)
    margin = round(MARGIN * RATE)
    return sound[max(loud[0] - margin, 0) : loud[-1] + margin]


def opus(sound: np.ndarray, serial: int) -> bytes:
    """Ogg Opus, with a given serial number of the stream in place of libsndfile's random one."""
    file = BytesIO()
    soundfile.write(file, sound, RATE, format="OGG", subtype="OPUS", compression_level=COMPRESSION)
    return repack(file.getvalue(), serial)


def repack(stream: bytes, serial: int) -> bytes:
    """The Ogg stream with another serial number, and without the 750 empty bytes that libsndfile leaves for comments.

    Source: RFC 3533, section 6 (pages), and RFC 7845, section 5.2 (comments).
    """
    pages, start = [], 0
    while start < len(stream):
        n_segments = stream[start + 26]
        body = start + 27 + n_segments
        stop = body + sum(stream[start + 27 : body])
        lengths, packets = stream[start + 27 : body], stream[body:stop]
        if packets.startswith(b"OpusTags"):
            (n_vendor,) = struct.unpack_from("<I", packets, 8)
            packets = packets[: 12 + n_vendor] + bytes(4)  # no comments
            lengths = bytes([len(packets)])
        page = bytearray(stream[start : start + 26] + bytes([len(lengths)]) + lengths + packets)
        struct.pack_into("<I", page, 14, serial)
        struct.pack_into("<I", page, 22, 0)
        struct.pack_into("<I", page, 22, crc(page))
        pages.append(bytes(page))
        start = stop
    return b"".join(pages)


def crc_table() -> list[int]:
    """Remainders of every first byte, polynomial 0x04c11db7, highest bit first."""
    table = []
    for byte in range(256):
        value = byte << 24
        for _ in range(8):
            value = (value << 1) ^ (0x104C11DB7 if value >> 31 else 0)
        table.append(value)
    return table


CRC_TABLE = crc_table()


def crc(page: Iterable[int]) -> int:
    """Ogg's checksum."""
    value = 0
    for byte in page:
        value = (value << 8 & 0xFFFFFFFF) ^ CRC_TABLE[value >> 24 ^ byte]
    return value


def main() -> int:
    """Write the sound and its manifests, and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=TEXT / "sound", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=SEED)
    x = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print("transduce: espeak-ng must be installed, but is not; try: apt install espeak-ng", file=sys.stderr)
        return 2
    for split, utterances in plan(x.seed).items():
        (x.output / split).mkdir(parents=True, exist_ok=True)
        recordings = []
        for number, u in enumerate(utterances):
            sound = speak(u.english, u.voice, u.speed, u.pitch)
            file = x.output / split / f"{number:04}.opus"
            file.write_bytes(opus(sound, serial=number))
            recordings.append(Recording(u.id, file, len(sound) / RATE, u.voice, u.text, {"german": u.german}))
        write_manifest(x.output / f"{split}.tsv", recordings)
        seconds, size = (sum(r.seconds for r in recordings), sum(r.audio.stat().st_size for r in recordings))
        n_words = len({word for r in recordings for word in r.text.split()})
        counts = f"{len(recordings)} recordings, {seconds / 60:.1f} minutes, {size:,} bytes"
        print(f"{split}: {counts}, {n_words} words, {len({u.voice for u in utterances})} voices", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
