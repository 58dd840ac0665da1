"""Several processes, of which one fails: it says why in one line, and the others end quietly."""

import errno
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recipes import language_model
from tests.recipes import small
from transduce import experiment as ex
from transduce.errors import InputError
from transduce.train import distributed

pytestmark = [pytest.mark.process, pytest.mark.train]

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.recipes.test_failing_processes", "torch.utils.tensorboard", "torch._dynamo"])

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")
BAD = InputError("b.wav cannot be read as sound; leave it out")


def raises(error: BaseException) -> Callable[..., Any]:
    """A function that does nothing else."""

    def function(*_: object, **__: object) -> None:
        raise error

    return function


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, tuple[int | None, str, Callable[..., Any], str]] = {
    "no process can prepare the data": (
        None,
        "recipes.language_model.ex.TokenWindows",
        raises(BAD),
        "b.wav cannot be read",
    ),
    "a full disk at the start": (0, "transduce.run.write_json", raises(FULL), "no space is left"),
    "a full disk at a checkpoint": (0, "transduce.train.state.save_tensors", raises(FULL), "no space is left"),
    "a full disk at a report": (0, "transduce.experiment.run.write_reports", raises(FULL), "no space is left"),
    "a full disk at the end": (0, "transduce.experiment.run.serialize", raises(FULL), "no space is left"),
    "data of the first": (0, "transduce.data.text_batches.window_batch", raises(BAD), "b.wav cannot be read"),
    "data of the second": (1, "transduce.data.text_batches.window_batch", raises(BAD), "b.wav cannot be read"),
    "a validation of the second": (1, "transduce.experiment.validation.CrossEntropy", raises(BAD), "b.wav cannot"),
    "what comes at the end of the second": (
        1,
        "transduce.experiment.run.mean_candidates",
        raises(BAD),
        "b.wav cannot be read",
    ),
    "all diverge": (None, "transduce.train.trainer.Trainer._check_weights", raises(FloatingPointError("inf")), "inf"),
    "all are stopped": (None, "transduce.train.trainer.Trainer._validate", raises(KeyboardInterrupt()), "stopped"),
    "the first is killed": (0, "transduce.train.trainer.Trainer._validate", die, "no answer from process 0"),
    "the second is killed": (1, "transduce.train.trainer.Trainer._validate", die, "no answer from process 1"),
    "a kill at a checkpoint": (0, "transduce.train.state.save_tensors", die, "no answer from process 0"),
}
"""By name: which process has it, the function in whose place comes another, and what is said."""


def begin(rank: int, words: list[str], fault: str, port: int, run: Path, data: Path) -> None:
    """What torchrun would start."""
    torch.set_num_threads(1)
    theirs = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in theirs.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.argv = ["recipe", *words]
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        os.dup2(os.open(run.parent / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY), stream.fileno())
    distributed.LATE = timedelta(seconds=1.5)
    which, place, instead, _ = FAULTS.get(fault, (2, "", die, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transduce.train.log.learning_curve", lambda *_: None)
        if which in (None, rank):
            patch.setattr(place, instead)
        sys.exit(
            ex.main(language_model.run, {"small": ("", small.generator(run, data))}, default="small", description="")
        )


def outcome(
    folder: Path, data: Path, *words: str, fault: str = "", own: tuple[str, ...] = (), port: int | None = None
) -> tuple[list[int], str]:
    """The exit codes of two processes, and all that they write to stderr, but for progress.

    Args:
        own: words of the second process alone.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = (
        "--training.accumulate",
        "2",
        "--training.max-updates",
        "4",
        "--training.validate-every",
        "2",
        "--training.optim.optimizer",
        "adamw",
        *words,
    )
    each = [[*words], [*words, *own]]
    processes = [
        SERVER.Process(target=begin, args=(rank, each[rank], fault, port or store.port, folder / "run", data))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        process.kill()
    said = "".join((folder / f"{rank}.stderr").read_text() for rank in range(2))
    lines = [line for line in re.split(r"[\n\r]", said) if line and not re.search(r"%\||^update \d|^  ", line)]
    return [process.exitcode for process in processes], "\n".join(lines)


SHARDED = (
    "a full disk at a checkpoint",
    "data of the second",
    "a kill at a checkpoint",
    "what comes at the end of the second",
)


@pytest.mark.parametrize(
    ("fault", "shard"), [*((fault, False) for fault in FAULTS), *((fault, True) for fault in SHARDED)]
)
def test_one_process_reports_the_failure_and_all_exit(tmp_path, running_text, fault, shard):
    codes, said = outcome(tmp_path, running_text, *["--training.shard"] * shard, fault=fault)
    which, _, instead, reason = FAULTS[fault]
    assert said.count("\n") == 0 and reason in said and said.startswith("transduce: ")
    if "at the end" not in fault:
        wanted = 130 if "stopped" in fault else 2
        assert all(
            code == (-signal.SIGKILL if instead is die and rank == which else wanted) for rank, code in enumerate(codes)
        )


def test_successful_runs_print_no_errors(tmp_path, running_text):
    assert outcome(tmp_path, running_text) == ([0, 0], "")


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (["--run", "other"], "every process must see the same run directory, but for process 1 of 2, on "),
        (["--training.seed", "7"], "training.seed: 1 -> 7; start the same command on all machines"),
        (["--training.shard"], "training.shard: False -> True; start the same command on all machines"),
        (["--training.max-updates", "8"], "training.max_updates: 4 -> 8; start the same command on all machines"),
        (["--nothing"], "--nothing"),
        (["--config", "none.json"], "none.json"),
    ],
)
def test_arguments_that_differ_between_processes_are_refused(tmp_path, running_text, monkeypatch, own, reason):
    monkeypatch.chdir(tmp_path)
    codes, said = outcome(tmp_path, running_text, own=tuple(own))
    assert codes == [2, 2] and said.count("\n") == 0 and said.startswith("transduce: ") and reason in said


def test_invalid_arguments_are_reported_once(tmp_path, running_text):
    codes, said = outcome(tmp_path, running_text, "--training.accumulate", "1")
    assert codes == [2, 2] and said.count("\n") == 0
    assert said.startswith("transduce: an update must have a batch for every process, but accumulate=1")


def test_help_is_shown_once(tmp_path, running_text):
    codes, said = outcome(tmp_path, running_text, "--help")
    assert codes == [0, 0] and said == ""
    assert [("--print-config" in (tmp_path / f"{rank}.stdout").read_text()) for rank in range(2)] == [True, False]
