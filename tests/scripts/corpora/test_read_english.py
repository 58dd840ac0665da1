"""scripts/corpora/read_english.sh with programs in place of transduce and python, which write down how they are called."""

import gzip
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def read_english(tmp_path):
    venv, data = tmp_path / "venv", tmp_path / "data"
    (venv / "bin").mkdir(parents=True)
    wanted = (ROOT / "constraints.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    (venv / "installed[train]").write_bytes(
        subprocess.run(["cksum"], input=wanted, check=True, capture_output=True).stdout
    )
    for name in ("transduce", "python"):
        program = venv / "bin" / name
        program.write_text(f'#!/bin/bash\necho {name} "$@" >>{tmp_path}/calls\n')
        program.chmod(0o755)
    manifest = data / "speechocean762" / "train" / "manifest.tsv"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("id\taudio\tseconds\tspeaker\ttext\tage\n1\ta.wav\t1\tx\tMARK IS HERE\t9\n")
    (tmp_path / "calls").write_text("")

    def call() -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """What the script says, and the calls that it makes."""
        env = os.environ | {"TRANSDUCE_DATA": str(data), "VENV": str(venv), "TORCH": "", "SEEDS": "7 8"}
        words = ["bash", "scripts/corpora/read_english.sh", str(tmp_path / "out")]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        return done, (tmp_path / "calls").read_text().splitlines()

    return call


@pytest.mark.process
def test_a_missing_corpus_is_noticed_before_the_trainings_and_seeds_become_an_ensemble(read_english, tmp_path):
    done, calls = read_english()
    assert done.returncode != 0 and "multi30k/train.en.gz" in done.stderr and calls == []
    captions = tmp_path / "data" / "multi30k" / "train.en.gz"
    captions.parent.mkdir()
    captions.write_bytes(gzip.compress(b"A man's 2 dogs.\n"))
    done, calls = read_english()
    out = tmp_path / "out"
    assert done.returncode == 0, done.stderr
    assert [(out / f"{name}.txt").read_text() for name in ("read", "captions")] == [
        "MARK IS HERE\n",
        "A MAN'S   DOGS \n",
    ]
    first, second = (call for call in calls if call.startswith("transduce train"))
    assert "--training.seed 7" in first and "--tokenizer" not in first
    assert "--training.seed 8" in second and f"--tokenizer {out}/seed_7/target.pronunciations.json" in second
    tested = [call.split()[2] for call in calls if call.startswith("transduce transcribe")]
    assert tested == [f"{out}/seed_7", f"{out}/seed_8", f"{out}/seed_7,{out}/seed_8"]
