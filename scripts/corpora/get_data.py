"""Fetch a corpus from its public home and put it where recipes look for it; write the manifests of recordings.

    python scripts/corpora/get_data.py multi30k DIR
    python scripts/corpora/get_data.py tinyshakespeare DIR
    python scripts/corpora/get_data.py fsdd DIR
    python scripts/corpora/get_data.py speechocean762 DIR
    python scripts/corpora/get_data.py kaldi SOURCE OUT.tsv [--audio-out DIR]
    python scripts/corpora/get_data.py folder SOURCE OUT.tsv

DIR is what a recipe takes as --data. A file that is there and right is kept.

multi30k: image captions in English, German, French and Czech as SPLIT.LANGUAGE.gz (train, val, test_2016_flickr), for
    research use; cite Elliott et al. (2016, 2017), Barrault et al. (2018).
tinyshakespeare: 1.1 MB of plays, public domain.
fsdd: spoken digits, 3,000 recordings of 6 speakers, CC BY-SA 4.0; cite Jackson et al. (2018), version 1.0.10.
    Makes DIR/train.tsv and DIR/test.tsv, the split of its authors: recordings 0 to 4 of a speaker and digit are test.
speechocean762: read English of 250 learners, 5,000 recordings, CC BY 4.0; cite Zhang et al. (2021). Makes
    DIR/train/manifest.tsv and DIR/test/manifest.tsv, with age and gender.

These two are archives, unpacked in DIR. Without a network, put the archive there, or what it holds (recordings/ or
WAVE/, train/ and test/). Their publishers tell no SHA-256: it is printed, and compared only with one that you give.

kaldi: the manifest of a Kaldi data directory: wav.scp, text, utt2spk. Where it has segments, the pieces go as FLAC to
    --audio-out.
folder: the manifest of x.wav beside x.txt, in any depth and any format that libsndfile reads; the speaker is the name
    of the folder that they lie in.

A manifest is a TSV with the columns id, audio, seconds, speaker, text. A recording that lacks its sound or its text, or
whose sound cannot be read, is left out, counted and named.
"""

import argparse
import gzip
import hashlib
import http.client
import io
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from make_manifest import make_folder, make_fsdd, make_kaldi, make_speechocean762

from transduce.errors import InputError
from transduce.exit import exit_code
from transduce.files import write_file


class Corpus(NamedTuple):
    """Where a corpus is public, and its files."""

    home: str
    """Base URL; a file's name follows."""
    files: dict[str, str | None]
    """Name to SHA-256 of its text, unpacked where the name ends in .gz; None: its publisher tells none."""
    holds: str | None = None
    """A folder of its archive. Where it is there without the archive, somebody has unpacked it."""
    make_manifests: Callable[[Path], None] | None = None


CORPORA = {
    "multi30k": Corpus(
        "https://raw.githubusercontent.com/multi30k/dataset/2cc0f2d7c615b60e07e2d51bb5edc004444d7e0e/data/task1/raw/",
        {
            "train.en.gz": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
            "train.de.gz": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
            "train.fr.gz": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
            "train.cs.gz": "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da",
            "val.en.gz": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
            "val.de.gz": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
            "val.fr.gz": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
            "val.cs.gz": "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33",
            "test_2016_flickr.en.gz": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
            "test_2016_flickr.de.gz": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
            "test_2016_flickr.fr.gz": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
            "test_2016_flickr.cs.gz": "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8",
        },
    ),
    "tinyshakespeare": Corpus(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
    "fsdd": Corpus(
        "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/",
        {"v1.0.10.tar.gz": None},
        "recordings",
        make_fsdd,
    ),
    "speechocean762": Corpus(
        "https://www.openslr.org/resources/101/", {"speechocean762.tar.gz": None}, "WAVE", make_speechocean762
    ),
}


LARGEST = 4 * 10**9
"""Bytes that an archive or a text may have when it is unpacked; the largest here, speechocean762, has 0.6e9."""

LARGEST_DOWNLOAD = 10**9
"""Bytes of a file as it is fetched, which is kept in memory; speechocean762 has 0.5e9."""

LARGEST_HEADERS = 10**8
"""Bytes that the headers of an archive may have, which tarfile keeps in memory; those of speechocean762 have 10e6."""

DEEPEST = 100
"""Folders inside each other in an archive; here there are three."""


class Archive(gzip.GzipFile):
    """An archive of which so many bytes may be read, and any number skipped over."""

    left = LARGEST_HEADERS

    def read(self, size: int | None = -1) -> bytes:
        """As of any file.

        Raises:
            InputError: it is too much.
        """
        self.left -= LARGEST_HEADERS if size is None or size < 0 else size
        if self.left < 0:
            raise InputError(
                f"the headers of an archive may have {LARGEST_HEADERS:,} bytes, but those of {self.name} have more; "
                "fetch it elsewhere"
            )
        return super().read(size)


def too_large(name: object, how: str) -> InputError:
    return InputError(f"{name} may have {LARGEST:,} bytes when it is unpacked, but {how}; fetch it elsewhere")


def digest(name: str, content: bytes) -> str:
    """SHA-256 of a file's text, or of an archive as it is; what does not unpack has the reason in place of one."""
    packed = name.endswith(".gz") and not name.endswith(".tar.gz")
    try:
        return _sha256(gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content), name)
    except (OSError, EOFError, zlib.error) as error:
        return f"no whole gzip file: {error}"


def _sha256(file: IO[bytes], name: str) -> str:
    found, size = hashlib.sha256(), 0
    while block := file.read(2**20):
        found.update(block)
        size += len(block)
        if size > LARGEST:
            raise too_large(name, "it has more")
    return found.hexdigest()


def check(name: str, content: bytes, wanted: str | None, *, where: str, way_out: str) -> None:
    """Raise InputError unless the text is the one that `wanted` names; None: tell which it is."""
    got = digest(name, content)
    if wanted is None:
        print(f"not checked: the SHA-256 of {where} is {got}, and none is known to compare with; --sha256 HEX does")
    elif got != wanted:
        raise InputError(f"the SHA-256 of {where} must be {wanted}, but it is {got}; {way_out}")


def download(url: str, folder: Path) -> bytes:
    """The bytes at a URL.

    Raises:
        InputError: it does not answer, or not with the file, which may be put into `folder` by hand.
    """
    way_out = f"check the network, or fetch the file elsewhere and put it into {folder}, or name a --mirror"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read(LARGEST_DOWNLOAD + 1)
            if len(content) > LARGEST_DOWNLOAD:
                raise InputError(f"{url} may have {LARGEST_DOWNLOAD:,} bytes, but it has more; {way_out}")
            if answer.length:  # what is still to come; read(n) itself does not mind
                raise http.client.IncompleteRead(content, answer.length)
        return content
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{url} must be a file, but the answer is {error.code} {error.reason}; {way_out}") from error
    except (OSError, http.client.HTTPException) as error:  # no name, a timeout, a connection that breaks off
        raise InputError(f"{url} must be reachable, but {getattr(error, 'reason', error)}; {way_out}") from error


def members(archive: Path) -> list[tuple[tarfile.TarInfo, tuple[str, ...]]]:
    """The files of an archive and the parts of their names.

    Raises:
        InputError: it declares more than LARGEST bytes, or has more, or its headers are larger than LARGEST_HEADERS.
    """
    files, declared, read = [], 0, 0
    with Archive(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            declared += member.size
            if declared > LARGEST:  # before tarfile looks for what follows so many bytes
                raise too_large(archive, f"it declares {declared:,} up to {member.name!r}")
            if member.isfile():
                files.append((member, PurePosixPath(member.name).parts))
        while block := gzip.GzipFile.read(file, 2**20):  # to its end, where gzip compares a checksum
            read += len(block)
            if declared + read > LARGEST:
                raise too_large(archive, "it has more")
    return files


def unpack(archive: Path, folder: Path) -> None:
    """Put the files of an archive into a folder, without the one they share; what is there in its size is kept.

    Raises:
        InputError: it is no whole archive, a name leads elsewhere, or it is too large; then nothing is written.
    """
    try:
        files = members(archive)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{archive} must be a whole .tar.gz, but it is not: {error}; move it away to have it fetched anew"
        ) from error
    if astray := [member.name for member, parts in files if ".." in parts or len(parts) < 2]:
        raise InputError(
            f"files of an archive must lie inside one folder, but {archive} has {astray[0]!r}; fetch it elsewhere"
        )
    if deep := [len(parts) for _, parts in files if len(parts) > DEEPEST]:
        raise InputError(
            f"folders of an archive may be {DEEPEST} deep, but in {archive} they are {deep[0]:,}; fetch it elsewhere"
        )
    with tarfile.open(archive, "r:gz") as tar:
        for member, (_, *inside) in files:
            path = folder.joinpath(*inside)
            if not (path.is_file() and path.stat().st_size == member.size):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, tar.extractfile(member).read(), durable=False)
    print(f"{archive}: {len(files):,} files in {folder}", flush=True)


def fetch(path: Path, url: str, wanted: str | None) -> None:
    """Fetch a file, unless it is there.

    Raises:
        InputError: it cannot be fetched, or has another text; an existing file with another text stays as it is.
    """
    if kept := path.exists():
        check(path.name, path.read_bytes(), wanted, where=str(path), way_out="move it away to have it fetched anew")
    else:
        content = download(url, path.parent)
        way_out = "nothing was written; try again, or name another --mirror"
        check(path.name, content, wanted, where=url, way_out=way_out)
        write_file(path, content)
    print(f"{path}: {path.stat().st_size:,} bytes, {'kept' if kept else 'fetched'}", flush=True)


def get(corpus: Corpus, folder: Path, mirror: str | None = None, sha256: str | None = None) -> None:
    """Fetch what is missing, one file after the other, telling which; then unpack it and make its manifests.

    Args:
        sha256: of a file for which `corpus` has none.

    Raises:
        InputError: what `fetch`, `unpack` and the makers of manifests raise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unpacked = corpus.holds is not None and (folder / corpus.holds).is_dir()
    for number, (name, known) in enumerate(corpus.files.items(), start=1):
        path, url = folder / name, f"{(mirror or corpus.home).rstrip('/')}/{name}"
        print(f"[{number}/{len(corpus.files)}] {url}", flush=True)
        if unpacked and not path.exists():
            print(f"{folder / corpus.holds} is there: nothing is fetched")
            continue
        fetch(path, url, known or (sha256.lower() if sha256 else None))
        if name.endswith(".tar.gz"):
            unpack(path, folder)
    if corpus.make_manifests:
        corpus.make_manifests(folder)


def command_line() -> argparse.ArgumentParser:
    """One command for each corpus, and one for each layout of recordings on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for name, corpus in CORPORA.items():
        command = commands.add_parser(name)
        command.set_defaults(run=lambda x, corpus=corpus: get(corpus, x.folder, x.mirror, x.sha256), sha256=None)
        command.add_argument("folder", type=Path, metavar="DIR", help="folder for the files")
        command.add_argument("--mirror", metavar="URL", help="folder of the same files elsewhere (default: their home)")
        if None in corpus.files.values():
            command.add_argument("--sha256", metavar="HEX", help="of the archive, from somebody you trust")
    for name, run in (
        ("kaldi", lambda x: make_kaldi(x.source, x.out, x.audio_out)),
        ("folder", lambda x: make_folder(x.source, x.out)),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("source", type=Path, metavar="SOURCE", help="folder of the recordings")
        command.add_argument("out", type=Path, metavar="OUT.tsv", help="manifest to write")
        if name == "kaldi":
            command.add_argument("--audio-out", type=Path, metavar="DIR", help="folder for the pieces of segments")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if every file is there and right, 2 if not, 130 after Ctrl-C."""
    x = command_line().parse_args(arguments)
    return exit_code(lambda: x.run(x), interrupted="stopped; the same command again goes on")


if __name__ == "__main__":
    sys.exit(main())
