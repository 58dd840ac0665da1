"""The blocks of the README and of the guides run as they stand, from the top to the bottom of a page, in a folder with data.

What a page's commands name is there: corpora cut from the one that ships, and runs of two updates. Left out are the lines that
ask the network, do not end, or have a test of their own; see LEFT_OUT.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import numpy as np
import pytest
import soundfile

from tests.interop.test_speech import whisper
from tests.recipes.test_register import make_corpora

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "recipes" / "data" / "commands"
GUIDES = [
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *(ROOT / "docs" / name for name in ("large_files.md", "serving.md")),
]
PAGES = [ROOT / "README.md", ROOT / "SKILL.md", ROOT / "docs" / "index.md", *GUIDES]
LEFT_OUT = {
    r"pip install|hf |hub:|transduce publish|data get|git |docker|curl": "asks the network",
    r"transduce (serve|watch)\b|jupyter|--interactive|--microphone": "does not end",
    r"torchrun|#SBATCH|SLURM": "tests/recipes/test_several_processes.py",
    r"transduce demo|bash scripts/|build_docs": "takes minutes; scripts/newcomer.sh",
    r"score comet": "wants an environment of its own",
    r"ffmpeg": "FFmpeg need not be here",
    r"lmplz|espeak|speak\.py": "a program of others",
    r"transduce import": "tests/interop",
    r"train [a-z-]+( commands_german)?$|multi30k --data|shakespeare": "tests/recipes; the corpus is not small",
}
"""Lines that hold one of these do not run, for the reason beside it."""


def blocks(page: Path) -> list[str]:
    """The blocks of a shell: indented, or between fences that name one."""
    text = page.read_text("utf-8")
    fenced = re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", text, flags=re.MULTILINE)
    got = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in indented] + fenced
    return [block for block in got if re.search(r"^(transduce|python|for|torchrun) ", block, flags=re.MULTILINE)]


def runnable(block: str) -> str:
    """A block without what is left out; a command that goes on in the next line is one line."""
    lines = re.sub(r" *\\\n\s*", " ", block).splitlines()
    return "\n".join(line for line in lines if not any(re.search(pattern, line) for pattern in LEFT_OUT))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_have_at_most_81_columns(page):
    assert [line for block in blocks(page) for line in block.splitlines() if len(line) > 81] == []


def test_code_blocks_are_parsed_without_what_cannot_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text:\n\n    # why\n    transduce describe \\\n        RUN\n\n    transduce serve RUN\n\nSo.\n\n    x y\n"
    )
    (block,) = blocks(page)
    assert runnable(block) == "# why\ntransduce describe RUN\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The folder of a server of commands."""
    folder = tmp_path_factory.mktemp("server")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("command_server.py"), folder],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout and server.stdout.readline() == "ready\n"
    yield folder
    server.terminate()
    server.communicate()


def sh(server: Path, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script by bash in a folder; every line is an error that fails, or a part of it."""
    environment = os.environ | {
        "PATH": f"{server / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TRANSDUCE_DATA": str(folder / "DIR"),
    }
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", text], cwd=folder, env=environment, capture_output=True, text=True
    )


def lines_of(name: str, n: int) -> str:
    return "".join(line + "\n" for line in (COMMANDS / name).read_text("utf-8").splitlines()[:n])


def write_texts(folder: Path) -> None:
    """Parallel and plain text, under the names that pages give to a user's own."""
    for split, names, n in (
        ("train", "train new", 200),
        ("valid", "valid val", 12),
        ("test", "test out HYP REF SRC in big BIG", 9),
    ):
        for language in ("en", "de"):
            for name in names.split():
                (folder / f"{name}.{language}").write_text(lines_of(f"{split}.{language}", n), "utf-8")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    for name in ["in.txt", "more.txt", "SRC", "BIG", "text.txt"]:
        (folder / name).write_text(lines_of("test.en", 6), "utf-8")
    for name in ["out.txt", "reference.txt", "HYP", "REF", "REF2", "OTHER_HYP", "other.de", "before.de"]:
        (folder / name).write_text(lines_of("test.de", 6 if "de" not in name else 9), "utf-8")
    for name, n in (("a.txt", 200), ("b.txt", 20)):
        (folder / name).write_text(lines_of("train.en", n), "utf-8")
    (folder / "test.out").write_text("\n".join(["open the letter"] * 4) + "\n")
    with ZipFile(folder / "Tatoeba.de-en.zip", "w") as moses:
        for language in ("en", "de"):
            moses.writestr(f"Tatoeba.de-en.{language}", lines_of(f"train.{language}", 60))
    pairs = zip(lines_of("train.en", 60).splitlines(), lines_of("train.de", 60).splitlines(), strict=True)
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")


def write_sounds(folder: Path) -> None:
    """Recordings: manifests, single files, a folder of sounds and texts, a Kaldi directory."""
    shutil.copytree(COMMANDS / "sound" / "valid", folder / "valid", copy_function=os.symlink)
    shutil.copy(COMMANDS.parent / "pronunciations" / "cmudict.dict.gz", folder)
    rows = (COMMANDS / "sound" / "valid.tsv").read_text("utf-8").splitlines()
    for name, part in (
        ("a", rows[1:25]),
        ("train", rows[1:25]),
        ("both", rows[1:25]),
        ("b", rows[25:31]),
        ("valid", rows[25:31]),
        ("test", rows[31:35]),
        ("all", rows[31:35]),
        ("canary", rows[35:39]),
        ("replay", rows[39:47]),
    ):
        (folder / f"{name}.tsv").write_text("\n".join([rows[0], *part]) + "\n", "utf-8")
    kaldi = folder / "data" / "train"
    kaldi.mkdir(parents=True)
    (folder / "talks").mkdir()
    scp, texts = [], []
    for row in rows[1:25]:
        name, audio, _, _, text, *_ = row.split("\t")
        samples, rate = soundfile.read(COMMANDS / "sound" / audio, dtype="float32")
        soundfile.write(folder / "talks" / f"{name}.wav", samples, rate)
        (folder / "talks" / f"{name}.txt").write_text(text + "\n")
        scp.append(f"{name} {folder / 'talks' / name}.wav\n")
        texts.append(f"{name} {text}\n")
    chapter = folder / "LibriSpeech" / "dev-clean" / "84" / "121123"
    chapter.mkdir(parents=True)
    soundfile.write(chapter / "84-121123-0000.flac", samples, rate)
    (chapter / "84-121123.trans.txt").write_text(f"84-121123-0000 {text.upper()}\n")
    (folder / "spoken").mkdir()
    shutil.copy(folder / "train.tsv", folder / "spoken")
    (folder / "spoken" / "valid").symlink_to("../valid")
    (folder / "ours").symlink_to("talks")
    (kaldi / "wav.scp").write_text("".join(scp))
    (kaldi / "text").write_text("".join(texts))
    sounds = [soundfile.read(COMMANDS / "sound" / row.split("\t")[1], dtype="float32")[0] for row in rows[1:4]]
    for name, samples in (("talk.wav", np.concatenate(sounds)), ("more.flac", sounds[0]), ("meeting.wav", sounds[1])):
        soundfile.write(folder / name, samples, rate)


PREPARED = """
transduce train translation files --train-source train.en --train-target train.de --hold-out 20 --run RUN
transduce train translation files --train-source train.en --train-target train.de --hold-out 20 --run RUN2 \\
    --tokenizer RUN/tokenizer.model --training.seed 2
transduce train translation files --train-source train.de --train-target train.en --hold-out 20 --run BACK --tokenizer RUN/tokenizer.model
transduce train speech-to-text manifest --train train.tsv --hold-out recordings --run SPEECH
transduce train language-model text --train a.txt --valid b.txt --run LANGUAGE
transduce train language-model text --train train.de --valid valid.de --run LM --tokenizer RUN/tokenizer.model \\
    --model.decoder.n-layers 2 --model.d-model 48
transduce import whisper-tiny runs/whisper
"""
"""Runs that pages name and do not make: the names of directories, which stand there for any run."""


@pytest.fixture
def folder(server, once, tmp_path) -> Path:
    """A copy of the data and of the runs."""

    def make(folder: Path) -> None:
        folder.mkdir()
        write_texts(folder)
        write_sounds(folder)
        make_corpora(folder / "DIR")
        (folder / "whisper-tiny").mkdir()
        whisper(folder / "whisper-tiny", steps=0, seconds=30, n_positions=100)
        done = sh(server, folder, PREPARED)
        assert done.returncode == 0, done.stderr[-3000:]
        for name, run in (("imported", "RUN"), ("gpt2", "LANGUAGE"), ("mine", "RUN")):
            shutil.copytree(folder / run, folder / "runs" / name)
        for name, run in (("translation", "RUN"), ("speech", "SPEECH")):
            shutil.copytree(folder / run, folder / "runs" / "demo" / name)

    shutil.copytree(once("docs-folder", make), tmp_path / "folder", symlinks=True)
    return tmp_path / "folder"


@pytest.mark.process
@pytest.mark.train
@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_of_each_page_run(page, server, folder):
    scripts = [runnable(block) for block in blocks(page)]
    if "--run runs/mine" in page.read_text("utf-8"):
        shutil.rmtree(folder / "runs" / "mine")
    done = sh(server, folder, "\n".join(scripts))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.process
@pytest.mark.train
@pytest.mark.long
def test_python_code_of_the_readme_runs(server, folder):
    block = (ROOT / "README.md").read_text("utf-8").split("## Python\n")[1].split("\n\n`td.load`")[0]
    (folder / "readme.py").write_text(dedent(block))
    done = sh(server, folder, "python readme.py")
    assert done.returncode == 0, done.stderr[-3000:]
