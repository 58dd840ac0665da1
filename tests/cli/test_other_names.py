"""Flags and fields as JoeyNMT, fairseq, ESPnet, nanoGPT and transformers call them: the message has our name."""

import pytest

from transduce.cli.main import main

TYPED = {
    "lr": "--training.optim.peak-rate",
    "learning-rate": "--training.optim.peak-rate",
    "epochs": "--training.max-updates",
    "batch-size": "--tokens-per-batch",
    "batch_size": "--tokens-per-batch",
    "hidden-size": "--model.d-model",
    "warmup": "--training.optim.warmup-steps",
    "num-beams": "--decoding.beam-size",
    "length-penalty": "--decoding.alpha",
    "weight_decay": "--training.optim.weight-decay",
    "validation_freq": "--training.validate-every",
}


def ended(words: list[str]) -> object:
    """The exit code of a recipe."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code or 0


@pytest.mark.parametrize("name", TYPED)
def test_recipes_suggest_our_names_for_flags_of_other_toolkits(name, capsys):
    assert ended(["train", "translation", "commands", f"--{name}", "3"]) == 2
    flag = name.replace("_", "-")
    assert capsys.readouterr().err == f"transduce: there is no flag --{flag}; here it is {TYPED[name]}\n"
    assert ended(["train", "translation", "commands", TYPED[name], "8", "--print-config"]) == 0


def test_commands_suggest_our_names_for_flags_of_other_toolkits(capsys):
    assert main(["translate", "RUN", "--num-beams=4"]) == 2
    assert capsys.readouterr().err == "transduce: there is no flag --num-beams; here it is --beam-size\n"
    assert main(["score", "bleu", "HYP", "REF", "--num-beams=4"]) == 2
    assert "beam-size" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--training.max-updates", "x"), ("--vocab-size", "x"), ("--hold-out", "x")]
)
def test_a_flag_of_ours_with_a_wrong_value_is_not_unknown(flag, value, capsys):
    assert ended(["train", "translation", "files", flag, value]) == 2
    assert "there is no flag" not in capsys.readouterr().err


def test_flags_of_the_corpus_are_named_without_its_field(capsys):
    assert ended(["train", "translation", "files", "--data.hold-out", "3"]) == 2
    assert "here it is --hold-out\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "name", "ours"),
    [
        ("lr: 1e-3", "lr", "training.optim.peak_rate"),
        ("training: {optim: {learning_rate: 1e-3}}", "training.optim.learning_rate", "training.optim.peak_rate"),
        ("batch_size: 3", "batch_size", "tokens_per_batch"),
        ("beam_size: 3", "beam_size", "decoding.beam_size"),
    ],
)
def test_config_files_suggest_our_names_for_fields_of_other_toolkits(text, name, ours, tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert ended(["train", "translation", "commands", "--config", str(path)]) == 2
    assert f"there is no field {name}; here it is {ours}\n" in capsys.readouterr().err
