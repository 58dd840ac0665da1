"""scripts/corpora/synthetic_data.sh at its smallest: every step works, and a student gets the pairs that it is said to get."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ROOT / "recipes" / "data" / "commands"


def lines(path: Path) -> list[str]:
    """The lines of a file."""
    return path.read_text().splitlines()


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.skipif(not Path(sys.prefix, "installed").exists(), reason="needs the environment of scripts/setup.sh")
def test_diversification_has_every_pair_five_times(tmp_path):
    data, out = tmp_path / "data" / "multi30k", tmp_path / "out"
    data.mkdir(parents=True)
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for side in ("en", "de"):
            text = (COMMANDS / f"{split}.{side}").read_bytes()
            (data / f"{name}.{side}.gz").write_bytes(gzip.compress(text))
        french = "".join(f"{line[::-1]}\n" for line in lines(COMMANDS / f"{split}.de"))  # the commands have none
        (data / f"{name}.fr.gz").write_bytes(gzip.compress(french.encode()))
    env = os.environ | {"TRANSDUCE_DATA": str(data.parent), "VENV": os.path.relpath(sys.prefix, ROOT)}
    words = ["bash", "scripts/corpora/synthetic_data.sh", "diversification", "--tiny", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    english, german = (lines(out / f"all.{side}") for side in ("en", "de"))
    written = {name: lines(out / name) for name in ("forward1.de", "forward2.de", "backward.en", "french.en")}
    assert lines(out / "five.en") == english * 3 + written["backward.en"] + written["french.en"]
    assert lines(out / "five.de") == german + written["forward1.de"] + written["forward2.de"] + german * 2
    assert len(english) == 100 and len({tuple(text) for text in written.values()}) == 4  # four models, none the same


@pytest.mark.process
def test_an_unknown_word_is_refused_before_anything_is_installed(tmp_path):
    words = ["bash", "scripts/corpora/synthetic_data.sh", "distilation", str(tmp_path / "out")]
    env = os.environ | {"VENV": str(tmp_path / "venv"), "PYTHON": "false"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=env)
    message = "the first word must be back-translation, distillation or diversification, but it is distilation\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
