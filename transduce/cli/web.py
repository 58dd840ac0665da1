"""`transduce export --to web`: a page that translates in the browser, without a server."""

import shutil
import tarfile
from pathlib import Path

from transduce.cli.data import RUNTIME, get
from transduce.config import to_dict
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError, require
from transduce.files import write_json
from transduce.interop.onnx import export_onnx
from transduce.interop.pretrained import Parts
from transduce.kernels import cache_folder
from transduce.tasks.config import SearchConfig

PAGE = Path(__file__).parents[1] / "serve" / "page"
ANSWERS = '<script defer src="page/browser/answers.js"></script>'

RUNTIME_FILES = {
    "ort.js": "package/dist/ort.wasm.bundle.min.mjs",
    "ort.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}
"""Files of the ONNX runtime: their names in page/browser/, and in the runtime's archive."""

SEARCH = (
    *("beam_size", "alpha", "length_offset", "length_ratio", "length_extra", "max_length"),
    *("min_length", "max_source_length", "split_length", "suppress", "batch_tokens", "n_best"),
)
"""Fields of SearchConfig that page/browser/search.js supports, or that have no effect there."""


def export_page(parts: Parts, directory: Path, about: tuple[str, str, str]) -> None:
    """Write a model in ONNX, the page of `transduce serve`, and a runtime for the model in a
    browser.

    Args:
        about: the name of the run, and the codes of the source and the target language, or "".

    Raises:
        InputError: the page does not support the run's tokenizers, its search or the target
            language, or the runtime cannot be downloaded.
    """
    model, source, target, search, _ = parts
    kind = SentencePieceTokenizer
    if not isinstance(source, kind) or not isinstance(target, kind):
        raise InputError(
            "a page in the browser needs a translation run with SentencePiece tokenizers, but "
            "this run has others; use transduce serve"
        )
    for name, value in to_dict(SearchConfig()).items():
        if search[name] != value and name not in SEARCH:
            raise InputError(
                f"a page in the browser searches with {name}={value!r}, but this run has "
                f"{search[name]!r}; use transduce serve"
            )
    if source.tagged_languages:
        source.with_tag(about[2])  # raises for an unknown language
    require("onnx", "this export", "onnx")  # checked before 33 MB are downloaded
    get("onnxruntime-web", cache_folder())
    export_onnx(parts, directory)
    page = directory / "page"
    shutil.copytree(PAGE, page)
    index = (page / "index.html").replace(directory / "index.html")
    index.write_text(index.read_text().replace("<script", f"{ANSWERS}\n    <script", 1))
    with tarfile.open(cache_folder() / RUNTIME) as archive:
        for name, member in RUNTIME_FILES.items():
            archive.makefile(archive.getmember(member), page / "browser" / name)
    shared = (directory / "tokenizer.model").exists()
    config = model.config
    # the position tables in the ONNX model end there
    for name, stack in (("max_source_length", config.encoder), ("max_length", config.decoder)):
        bound = config.for_stack(stack).max_positions
        search[name] = min(search[name] or bound, bound)
    write_json(directory / "web.json", {"about": about, "shared": shared, "search": search})
