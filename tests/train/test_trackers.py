"""What tracking services receive from a training, as their own libraries read it."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.translation import SETTINGS
from tests.train import toy
from transduce.errors import InputError
from transduce.experiment.command import main
from transduce.train.state import Progress, Validation
from transduce.train.trackers import TRACKERS, Tracker

CONFIG = {"training": {f"field {i}": i for i in range(150)}, "log": ["wandb"]}
"""More fields than MLflow takes at once."""


BLOCK = 32768
"""Bytes of a block of LevelDB's log format, in which Weights & Biases writes."""


def records(path: Path) -> Iterator[bytes]:
    """The records of a file in that format, behind its 7 bytes of header."""
    raw, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        if BLOCK - at % BLOCK < 7:  # no room for a header
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + 7])
        record += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last part
            yield record
            record = b""


def wandb_numbers(directory: Path) -> dict[tuple[str, int], float]:
    """All numbers in the files of an offline run, by name and step."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for its process, which writes them
    numbers = {}
    for path in directory.glob("wandb/offline-run-*/*.wandb"):
        for history in (Record.FromString(record).history for record in records(path)):
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in history.item}
            numbers |= {(name, history.step.num): value for name, value in items.items()}
    return numbers


def mlflow_numbers(directory: Path) -> dict[tuple[str, int], float]:
    """All numbers in MLflow's store, by name and step."""
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.run_name == directory.name and run.data.params["training.field 149"] == "149"
    assert client.list_artifacts(run.info.run_id, "samples")[0].path == "samples/00000002.tsv"
    histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
    return {(metric.key, metric.step): metric.value for history in histories for metric in history}


@pytest.fixture(autouse=True)
def teardown_wandb():
    """Weights & Biases keeps the settings of its first run in a process, until it is torn down."""
    yield
    if library := sys.modules.get("wandb"):
        library.teardown()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The services' local modes."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr("transduce.train.log.EVERY", 1)


@pytest.mark.process  # the library of Weights & Biases starts one
@pytest.mark.filterwarnings("default")  # of the libraries
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("name", "numbers"), [("wandb", wandb_numbers), ("mlflow", mlflow_numbers)])
def test_tracker_receives_the_numbers_of_metrics_jsonl(name, numbers, tmp_path):
    """Also from a resumed training, which stays one run there."""
    pytest.importorskip(name)
    run = tmp_path / "run"
    samples = [("a", "b", "c")]

    def validate(model):
        return Validation({"loss": 2.5, "bleu": 41.5}, 41.5, samples)

    ids = set()
    for n in (2, 4):
        sinks = [TRACKERS[name](run, CONFIG)]
        toy.trainer(run, sinks=sinks, validate=validate, config=toy.config(max_updates=n, validate_every=2)).run()
        ids.add((run / f"{name}.id").read_text())
    assert len(ids) == 1
    want = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        values = {key: line[key] for key in ("loss", "rate", "gradient_norm", "bleu") if key in line}
        want |= {(f"{line['kind']}/{key}", line["update"]): value for key, value in values.items()}
    got = numbers(run)
    assert len(want) == 3 * 4 + 2 * 2 and {key: got[key] for key in want} == pytest.approx(want)


@pytest.mark.process
@pytest.mark.filterwarnings("default")  # of the libraries
@pytest.mark.parametrize(
    ("name", "reason"), [("wandb", "No API key configured"), ("mlflow", "API request to http://127.0.0.1:9/")]
)
def test_unreachable_tracker_is_a_one_line_error(name, reason, tmp_path, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InputError, match=f"^--log {name} must reach its service, but: {reason}"):
        TRACKERS[name](tmp_path, CONFIG).open(Progress())


def test_a_service_that_fails_later_does_not_end_the_training(tmp_path, caplog):
    calls = []

    class Service(Tracker):
        name = "service"

        def open(self, progress):
            self.log = self.finish = self.fail

        def fail(self, *arguments):
            calls.append(arguments)
            raise ConnectionError("gone")

    training = toy.trainer(tmp_path, sinks=[Service(tmp_path, {})])
    assert training.run().update == 30 and len(calls) == 1
    (warning,) = caplog.messages
    assert warning == (
        "--log service sends nothing more until the training is resumed, as its service failed: gone; "
        "metrics.jsonl has all numbers"
    )
    assert [update for _, update in toy.metrics(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("name", TRACKERS)
def test_missing_tracker_library_is_refused_before_reading_data(name, monkeypatch, capsys):
    monkeypatch.setattr("transduce.errors.find_spec", lambda library: library != name or None)
    code = main(pytest.fail, SETTINGS, default="commands", description="", arguments=["--log", name])
    assert code == 2
    assert capsys.readouterr().err == (
        f"transduce: --log {name} needs the library {name}, but it is not installed; in a clone of transduce: "
        f"pip install '.[{name}]'\n"
    )
