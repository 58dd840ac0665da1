"""Fetch a corpus from its public home, check it, and put it where recipes look for it.

    python scripts/get_data.py multi30k --output data/multi30k
    python scripts/get_data.py tinyshakespeare --output data/tinyshakespeare
    python scripts/get_data.py fsdd --output data --sha256 HEX
    python scripts/get_data.py speechocean762 --output data --sha256 HEX

multi30k: image captions in English, German, French and Czech as SPLIT.LANGUAGE.gz (train, val, test_2016_flickr), for
research use; cite Elliott et al. (2016, 2017), Barrault et al. (2018).
tinyshakespeare: 1.1 MB of plays, public domain.
fsdd: spoken digits, 3,000 recordings of 6 speakers, CC BY-SA 4.0; cite Jackson et al. (2018), version 1.0.10.
speechocean762: read English of 250 learners, 5,000 recordings, CC BY 4.0; cite Zhang et al. (2021).

The last two are archives whose SHA-256 their publishers do not tell: without --sha256 it is told here, and the file is
not said to be right. Unpack them with tar -xzf, then see scripts/make_manifest.py. A file that is there and right is
kept.
"""

import argparse
import gzip
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple


class Corpus(NamedTuple):
    """Where a corpus is public, and its files."""

    home: str
    """Base URL; a file's name follows."""
    files: dict[str, str | None]
    """Name to SHA-256 of its text, unpacked where the name ends in .gz; None: its publisher tells none."""


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
        "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/", {"v1.0.10.tar.gz": None}
    ),
    "speechocean762": Corpus("https://www.openslr.org/resources/101/", {"speechocean762.tar.gz": None}),
}


def digest(name: str, content: bytes) -> str:
    """SHA-256 of a file's text, or of an archive as it is; what does not unpack has the reason in place of one."""
    packed = name.endswith(".gz") and not name.endswith(".tar.gz")
    try:
        return hashlib.sha256(gzip.decompress(content) if packed else content).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        return f"no whole gzip file: {error}"


def check(name: str, content: bytes, wanted: str | None, *, where: str, way_out: str) -> None:
    """Raise ValueError unless the text is the one that `wanted` names."""
    got = digest(name, content)
    if wanted is None:
        raise ValueError(
            f"the SHA-256 of {where} must be known, but its publisher tells none; it is {got}; "
            f"if somebody you trust has the same, add --sha256 {got}"
        )
    if got != wanted:
        raise ValueError(f"the SHA-256 of {where} must be {wanted}, but it is {got}; {way_out}")


def download(url: str) -> bytes:
    """The bytes at a URL.

    Raises:
        ValueError: it does not answer, or not with the file.
    """
    way_out = "check the network, or fetch the file elsewhere and put it into the output folder, or name a --mirror"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise ValueError(f"{url} must be a file, but the answer is {error.code} {error.reason}; {way_out}") from error
    except (OSError, http.client.HTTPException) as error:  # no name, a timeout, a connection that breaks off
        raise ValueError(f"{url} must be reachable, but {getattr(error, 'reason', error)}; {way_out}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def get(corpus: Corpus, output: Path, mirror: str | None, sha256: str | None = None) -> None:
    """Fetch what is missing, one file after the other, telling which.

    Args:
        sha256: of a file for which `corpus` has none.

    Raises:
        ValueError: a file cannot be fetched, or has another text; an existing file with another text stays as it is.
            Or its SHA-256 is not known: then it is fetched all the same, so that it need not be fetched again.
    """
    output.mkdir(parents=True, exist_ok=True)
    for number, (name, known) in enumerate(corpus.files.items(), start=1):
        wanted = known or (sha256.lower() if sha256 else None)
        path, url = output / name, f"{(mirror or corpus.home).rstrip('/')}/{name}"
        kept = path.exists()
        if kept:
            check(name, path.read_bytes(), wanted, where=str(path), way_out="move it away to have it fetched anew")
        else:
            content = download(url)
            if wanted is None:
                write_whole(path, content)
            check(name, content, wanted, where=url, way_out="nothing was written; try again, or name another --mirror")
            write_whole(path, content)
        size = path.stat().st_size
        print(f"[{number}/{len(corpus.files)}] {path} {size:,} bytes, {'kept' if kept else 'fetched'}", flush=True)


def main() -> int:
    """The command line: 0 if every file is there and right, 2 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--mirror", metavar="URL", help="folder of the same files elsewhere (default: the public home)")
    parser.add_argument("--sha256", metavar="HEX", help="of an archive whose publisher tells none")
    x = parser.parse_args()
    try:
        get(CORPORA[x.corpus], x.output, x.mirror, x.sha256)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
