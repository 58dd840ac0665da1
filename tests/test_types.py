"""What an editor knows of `transduce` after an ordinary installation and after an editable one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import get_type_hints
from zipfile import ZipFile

import pytest

import transduce as td

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
EXAMPLE = """\
import transduce as td

translator = td.load_translator("runs/commands")
texts: list[str] = translator(["Open the letter."])
score: float = translator.translate(["Open the letter."], n_best=2)[0][0].score
transcripts: list[str] = td.load_transcriber("runs/speech")(["talk.wav"])
generated: list[str] = td.load_generator("runs/text")(["Once"], td.GenerationConfig(seed=3))
filled: list[str] = td.load_fill_mask("runs/masked_language")(["Please _ it."])
either: list[str] = td.load("runs/commands")(["Open the letter."])
one: str = td.load("runs/commands")("Open the letter.")
wrong: int = translator(["Open the letter."])
typo = td.load_translater("runs/commands")
"""
WRONG = [11, 12]


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        (td.load_translator, td.Translator),
        (td.load_transcriber, td.Transcriber),
        (td.load_generator, td.Generator),
        (td.load_fill_mask, td.FillMask),
    ],
)
def test_load_functions_have_precise_return_types(load, kind):
    assert get_type_hints(load)["return"] is kind


@pytest.fixture(scope="module", params=["wheel", "editable"])
def python(request, tmp_path_factory):
    """The interpreter of an environment in which `transduce` is installed in this way, and nothing else."""
    folder = tmp_path_factory.mktemp(request.param)
    source = ROOT
    if request.param == "wheel":  # building leaves files behind
        source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(".*", "runs", "build", "tests"))
    words = [sys.executable, "-c", BUILD.format(kind=request.param), str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    (wheel,) = folder.glob("*.whl")
    version = f"python{sysconfig.get_python_version()}"
    ZipFile(wheel).extractall(folder / "venv" / "lib" / version / "site-packages")
    (folder / "example.py").write_text(EXAMPLE)
    return folder / "venv" / "bin" / "python"


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    "checker", ["mypy --ignore-missing-imports --python-executable", "basedpyright --level error --pythonpath"]
)
def test_type_checkers_infer_the_loaded_types(python, checker):
    """All lines are right but two, which would pass if the types were unknown."""
    words = [sys.executable, "-m", *checker.split(), str(python), "example.py"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # what is installed, not this
    done = subprocess.run(words, cwd=python.parents[2], env=alone, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [int(line.split("example.py:")[1].split(":")[0]) for line in errors] == WRONG, done.stdout


@pytest.mark.process
@pytest.mark.long
def test_the_recipes_run_from_an_installation(python, tmp_path):
    """Their help alone, as the environment has no libraries but those of this one; the server's page is there, too."""
    (site,) = python.parents[1].glob("lib/*/site-packages")
    libraries = sysconfig.get_path("purelib")
    path = (
        str(site) if (site / "transduce").exists() else (site / "__editable__.transduce-0.2.0.pth").read_text().strip()
    )
    done = subprocess.run(
        [sys.executable, "-S", "-m", "transduce.cli.main", "train", "translation", "commands", "--print-config"],
        env={"PYTHONPATH": f"{path}:{libraries}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    inside = f"{path}/transduce/recipes" if (site / "transduce").exists() else f"{path}/recipes"
    assert f"data: {inside}/data/commands  #" in done.stdout
    for name in ("commands/train.en", "commands/sound/train.tsv", "commands/sound/train/0000.opus"):
        assert (Path(inside) / "data" / name).is_file()
    assert (Path(inside) / "data" / "pronunciations" / "cmudict.dict.gz").is_file()
    pages = [Path(folder) / "transduce" / "serve" / "page" for folder in (ROOT, path)]
    assert {file.name for file in pages[0].iterdir()} == {file.name for file in pages[1].iterdir()}
