"""A training that was interrupted and resumed ends with the same bits as one that was not."""

import json
import shutil
import signal
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train import toy
from transduce.data.parallel_text import ParallelText
from transduce.data.sentencepiece_bpe import train_tokenizer_pair
from transduce.data.text_batches import TextPairs
from transduce.model.config import StackConfig, Tokens
from transduce.model.transformer import Transformer
from transduce.train.host import StopRequest
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig
from transduce.train.state import Progress
from transduce.train.trainer import Trainer

UPDATES, LOOK = 12, 4


class PowerCut(Exception):
    """The process is gone."""


class Interrupted(CrossEntropy):
    """When it works on this update, a signal comes or the power goes."""

    def __init__(self, model: Transformer, update: int | None, how: signal.Signals | None) -> None:
        super().__init__(model)
        self.update, self.how = update, how

    def forward(self, batch):
        if self.progress().update + 1 == self.update:
            self.update = None  # once
            if self.how is None:
                raise PowerCut
            signal.raise_signal(self.how)
        return super().forward(batch)


@pytest.fixture(scope="module", autouse=True)
def lean_log():
    """A line in metrics.jsonl after every 5 updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transduce.train.log.EVERY", 5)
        yield


@pytest.fixture(scope="module")
def data() -> TextPairs:
    lines = [f"{'the cat sat on a mat '[: 5 + i % 11]} number {i}" for i in range(40)]
    text = ParallelText(lines, [line[::-1] for line in lines])
    pairs = TextPairs(
        text,
        *train_tokenizer_pair(lines, text.target, vocab_size=300, joint=True),
        tokens_per_batch=130,
    )
    sizes = [len(pairs.epoch(n)) for n in range(8)]
    assert min(sizes) > 3 and any(n % 2 for n in sizes)  # the last update of some epoch has one batch, not two
    assert 3 * max(sizes) / 2 < UPDATES  # several epochs
    return pairs


def training(
    directory: Path, data: TextPairs, *, update: int | None = None, how=None, updates: int = UPDATES
) -> Trainer:
    small = toy.model(dropout=0.3).config
    stack = StackConfig(input=Tokens(vocab_size=data.source_tokenizer.vocab_size), n_layers=1)
    torch.manual_seed(3)
    model = Transformer(replace(small, encoder=stack, decoder=stack))
    objective = Interrupted(model, update, how)
    config = toy.config(
        max_updates=updates,
        validate_every=LOOK,
        accumulate=2,
        keep_last=2,
        keep_best=1,
        optim=OptimConfig(peak_rate=1e-2, weight_decay=0.1),
    )
    trainer = toy.trainer(directory, objective=objective, data=data, config=config)
    objective.progress = lambda: trainer.progress
    return trainer


def adam(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.optimizer.state_dict()["state"]
    return {f"{i}.{key}": tensor for i, values in state.items() for key, tensor in values.items()}


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory) -> tuple[Trainer, Progress]:
    trainer = training(tmp_path_factory.mktemp("straight"), data)
    return trainer, trainer.run()


def same_end(one: tuple[Trainer, Progress], other: tuple[Trainer, Progress]) -> None:
    assert toy.same(toy.weights(one[0].model), toy.weights(other[0].model))
    assert toy.same(adam(one[0]), adam(other[0]))
    assert replace(one[1], seconds=0.0) == replace(other[1], seconds=0.0)
    directories = [trainer.store.directory.parent for trainer, _ in (one, other)]
    assert toy.metrics(directories[0]) == toy.metrics(directories[1])
    for name in ("samples", "checkpoints"):
        assert len({tuple(sorted(p.name for p in (d / name).iterdir())) for d in directories}) == 1


def test_other_seeds_give_other_weights(straight, data, tmp_path):
    """Dropout and order do matter: other randomness, other weights."""
    directory = straight[0].store.directory.parent
    assert toy.metrics(directory) == [("valid", 4), ("train", 5), ("valid", 8), ("train", 10), ("valid", 12)]
    then = load_file(directory / "checkpoints" / "00000008" / "model.safetensors")
    for name, change in (("again", {}), ("seed", {"seed": 1})):
        changed = copy(data)
        for field, value in change.items():
            setattr(changed, field, value)
        other = training(tmp_path / name, changed, updates=8)
        other.run()
        assert toy.same(then, toy.weights(other.model)) == (name == "again")


MORE = [(signal.SIGINT, 1), (signal.SIGINT, 6), (None, 4), (None, 10)]


@pytest.mark.parametrize(
    ("how", "update"),
    [
        *((signal.SIGINT, 4), (signal.SIGINT, 12), (signal.SIGTERM, 7), (None, 1), (None, 5)),
        *(pytest.param(*some, marks=pytest.mark.train) for some in MORE),
    ],
)
def test_training_after_one_interruption_is_bitwise_equal(straight, data, tmp_path, update, how):
    with pytest.raises(PowerCut if how is None else KeyboardInterrupt):
        training(tmp_path, data, update=update, how=how).run()
    again = training(tmp_path, data)
    saved = again.store.newest()
    on_disk = 0 if saved is None else int(saved.name)
    assert on_disk == ((update - 1) // LOOK * LOOK if how is None else update)  # a signal waits for the update's end
    same_end(straight, (again, again.run()))


def test_training_after_many_interruptions_is_bitwise_equal(straight, data, tmp_path):
    for update in (2, 3, 4, 9, 11):
        with pytest.raises(KeyboardInterrupt):
            training(tmp_path, data, update=update, how=signal.SIGINT).run()
    last = training(tmp_path, data)
    same_end(straight, (last, last.run()))


def test_crashed_training_resumes_from_timed_checkpoints(straight, data, tmp_path):
    """Here after every update."""

    def often(update: int | None = None) -> Trainer:
        trainer = training(tmp_path, data, update=update)
        trainer.config = replace(trainer.config, save_every_minutes=1e-9)
        return trainer

    for update, kept in ((3, [2]), (7, [4, 6])):
        with pytest.raises(PowerCut):
            often(update).run()
        assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == kept
    again = often()
    same_end(straight, (again, again.run()))


def test_resuming_a_finished_training_changes_nothing(straight, data, tmp_path):
    shutil.copytree(straight[0].store.directory.parent, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    again = training(tmp_path, data)
    same_end(straight, (again, again.run()))
    assert before == {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}


def test_more_updates_continue_a_finished_training(straight, data, tmp_path):
    training(tmp_path, data, updates=6).run()
    longer = training(tmp_path, data)
    assert [update for update, _ in longer.run().validations] == [4, 6, 8, 12]
    assert toy.same(toy.weights(straight[0].model), toy.weights(longer.model))


@pytest.mark.parametrize("choice", [{"layer_decay": 0.5}, {"optimizer": "muon"}], ids=str)
def test_layer_decay_and_muon_resume_bitwise(data, tmp_path, choice):
    def trainer(name: str, **more) -> Trainer:
        got = training(tmp_path / name, data, updates=8, **more)
        config = replace(got.config, optim=replace(got.config.optim, **choice))
        return toy.trainer(tmp_path / name, objective=got.objective, data=data, config=config)

    straight, first = trainer("a"), trainer("b", update=5, how=signal.SIGINT)
    straight.objective.progress, first.objective.progress = lambda: straight.progress, lambda: first.progress
    straight.run()
    with pytest.raises(KeyboardInterrupt):
        first.run()
    again = trainer("b")
    again.objective.progress = lambda: again.progress
    again.run()
    assert toy.same(toy.weights(straight.model), toy.weights(again.model))
    assert toy.same(adam(straight), adam(again))


@pytest.fixture(scope="module")
def stopped_at_10(data, tmp_path_factory) -> Path:
    """A training that was stopped after 10 updates; it is read only."""
    directory = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        training(directory, data, update=10, how=signal.SIGINT).run()
    return directory


@pytest.fixture
def stopped(stopped_at_10, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(stopped_at_10, tmp_path / "run")


def test_a_torn_last_line_of_metrics_is_dropped(straight, data, stopped):
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 12, "kind": "valid", "loss": 1.0}) + "\n")  # of an update to be repeated
        file.write('{"update": 12, "ki')
    again = training(stopped, data)
    same_end(straight, (again, again.run()))


def test_training_time_adds_up_over_resumes(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, data, update=5, how=signal.SIGINT).run()
    state = json.loads((tmp_path / "checkpoints" / "00000005" / "state.json").read_text())
    assert state["seconds"] > 0
    state["seconds"] = 100.0
    (tmp_path / "checkpoints" / "00000005" / "state.json").write_text(json.dumps(state))
    (tmp_path / "checkpoints" / "00000005" / "manifest.json").unlink()
    again = training(tmp_path, data, updates=6)
    assert again.run().seconds > 100
    again.config = replace(again.config, max_minutes=1.0, max_updates=99)
    assert again.run().update == 6  # the hundred seconds count


def test_leftovers_of_killed_saves_are_removed_and_other_files_kept(straight, data, stopped):
    """Hidden directories, superfluous checkpoints and optimizer files are removed; files with other names stay."""
    folder = stopped / "checkpoints"
    strangers = {"00000008.bak", "00000007 copy", "7", ".hidden", ".00000004.tmp.mine"}
    for name in {".00000012.tmp", ".00000004.old", "00000005", *strangers}:
        (folder / name).mkdir()
        (folder / name / "optimizer.safetensors").write_bytes(b"half")
    (folder / "00000040").write_text("no directory")
    (folder / "00000004" / "optimizer.safetensors").touch()
    again = training(stopped, data)
    assert again.store.resume(again.model, again.optimizer).update == 10
    there = {path.name for path in folder.iterdir()} - {"00000040"}
    assert there == {"00000004", "00000008", "00000010", *strangers}
    with_optimizer = [u for u in (4, 8, 10) if (folder / f"{u:08d}" / "optimizer.safetensors").exists()]
    assert with_optimizer == [8, 10]
    again.run()
    (folder / "00000040").unlink()
    for name in strangers:
        assert [path.read_bytes() for path in (folder / name).iterdir()] == [b"half"]
        (folder / name / "optimizer.safetensors").unlink()
        (folder / name).rmdir()
    same_end(straight, (again, again.progress))


CUT, GARBLED, GONE = (lambda content: content[:-9]), (lambda content: content[:-9] + b"?" + content[-8:]), None


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", GARBLED),
        ("model.safetensors", GONE),
        ("optimizer.safetensors", CUT),
        ("state.json", GARBLED),
        ("manifest.json", CUT),
    ],
)
def test_damaged_checkpoint_falls_back_to_the_previous_one(data, stopped, capsys, name, damage):
    damage_file(stopped / "checkpoints" / "00000010" / name, damage)
    again = training(stopped, data)
    assert again.store.resume(again.model, again.optimizer).update == 8
    saved = load_file(stopped / "checkpoints" / "00000008" / "model.safetensors")
    assert toy.same(toy.weights(again.model), saved)
    assert capsys.readouterr().err == (
        f"checkpoint {stopped / 'checkpoints' / '00000010'} is damaged: {name} is missing or not as it was written: "
        "going on from the one before, 00000008\n"
    )


def test_resume_from_the_previous_checkpoint_is_bitwise_equal(straight, data, stopped):
    damage_file(stopped / "checkpoints" / "00000010" / "model.safetensors", GARBLED)
    again = training(stopped, data)
    same_end(straight, (again, again.run()))


def damage_file(path: Path, damage) -> None:
    """Change the content of a file, or remove it."""
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))


def test_resume_without_an_undamaged_checkpoint_changes_no_file(data, stopped):
    folder = stopped / "checkpoints"
    for update in (8, 10):
        damage_file(folder / f"{update:08d}" / "state.json", GARBLED)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(ValueError) as caught:
        training(stopped, data).run()
    assert str(caught.value) == (
        "a training resumes from an undamaged checkpoint with its optimizer, but there is none: "
        f"checkpoint {folder / '00000010'} "
        f"is damaged: state.json is missing or not as it was written; move {folder} away to begin again, or "
        f"--start-from {stopped} to go on from its weights"
    )
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_resume_from_checkpoints_without_manifests(straight, data, stopped):
    for path in stopped.rglob("manifest.json"):
        path.unlink()
    (stopped / "checkpoints" / "00000008" / "optimizer.safetensors").unlink()
    again = training(stopped, data)
    assert again.store.newest().name == "00000010"
    same_end(straight, (again, again.run()))


def test_second_signal_interrupts_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_closed_terminals_request_a_stop_but_nohup_ignores_them():
    """The kernel and the shell each send SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGHUP, handler)
            with StopRequest() as stop:
                for _ in range(2):
                    signal.raise_signal(signal.SIGHUP)
            assert stop.requested == (handler == signal.SIG_DFL)
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)
