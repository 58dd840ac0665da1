"""`transduce data`: download a corpus, and make a manifest of recordings."""

import gzip
import hashlib
import os
import tarfile
import urllib.request
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from http.client import HTTPException
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import numpy as np
from tyro.conf import Positional, arg

from transduce.cli.large_files import check_output
from transduce.data.manifest import Recording, to_recording, write_manifest
from transduce.data.sound_lists import LIST, SPAN, TABLES, Row, each_row, kaldi_table, seconds_of
from transduce.errors import InputError

BEYOND = 0.5
"""Seconds that a segment may end after the end of its sound, as in Kaldi."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Name = Literal["multi30k", "tinyshakespeare", "fsdd", "speechocean762", "onnxruntime-web"]


class Corpus(NamedTuple):
    """Where a public corpus is, and its files."""

    home: str
    """Base URL; a file's name follows."""
    files: dict[str, str]
    """Name to SHA-256: of the file, but for .gz (not .tar.gz) of the unpacked text; "": none is
    published."""
    folder: str = ""
    """A folder in its archive. If only the folder exists, the user has unpacked the archive."""
    make_manifests: Callable[[Path], None] = lambda folder: None


def get(
    name: Positional[Name],
    folder: Positional[Annotated[Path, arg(metavar="DIR")]],
    *,
    mirror: Annotated[str, arg(metavar="URL", help_behavior_hint="")] = "",
    sha256: Annotated[str, arg(metavar="HEX", help_behavior_hint="")] = "",
) -> None:
    """Download a corpus to DIR, which recipes take as --data; correct files that exist are kept.

    multi30k: image captions in English, German, French and Czech, for research (Elliott et al. 2016
    and 2017; Barrault et al. 2018). tinyshakespeare: 1.1 MB of plays, public domain. fsdd:
    spoken digits of 6 speakers, CC BY-SA 4.0 (Jackson et al. 2018); recordings 0 to 4 are test.
    speechocean762: read English of 250 learners, CC BY 4.0 (Zhang et al. 2021). Without a network,
    copy the files there, or the unpacked archives of these two. onnxruntime-web: not a corpus, but
    the runtime that `transduce export --to web` puts beside a model, MIT.

    Args:
        name: The corpus.
        folder: Where its files go.
        mirror: URL of a folder with the same files.
        sha256: The checksum of an archive whose publisher gives none, from a source you trust.
    """
    corpus = CORPORA[name]
    folder.mkdir(parents=True, exist_ok=True)
    for file, digest in corpus.files.items():
        path = folder / file
        if corpus.folder and (folder / corpus.folder).is_dir() and not path.exists():
            print(f"{folder / corpus.folder} exists: nothing is downloaded")
            continue
        _fetch(path, f"{(mirror or corpus.home).rstrip('/')}/{file}", digest or sha256.lower())
        if file.endswith(".tar.gz"):
            _unpack(path, folder)
    corpus.make_manifests(folder)


def _fetch(path: Path, url: str, digest: str) -> None:
    """Download a file, unless it exists.

    Raises:
        InputError: it cannot be downloaded, or its checksum is wrong; an existing file is not
            changed.
    """
    from transduce.files import write_file

    is_there = path.exists()
    content = path.read_bytes() if is_there else _download(url, path.parent)
    packed = path.suffix == ".gz" and not path.name.endswith(".tar.gz")
    try:
        sha256 = hashlib.sha256(gzip.decompress(content) if packed else content).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        sha256 = f"that of no whole gzip file: {error}"
    if digest and sha256 != digest:
        way_out = "move it away" if is_there else "try again, or name another --mirror"
        raise InputError(
            f"the SHA-256 of {path if is_there else url} must be {digest}, but it is {sha256}; "
            f"{way_out}"
        )
    if not is_there:
        write_file(path, content)
    checked = (
        ""
        if digest
        else f"; its SHA-256 is {sha256}, which was not checked; --sha256 HEX checks it"
    )
    print(f"{path}: {len(content):,} bytes {'exist' if is_there else 'downloaded'}{checked}")


def _download(url: str, folder: Path) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{url} must be reachable, but {error}; check the network, put the file into {folder} "
            "by hand, or name a --mirror of transduce data get"
        ) from error


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder, without the archive's top-level folder."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                member.name = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
                if member.isfile():
                    tar.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(
            f"{archive} must be a whole .tar.gz, but {error}; move it away to have it fetched anew"
        ) from error


def manifest(
    source: Positional[Annotated[Path, arg(metavar="SOURCE")]],
    out: Positional[Annotated[Path, arg(metavar="OUT.tsv")]],
    *,
    audio_out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
) -> None:
    """Make a manifest, with id, audio, seconds, speaker and text, of a folder or another list.

    SOURCE is a folder with x.txt beside x.wav, at any depth (the name of a sound's folder is its
    speaker), with metadata.csv, or with Kaldi's wav.scp and text; or a table in tabs, commas
    (x.csv) or JSON lines (x.jsonl), as NeMo, Hugging Face and Common Voice have them. Training
    reads all of these itself; here they are checked once, and the sound is measured. Entries
    without sound or text are left out, counted and named.

    Args:
        source: The folder or file.
        out: The manifest.
        audio_out: Folder for segments of longer sound, as FLAC: those of a Kaldi directory, or of
            NeMo's offset and duration.
    """
    if out.exists():
        check_output(out, [source, *(source / name for name in TABLES)])
    if out.suffix != ".tsv" and (out.is_file() or LIST.fullmatch(out.name)):
        is_there = f"{out} is there" if out.is_file() else f"{out} would be read as one"
        raise InputError(
            f"a manifest must not be named as another kind of file, but {is_there}; name a .tsv"
        )
    _write(out, _usable(each_row(source, parts=True), audio_out))


def _usable(rows: Iterable[tuple[str, Row]], pieces: Path | None = None) -> Iterator[Recording]:
    """Yield the rows that have sound and text; print how many lack something, and which."""
    left_out = defaultdict[str, list[str]](list)
    ids = set[str]()
    for place, row in rows:
        try:
            recording = to_recording(_checked(row, pieces), place)
            if recording.id in ids:
                raise InputError("an id that another recording has")
        except InputError as error:
            left_out[str(error)].append(row.get("id") or place)
        else:
            ids.add(recording.id)
            yield recording
    for reason, names in left_out.items():
        more = ", ..." * (len(names) > 5)
        print(f"left out {len(names):,}: {reason}: {', '.join(names[:5])}{more}")


def _checked(row: Row, pieces: Path | None) -> Row:
    """The row with the seconds of its sound.

    Raises:
        InputError: it cannot be used; the message is the reason.
    """
    if "text" not in row:
        raise InputError(f"no column text, but {', '.join(row)}")
    text = " ".join(row["text"].split())
    if not text:
        raise InputError("no text")
    audio = Path(row.get("audio", ""))
    if not audio.is_file():
        raise InputError("no sound")
    if SPAN in row:
        audio = _write_segment(audio, row.pop(SPAN), row["id"], pieces)
    seconds = seconds_of(audio)
    if not seconds:
        raise InputError("a sound that is empty or cannot be read")
    return {**row, "audio": str(audio), "text": text, "seconds": str(seconds)}


def _write_segment(audio: Path, segment: str, name: str, pieces: Path | None) -> Path:
    """Write a segment as FLAC and return its path; lossless if samples are integers of at most 24
    bits.

    Raises:
        InputError: it is not a valid segment, or its file exists with other sound.
    """
    import soundfile

    from transduce.files import write_file

    if pieces is None:
        raise InputError("a segment that must be cut; name a folder for segments: --audio-out DIR")
    try:
        start, end = map(float, segment.split())
        info = soundfile.info(audio)
        if start < 0 or 0 < end <= start or end > info.duration + BEYOND:
            raise ValueError
        whole = info.subtype.startswith("PCM")
        samples, rate = soundfile.read(
            audio,
            start=round(start * info.samplerate),
            stop=round(end * info.samplerate) if end > 0 else None,
            dtype="int32" if whole else "float64",
        )
        if not len(samples) or not np.isfinite(samples).all():
            raise ValueError
        if not whole:  # floats may exceed full scale
            samples /= max(1.0, np.abs(samples).max())
        flac = BytesIO()
        bits = "PCM_24" if info.subtype in ("PCM_24", "PCM_32") else "PCM_16"
        soundfile.write(flac, samples, rate, format="FLAC", subtype=bits)
    except (ValueError, OverflowError, soundfile.SoundFileError) as error:
        raise InputError(
            "a segment that is not START END in seconds, inside its sound, or that FLAC cannot "
            "store"
        ) from error
    path = pieces / f"{os.path.normpath(f'/{name}')[1:]}.flac"  # never outside this folder
    if path.exists() and path.read_bytes() != flac.getvalue():
        raise InputError(f"a segment whose file in {pieces} has other sound; name another folder")
    write_file(path, flac.getvalue(), durable=False)
    return path


def _write(path: Path, recordings: Iterable[Recording], root: Path | None = None) -> None:
    recordings = list(recordings)
    if not recordings:
        raise InputError(
            f"a manifest needs a recording, but there is none for {path}; --help has the layouts"
        )
    write_manifest(path, recordings, root=root)
    length = timedelta(seconds=round(sum(r.seconds for r in recordings)))
    speakers = {r.speaker for r in recordings}
    print(f"{path}: {len(recordings):,} recordings, {length} in all, {len(speakers)} speakers")


def _make_fsdd(folder: Path) -> None:
    """train.tsv and test.tsv of the digits, as their authors split them: index 0 to 4 is test."""
    rows: dict[str, list[tuple[str, Row]]] = {"train": [], "test": []}
    for path in sorted((folder / "recordings").glob("[0-9]_*_*.wav")):
        digit, speaker, index = path.stem.split("_")
        row = {"id": path.stem, "audio": str(path), "speaker": speaker, "text": DIGITS[int(digit)]}
        rows["test" if int(index) < 5 else "train"].append((str(path), row))
    for split, some in rows.items():
        _write(folder / f"{split}.tsv", _usable(some))


def _make_speechocean762(folder: Path) -> None:
    """train/manifest.tsv and test/manifest.tsv of the learners, with age and gender."""
    for split in ("train", "test"):
        about = {name: kaldi_table(folder / split / f"spk2{name}") for name in ("age", "gender")}
        rows = (
            (place, row | {name: of.get(row.get("speaker", ""), "") for name, of in about.items()})
            for place, row in each_row(folder / split)
        )
        _write(folder / split / "manifest.tsv", _usable(rows), root=folder)


MULTI30K = """
460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6  train.en.gz
2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72  train.de.gz
5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d  train.fr.gz
2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da  train.cs.gz
1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227  val.en.gz
660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660  val.de.gz
5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc  val.fr.gz
d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33  val.cs.gz
399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182  test_2016_flickr.en.gz
4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16  test_2016_flickr.de.gz
cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6  test_2016_flickr.fr.gz
45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8  test_2016_flickr.cs.gz
"""
"""The files of Multi30k, as sha256sum writes them."""

RUNTIME = "onnxruntime-web-1.30.0.tgz"
"""The ONNX runtime for browsers, as named in npm's registry."""

CORPORA: dict[Name, Corpus] = {
    "multi30k": Corpus(
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "2cc0f2d7c615b60e07e2d51bb5edc004444d7e0e/data/task1/raw/",
        {name: digest for digest, name in map(str.split, MULTI30K.strip().split("\n"))},
    ),
    "tinyshakespeare": Corpus(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
    "fsdd": Corpus(
        "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/",
        {"v1.0.10.tar.gz": ""},
        "recordings",
        _make_fsdd,
    ),
    "speechocean762": Corpus(
        "https://www.openslr.org/resources/101/",
        {"speechocean762.tar.gz": ""},
        "WAVE",
        _make_speechocean762,
    ),
    "onnxruntime-web": Corpus(
        "https://registry.npmjs.org/onnxruntime-web/-/",
        {RUNTIME: "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"},
    ),
}
