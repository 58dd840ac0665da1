"""scripts/gpu.sh with a `python` that trains nothing: which commands it gives, and what it says of them."""

import os
import shlex
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from bench import turns

from recipes import language_model, speech_to_text, translation
from transduce.experiment.command import choose

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process
RECIPES = {"language_model.py": language_model, "speech_to_text.py": speech_to_text, "translation.py": translation}

PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$COMMANDS"
echo "${ROW:-}"
[[ "$*" != *"${BROKEN:-nothing}"* ]] || { echo "it broke"; exit 3; }
[[ "$*" != *--run* ]] || mkdir -p "${@: -1}/checkpoints/$UPDATE"
"""


@pytest.fixture
def gpu(tmp_path):
    """Calls a copy of the script; exit status, what it printed, and the commands."""
    for folder in ("scripts", "recipes", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts" / "gpu.sh", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "recipes" / "data").symlink_to(ROOT / "recipes" / "data")
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)

    def call(*words, **environment):
        own = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RUNS": "runs", "COMMANDS": str(tmp_path / "log")}
        (tmp_path / "log").write_text("")
        done = subprocess.run(
            ["bash", str(tmp_path / "scripts" / "gpu.sh"), *words],
            capture_output=True,
            text=True,
            env=os.environ | own | {"UPDATE": "00000003", "COMMIT": "one"} | environment,
        )
        return done.returncode, done.stdout + done.stderr, (tmp_path / "log").read_text().splitlines()

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fsdd", "fsd"], "ablation_adamw ablation_stack_6, but is 'fsd'"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:N, but is 'tpu'"),
        (["--device"], "--device must be followed by cpu, cuda or cuda:N"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(tmp_path, gpu, words, message):
    status, printed, commands = gpu(*words)
    assert status == 2 and printed.startswith("transduce: ") and printed.endswith(f"{message}\n") and not commands
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_is_refused(tmp_path, gpu):
    status, printed, _ = gpu("--device", "cuda:1", BROKEN="torch.empty")
    assert status == 2 and not (tmp_path / "runs").exists()
    assert printed == (
        "transduce: --device must be one that this machine has, but cuda:1: it broke; try --device cpu --tiny\n"
    )


def test_rows_name_the_commits_that_trained(gpu):
    words = "--device", "cpu", "--tiny", "shakespeare"
    _, printed, (command,) = gpu(*words)
    assert f"\ncommand  python {command}\n" in printed and " --training.seed 1 " in command
    assert "\n   runs/shakespeare: updates 1 to 3 at one\n" in printed
    _, printed, _ = gpu(*words, COMMIT="two")  # the run is complete
    assert "\n   runs/shakespeare: updates 1 to 3 at one\n" in printed and "two" not in printed
    _, printed, _ = gpu(*words, COMMIT="three", UPDATE="00000012")
    assert "\n   runs/shakespeare: updates 1 to 3 at one, updates 4 to 12 at three\n" in printed


def test_a_part_stops_where_a_command_fails(gpu):
    status, printed, commands = gpu("--device", "cpu", "--tiny", "gpt2", "training_speed", BROKEN="data shards")
    assert status == 1 and printed.endswith("failed: gpt2\n") and "\nit broke\n" in printed
    assert [command.split(" --")[0] for command in commands] == [
        "-m transduce.cli.main data shards", "scripts/bench training", "scripts/bench speech_training"
    ]  # fmt: skip


def test_compiled_training_is_timed_on_a_gpu(gpu):
    *_, text, sound = gpu("training_speed")[2]
    assert text == "scripts/bench training --device cuda --compile"
    assert sound == "scripts/bench speech_training --device cuda"
    assert gpu("--device", "cpu", "training_speed")[2] == [
        "scripts/bench training --device cpu", "scripts/bench speech_training --device cpu"
    ]  # fmt: skip


def test_speeds_are_shown_as_the_benchmarks_print_them(gpu, capsys):
    turns.compare("batch 1", {"ours": lambda: [[1]]}, n_tokens=1, repeats=1)
    row = capsys.readouterr().out
    _, printed, commands = gpu("--device", "cpu", "generation_speed", ROW=row.strip())
    assert printed.count(row) == len(commands) == 1


def test_uninstalled_package_has_its_version(tmp_path, gpu):
    gpu("--device", "cpu", "training_speed")
    (got,) = metadata.distributions(path=[str(tmp_path / "runs" / "package")])
    assert (got.metadata["Name"], got.version) == ("transduce", metadata.version("transduce"))


@pytest.mark.parametrize("tiny", [[], ["--tiny"]])
def test_every_field_of_every_command_exists(gpu, monkeypatch, tiny):
    parts = "multi30k_de_en_3", "precision", "gpt2", "shakespeare", "speechocean762_2"
    status, printed, commands = gpu("--device", "cpu", *tiny, *parts, TRANSDUCE_DATA="")
    assert status == 0, printed
    for command in commands:
        recipe, *words = shlex.split(command)
        if recipe.startswith("recipes"):
            got = choose(RECIPES[Path(recipe).name].SETTINGS, words, default="")
            assert got.device == "cpu" and got.training.seed == (3 if "multi30k" in words else 1)
