"""Test training under faults: whatever happens to a run, repeating its command gives the same bytes.

    python scripts/ops/faults.py                              300 kills, and 10 of every other fault
    python scripts/ops/faults.py --kills 12 --others 1        the short form

Small trainings of the translation and the speech recipe are killed at random moments, meet full disks, read-only
folders, damaged checkpoints, second starts, Ctrl-C and a clock that jumps, and are started again until they end. Prints a
table of fault, number and outcome, and on stderr what went wrong; the exit code is 1 if anything did. A start costs less
than a second, as every training is forked from one process that has loaded everything; TMPDIR=/dev/shm makes it faster.
"""

import argparse
import errno
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SCRIPTS / "corpora")]
import transduce as td
from transduce import experiment as ex
from transduce.config import to_dict
from transduce.data.manifest import Recording, write_manifest
from transduce.errors import exit_code
from transduce.experiment import run as training, validation
from transduce.recipes import speech_to_text, translation
from transduce.run import MODEL_CARD, REPORT
from transduce.train import log
from transduce.train.state import Store
from transduce.train.trainer import Trainer

NOBODY = 65534
"""A user without root's write permissions."""

MOMENTS: dict[str, tuple[list[tuple[Any, str]], int, float]] = {
    "a save": ([(Store, "save")], 3, 0.02),
    "a rename": ([(Path, "rename"), (Path, "replace")], 30, 0.001),
    "a validation": ([(Trainer, "validation")], 4, 0.05),
    "writing features": ([(ex.FeatureCache, "get")], 20, 0.005),
    "the end": ([(training, "finish")], 1, 0.05),
    "any moment": ([(Trainer, "__init__")], 1, 1.0),
}
"""For each moment, by name: functions, maximum number of calls before it, and maximum seconds after the call."""


def corpus(folder: Path) -> Path:
    """Make 42 sentences paired with their reversals; 18 of them also as sound, with a pitch per word: train.tsv and
    valid.tsv."""
    rng = np.random.default_rng(1)
    words = {"red": 300, "green": 700, "blue": 1500, "black": 2800}  # and their pitch in hertz
    for split, n in (("train", 40), ("valid", 2)):
        lines = [" ".join(rng.choice(list(words), size=rng.integers(2, 5))) for _ in range(n)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.xx").write_text("".join(f"{line[::-1]}\n" for line in lines))
        recordings = []
        for i, line in enumerate(lines[:16]):
            seconds = np.arange(2400) / 8000
            tones = [0.3 * np.sin(2 * np.pi * words[word] * seconds) for word in line.split()]
            path = folder / f"{split}{i}.wav"
            soundfile.write(path, np.concatenate(tones) + 0.01 * rng.standard_normal(2400 * len(tones)), 8000)
            recordings.append(Recording(path.stem, path, 0.3 * len(tones), "A", line))
        write_manifest(folder / f"{split}.tsv", recordings)
    return folder


def small(model: td.TransformerConfig, d_model: int) -> td.TransformerConfig:
    """The same with one narrow layer on each side, and dropout."""
    assert model.encoder and model.decoder
    encoder, decoder = (replace(stack, n_layers=1) for stack in (model.encoder, model.decoder))
    return replace(model, encoder=encoder, decoder=decoder, d_model=d_model, d_ff=32, n_heads=2, dropout=0.2)


def trainings(folder: Path) -> dict[str, tuple[Callable[[Any], object], Any]]:
    """By name, a recipe and its experiment, with dropout and all that is random; the run directory is set later."""
    short = ex.TrainingConfig(
        optim=ex.OptimConfig(peak_rate=3e-3, warmup_steps=5), max_updates=11, validate_every=3, keep_last=2, keep_best=1
    )
    files = [folder / f"{split}.{end}" for split in ("train", "valid") for end in ("en", "xx")]
    names = ("train_source", "train_target", "valid_source", "valid_target")
    text = ex.TranslationExperiment(
        run=folder,
        corpus=ex.Files(**dict(zip(names, files, strict=True))),
        vocab_size=275,
        tokens_per_batch=400,
        model=small(td.transformer_tiny(), 16),
        training=short,
        decoding=td.SearchConfig(length_ratio=0.1, length_extra=5),
        device="cpu",
    )
    speech = replace(
        speech_to_text.COMMANDS,
        corpus=ex.Manifests(data=folder, valid=Path("valid.tsv"), test=None),
        features=ex.FeatureConfig(sample_rate=8000, n_mels=20, n_coefficients=10),
        workers=0,
        vocab_size=275,
        frames_per_batch=600,
        model=small(ex.speech_tiny(), 20),
        training=short,
        device="cpu",
    )
    return {"translation": (translation.run, text), "speech": (speech_to_text.run, speech)}


def dot(*parts: Any) -> None:
    """Write a picture without drawing it; pictures are not tested here."""
    from matplotlib.image import imsave

    imsave(parts[-1], np.zeros((1, 1, 3)))


class Started:
    """A training in a process of its own.

    Args:
        moment: a name in MOMENTS, and the number of the call at which the process says that it is there.
        before: called in the process before anything else.
    """

    def __init__(
        self,
        run: Callable[[Any], object],
        x: Any,
        moment: tuple[str, int] | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        ready, say = os.pipe()
        out, output = tempfile.mkstemp(dir=x.run.parents[1])
        self.output_path = Path(output)
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.dup2(out, 1)
                os.dup2(out, 2)
                if moment:
                    _announce(MOMENTS[moment[0]][0], moment[1], say)
                if before:
                    before()
                status = exit_code(lambda: run(x), interrupted="stopped")
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(say)
        os.close(out)
        self.ready = ready

    def wait(self) -> None:
        """Until the moment is there, or the process has ended."""
        os.read(self.ready, 1)

    def end(self, number: signal.Signals | None = None, after: float = 0.0) -> tuple[int, str]:
        """Exit status, negative for a signal, and output; a signal is sent when the moment has come.

        Args:
            after: seconds from then on.
        """
        if number is not None and os.read(self.ready, 1):
            time.sleep(after)
            os.kill(self.pid, number)
        os.close(self.ready)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status, self.output_path.read_text(errors="replace")


def _announce(functions: list[tuple[Any, str]], nth: int, say: int) -> None:
    """Write a byte into the pipe `say` when one of them is called, which is the n-th call of all."""
    calls = count(1)

    def announced(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) == nth:
                os.write(say, b"!")
            return original(*args, **options)

        return call

    for owner, name in functions:
        setattr(owner, name, announced(getattr(owner, name)))


def differences(one: Path, other: Path) -> list[str]:
    """The files in which two run directories differ but for times; leftovers, too."""
    contents = [_contents(one), _contents(other)]
    return sorted(
        name for name in contents[0].keys() | contents[1].keys() if contents[0].get(name) != contents[1].get(name)
    )


def _contents(run: Path) -> dict[str, object]:
    contents: dict[str, object] = {}
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if name.startswith("tensorboard"):
            continue
        if path.is_dir():
            contents[name] = "a folder"
        elif path.suffix == ".json":
            plain = json.loads(path.read_text())
            for clock in ("seconds", "state.json"):  # the manifest has the checksum of state.json
                plain.pop(clock, None)
            for part in {"experiment", "specified"} & plain.keys():
                plain[part] = {k: v for k, v in plain[part].items() if k not in ("run", "cache")}
            contents[name] = plain
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            contents[name] = [
                {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines
            ]
        elif path.name in (MODEL_CARD, REPORT):  # the card's last line has a hash of it
            clock = r"\b(seconds|tokens_per_second) [\w.+-]+|<time>[^<]*|wrote this card \(\w+\)"
            contents[name] = re.sub(clock, "", path.read_text())
        else:
            contents[name] = path.read_bytes()
    return contents


class Farm:
    """Where faults are made, each by a method of its name.

    Args:
        folder: an empty one, which everybody may enter.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng, self.numbers = folder, rng, count(1)
        self.trainings = trainings(corpus(folder))
        self.made: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.pair: Path | None = None  # the run of two processes that nothing disturbed
        log.learning_curve = validation.attention_map = dot  # type: ignore[assignment]
        log.EVERY = 1
        self.undisturbed = {name: self._undisturbed(name) for name in self.trainings}

    def _undisturbed(self, name: str) -> Path:
        """The directory of a run without a fault. What it loaded is loaded here, too, for all that come after."""
        run, x = self.new(name)
        modules = self.folder / "modules"

        def run_and_list(x: Any) -> None:
            run(x)
            modules.write_text("\n".join(sys.modules))

        status, output = Started(run_and_list, x).end()
        if status:
            raise SystemExit(f"a training that nothing disturbs must end with 0, but it gave {status}: {output}")
        for module in modules.read_text().splitlines():
            with suppress(Exception):  # some have names under which nobody can import them
                importlib.import_module(module)
        return x.run

    def new(self, name: str) -> tuple[Callable[[Any], object], Any]:
        """A recipe, and its experiment in directories of its own."""
        run, x = self.trainings[name]
        at = self.folder / f"{next(self.numbers)}"
        at.mkdir()
        return run, replace(x, run=at / "run", **({"cache": at / "cache"} if hasattr(x, "cache") else {}))

    def some(self) -> str:
        """The name of a training."""
        return self.rng.choice(list(self.trainings))

    def stopped(self) -> tuple[str, Any]:
        """A training that Ctrl-C stopped in one of its validations but the first and the last: its name and experiment."""
        name = self.some()
        run, x = self.new(name)
        status, output = Started(run, x, ("a validation", self.rng.randint(2, 3))).end(signal.SIGINT)
        self.check("Ctrl-C in a validation", status == 130, f"exit code {status}: {output}")
        return name, x

    def check(self, fault: str, right: bool, message: str) -> None:
        """Count a failure and print it."""
        if not right:
            self.failures[fault] += 1
            print(f"{fault}: {message}\n", file=sys.stderr)

    def ends(self, faults: set[str], name: str, x: Any, before: Callable[[], object] | None = None) -> str:
        """Start it again: it must end as the undisturbed one did. Returns its output."""
        status, output = Started(self.trainings[name][0], x, before=before).end()
        failures = [f"exit code {status}: {output[-3000:]}"] if status else differences(x.run, self.undisturbed[name])
        failures += [str(path) for path in x.run.parent.glob("cache/.*")]
        lines = [json.loads(line) for line in (x.run / "metrics.jsonl").read_text().splitlines()]
        seconds = [0, *(line["seconds"] for line in lines), 600]
        failures += [] if seconds == sorted(seconds) else [f"seconds are {seconds}"]
        for fault in faults:
            self.check(fault, not failures, f"{name}: {'; '.join(failures)}")
        shutil.rmtree(x.run.parent)
        return output

    def kill(self, number: int) -> None:
        """Several SIGKILLs; the killed training is started again, and may be killed again."""
        while (left := number - sum(self.made.values())) > 0:
            name, faults = self.some(), set()
            run, x = self.new(name)
            for _ in range(left):
                moment = self.rng.choice([m for m in MOMENTS if name == "speech" or m != "writing features"])
                _, most, width = MOMENTS[moment]
                started = Started(run, x, (moment, self.rng.randint(1, most)))
                status, output = started.end(signal.SIGKILL, self.rng.uniform(0, width))
                if status != -signal.SIGKILL:
                    self.check(f"SIGKILL in {moment}", status == 0, f"exit code {status}: {output}")
                    break
                faults.add(f"SIGKILL in {moment}")
                self.made[f"SIGKILL in {moment}"] += 1
            self.ends(faults, name, x)

    def interrupt(self) -> str:
        """Ctrl-C in a validation, a save or the writing of features."""
        name = self.some()
        run, x = self.new(name)
        moment = self.rng.choice(["a save", "a validation", *(["writing features"] if name == "speech" else [])])
        fault = f"Ctrl-C in {moment}"
        status, output = Started(run, x, (moment, self.rng.randint(1, 3))).end(signal.SIGINT, self.rng.uniform(0, 0.02))
        self.check(fault, status == 130 and output.endswith("stopped\n"), f"exit code {status}: {output}")
        self.ends({fault}, name, x)
        return fault

    def damage(self) -> str:
        """A file of the newest checkpoint is truncated, has a changed byte or is missing."""
        name, x = self.stopped()
        *_, newest = sorted((x.run / "checkpoints").iterdir())
        file = newest / self.rng.choice(["model.safetensors", "optimizer.safetensors", "state.json"])
        kind, content = self.rng.choice(["cut short", "garbled", "gone"]), bytearray(file.read_bytes())
        at = self.rng.randrange(len(content))
        content[at] ^= self.rng.randint(1, 255)
        file.write_bytes(content[:at] if kind == "cut short" else content)
        if kind == "gone":
            file.unlink()
        output = self.ends({fault := f"newest checkpoint {kind}"}, name, x)
        self.check(
            fault, output.count(f"{newest} is damaged: {file.name} is missing or not as it was written") == 1, output
        )
        return fault

    def full_disk(self) -> str:
        """A disk (tmpfs) with less room than the run needs; then it has more."""
        name = self.some()
        run, x = self.new(name)
        size = sum(-(-path.stat().st_size // 4096) for path in self.undisturbed[name].rglob("*"))
        words = ["mount", "-t", "tmpfs", "-o", f"size={4 * self.rng.randint(4, size)}k", "tmpfs", str(x.run.parent)]
        if subprocess.run(words, capture_output=True).returncode:
            return ""
        try:
            status, output = Started(run, x).end()
            as_expected = "no space is left on the disk" in output.splitlines()[-1] and "Traceback" not in output
            self.check("full disk", status == 2 and as_expected, f"exit code {status}: {output}")
            subprocess.run(["mount", "-o", "remount,size=64m", str(x.run.parent)], check=True)
            backup = self.folder / f"{x.run.parent.name}.kept"
            shutil.copytree(x.run.parent, backup)
        finally:
            subprocess.run(["umount", str(x.run.parent)], check=True)
        x.run.parent.rmdir()
        backup.rename(x.run.parent)
        self.ends({"full disk"}, name, x)
        return "full disk"

    def file_size(self) -> str:
        """A limit of the size of files (ulimit -f), which one of them exceeds."""
        name = self.some()
        run, x = self.new(name)
        most = max(path.stat().st_size for path in (self.undisturbed[name] / "checkpoints").rglob("*"))
        limit = self.rng.randrange(4000, most)
        status, output = Started(run, x, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))).end()
        as_expected = os.strerror(errno.EFBIG) in output.splitlines()[-1] and "Traceback" not in output
        self.check("file size limit", status == 2 and as_expected, f"exit code {status}: {output}")
        self.ends({"file size limit"}, name, x)
        return "file size limit"

    def read_only(self) -> str:
        """A folder without write permission, when a run begins or is resumed."""
        which = self.rng.choice(["parent", "cache", "run", "run/checkpoints", "run/samples"])
        fault = f"read-only {which}"
        if which in ("parent", "cache"):
            name = "speech" if which == "cache" else self.some()
            x = self.new(name)[1]
        else:
            name, x = self.stopped()
        folder = x.run.parent / ("" if which == "parent" else which)
        folder.mkdir(exist_ok=True)
        for path in (x.run.parent, *x.run.parent.rglob("*")):
            path.chmod(0o777)
        folder.chmod(0o555)
        status, output = Started(self.trainings[name][0], x, before=_no_root).end()
        last = output.splitlines()[-1]
        as_expected = last.startswith(f"transduce: {folder} may not be read or written (")
        self.check(fault, status == 2 and as_expected and "Traceback" not in output, f"exit code {status}: {output}")
        folder.chmod(0o777)
        self.ends({fault}, name, x)
        return fault

    def two_starts(self) -> str:
        """A second start while the first is in a save: it says who the first one is, and changes nothing."""
        name = self.some()
        run, x = self.new(name)
        first = Started(run, x, ("a save", self.rng.randint(1, 4)))
        first.wait()
        os.kill(first.pid, signal.SIGSTOP)  # else it may end before the second is that far
        status, output = Started(run, x).end()
        os.kill(first.pid, signal.SIGCONT)
        as_expected = f"{x.run} is held by process {first.pid} on {socket.gethostname()} since " in output
        self.check("two starts", status == 2 and as_expected, f"exit code {status}: {output}")
        status, output = first.end()
        self.check("two starts", status == 0, f"exit code {status}: {output}")
        self.ends({"two starts"}, name, x)
        return "two starts"

    def at_once(self) -> str:
        """Two starts at the same time: only one trains, or both do, one after the other."""
        name = self.some()
        run, x = self.new(name)
        ends = [started.end() for started in [Started(run, x), Started(run, x)]]
        right = sorted(status for status, _ in ends) in ([0, 2], [0, 0])
        self.check("two starts at once", right and "Traceback" not in str(ends), str(ends))
        self.ends({"two starts at once"}, name, x)
        return "two starts at once"

    def clock(self) -> str:
        """The wall clock is set back by two days."""
        name, x = self.stopped()
        real = time.time

        def earlier() -> None:
            time.time = lambda: real() - 2 * 86400  # type: ignore[assignment]

        self.ends({"clock set back"}, name, x, earlier)
        return "clock set back"

    def one_of_two(self) -> str:
        """SIGKILL of one of two processes under torchrun, which starts both again."""
        if self.pair is None:
            self.pair, status, output, _ = self._together(killed=False)
            if status:
                raise SystemExit(f"two processes that nothing disturbs must end with 0, but gave {status}: {output}")
        run, status, output, killed = self._together(killed=True)
        failures = [name for name in differences(run, self.pair) if name.endswith(".safetensors")]
        self.check(
            "SIGKILL of one of two", not status and not failures, f"{failures}, exit code {status}: {output[-3000:]}"
        )
        shutil.rmtree(run.parent)
        return "SIGKILL of one of two" if killed else ""

    def _together(self, *, killed: bool) -> tuple[Path, int, str, bool]:
        """A training by torchrun: its directory, exit status, output, and whether one of its processes was killed."""
        _, x = self.new("translation")
        x = replace(x, training=replace(x.training, accumulate=2))
        config, out = x.run.parent / "x.json", x.run.parent / "said"
        config.write_text(json.dumps(to_dict(x)))
        words = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "2", "--nproc-per-node", "2"]
        words += [translation.__file__, "files", "--config", str(config)]
        after, late = self.rng.randint(0, 4), self.rng.uniform(0, 0.5)
        with out.open("w") as file:
            agent = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file)
            children: list[str] = []
            while killed and not children and agent.poll() is None:
                time.sleep(0.01)
                if len(list(x.run.glob("checkpoints/0*"))) >= after:
                    time.sleep(late)
                    with suppress(OSError):
                        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
                    with suppress(OSError):
                        os.kill(int(self.rng.choice(children)), signal.SIGKILL) if children else None
            status = agent.wait()
        return x.run, status, out.read_text(errors="replace"), bool(children)


OTHERS = (
    Farm.interrupt, Farm.damage, Farm.full_disk, Farm.file_size, Farm.read_only, Farm.two_starts, Farm.at_once, Farm.clock,
    Farm.one_of_two,
)  # fmt: skip


def _no_root() -> None:
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def main() -> int:
    """Make faults and print the table; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="how many processes are killed (default: 300)")
    parser.add_argument("--others", type=int, default=10, help="how many of every other fault (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of what is random (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        farm = Farm(folder, random.Random(args.seed))
        farm.kill(args.kills)
        for make in OTHERS:
            farm.made.update(filter(None, (make(farm) for _ in range(args.others))))
    width = max(map(len, farm.made))
    for fault, number in farm.made.items():
        failures = farm.failures[fault]
        print(f"{fault:{width}}  {number:4}  {f'{failures} WRONG' if failures else 'the same bytes'}")
    print(f"{sum(farm.made.values())} faults in {time.monotonic() - started:.0f} s")
    return int(bool(farm.failures))


if __name__ == "__main__":
    sys.exit(main())
