"""A run directory: written whole, read whole, refused with a reason."""

import ast
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import transduce
from tests.runs import LITTLE, random_run
from transduce.config import differences, flatten, from_dict, to_dict
from transduce.data.features import FeatureConfig, FeatureExtractor, VectorConfig, VectorReader
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.files import save_weights, write_directory, write_file
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.presets import transformer_base, transformer_big, transformer_tiny
from transduce.model.transformer import Transformer
from transduce.run import Run, load_model, load_run, save_run, weights_path

TEXT = ["one two three", "two three four", "drei vier eins"]


def tiny(**changes) -> TransformerConfig:
    stack = StackConfig(input=Tokens(vocab_size=11), n_layers=1)
    return TransformerConfig(**({"encoder": stack, "decoder": stack, "d_model": 8, "n_heads": 2, "d_ff": 12} | changes))


def saved(directory: Path, config: TransformerConfig, seed: int = 1) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(config)
    save_run(directory, Run(config, {"seed": seed}, None, None))
    save_weights(directory / "model.safetensors", model)
    return model


def logits(model: Transformer) -> torch.Tensor:
    source = torch.arange(10).view(2, 5) + 1 if isinstance(model.config.encoder.input, Tokens) else torch.ones(2, 5, 4)
    with torch.no_grad():
        return model.eval()(
            source=source, source_lengths=torch.tensor([5, 3]), target_in=torch.tensor([[2, 5], [2, 7]])
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"tie": "all"},
        {"tie": "output"},
        {"tie": "none"},
        {"positions": "learned", "norm_position": "pre"},
        {"encoder": StackConfig(input=Frames(n_features=4, stack=2), n_layers=1)},
    ],
    ids=str,
)
def test_a_saved_model_computes_the_same(tmp_path, changes):
    model = saved(tmp_path, tiny(**changes))
    again = load_model(tmp_path)
    assert again.config == model.config and not again.training
    assert torch.equal(logits(again), logits(model))
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tables = 3 - ["none", "output", "all"].index(model.config.tie) - isinstance(model.config.encoder.input, Frames)
    assert sum(tensor.shape == (11, 8) for tensor in stored.values()) == tables  # a shared one is stored once


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def test_a_damaged_weight_file_is_refused_by_name(tmp_path):
    saved(tmp_path, tiny())
    damaged(tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        load_model(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'model.safetensors'} is not a whole safetensors file: ")
    assert message.endswith("; copy it again, or, if its run has checkpoints, remove it to use those")


def test_missing_weights_are_refused(tmp_path):
    save_run(tmp_path, Run(tiny(), {}, None, None))
    with pytest.raises(ValueError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"a run needs weights, but {tmp_path} has neither model.safetensors nor a checkpoint; train it first"
    )


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"but {tmp_path / 'rum'} does not exist; name another run"):
        weights_path(tmp_path / "rum")


def test_mismatched_weights_are_listed(tmp_path):
    model = saved(tmp_path, tiny())
    weights = {name: p.detach() for name, p in model.named_parameters()}
    first, second = list(weights)[:2]
    shape = tuple(weights[second].shape)
    del weights[first]
    weights[second], weights["ghost"] = torch.zeros(3, 2), torch.zeros(1)
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"weights must fit the configuration, but in {tmp_path / 'model.safetensors'} {first} is missing; "
        f"ghost is unknown; {second} is (3, 2) instead of {shape}"
    )


def test_a_directory_without_a_valid_config_is_refused(tmp_path):
    for directory, what in (
        (tmp_path, "has no config.json; copy the whole run directory, or name another"),
        (tmp_path / "nowhere", "does not exist; a recipe makes one (--run DIRECTORY)"),
    ):
        with pytest.raises(ValueError) as caught:
            load_run(directory)
        assert str(caught.value) == f"a run directory holds config.json, but {directory} {what}"
    (tmp_path / "config.json").write_text('{"format": 1, "model": {}}')
    with pytest.raises(ValueError) as caught:
        load_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'} must have an object 'experiment', but it has none; copy the whole run directory again"
    )


@pytest.mark.parametrize("joint", [True, False])
def test_shared_or_separate_tokenizers_are_restored(tmp_path, joint):
    one = SentencePieceTokenizer.train(TEXT, vocab_size=290)
    other = one if joint else SentencePieceTokenizer.train(TEXT[:2], vocab_size=280)
    halves = [StackConfig(input=Tokens(vocab_size=side.vocab_size), n_layers=1) for side in (one, other)]
    save_run(tmp_path, Run(tiny(encoder=halves[0], decoder=halves[1]), {"a": {"b": 1, "c": np.inf}}, one, other))
    run = load_run(tmp_path)
    assert run.experiment == {"a": {"b": 1, "c": np.inf}}
    assert (run.source_tokenizer is run.target_tokenizer) == joint
    assert (run.source_tokenizer.model, run.target_tokenizer.model) == (one.model, other.model)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_non_finite_weights_are_refused(tmp_path, wrong):
    directory = random_run(tmp_path / "run")
    path = directory / "model.safetensors"
    weights = safetensors.numpy.load_file(path)
    weights["encoder.layers.0.attention.qkv.bias"][3] = wrong
    safetensors.numpy.save_file(weights, path)
    with pytest.raises(ValueError) as caught:
        load_model(directory)
    assert str(caught.value) == (
        f"weights must be finite, but in {path} encoder.layers.0.attention.qkv.bias are not; take an earlier "
        f"checkpoint: transduce average {directory} --best 1"
    )


@pytest.mark.parametrize(
    ("fields", "got"),
    [({}, "format 0 of transduce 0.1"), ({"format": 7, "transduce": "2.3.1"}, "format 7 of transduce 2.3.1")],
    ids=["before formats", "a later one"],
)
def test_another_format_is_refused_with_its_version(tmp_path, fields, got):
    save_run(tmp_path, Run(tiny(), {}, None, None))
    path, own = tmp_path / "config.json", version("transduce")
    plain = json.loads(path.read_text())
    assert (plain.pop("format"), plain.pop("transduce")) == (1, own)
    path.write_text(json.dumps(plain | fields))
    with pytest.raises(ValueError) as caught:
        load_run(tmp_path)
    assert str(caught.value) == (
        f"{path} must have format 1, which transduce {own} reads, but it has {got}; use the source of that version for "
        "it, or train the run again"
    )


def test_write_file_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_file(path, "old ü")
    write_file(path, b"older")
    write_file(path, "new ü")
    assert path.read_bytes() == "new ü".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_file(path, "never")
    assert path.read_text() == "new ü"


def test_write_directory_is_atomic(tmp_path):
    path = tmp_path / "a"

    def broken(directory: Path) -> None:
        (directory / "first").write_text("half")
        raise KeyboardInterrupt

    for content in (None, "old"):
        if content:
            write_directory(path, lambda directory: (directory / "first").write_text("old"))
        with pytest.raises(KeyboardInterrupt):
            write_directory(path, broken)
        assert path.exists() == (content is not None)
    assert (path / "first").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]  # a full disk has no room for halves
    write_directory(path, lambda directory: (directory / "second").write_text("new"))
    assert {p.name for p in path.iterdir()} == {"second", "manifest.json"}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "config",
    [
        transformer_base(),
        transformer_big(100, 200),
        transformer_tiny(),
        tiny(encoder=StackConfig(input=Frames(n_features=80, stack=4))),
        tiny(encoder=None, positions="learned", activation="gelu_tanh", norm_eps=1e-12),
        tiny(decoder=None),
    ],
    ids=["base", "big", "tiny", "frames", "decoder alone", "encoder alone"],
)
def test_every_configuration_survives_json(config):
    assert from_dict(TransformerConfig, json.loads(json.dumps(to_dict(config))), "here") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_modle": 5}, "d_modle"),
        ({"d_model": "wide"}, "d_model"),
        ({"n_heads": 3}, "n_heads must divide d_model, but n_heads=3 and d_model=8"),
        ({"tie": "some"}, "tie"),
    ],
)
def test_an_invalid_configuration_is_refused_by_name(change, message):
    with pytest.raises(ValueError) as caught:
        from_dict(TransformerConfig, to_dict(tiny()) | change, "runs/a/config.json")
    assert str(caught.value).startswith("runs/a/config.json does not describe a TransformerConfig: ")
    assert message in str(caught.value)


def test_differences_are_one_line_each():
    old, new = {"a": {"b": 1, "c": [1, 2]}, "d": None}, {"a": {"b": 1.5, "c": [1, 2]}, "d": None, "e": {"f": "x"}}
    assert flatten(new) == {"a.b": 1.5, "a.c": [1, 2], "d": None, "e.f": "x"}
    assert differences(old, new) == ["a.b: 1 -> 1.5", "e.f: absent -> x"]
    assert differences(old, old) == []


def test_nothing_is_unpickled():
    """A pickle can run code; a weight file must not."""
    sources = list(Path(transduce.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    for source in sources:
        text = source.read_text().replace("allow_pickle=False", "")
        words = ["pickle", "torch.load", "torch.save", "joblib", "allow_pickle", "shelve", "marshal.load"]
        # imports read pytorch_model.bin, of which torch runs nothing
        if source.parts[-2:] == ("interop", "weights.py"):
            words[:2] = ["import pickle", "from pickle", "pickle.", "Unpickler"]
            calls = [node for node in ast.walk(ast.parse(text)) if ast.unparse(node).startswith("torch.load(")]
            calls = [call for call in calls if isinstance(call, ast.Call)]
            assert calls and all("weights_only=True" in ast.unparse(call) for call in calls)
        for word in words:
            assert word not in text, f"{word} in {source.name}"


@pytest.mark.parametrize("normalize", ["utterance", "global", "none"])
def test_feature_extractors_are_saved_and_loaded(tmp_path, normalize):
    config = FeatureConfig(n_mels=23, n_coefficients=13, low=50.0, deltas=2, normalize=normalize)
    numbers = {"mean": torch.randn(39), "std": torch.rand(39)} if normalize == "global" else {}
    save_run(tmp_path, Run(tiny(), {}, None, None, FeatureExtractor(config, **numbers)))
    feature_extractor = load_run(tmp_path).feature_extractor
    assert feature_extractor.config == config
    for name in ("mean", "std"):
        got = getattr(feature_extractor, name)
        assert torch.equal(got, numbers[name]) if numbers else got is None


def test_vector_readers_are_saved_and_loaded(tmp_path):
    config = VectorConfig(n_features=7, hop=0.02, normalize="none")
    save_run(tmp_path, Run(tiny(), {}, None, None, VectorReader(config)))
    feature_extractor = load_run(tmp_path).feature_extractor
    assert isinstance(feature_extractor, VectorReader) and feature_extractor.config == config
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace("n_features", "n_featuers"))
    with pytest.raises(ValueError) as caught:
        load_run(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'} does not describe a VectorConfig: ")


def test_a_flipped_bit_in_a_checkpoint_is_detected_on_loading(tmp_path, caplog):
    """Where there is no manifest to find it by, a warning says so."""
    random_run(tmp_path, model=LITTLE)
    path = tmp_path / "checkpoints" / "00000100" / "model.safetensors"
    path.parent.parent.mkdir()
    write_directory(path.parent, lambda folder: (tmp_path / path.name).rename(folder / path.name) and None)
    load_model(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"a checkpoint must be as it was written, but {path} is damaged; remove"):
        load_model(tmp_path)
    assert not caplog.messages
    (path.parent / "manifest.json").unlink()
    load_model(tmp_path)
    assert caplog.messages == [f"{path.parent} has no manifest.json, so its files are used unchecked"]
