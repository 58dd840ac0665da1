"""Who may open a run directory: one process at a time, with the experiment that it was begun with."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.translation import SETTINGS
from tests.test_run import tiny
from transduce.config import to_dict
from transduce.data.base_tokenizer import CharTokenizer
from transduce.experiment.command import with_files
from transduce.model.config import Frames, StackConfig
from transduce.run import Run, load_run, open_run
from transduce.tasks.config import SearchConfig
from transduce.tasks.load import run_decoding


def test_a_run_directory_accepts_only_the_same_experiment(tmp_path):
    run = Run(tiny(), {"training": {"seed": 1, "rate": 0.5}, "data": "abc"}, None, None)
    for _ in range(2):
        with open_run(tmp_path / "run", run):
            before = (tmp_path / "run" / "config.json").read_bytes()
    other = Run(tiny(d_ff=16), {"training": {"seed": 2, "rate": 0.5, "new": 3}}, None, None)
    with pytest.raises(ValueError) as caught, open_run(tmp_path / "run", other):
        pytest.fail("the directory was opened")
    assert str(caught.value) == (
        f"a run must be resumed with the configuration that it began with, but in {tmp_path / 'run'} this differs: "
        "training.seed: 1 -> 2; data: abc -> absent; model.d_ff: 12 -> 16; training.new: absent -> 3. "
        "Name another directory with --run, or remove this one, which has no weights yet"
    )
    (tmp_path / "run" / "model.safetensors").touch()
    way_out = f"Name another directory with --run, and --start-from {tmp_path / 'run'} to start from its weights"
    with pytest.raises(ValueError, match=re.escape(way_out)), open_run(tmp_path / "run", other):
        pytest.fail("the directory was opened")
    assert (tmp_path / "run" / "config.json").read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoints", "model.safetensors"])
def test_weights_without_a_config_are_refused(tmp_path, name):
    """A new run would replace the tokenizer that the weights belong to."""
    (tmp_path / name).mkdir()
    run = Run(tiny(), {}, None, CharTokenizer.train(["abc"]))
    with pytest.raises(ValueError) as caught, open_run(tmp_path, run):
        pytest.fail("the directory was opened")
    assert str(caught.value) == (
        f"a run directory holds config.json, but {tmp_path} has no config.json; copy the whole run directory, or name "
        "another"
    )
    assert not [*tmp_path.glob("*.json")]


@pytest.mark.parametrize("name", ["decoding", "generation"])
def test_resume_with_other_decoding_settings(tmp_path, name):
    for fields in ({"beam_size": 5}, {"beam_size": 5, "alpha": 1.0}):
        with open_run(tmp_path / "run", Run(tiny(), {"seed": 1, name: fields}, None, None)):
            pass


def test_neutral_fields_of_earlier_versions_are_ignored(tmp_path):
    frames = StackConfig(input=Frames(n_features=4), n_layers=1)
    earlier = {"interctc_column": None, "training": {"compile_layers": True}, "bpe_dropout": 0.0, "shortlist": False}
    earlier["decoding"] = {
        "coverage_penalty": 0.0,
        "shortlist": False,
        "beam_groups": 1,
        "diversity": 0.5,
        "mbr": "none",
    }
    run = Run(tiny(encoder=frames), earlier, None, None)
    with open_run(tmp_path / "run", run):
        pass
    path = tmp_path / "run" / "config.json"
    plain = json.loads(path.read_text())
    plain["model"]["encoder"]["input"]["conv_dims"] = 1
    path.write_text(json.dumps(plain))
    with open_run(tmp_path / "run", Run(tiny(encoder=frames), {"training": {}, "decoding": {}}, None, None)):
        pass
    assert run_decoding(load_run(tmp_path / "run"), SearchConfig) == SearchConfig()
    plain["model"]["encoder"]["input"]["conv_dims"] = 2
    path.write_text(json.dumps(plain))
    with pytest.raises(ValueError) as caught:
        load_run(tmp_path / "run")
    assert str(caught.value) == (
        f"{path} must have conv_dims=1, as this version has no such field, but it has conv_dims=2; "
        "use the version that wrote it"
    )
    plain["model"]["encoder"]["input"]["conv_dims"] = 1
    for name, value, off in (("coverage_penalty", 0.2, "0"), ("beam_groups", 2, "1"), ("mbr", "chrf", "none")):
        other = plain["experiment"] | {"decoding": {name: value}}
        path.write_text(json.dumps(plain | {"experiment": other}))
        with pytest.raises(ValueError, match=f" must have {name}={off}, as this version has no such field, but "):
            load_run(tmp_path / "run")


def test_removed_training_fields_allow_loading_but_not_resuming(tmp_path):
    experiment = {"bpe_dropout": 0.1, "shortlist": True, "decoding": {"shortlist": True}}
    with open_run(tmp_path / "run", Run(tiny(), {"decoding": {}}, None, None)):
        pass
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"experiment": experiment}))
    assert run_decoding(load_run(tmp_path / "run"), SearchConfig) == SearchConfig()
    with pytest.raises(ValueError, match=r"bpe_dropout"), open_run(tmp_path / "run", Run(tiny(), {}, None, None)):
        pass
    with pytest.raises(ValueError, match=r" must have bpe_dropout=0, as this version has no such field, but "):
        with_files(SETTINGS["commands"][1], [path])


def test_resume_on_another_machine_but_not_with_other_features(tmp_path):
    def run(**changes) -> Run:
        plain = {"cache": "a", "workers": 2, "device": "cpu", "features": {"n_mels": 80, "hop": 0.01}}
        return Run(tiny(), plain | changes, None, None)

    for same in (run(), run(cache="b", workers=64, device="cuda")):
        with open_run(tmp_path / "run", same):
            pass
    with pytest.raises(ValueError) as caught, open_run(tmp_path / "run", run(features={"n_mels": 40, "hop": 0.01})):
        pytest.fail("the directory was opened")
    assert "this differs: features.n_mels: 80 -> 40. Name" in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"vocab_size": 999}, {"joint": False}, {"lowercase": True}, {"normalization": "nmt_nfkc"}]
)
def test_resume_with_other_vocabulary_settings_is_refused(tmp_path, change):
    """It would keep its tokenizer, and config.json would say otherwise."""
    before = SETTINGS["files"][1]
    after = replace(before, **change)
    with open_run(tmp_path, Run(tiny(), to_dict(before), None, None)):
        pass
    run = Run(tiny(), to_dict(after), None, None)
    with pytest.raises(ValueError, match=f"this differs: {next(iter(change))}: "), open_run(tmp_path, run):
        pytest.fail("the directory was opened")


def check_locked(directory: Path, process: int) -> None:
    """Another start is refused, says which process holds the directory, and changes nothing."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ValueError) as caught, open_run(directory, Run(tiny(), {"data": "abc"}, None, None)):
        pytest.fail("the directory was opened")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    match = re.fullmatch(
        rf"a run is trained by one process at a time, but {directory} is held by process (\d+) on (\S+) since "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d; wait for it or stop it, or name another directory with --run",
        str(caught.value),
    )
    assert match and match.groups() == (str(process), socket.gethostname())


def test_a_run_in_use_is_refused_with_its_process_id(tmp_path):
    run = Run(tiny(), {"data": "abc"}, None, None)
    for _ in range(2):  # when the first has ended, the directory is free again
        with open_run(tmp_path, run):
            check_locked(tmp_path, os.getpid())


HOLD = """
import sys
from pathlib import Path
from transduce.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_in_place_of_a_run_is_refused(tmp_path):
    (tmp_path / "run").write_text("text")
    with (
        pytest.raises(ValueError, match=rf"^a run is a folder, but {tmp_path / 'run'} is a file; name another --run$"),
        open_run(tmp_path / "run", Run(tiny(), {}, None, None)),
    ):
        pass


@pytest.mark.process
def test_a_run_is_unlocked_if_its_process_is_killed(tmp_path):
    run = Run(tiny(), {"data": "abc"}, None, None)
    with open_run(tmp_path, run):
        pass
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        check_locked(tmp_path, process.pid)
        process.kill()
    with open_run(tmp_path, run):
        pass
