"""The commands of the register of results run from end to end with their smoke options, on a corner of each corpus."""

import csv
import gzip
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts.ops.results import Figure, comparison, full_command, read_register, same_command
from transduce.experiment.command import choose

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ROOT / "recipes" / "data" / "commands"
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
FIGURES = [each for each in read_register() if not each.prepared]
FIRST = [each for each in FIGURES if same_command(FIGURES, each)[0] == each]
RECIPES = [each for each in FIRST if "python recipes/" in each.command]
SCRIPTS = [each for each in FIRST if "bash scripts/" in each.command]
BENCHES = [each for each in FIRST if "python scripts/bench" in each.command]


def head(path: Path, n: int) -> list[str]:
    """The first lines of a file."""
    return path.read_text("utf-8").split("\n")[:n]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def manifest(path: Path, split: str, n: int) -> None:
    """A manifest of some of the recordings that ship, by the speakers of FSDD in turn."""
    with (COMMANDS / "sound" / f"{split}.tsv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    lines = ["\t".join(header)]
    for i, (name, audio, seconds, _, *texts) in enumerate(rows[:n]):
        sound, speaker = str(COMMANDS / "sound" / audio), SPEAKERS[i % len(SPEAKERS)]
        lines.append("\t".join([name, sound, seconds, speaker, *texts]))
    write(path, lines)


def make_corpora(folder: Path) -> None:
    """The folders that TRANSDUCE_DATA has, with a few lines of the corpus that ships in each."""
    for split, name, n in (("train", "train", 150), ("valid", "val", 8), ("test", "test_2016_flickr", 8)):
        english, german = (head(COMMANDS / f"{split}.{language}", n) for language in ("en", "de"))
        for language, lines in (("en", english), ("de", german)):
            write(folder / "multi30k" / f"{name}.{language}.gz", lines)
            write(folder / "commands" / f"{split}.{language}", lines)
        for language, lines in (("fr", german), ("cs", english)):
            write(folder / "multi30k" / f"{name}.{language}.gz", [line[::-1] for line in lines])
    write(folder / "tinyshakespeare" / "input.txt", head(COMMANDS / "train.en", 150))
    for path, split, n in (
        ("fsdd/train.tsv", "train", 24),
        ("fsdd/test.tsv", "test", 6),
        ("digits/train.tsv", "train", 12),
        ("digits/valid.tsv", "valid", 3),
        ("digits/test.tsv", "test", 3),
        ("commands/train.tsv", "train", 12),
        ("commands/valid.tsv", "valid", 3),
        ("commands/test.tsv", "test", 3),
        ("accents/train.tsv", "train", 12),
        ("accents/valid.tsv", "valid", 3),
        ("accents/left_out.tsv", "test", 3),
        ("speechocean762/train/manifest.tsv", "train", 24),
        ("speechocean762/test/manifest.tsv", "test", 3),
    ):
        manifest(folder / path, split, n)


@pytest.fixture
def corpora(once, monkeypatch) -> Path:
    folder = once("register-corpora", make_corpora)
    monkeypatch.setenv("TRANSDUCE_DATA", str(folder))
    return folder


def recipe_module(path: str) -> ModuleType:
    """A recipe whose settings name the corpora of this test."""
    spec = importlib.util.spec_from_file_location(f"register_{Path(path).stem}", ROOT / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_scores_are_there(figure: Figure, run: Path) -> None:
    """Every figure of the command has a value in the run, unless the command prints it."""
    for each in filter(lambda each: each.file, same_command(FIGURES, figure)):
        assert re.search(r", measured -?\d", comparison(each, run)), each.name


@pytest.mark.train
@pytest.mark.long
@pytest.mark.parametrize("figure", RECIPES, ids=lambda figure: figure.name)
def test_recipe_commands_train_and_score(figure, corpora, tmp_path, no_pictures):
    words = shlex.split(os.path.expandvars(f"{figure.command} {figure.smoke}"))
    _, path, *options = [word for word in words if not re.match(r"\w+=", word)]
    options += ["--run", str(tmp_path / "run"), "--device", "cpu", "--training.precision", "fp32"]
    if path.endswith("speech_to_text.py"):
        options += ["--cache", str(corpora.parent / "register-features")]
    module = recipe_module(path)
    module.run(choose(module.SETTINGS, options, default="commands"))
    assert_scores_are_there(figure, tmp_path / "run")


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("figure", BENCHES, ids=lambda figure: figure.name)
def test_benchmark_commands_run(figure, corpora, tmp_path):
    command = full_command(FIGURES, figure, shlex.split(figure.smoke))
    command = command.replace("runs/", f"{tmp_path}/").replace("python", sys.executable, 1)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def environment(tmp_path, corpora) -> dict[str, str]:
    """Variables with which scripts/setup.sh takes the packages of the tests as they are."""
    folder = tmp_path / "venv"
    folder.mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("installed"):
            (folder / path.name).symlink_to(path)
    pins = b"".join((ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml"))
    (folder / "installed[train]").write_bytes(subprocess.run(["cksum"], input=pins, capture_output=True).stdout)
    return os.environ | {"VENV": os.path.relpath(folder, ROOT), "PYTHONPATH": str(ROOT)}


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("figure", SCRIPTS, ids=lambda figure: figure.name)
def test_scripts_of_several_trainings_run(figure, environment, tmp_path):
    run = tmp_path / "run"
    command = full_command(FIGURES, figure, shlex.split(figure.smoke)).replace(
        f"runs/reproduced/{figure.name}", str(run)
    )
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert_scores_are_there(figure, run)
