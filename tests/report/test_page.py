"""report.html: all of a run is on the page, nothing of it is obeyed, and its curves are those of metrics.jsonl."""

import json
import math
import re
import shutil
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from scripts.ops import faults
from tests.runs import LITTLE, random_run, random_speech_run
from transduce.report.documents import page, write_reports

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '<script src="http://evil.example/x.js">alert(1)</script> &amp; "quoted" \'<img onerror=x>'


class Reader(HTMLParser):
    """What a browser would find: tags with their attributes, and text."""

    EMPTY = frozenset({"meta", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[str] = [""]
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.cells).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.cells.append("")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.cells.append("")

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.cells[-1] += data


def write_full_run(run):
    """A run with all that a training leaves to show, where every text would do harm if it were obeyed."""
    losses = {50: 4.25, 100: 2.5, 150: None, 200: 1.125}
    lines = [{"update": u, "epoch": 0, "kind": "train", "seconds": u / 8, "loss": x} for u, x in losses.items()]
    got = {100: (3.0, 80.5, -0.25), 200: (2.75, 33.25, 0.5)}
    lines += [
        {"update": u, "epoch": 1, "kind": "valid", "seconds": u / 8, "loss": a, "wer": b, "diagonality": c}
        for u, (a, b, c) in got.items()
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    scores = [
        {
            "search": search,
            "measure": name.lower(),
            "value": float(value),
            "score": f"{name} {value} [1.00, 99.00] bs:1000|case:mixed|version:{EVIL}",
        }
        for search, name, value in (
            ("greedy", "WER", "12.50"),
            ("greedy", "CER", "3.25"),
            ("beam5.ctc", "WER", "11.75"),
        )
    ]
    (run / "test.json").write_text(json.dumps(scores))
    (run / "test.errors.txt").write_text(f"speaker  utterances\n{EVIL}  7\n")
    (run / "samples").mkdir()
    for update, output in ((100, "in the"), (200, EVIL)):
        (run / "samples" / f"{update:08d}.tsv").write_text(f"clip{EVIL}\twas said\t{output}\nstrange line\n")
        draw = run / "samples" / f"{update:08d}.attention.png"
        Image.new("RGB", (4, 3), (update, 0, 0)).save(draw)
    plain = json.loads((run / "config.json").read_text())
    plain["experiment"] |= {"name": EVIL, "training": {"max_updates": 200}, "cache": "/home/anna/cache"}
    (run / "config.json").write_text(json.dumps(plain))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_full_run(random_speech_run(tmp_path_factory.mktemp("page") / "a <b> & c"))


@pytest.fixture(scope="module")
def read(run):
    return Reader(page(run))


def test_every_score_sample_error_and_field_is_on_the_page(run, read):
    cells = {" ".join(cell.split()) for cell in read.cells}
    for score in json.loads((run / "test.json").read_text()):
        assert score["score"] in cells
    for text in (
        "a <b> & c",
        "test, beam5.ctc",
        f"clip{EVIL}",
        "was said",
        "in the",
        EVIL,
        "update 200 of 200, epoch 2",
    ):
        assert text in cells
    assert f"speaker utterances {EVIL} 7" in read.text
    assert "transduce train speech-to-text --config config.json --run NEW" in cells
    fields = {**dict.fromkeys(cells)}
    for name in ("model.d_model", "model.encoder.input.stack", "training.max_updates", "seed", "cache"):
        assert name in fields
    assert "/home" not in read.text


def test_page_is_self_contained_and_runs_no_scripts(read):
    names = {name for name, _ in read.tags}
    assert not read.open and not names & {"script", "link", "iframe", "object", "base", "form", "a"}
    attributes = [(key, value or "") for _, got in read.tags for key, value in got.items()]
    assert not [key for key, _ in attributes if key.startswith("on") or key in ("href", "srcset", "style", "action")]
    assert all(re.match(r"data:image/(png|svg\+xml);base64,", value) for key, value in attributes if key == "src")
    (policy,) = (got["content"] for _, got in read.tags if got.get("http-equiv") == "Content-Security-Policy")
    assert policy.split("; ")[0] == "default-src 'none'" and "script-src" not in policy


def test_the_picture_is_that_of_the_last_validation(run, read):
    (picture,) = (got["src"] for name, got in read.tags if name == "img" and "image/png" in got["src"])
    assert b64decode(picture.partition(",")[2]) == (run / "samples" / "00000200.attention.png").read_bytes()


def test_plotted_points_equal_the_metrics(run):
    """Two labels of an axis give its scale; whatever is drawn, read by it, is a number of metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    charts = {}
    for got in (got for name, got in Reader(page(run)).tags if name == "img" and "svg" in got["src"]):
        svg = ElementTree.fromstring(b64decode(got["src"].partition(",")[2]))
        groups = {group.get("id"): group for group in svg.iter(f"{SVG}g")}
        scales = []
        for axis, coordinate in ((1, "x"), (2, "y")):
            texts = [text.text for text in groups[f"matplotlib.axis_{axis}"].iter(f"{SVG}text")]
            ticks = [float(tick.get(coordinate)) for tick in groups[f"matplotlib.axis_{axis}"].iter(f"{SVG}use")]
            values = [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts[: len(ticks)]]
            per = (values[-1] - values[0]) / (ticks[-1] - ticks[0])
            scales.append(lambda at, a=ticks[0], b=values[0], per=per: b + (at - a) * per)
        drawn = {}
        for kind in {"train", "valid"} & set(groups):
            numbers = [float(at) for at in re.findall(r"[\d.]+", groups[kind].find(f"{SVG}path").get("d"))]
            drawn[kind] = [(scales[0](x), scales[1](y)) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        circles = [(float(c.get("x")), float(c.get("y"))) for c in groups["valid"].iter(f"{SVG}use")]
        assert [tuple(scale(at) for scale, at in zip(scales, c, strict=True)) for c in circles] == drawn["valid"]
        charts[got["alt"]] = drawn
    wanted = {
        "loss (nats per token) by update": {"train": "loss", "valid": "loss"},
        "WER (%) by update": {"valid": "wer"},
        "diagonality by update": {"valid": "diagonality"},
    }
    assert list(charts) == list(wanted)
    for name, kinds in wanted.items():
        assert set(charts[name]) == set(kinds)
        for kind, key in kinds.items():
            points = [(x["update"], x[key]) for x in lines if x["kind"] == kind and x[key] is not None]
            assert len(charts[name][kind]) == len(points)
            for got, point in zip(charts[name][kind], points, strict=True):
                assert got == pytest.approx(point, rel=2e-3, abs=2e-3)


def test_page_stays_below_a_megabyte(tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    values = [math.sin(i) * 10.0 ** (i % 30) for i in range(3_000)]
    lines = [{"update": i, "kind": "train", "loss": x} for i, x in enumerate(values)]
    lines += [{"update": i, "kind": "valid", "loss": x, "bleu": x} for i, x in enumerate(values)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "test.errors.txt").write_text("wrong & bad\n" * 100_000)
    (run / "samples").mkdir()
    for i in range(60):
        (run / "samples" / f"{i:08d}.tsv").write_text("".join(f"{k}{'<long>' * 5000}\tb\tc\n" for k in range(3)))
    noise = torch.randint(256, (600, 600, 3), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(run / "samples" / "00000059.attention.png")
    got = page(run)
    assert len(got.encode()) < 1_000_000
    text = Reader(got).text
    assert "and more in test.errors.txt" in text and "samples/00000059.attention.png is too large" in text
    assert "update 0 c" in text and "update 59 c" in text


def test_page_of_a_run_without_metrics(tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    read = Reader(page(run))
    assert not {name for name, _ in read.tags} & {"img", "table"} and "model.d_model" in read.text


def test_fault_comparison_ignores_only_times_in_reports(tmp_path):
    """What scripts/ops/faults.py compares of two trainings does not see the time, and sees everything else."""
    runs = [write_full_run(random_run(tmp_path / "a" / "run", model=LITTLE)), tmp_path / "b" / "run"]
    (runs[0] / "test.json").unlink()  # a list, as the trainings of the comparison have none
    shutil.copytree(runs[0], runs[1])
    for i, run in enumerate(runs):
        path = run / "metrics.jsonl"
        text = re.sub(r'"seconds": [\d.]+', f'"seconds": {20 + 100 * i}', path.read_text().removesuffix('{"torn'))
        path.write_text(text.replace('"kind": "train"', f'"kind": "train", "tokens_per_second": {500 + i}'))
        write_reports(run)
    assert (runs[0] / "report.html").read_text() != (runs[1] / "report.html").read_text()
    assert faults.differences(*runs) == []
    (runs[1] / "metrics.jsonl").write_text((runs[1] / "metrics.jsonl").read_text().replace("2.75", "2.5"))
    write_reports(runs[1])
    assert "report.html" in faults.differences(*runs)
