"""A page that translates in the browser: its tokenizer against SentencePiece, its translations against the run's."""

import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest
import sentencepiece

import transduce as td
from tests.language_runs import language_run
from tests.runs import ENGLISH, GERMAN, LITTLE, random_run
from transduce.cli import data
from transduce.cli.main import main
from transduce.cli.web import PAGE, RUNTIME_FILES
from transduce.data.lines import is_blank
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer, train_tokenizer_pair
from transduce.tasks.outputs import joined_texts
from transduce.tasks.translate import sentences

COMMANDS = Path(__file__).parents[2] / "recipes" / "data" / "commands"
ODD = [
    *("", " ", "\t", "  a  b ", "a\tb\t\tc", " " * 20 + "x", "x" * 300, "\x00a\x01b\x7f", "a\u2028b\u2029c\x85d\x0be"),
    *(
        "😀 👩‍👩‍👧‍👦 🇩🇪",
        "e\u0301 é n\u0303 \u0301",
        "a" + "\u0300" * 40,
        "가각 ㄱㅏ \u1100\u1161",
        "क्षि שָׁלוֹם",
        "\u0958 \u2126 Å",
    ),
    *(
        "Ｆｕｌｌ　ｗｉｄｔｈ，１２３",
        "ｶﾞ ｶﾞｷﾞ",
        "ﬁ ﬂ ² ½ ™ ㎏ ㍿ 𝔘𝔫𝔦",
        "\u200b zero\u200dwidth\ufeff",
        "a\u00a0b\u2003c\u3000",
        "日本語のテキスト。",
    ),
    *(
        "<2de> hello <2fr>x<2de>",
        "▁ a▁b",
        "<s> </s> <0x41> <unk> <pad>",
        "İI ıi ß ẞ Σς",
        "…“quotes”‘’",
        "\U0010ffff \ue000",
    ),
]
RANGES = (
    (32, 127),
    (160, 0x250),
    (0x300, 0x370),
    (0x1100, 0x1200),
    (0x2000, 0x2070),
    (0x3040, 0x3100),
    (0xFF00, 0xFFEF),
)
ENCODE = """
import { readFileSync } from "node:fs";
const { SentencePiece } = await import(process.argv[1]);
const { models, lines, ids } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(models.map((model) => {
  const tokenizer = new SentencePiece(new Uint8Array(readFileSync(model)));
  const encoded = lines.map((line) => tokenizer.encode(line));
  return { encoded, decoded: [...encoded, ...ids].map((row) => tokenizer.decode(row)) };
})));
"""
JOIN = """
import { readFileSync } from "node:fs";
const { joined } = await import(process.argv[1]);
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(joined)));
"""
SPLIT = """
import { readFileSync } from "node:fs";
const { Translator } = await import(process.argv[1]);
const search = { split_length: 1, max_source_length: 9, beam_size: 1 };
const found = [];
for (const line of JSON.parse(readFileSync(0, "utf8"))) {
  const parts = [];
  const source = { encode: (text) => (parts.push(text), [1, 2]) };
  const outputs = await new Translator({ search, source, opening: [], config: {} }).translate(line, 2).catch(() => null);
  found.push({ parts: parts.slice(1), outputs });
}
console.log(JSON.stringify(found));
"""
"""Without a model: blank lines have outputs, the others the sentences that would be translated."""

CUT = """
const { Translator } = await import(process.argv[1]);
const Tensor = class { constructor(type, data) { this.data = data; } };
for (const opening of [[], [7, 8]]) {
  const encoder = { run: async ({ source }) => { console.log(JSON.stringify([...source.data].map(Number))); throw 0; } };
  const search = { split_length: 0, max_source_length: 6, beam_size: 1 };
  const source = { encode: () => [10, 11, 12, 13, 14, 15] };
  await new Translator({ search, source, opening, encoder, Tensor, config: { eos_id: 2 } }).translate("a", 1).catch(() => 0);
}
"""


def drawn_lines(n: int) -> list[str]:
    """Characters of many scripts in any order."""
    draw = Random(1)
    pool = [chr(code) for start, end in RANGES for code in range(start, end)]
    return ["".join(draw.choices(pool, k=draw.randint(1, 40))) for _ in range(n)]


def corpus_lines() -> list[str]:
    """The test sentences of the corpus that ships, and of Multi30k where it is."""
    paths = [COMMANDS / f"test.{language}" for language in ("en", "de")]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    if root := os.environ.get("TRANSDUCE_DATA"):
        for language in ("en", "de"):
            with gzip.open(f"{root}/multi30k/test_2016_flickr.{language}.gz", "rt") as file:
                lines += file.read().splitlines()
    return lines


def write_models(folder: Path) -> list[Path]:
    """Models as recipes learn them, and as SentencePiece does in other ways."""
    texts = [line for side in ("en", "de") for line in (COMMANDS / f"train.{side}").read_text().splitlines()[:1000]]
    ours = [
        {},
        {"normalization": "nmt_nfkc", "symbols": ("<2de>", "<2fr>")},
        {"normalization": "nmt_nfkc", "lowercase": True},
    ]
    theirs = [
        {"model_type": "unigram", "byte_fallback": True, "user_defined_symbols": ["<2de>", "ab"]},
        {"model_type": "unigram"},
        {"model_type": "bpe", "remove_extra_whitespaces": False, "byte_fallback": True},
        {"model_type": "bpe", "add_dummy_prefix": False},
    ]
    for i, settings in enumerate(ours):
        SentencePieceTokenizer.train(texts, vocab_size=500, **settings).save(folder / f"ours{i}.model")
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    for i, settings in enumerate(theirs):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(folder / f"theirs{i}"),
            vocab_size=500,
            **settings,
            **ids,
            minloglevel=2,
        )
    return sorted(folder.glob("*.model"))


@pytest.mark.process
@pytest.mark.long
def test_browser_tokenizer_equals_sentencepiece(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    models, lines = write_models(tmp_path), [*corpus_lines(), *ODD, *drawn_lines(300)]
    draw = Random(2)
    ids = [draw.choices(range(2, 500), k=draw.randint(0, 12)) for _ in range(200)]
    ids += [draw.choices(range(4, 260), k=draw.randint(1, 8)) for _ in range(200)]  # bytes that are no characters
    asked = json.dumps({"models": [*map(str, models)], "lines": lines, "ids": ids})
    command = [node, "--input-type=module", "-e", ENCODE, str(PAGE / "browser" / "sentencepiece.js")]
    answer = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    assert len(models) == 7
    for model, theirs in zip(models, json.loads(answer), strict=True):
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        encoded = [pieces.encode(line) for line in lines]
        assert theirs["encoded"] == encoded, model.name
        assert theirs["decoded"] == [pieces.decode(row) for row in [*encoded, *ids]], model.name


@pytest.mark.process
def test_browser_sentence_splitting_equals_python():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    characters = [*map(chr, range(0x3100)), *"\ufeff\U000110bd\U000110cd\U000e0001"]
    lines = [*characters, *(f"{c}One.{c}Two。{c}Three{c}" for c in characters if is_blank(c))]
    command = [node, "--input-type=module", "-e", SPLIT, str(PAGE / "browser" / "search.js")]
    answer = subprocess.run(command, input=json.dumps(lines), capture_output=True, text=True, check=True).stdout
    blank = [{"text": "", "log_prob": 0, "score": 0}] * 2
    for line, got in zip(lines, json.loads(answer), strict=True):
        parts = [] if is_blank(line) else sentences(line)
        assert got["outputs"] == (blank if is_blank(line) else None), ascii(line)
        assert got["parts"] == (parts if len(parts) > 1 else []), ascii(line)


@pytest.mark.process
def test_browser_joining_of_texts_equals_python():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    ends = ["", " ", "a.", "猫。", "カ", "고", "𠀀", "，", "\u3000い", "ไทย", "z\x85", "“犬…”", "—"]
    texts = [*itertools.product(ends, repeat=3)]
    command = [node, "--input-type=module", "-e", JOIN, str(PAGE / "browser" / "search.js")]
    answer = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True).stdout
    assert json.loads(answer) == [*map(joined_texts, texts)]


@pytest.mark.process
def test_source_limit_includes_the_opening_tokens():
    """As learned positions have no more rows."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    command = [node, "--input-type=module", "-e", CUT, str(PAGE / "browser" / "search.js")]
    sources = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [json.loads(line) for line in sources] == [[10, 11, 12, 13, 14, 2], [7, 8, 10, 11, 12, 2]]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine without a network, which has an archive with the names of the runtime's files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    archive = tmp_path / "cache" / "transduce" / data.RUNTIME
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for member in (*RUNTIME_FILES.values(), "package/dist/other.js"):
            tar.add(__file__, member)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    corpus = data.Corpus("http://127.0.0.1:1/", {data.RUNTIME: digest})
    monkeypatch.setitem(data.CORPORA, "onnxruntime-web", corpus)
    return archive


def export(run, path, *flags) -> int:
    return main(["export", str(run), str(path), "--to", "web", *flags])


def test_the_exported_folder_is_complete(offline, tmp_path):
    """Every file that another one names is there, and none of them comes from elsewhere."""
    folder = tmp_path / "site"
    little = replace(LITTLE, max_positions=40)  # ONNX has no further positions
    assert export(random_run(tmp_path / "run", model=little), folder, "--languages", "en", "de") == 0
    links = re.findall(r'(?:src|href)="(page/[^"]+)"', (folder / "index.html").read_text())
    assert "page/browser/answers.js" in links and "page/page.js" in links
    scripts = [*folder.glob("page/*.js"), *(folder / "page" / "browser").glob("[!o]*.js")]
    imported = [path.parent / name for path in scripts for name in re.findall(r'from "\./(.+)"', path.read_text())]
    assert all(path.is_file() for path in [*imported, *(folder / link for link in links)])
    assert not any(re.search("https?://(?!www.w3|localhost)", path.read_text()) for path in scripts)
    names = {"index.html", "page", "config.json", "web.json", "encoder.onnx", "step.onnx", "tokenizer.model"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "page" / "browser" / "ort.wasm").read_bytes() == Path(__file__).read_bytes()
    web = json.loads((folder / "web.json").read_text())
    assert web["about"] == ["run", "en", "de"] and web["search"]["beam_size"] == 5
    assert web["search"]["max_source_length"] == 40 and web["search"]["max_length"] == 40


def with_decoding(run: Path, **settings: object) -> Path:
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["decoding"] = settings
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_unsupported_runs_are_refused(offline, tmp_path, capsys):
    run = random_run(tmp_path / "run", model=LITTLE)
    tagged = random_run(tmp_path / "tagged", model=LITTLE)
    pieces = train_tokenizer_pair(ENGLISH, GERMAN, vocab_size=330, joint=True, symbols=["<2de>", "<2fr>"])
    pieces[0].save(tagged / "tokenizer.model")
    cases = {
        (
            language_run(tmp_path / "language"),
            (),
        ): "a page in the browser needs a translation run with SentencePiece tokenizers, but this run has others; use transduce serve",
        (tagged, ()): "a language must be one that the model writes (de, fr), but it is ''",
        (tagged, ("--languages", "en", "cs")): "but it is 'cs'",
        (
            with_decoding(run, no_repeat_ngram=2),
            (),
        ): "searches with no_repeat_ngram=0, but this run has 2; use transduce serve",
    }
    for (each, flags), message in cases.items():
        assert export(each, tmp_path / "site", *flags) == 2
        assert message in capsys.readouterr().err
    offline.unlink()
    assert export(with_decoding(run), tmp_path / "site") == 2
    error = capsys.readouterr().err
    assert f"http://127.0.0.1:1/{data.RUNTIME} must be reachable" in error
    assert f"put the file into {offline.parent} by hand, or name a --mirror of transduce data get" in error
    assert not (tmp_path / "site").exists()


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, capsys):
    """`site(run, *flags)` exports a run below a folder that a plain server shows; the address of the page.

    What runs a model is fetched once for all tests of a machine.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def exported(run: Path, *flags: str) -> str:
        if export(run, tmp_path / "a folder" / "site", *flags):
            error = capsys.readouterr().err
            assert "must be reachable" in error
            pytest.skip(error)
        return f"http://127.0.0.1:{server.server_port}/a%20folder/site/"

    yield exported
    server.shutdown()
    server.server_close()
    thread.join()


def translated(browser, url: str, text: str, n_best: int) -> tuple[str, list[list[tuple[str, str]]]]:
    """The best translations as the page shows them, and every translation and score; nothing goes wrong or out."""
    wrong, asked = [], []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        page.get_by_text("This browser translates by itself").wait_for(timeout=120_000)
        page.get_by_label("Alternatives").fill(str(n_best - 1))
        for each in ("Print it.\n" * 20, text):  # the first one is given up
            page.get_by_label("Text (lines are translated one by one)").fill(each)
            page.get_by_role("button", name="Translate").click()
        page.get_by_text("Translated:").wait_for(state="attached", timeout=300_000)
        best = page.locator("#translate-best").evaluate("(element) => element.textContent")
        rows = "(lists) => lists.map((list) => [...list.children].map((row) => [...row.children].map((each) => each.textContent)))"
        ranked = page.locator("#translate .ranked").evaluate_all(rows)
        assert page.get_by_text("Cross-attention").count() == 0
        assert wrong == [] and all(each.startswith(url) for each in asked)
    return best, [[tuple(row) for row in rows] for rows in ranked]


def shown(outputs: list[list]) -> list[list[tuple[str, str]]]:
    return [[(output.text or "(nothing)", f"{output.score:.2f}") for output in each] for each in outputs]


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("joint", [True, False])
def test_browser_translations_equal_those_of_the_run(browser, site, tmp_path, joint):
    run = random_run(tmp_path / "run", model=LITTLE, joint=joint)
    with_decoding(run, split_length=12, length_extra=6, alpha=1.2, min_length=2, beam_size=3)
    lines = [*ENGLISH[:4], "", "Print it. Close the green folder, please! e.g. this one", "Straße 😀 \t ＡＢ"]
    best, ranked = translated(browser, site(run), "\n".join(lines), 4)
    outputs = td.load_translator(run).translate(lines, n_best=4)
    assert best.split("\n") == [each[0].text for each in outputs]
    assert ranked == shown([each for line, each in zip(lines, outputs, strict=True) if line])


@pytest.mark.process
@pytest.mark.long
def test_a_multilingual_model_writes_the_chosen_language(browser, site, tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    sides = train_tokenizer_pair(ENGLISH, GERMAN, vocab_size=330, joint=True, symbols=["<2de>", "<2fr>"])
    sides[0].save(run / "tokenizer.model")
    best, _ = translated(browser, site(run, "--languages", "en", "fr"), "\n".join(ENGLISH[:3]), 1)
    assert best.split("\n") == td.load_translator(run)(ENGLISH[:3], target_language="fr")


@pytest.mark.process
@pytest.mark.long
def test_a_page_opened_as_a_file_shows_how_to_serve_it(browser, offline, tmp_path):
    assert export(random_run(tmp_path / "run", model=LITTLE), tmp_path / "site") == 0
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"file://{tmp_path}/site/index.html")
        page.get_by_role("alert").get_by_text("run python -m http.server in its folder").wait_for()
