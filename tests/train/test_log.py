"""What a training shows and saves of its validations, and the libraries that only a training loads."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runs import LITTLE, random_run
from tests.train import toy
from transduce.plot import learning_curve
from transduce.train import log as log_module
from transduce.train.log import Log, ProgressBar, RunFiles, Sink, TensorBoard
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Progress, Validation

ROOT = Path(__file__).parents[2]


SLOW = {"matplotlib", "tensorboard", "torch._dynamo"}


@pytest.mark.process
@pytest.mark.parametrize("program", ["transduce.cli.main", "transduce.experiment"])
def test_imports_do_not_load_training_libraries(program):
    """Neither by the command line nor by a recipe before its first update."""
    words = f"import sys, transduce, {program}; print(sorted(set(sys.modules) & {SLOW}))"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.process
def test_inference_works_without_the_train_extra(tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    words = (
        "import sys; sys.modules |= {'matplotlib': None, 'tensorboard': None}; import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *x: None if name in ('matplotlib', 'tensorboard') else find(name, *x);"
        "from transduce.cli.main import main; import transduce.serve.app; sys.exit(main(sys.argv[1:]))"
    )

    def call(*arguments: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", words, *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, input="Print it.\n", capture_output=True, text=True)

    assert call("translate", run).returncode == call("describe", run).returncode == 0
    done = call("train", "translation", "commands", "--run", tmp_path / "new")
    assert done.returncode == 2 and "training needs the library matplotlib" in done.stderr
    assert done.stderr.endswith("pip install '.[train]'\n")


def test_tensorboard_has_samples_and_the_progress_bar_the_score(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transduce.train.log.learning_curve", learning_curve)
    log = Log([ProgressBar(9), RunFiles(tmp_path), TensorBoard(tmp_path)])
    progress = Progress(update=3, validations=[(3, 41.5)])
    log.open(Progress())
    log.validation(
        progress,
        Validation(
            {"loss": 2.5, "bleu": 41.5},
            samples=[("one | *two*", "eins zwei", "ein <b>"), ("a", "b", "c")],
        ),
    )
    log.close()
    assert "bleu=41.50" in capsys.readouterr().err.splitlines()[-1]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (text,) = board.Tensors("valid/samples/text_summary")
    assert text.step == 3 and text.tensor_proto.string_val[0].decode() == (
        "    one | *two*\n    should be  eins zwei\n    is         ein <b>\n    \n"
        "    a\n    should be  b\n    is         c"
    )
    assert imread(tmp_path / "learning_curve.png").std() > 0


def test_disabled_progress_bar_still_counts(monkeypatch):
    """TQDM_DISABLE disables it, which some users set for all programs."""
    bar = partial(log_module.Bar, disable=True)
    monkeypatch.setattr(log_module, "Bar", bar)
    sink = ProgressBar(9)
    sink.open(Progress(update=3))
    sink.update({"loss": 1.0}, 10.0)
    assert sink.n == 4 and "ETA" in sink.shown
    sink.close()


@pytest.mark.parametrize("updates", [3, 0])
def test_a_validation_that_is_repeated_has_one_line(tmp_path, monkeypatch, updates):
    """A crash before the checkpoint of a validation: at the end, after a save without a validation; or before all."""
    config = toy.config(max_updates=3, validate_every=9, save_every_minutes=1e-9 if updates else None)
    trainer = toy.trainer(tmp_path, config=config, pretrained=not updates)
    save = trainer.store.save

    def crash(model, optimizer, progress):
        if progress.validated:
            raise KeyboardInterrupt
        save(model, optimizer, progress)

    monkeypatch.setattr(trainer.store, "save", crash)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert toy.metrics(tmp_path) == [("valid", updates)]
    toy.trainer(tmp_path, config=config, pretrained=not updates).run()
    assert toy.metrics(tmp_path) == [("valid", update) for update in sorted({updates, 3})]


def test_speed_after_a_validation_is_that_before_it_until_two_updates_are_timed():
    """Ten tokens a second, then twenty; the time of the validation does not count."""
    speeds, now = [], 0.0
    sink = Sink()
    sink.update = lambda losses, tokens_per_second: speeds.append(tokens_per_second)
    log = Log([sink])
    for seconds, n_tokens in ((1, 10), (1, 10), (1, 10), (100, 20), (1, 20)):
        if seconds == 100:
            log.validation(Progress(), Validation({"loss": 1.0}))
        now += seconds
        log.update(Progress(update=1), {"loss": 1.0}, norm=1.0, rate=1.0, n_tokens=n_tokens, at=now)
    assert speeds == [0.0, 10.0, 10.0, 10.0, 20.0]


def test_custom_sink_receives_all_events(tmp_path, monkeypatch):
    """In order: its opening, every update, means of some, validations with their numbers, messages, and the end."""

    class Events(Sink):
        def __init__(self) -> None:
            self.events = []

        def open(self, progress):
            self.events.append(("open", progress.update))

        def update(self, losses, tokens_per_second):
            self.losses = losses
            self.events.append("update")

        def numbers(self, progress, kind, values):
            self.events.append((kind, progress.update))
            assert values["loss"] == pytest.approx(self.losses["loss"] if kind == "train" else -7.0)

        def validation(self, progress, validation):
            self.events.append(("validation", validation.score))

        def message(self, text):
            self.events.append(text)

        def close(self):
            self.events.append("close")

    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    own = Events()
    training = toy.trainer(tmp_path, sinks=[own], validate=toy.Scores([7.0]), config=toy.config(max_updates=2))
    training.run()
    training.log.message("a line")
    assert own.events == [
        ("open", 0), "update", ("train", 1), "update", ("train", 2), ("valid", 2), ("validation", 7.0), "close", "a line"
    ]  # fmt: skip


def test_speed_is_that_of_the_updates_though_a_validation_has_the_last_one_reported_early(tmp_path):
    speeds = []

    class Speeds(Sink):
        def update(self, losses, tokens_per_second):
            speeds.append(tokens_per_second)

    class Slow(CrossEntropy):
        def forward(self, batch):
            time.sleep(0.1)
            return super().forward(batch)

    config = toy.config(max_updates=2, validate_every=2)
    training = toy.trainer(tmp_path, objective=Slow(toy.model()), sinks=[Speeds()], config=config)
    training.run()
    assert 0 < speeds[1] < training.log.n_tokens / 0.1
