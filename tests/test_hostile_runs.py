"""Run directories that somebody else made, or broke: each is refused by a ValueError that names the file and the value.

What a file declares is checked before anything is allocated, so no case takes memory or time.
"""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import transduce as td
from tests.language_runs import any_tokenizer, language_run
from tests.runs import FEATURES, random_run, random_speech_run
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.experiment.run import validated_checkpoints
from transduce.run import read_metrics
from transduce.train.optim import OptimConfig, optimizer
from transduce.train.state import Progress, Store

Break = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """Runs that work, by kind."""
    folder = tmp_path_factory.mktemp("whole")
    config = FeatureConfig(**(to_dict(FEATURES) | {"normalize": "global"}))
    extractor = FeatureExtractor(config, mean=torch.zeros(10), std=torch.ones(10))
    runs = {
        "text": random_run(folder / "text"),
        "speech": random_speech_run(folder / "speech", extractor),
        "letters": language_run(folder / "letters"),
        "bytes": language_run(folder / "bytes", "bytes"),
    }
    for directory in runs.values():
        td.load(directory)
    return runs


def config(*path: str | int, value: object) -> Break:
    """Put this value somewhere into config.json; json writes NaN and Infinity as Python does."""

    def change(directory: Path) -> None:
        file = directory / "config.json"
        plain = at = json.loads(file.read_text())
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value
        file.write_text(json.dumps(plain))

    return change


def without(*path: str) -> Break:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        plain = at = json.loads(file.read_text())
        for name in path[:-1]:
            at = at[name]
        del at[path[-1]]
        file.write_text(json.dumps(plain))

    return change


def file(name: str, content: str | bytes) -> Break:
    return lambda directory: (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)


def nested(depth: int) -> Break:
    """An experiment whose fields lie that deep."""

    def change(directory: Path) -> None:
        config("experiment", value="HERE")(directory)
        text = (directory / "config.json").read_text()
        (directory / "config.json").write_text(text.replace('"HERE"', '{"a": ' * depth + "1" + "}" * depth))

    return change


def weights(change: Callable[[dict[str, np.ndarray]], object], name: str = "model.safetensors") -> Break:
    def rewrite(directory: Path) -> None:
        got = safetensors.numpy.load_file(directory / name)
        change(got)
        safetensors.numpy.save_file(got, directory / name)

    return rewrite


def first(got: dict[str, np.ndarray]) -> str:
    return min(got)


def header(text: str) -> Break:
    """A safetensors file with this header and a few bytes of numbers."""
    return file("model.safetensors", len(text).to_bytes(8, "little") + text.encode() + bytes(16))


BIG = 10**15
NORM = "decoder.layers.0.attention_sublayer.norm.bias"
MODEL, CONFIG, TOKENIZER, STATISTICS = "model.safetensors", "config.json", "tokenizer.model", "features.safetensors"

CASES: dict[str, tuple[str, Break, str, str]] = {
    # what is broken: of which run, how, the file that is named, what else is told
    "d_model of 1e15": ("text", config("model", "d_model", value=BIG), CONFIG, "one weight of this one has 2**63 bytes"),
    "d_ff of 1e15": ("text", config("model", "d_ff", value=BIG), MODEL, "it describes 2,056,"),
    "n_layers of 1e15": (
        "text", config("model", "encoder", "n_layers", value=BIG), CONFIG, f"[1, 1000], but n_layers={BIG}"),
    "n_experts of 1e15": ("text", config("model", "n_experts", value=BIG), CONFIG, f"n_experts={BIG}"),
    "vocab_size of 1e15": (
        "text", config("model", "decoder", "input", "vocab_size", value=BIG), CONFIG, "tie='all' needs one vocabulary"),
    "vocab_size of 1e15 in a decoder alone": (
        "letters", config("model", "decoder", "input", "vocab_size", value=BIG), "", f"the model, which has {BIG}"),
    "max_positions of 1e15": ("text", config("model", "max_positions", value=BIG), "", "a model must fit into memory"),
    "a window of 1e15": ("text", config("model", "window", value=BIG), CONFIG, f"[1, 1000000], but window={BIG}"),
    "a first position of 1e40": (
        "text", config("model", "first_position", value=10**40), CONFIG, f"first_position={10**40}"),
    "a head of 1e15": ("text", config("model", "head_width", value=BIG), MODEL, "it describes "),
    "a multiple of 1e15": ("letters", config("model", "decoder", "input", "multiple", value=BIG), MODEL, "it describes "),
    "a stack of 1e15": ("speech", config("model", "encoder", "input", "stack", value=BIG), MODEL, "it describes "),
    "a sample rate of 1e15": ("speech", config("features", "sample_rate", value=BIG), CONFIG, f"sample_rate={BIG}"),
    "1e15 mel bands": ("speech", config("features", "n_mels", value=BIG), CONFIG, f"n_mels={BIG}"),
    "a frame of 1e15 s": ("speech", config("features", "frame", value=1e15), CONFIG, "frame=1000000000000000.0"),
    "a beam of 1e9": (
        "text", config("experiment", "decoding", value={"beam_size": 10**9}), CONFIG, "[1, 1000], but beam_size=1000000000"),
    "a string for an int": (
        "text", config("model", "d_model", value="128"), CONFIG, "must be a whole number, but it is '128' @ $.d_model"),
    "a bool for an int": ("text", config("model", "n_heads", value=True), CONFIG, "but it is true @ $.n_heads"),
    "a float for an int": ("text", config("model", "d_ff", value=2.5), CONFIG, "but it is 2.5 @ $.d_ff"),
    "an int for a bool": ("text", config("model", "gated", value=1), CONFIG, "true or false, but it is 1 @ $.gated"),
    "null for an int": ("text", config("model", "d_model", value=None), CONFIG, "but it is null @ $.d_model"),
    "a number beyond floats": ("text", config("model", "dropout", value=10**400), CONFIG, "too large for a float"),
    "NaN": ("text", config("model", "dropout", value=float("nan")), CONFIG, "it has NaN"),
    "infinity": ("text", config("model", "norm_eps", value=float("inf")), CONFIG, "norm_eps=inf"),
    "no such choice": ("text", config("model", "tie", value="some"), CONFIG, "some not in literal"),
    "a list for a choice": ("text", config("model", "tie", value=["all"]), CONFIG, "['all'] not in literal"),
    "a list for a stack": ("text", config("model", "encoder", value=[1]), CONFIG, "must be an object @ $.encoder"),
    "a list for the model": ("text", config("model", value=[]), CONFIG, "an object 'model', but it is []"),
    "a string for the experiment": ("text", config("experiment", value="x"), CONFIG, "'experiment', but it is 'x'"),
    "a list for the features": ("speech", config("features", value=[3]), CONFIG, "must be an object, but it is [3]"),
    "a list for the search": ("text", config("experiment", "decoding", value=[3]), CONFIG, "an object, but it is [3]"),
    "a list for everything": ("text", file(CONFIG, "[1, 2]"), CONFIG, "a JSON object, but it holds a list"),
    "both inputs at once": (
        "text", config("model", "encoder", "input", value={"vocab_size": 5, "n_features": 5}), CONFIG, "(vocab_size)"),
    "a field missing": ("text", without("model", "encoder", "input"), CONFIG, "required field missing @ $.encoder.input"),
    "a field unknown": ("text", config("model", "ghost", value=1), CONFIG, "extra fields found (ghost)"),
    "the features missing": ("speech", without("features"), CONFIG, "a transcriber needs features"),
    "an empty config": ("text", file(CONFIG, ""), CONFIG, "Expecting value"),
    "a config that is not UTF-8": ("text", file(CONFIG, b'{"model": "\xff"}'), CONFIG, "can't decode byte 0xff"),
    "a config 100,000 deep": ("text", nested(100_000), CONFIG, "must be JSON"),
    "an odd format": ("text", config("format", value=[[BIG] * 9]), CONFIG, "must have format 1"),
    "no weights": ("text", lambda d: (d / MODEL).unlink(), "", f"neither {MODEL} nor a checkpoint"),
    "weights of garbage": ("text", file(MODEL, b"\x80\x04garbage" * 99), MODEL, "is not a whole safetensors file"),
    "weights of no bytes": ("text", file(MODEL, b""), MODEL, "is not a whole safetensors file"),
    "weights torn": ("text", lambda d: (d / MODEL).write_bytes((d / MODEL).read_bytes()[:999]), MODEL, "not a whole"),
    "weights that declare 300 GB": (
        "text", header('{"a":{"dtype":"F32","shape":[75000000000],"data_offsets":[0,300000000000]}}'), MODEL, "not a whole"),
    "a header that declares 300 GB": (
        "text", file(MODEL, (300 * 10**9).to_bytes(8, "little") + b"{}"), MODEL, "is not a whole safetensors file"),
    "a weight of another shape": (
        "text", weights(lambda w: w.update({NORM: w[NORM][:-1]})), MODEL, f"{NORM} is (127,) instead of (128,)"),
    "a weight missing": ("text", weights(lambda w: w.pop(NORM)), MODEL, f"{NORM} is missing"),
    "a weight unknown": ("text", weights(lambda w: w.update(ghost=np.zeros(1))), MODEL, "ghost is unknown"),
    "weights of whole numbers": (
        "text", weights(lambda w: w.update({NORM: w[NORM].astype("int64")})), MODEL, f"{NORM} is of torch.int64"),
    "a weight of truths": (
        "text", weights(lambda w: w.update({NORM: w[NORM] > 0})), MODEL, f"{NORM} is of torch.bool"),
    "a tokenizer of garbage": ("text", file(TOKENIZER, b"garbage"), TOKENIZER, "this is not a SentencePiece model"),
    "a tokenizer of no bytes": ("text", file(TOKENIZER, b""), TOKENIZER, "this is not a SentencePiece model"),
    "a tokenizer of another size": (
        "text", file(TOKENIZER, SentencePieceTokenizer.train(["a b c d"], vocab_size=270).model), "", "which has 330"),
    "no tokenizer": ("text", lambda d: (d / TOKENIZER).unlink(), "", "a run needs a tokenizer"),
    "characters of garbage": ("letters", file("characters.json", b"\xff{"), "characters.json", "characters must come as"),
    "characters in a list": ("letters", file("characters.json", '["a"]'), "characters.json", "characters must come as"),
    "characters 100,000 deep": ("letters", file("characters.json", "[" * 100_000), "characters.json", "must come as"),
    "characters of another size": ("letters", file("characters.json", '{"characters": "ab"}'), "", "but that of"),
    "a byte BPE of garbage": ("bytes", file("tokenizer.json", b"\xff"), "tokenizer.json", "one of the library tokenizers"),
    "a byte BPE of no bytes": ("bytes", file("tokenizer.json", b""), "tokenizer.json", "one of the library tokenizers"),
    "a tokenizer of another kind": (
        "text", lambda d: ((d / TOKENIZER).unlink(), (d / "characters.json").write_bytes(any_tokenizer("characters").model)),
        "", "which has 330"),
    "statistics of another size": (
        "speech", weights(lambda w: w.update(mean=w["mean"][:3]), STATISTICS), STATISTICS, "mean has (3,)"),
    "statistics missing": ("speech", weights(lambda w: w.pop("std"), STATISTICS), STATISTICS, "std has None"),
    "statistics of NaN": ("speech", weights(lambda w: w["std"].fill(np.nan), STATISTICS), STATISTICS, "must be finite"),
    "statistics of garbage": ("speech", file(STATISTICS, b"garbage"), STATISTICS, "is not a whole safetensors file"),
    "features of another size": (
        "speech", lambda d: (config("features", "normalize", value="none")(d), config("features", "deltas", value=1)(d)),
        CONFIG, "the model takes 10 features a frame, but those of"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "harm", "named", "reason"), CASES.values(), ids=CASES)
def test_a_broken_run_is_refused_by_file_and_value(whole, tmp_path, kind, harm, named, reason):
    directory = tmp_path / "run"
    shutil.copytree(whole[kind], directory)
    harm(directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError) as caught:
        td.load(directory)
    message = str(caught.value)
    assert reason in message and str(directory / named if named else "") in message
    assert len(message) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


@pytest.mark.parametrize(
    "name", ["d_ff of 1e15", "a config 100,000 deep", "weights of garbage", "a tokenizer of garbage", "NaN"]
)
@pytest.mark.parametrize("command", ["describe", "translate"])
def test_commands_refuse_a_broken_run_in_one_line(whole, tmp_path, capsys, command, name):
    kind, harm, _, reason = CASES[name]
    directory = tmp_path / "run"
    shutil.copytree(whole[kind], directory)
    harm(directory)
    (tmp_path / "in.txt").write_text("a b\n")
    files = [str(tmp_path / "in.txt"), "--device", "cpu"] if command == "translate" else []
    code = main([command, str(directory), *files])
    out, err = capsys.readouterr()
    if (command, name) == ("describe", "d_ff of 1e15"):  # it says what the directory holds, and builds no model
        assert code == 0 and "d_ff = 1000000000000000" in out
        return
    assert code == 2 and out == "" and reason in err
    assert err.startswith("transduce: ") and err.count("\n") == 1


def checkpoint(directory: Path, state: str | None = None) -> tuple[Store, torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    store = Store(directory, keep_last=1, keep_best=1)
    adam = optimizer(model, OptimConfig())
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    store.save(model, adam, Progress(update=5, validations=[(5, 1.0)]))
    (directory / "checkpoints" / "00000005" / "manifest.json").unlink()  # who breaks it may leave that out
    if state is not None:
        (directory / "checkpoints" / "00000005" / "state.json").write_text(state)
    return store, model, adam


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "it holds a list"),
        ('{"update": "5"}', "it must be a whole number, but it is '5' @ $.update"),
        ('{"validations": [[5, NaN]]}', "it has NaN"),
        ('{"validations": {"5": 1}}', "validations"),
        ('{"validations": [5]}', "validations"),
    ],
)
def test_resume_refuses_a_broken_state(tmp_path, state, reason):
    store, model, adam = checkpoint(tmp_path, state)
    path = tmp_path / "checkpoints" / "00000005" / "state.json"
    with pytest.raises(ValueError) as caught:
        store.resume(model, adam)
    assert str(path) in str(caught.value) and reason in str(caught.value)
    with pytest.raises(ValueError) as again:
        validated_checkpoints(tmp_path, best=True)
    assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("name", ["99.exp_avg", "x.exp_avg", "-1.step", "exp_avg"])
def test_resume_refuses_a_foreign_optimizer_state(tmp_path, name):
    store, model, adam = checkpoint(tmp_path)
    path = tmp_path / "checkpoints" / "00000005" / "optimizer.safetensors"
    safetensors.numpy.save_file({name: np.zeros(3)}, path)
    with pytest.raises(ValueError) as caught:
        store.resume(model, adam)
    assert str(caught.value) == f"{path} must hold the optimizer's state of this model, but it has {name!r}"


def test_invalid_lines_of_metrics_are_skipped(whole, tmp_path, capsys):
    """Torn, of another kind, deep, not UTF-8; a number that was not finite is null."""
    directory = tmp_path / "run"
    shutil.copytree(whole["text"], directory)
    good = b'{"kind": "valid", "update": 5, "loss": 2.5, "bleu": null}\n'
    bad = b'5\n[]\n{"kind": \n{}\n\xff\xfe\n' + b"[" * 100_000 + b"\nnull\n"
    (directory / "metrics.jsonl").write_bytes(bad + good + bad)
    lines = [line for line in read_metrics(directory) if line]
    assert lines == [{"kind": "valid", "update": 5, "loss": 2.5, "bleu": None}]
    assert main(["describe", str(directory)]) == 0
    assert "last validation: update 5, loss 2.5\n" in capsys.readouterr().out


GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 5, "n_positions": 9}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "[1]", "it holds a list"),
        ("config.json", "[" * 100_000, "must be JSON"),
        ("config.json", GPT2 | {"n_embd": "8"}, "it must be a whole number, but it is '8' @ $.n_embd"),
        ("config.json", GPT2 | {"vocab_size": [3]}, "it must be a whole number, but it is [3] @ $.vocab_size"),
        ("config.json", GPT2 | {"n_embd": 1000000000000000, "n_head": 1}, "has neither; write them"),
        ("config.json", GPT2 | {"activation_function": ["gelu"]}, "@ $.activation_function"),
        ("config.json", {"model_type": "gpt2"}, "required field missing @ $.n_embd"),
        ("config.json", json.dumps(GPT2).replace(": 5", ": NaN"), "it has NaN"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../../x"}}', "to files beside it"),
        ("model.safetensors.index.json", '{"weight_map": 5}', "to files beside it"),
    ],
)
def test_import_refuses_a_broken_gpt2(tmp_path, capsys, name, content, reason):
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["import", str(tmp_path), str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert reason in err and str(tmp_path) in err
    assert err.startswith("transduce: ") and err.count("\n") == 1
