"""`transduce export --to web`: a page that translates in the browser, without a server."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

from transduce.cli.data import RUNTIME, get
from transduce.config import to_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError, require
from transduce.interop.pretrained import write_settings
from transduce.kernels import cache_folder
from transduce.tasks.config import SearchConfig

PAGE = Path(__file__).parents[1] / "serve" / "page"
ANSWERS = '<script defer src="page/browser/answers.js"></script>'

RUNTIME_FILES = {
    "ort.js": "package/dist/ort.wasm.bundle.min.mjs",
    "ort.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}
"""The names of what runs ONNX in a browser, beside `ANSWERS` and in its archive."""

SEARCH = (
    *("beam_size", "alpha", "length_offset", "length_ratio", "length_extra", "max_length"),
    *("min_length", "max_source_length", "split_length", "suppress", "batch_tokens", "n_best"),
)
"""Fields of SearchConfig that page/browser/search.js knows, or that change nothing there."""


def prepare_page(
    source: Tokenizer | None, target: Tokenizer, decoding: dict[str, Any], language: str
) -> None:
    """Check that a page can do what a run does, and fetch what runs a model in a browser.

    Args:
        decoding: how the run searches, as fields of SearchConfig.
        language: code of the target, of a model that writes several.

    Raises:
        InputError: the page cannot read the run's tokenizers, search as it does, or write in this
            language; or what runs a model cannot be fetched.
    """
    kind = SentencePieceTokenizer
    if not isinstance(source, kind) or not isinstance(target, kind):
        raise InputError(
            "a page in the browser turns text into text by SentencePiece; take transduce serve"
        )
    for name, value in to_dict(SearchConfig()).items():
        if decoding[name] != value and name not in SEARCH:
            raise InputError(
                f"a page in the browser searches with {name}={value!r}, but this run has "
                f"{decoding[name]!r}; take transduce serve"
            )
    if source.tagged_languages:
        source.with_tag(language)  # which refuses another one
    require("onnx", "this export", "onnx")  # before 33 MB are fetched
    get("onnxruntime-web", cache_folder())


def write_page(
    directory: Path,
    decoding: dict[str, Any],
    n_positions: tuple[int, int],
    about: tuple[str, ...],
) -> None:
    """Write the page of `transduce serve`, and what runs a model in a browser, beside it in ONNX.

    Args:
        n_positions: of the tables of encoder and decoder, as ONNX has no others.
        about: the name of the run, and the codes of the source and the target language, or "".
    """
    page = directory / "page"
    shutil.copytree(PAGE, page)
    index = (page / "index.html").replace(directory / "index.html")
    index.write_text(index.read_text().replace("<script", f"{ANSWERS}\n    <script", 1))
    with tarfile.open(cache_folder() / RUNTIME) as archive:
        for name, member in RUNTIME_FILES.items():
            archive.makefile(archive.getmember(member), page / "browser" / name)
    shared = (directory / "tokenizer.model").exists()
    bounds = zip(("max_source_length", "max_length"), n_positions, strict=True)
    lengths = {name: min(decoding[name] or bound, bound) for name, bound in bounds}
    web = {"about": about, "shared": shared, "search": decoding | lengths}
    write_settings(directory / "web.json", web)
