"""Directories as they are found: pickled weights, other names, settings that are missing, null or of another type."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interop.test_gpt2 import rival as gpt2
from tests.interop.test_llama import rival as llama
from transduce.cli.main import main
from transduce.errors import InputError
from transduce.files import read_json, read_weights
from transduce.interop import read_model
from transduce.interop.pretrained import read_settings
from transduce.interop.settings import SETTINGS

pytestmark = pytest.mark.usefixtures("transformers")

Harm = Callable[[Path], object]


def text_model(directory: Path, kind: str, **settings: Any) -> Any:
    """An encoder-decoder model with random weights, saved, and no tokenizer."""
    import transformers

    torch.manual_seed(0)
    halves = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in SIZES.items()}
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2} | settings
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=31, d_model=12, max_position_embeddings=20, init_std=0.3, **halves, **special
    )
    architecture = "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    model = getattr(transformers, architecture)(config).eval()
    model.save_pretrained(directory)
    return model


SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 17}
KINDS = {"bart": "Bart", "marian": "Marian", "pegasus": "Pegasus"}


def same_logits(ours: torch.nn.Module, theirs: Any, rng: torch.Generator) -> None:
    source, target = (torch.randint(3, 31, (2, 7), generator=rng) for _ in range(2))
    with torch.no_grad():
        want = theirs(input_ids=source, decoder_input_ids=target).logits
        got = ours(source=source, source_lengths=torch.tensor([7, 7]), target_in=target)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def rewrite(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Harm:
    def harm(directory: Path) -> None:
        path = directory / "model.safetensors"
        save_file({name: weight.clone() for name, weight in change(load_file(path)).items()}, path)

    return harm


def settings(**values: object) -> Harm:
    def harm(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return harm


def as_pickle(directory: Path, *, old: bool = False, shards: int = 1) -> None:
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = {name: f"part-{i % shards}.bin" for i, name in enumerate(weights)}
    for file in {*names.values()}:
        part = {name: weights[name] for name in weights if names[name] == file}
        path = directory / (file if shards > 1 else "pytorch_model.bin")
        torch.save(part, path, _use_new_zipfile_serialization=not old)
    if shards > 1:
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("form", [{}, {"old": True}, {"shards": 3}])
def test_pickled_weights_equal_those_of_safetensors(tmp_path, form):
    gpt2(tmp_path)
    want = read_model(tmp_path).state_dict()
    as_pickle(tmp_path, **form)
    got = read_model(tmp_path).state_dict()
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


class Code:
    """What a pickle runs where nothing stops it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            lambda path: {"x": Code(path)},
            "refuses it: unsupported GLOBAL posix.mkdir; take another copy, or model.safetensors",
        ),
        (lambda path: [torch.zeros(2)], "must hold dense tensors by name"),
        (lambda path: {"x": torch.zeros(2).to_sparse()}, "tensors"),
        (lambda path: {"x": torch.zeros(2, device="meta")}, "must hold dense tensors by name"),
        (lambda path: {"x": 1}, "must hold dense tensors by name"),
        (b"", "refuses it: EOFError; take another copy, or model.safetensors"),
        (b"PK\x03\x04 of something else", "must be a complete file with nothing but tensors"),
    ],
)
def test_other_pickles_are_refused_and_not_executed(tmp_path, content, reason):
    gpt2(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content(tmp_path / "run"), path)
    with pytest.raises(ValueError) as error:
        read_model(tmp_path)
    assert str(error.value).startswith(str(path)) and reason in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_missing_weights_error_names_the_files(tmp_path):
    gpt2(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError) as error:
        read_model(tmp_path)
    assert str(error.value) == (
        f"weights are read from model.safetensors or pytorch_model.bin, but {tmp_path} has neither; write them with "
        "transformers: AutoModel.from_pretrained(NAME).save_pretrained(DIRECTORY)"
    )


TIED = (
    "model.shared.weight",
    "model.decoder.embed_tokens.weight",
    "model.encoder.embed_tokens.weight",
    "lm_head.weight",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TIED)
def test_a_tied_table_may_be_stored_under_any_of_its_names(tmp_path, rng, kind, name):
    theirs = text_model(tmp_path, KINDS[kind])
    rewrite(lambda w: {n: w[n] for n in w if n not in TIED} | {name: next(w[n] for n in TIED if n in w)})(tmp_path)
    same_logits(read_model(tmp_path), theirs, rng)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_names_may_lack_the_model_prefix(tmp_path, rng, kind):
    theirs = text_model(tmp_path, KINDS[kind])
    rewrite(lambda w: {name.removeprefix("model."): w[name] for name in w})(tmp_path)
    same_logits(read_model(tmp_path), theirs, rng)


def test_language_models_may_lack_the_prefix_or_the_tied_table(tmp_path, rng):
    ids = torch.randint(53, (2, 9), generator=rng)
    for tied in (True, False):
        theirs = llama(tmp_path, "llama", tie_word_embeddings=tied)
        rewrite(lambda w: {name.removeprefix("model."): w[name] for name in w})(tmp_path)
        with torch.no_grad():
            torch.testing.assert_close(read_model(tmp_path)(target_in=ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    theirs = llama(tmp_path, "llama", tie_word_embeddings=True)
    rewrite(lambda w: {name.replace("model.embed_tokens", "lm_head"): w[name] for name in w})(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(read_model(tmp_path)(target_in=ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    text_model(tmp_path, "Bart")
    name = "model.encoder.layers.1.fc1.bias"
    rewrite(lambda w: w | {name: torch.full_like(w[name], value)})(tmp_path)
    with pytest.raises(ValueError) as error:
        read_model(tmp_path)
    assert str(error.value) == (
        f"weights must be finite numbers of float32, but in {tmp_path} {name} are not; take another copy"
    )


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            rewrite(lambda w: w | {"lm_head.weight": w["model.shared.weight"] + 1}),
            "lm_head.weight differs from model.shared",
        ),
        (rewrite(lambda w: w | {"score.weight": torch.zeros(2)}), "score.weight is unknown"),
        (settings(d_model="12"), "{}/config.json does not describe a BARTSettings: it must be a whole number, but it"),
        (settings(d_model=None), "it must be a whole number, but it is null @ $.d_model"),
        (settings(scale_embedding=1), "it must be true or false, but it is 1 @ $.scale_embedding"),
        (settings(dropout="0.1"), "it must be a number, but it is '0.1' @ $.dropout"),
        (settings(activation_function=["gelu"]), "it must be a string, but it is ['gelu'] @ $.activation_function"),
        (settings(eos_token_id="2"), "it must be a whole number, but it is '2' @ $.eos_token_id[0]"),
        (settings(encoder_layers=10**12), "n_layers must lie in [1, 1000]"),
    ],
)
def test_invalid_weights_and_settings_of_text_models_are_refused(tmp_path, harm, message):
    text_model(tmp_path, "Bart")
    harm(tmp_path)
    with pytest.raises(ValueError) as error:
        read_model(tmp_path)
    assert message.format(tmp_path) in str(error.value)


def test_learned_positions_are_not_read_as_sinusoids(tmp_path):
    text_model(tmp_path, "Pegasus")
    name = "model.encoder.embed_positions.weight"
    rewrite(lambda w: w | {name: torch.randn(20, 12)})(tmp_path)
    with pytest.raises(ValueError, match="positions must be sinusoids"):
        read_model(tmp_path)


WRITTEN_OTHERWISE = {
    *("rope_theta", "rope_parameters", "layer_types"),  # one is made of the other
    *("max_position_embeddings",),  # two names in speech
    "head_dim",  # null there until it is d_model / n_heads
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_defaults_equal_those_of_transformers(kind):
    import transformers

    config = transformers.AutoConfig.for_model(kind)
    for field in fields(SETTINGS[kind]):
        name, value = field.name, field.default
        if name in WRITTEN_OTHERWISE or value in (None, MISSING) or not hasattr(config, name):
            continue
        theirs = getattr(config, name)
        if name == "eos_token_id":
            theirs = () if theirs is None else (theirs,)
        if (kind, name) != ("mbart", "decoder_start_token_id"):  # null there, and generate names a language
            assert theirs == value or theirs == [*value], name


def test_settings_that_are_missing_have_their_defaults(tmp_path, rng):
    theirs = text_model(tmp_path, "Marian", scale_embedding=False, dropout=0.1, eos_token_id=0)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    for name in ("scale_embedding", "dropout", "attention_dropout", "activation_function", "eos_token_id"):
        del plain[name]
    path.write_text(json.dumps(plain))
    same_logits(read_model(tmp_path), theirs, rng)


WRONG: list[Any] = [None, "x", -1, 0, 1.5, True, [], [None], {}, 10**30]


@pytest.mark.parametrize("kind", ["bart", pytest.param("marian", marks=pytest.mark.long), "pegasus"])
def test_invalid_text_model_settings_raise_only_input_errors(tmp_path, kind):
    """Whatever a setting is, it is read or refused by an InputError: any other error would be a fault of ours."""
    text_model(tmp_path, KINDS[kind])
    plain = json.loads((tmp_path / "config.json").read_text())
    for name in (field.name for field in fields(SETTINGS[kind])):
        for value in WRONG if kind == "bart" else WRONG[:3]:
            (tmp_path / "config.json").write_text(json.dumps(plain | {name: value}))
            with suppress(InputError):
                read_model(tmp_path)


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(each, marks=pytest.mark.long) for each in ("qwen3", "phi3"))])
def test_invalid_language_model_settings_raise_only_input_errors(tmp_path, kind):
    llama(tmp_path, kind)
    plain = json.loads((tmp_path / "config.json").read_text())
    for name in (field.name for field in fields(SETTINGS[kind])):
        more = [{"rope_type": "llama3"}, {"rope_type": []}, {"type": "linear", "factor": "x"}] if "rope" in name else []
        for value in (*WRONG, *more):
            (tmp_path / "config.json").write_text(json.dumps(plain | {name: value}))
            with suppress(InputError):
                read_model(tmp_path)


@pytest.mark.parametrize("read", [read_json, read_weights])
def test_fifos_sockets_and_devices_are_refused_without_blocking(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for path in ("fifo", "socket", "/dev/zero"):
            with pytest.raises(ValueError) as error:
                read(Path(path))
            assert str(error.value) == (
                f"{path} must be a file, but it is a FIFO, a socket or a device; name another, or put a file in its "
                "place"
            )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json", "tokenizer.json"])
def test_a_fifo_among_the_model_files_does_not_block(tmp_path, capsys, name):
    gpt2(tmp_path / "theirs")
    (tmp_path / "theirs" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "theirs" / name)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_list_as_model_type_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": ["bart"]}))
    with pytest.raises(ValueError, match="model_type must be"):
        read_settings(tmp_path)
