"""An experiment from files and flags: what wins, what is refused and how, and what help shows."""

import json
import re
import shutil
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import yaml

import transduce as td
from recipes import language_model, masked_language_model, speech_to_text, translation
from tests.runs import random_speech_run
from transduce.cli.main import COMMANDS, main
from transduce.config import flatten, to_dict
from transduce.data.corpus import Files, Folder
from transduce.experiment.command import INTERRUPTED, choose, main as recipe_main, with_files

RECIPES = (translation, speech_to_text, language_model, masked_language_model)


@pytest.fixture
def chosen():
    """What a recipe makes of a command line."""

    def call(recipe, *words):
        return choose(
            recipe.SETTINGS,
            [str(word) for word in words],
            default="commands",
            description=recipe.__doc__,
            prog="python recipes/recipe.py",
        )

    return call


@pytest.fixture
def run_recipe(monkeypatch, capsys):
    """Exit code and what is printed."""

    def call(recipe, *words):
        monkeypatch.setattr(sys, "argv", ["recipes/recipe.py", *map(str, words)])
        try:
            code = recipe_main(lambda x: None, recipe.SETTINGS, default="commands", description=recipe.__doc__)
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


def test_start_from_takes_the_model_and_features_of_a_run(chosen, translator, tmp_path):
    """Not the recipe's; files and flags win, in either spelling, and another kind of run changes nothing."""
    source, config = translator, tmp_path / "x.yaml"
    model = td.load_model(source).config
    recipe = translation.SETTINGS["multi30k"][1].model
    assert model.d_model != recipe.d_model or model != recipe
    for words in (
        ["--start-from", source],
        [f"--start_from={source}"],
        ["--run", source, "--start-from", tmp_path / "gone"],
    ):
        assert chosen(translation, "multi30k", *words).model == model
    assert chosen(translation, "multi30k", "--run", source).model == recipe
    x = chosen(translation, "multi30k", "--start-from", source, "--model.d-ff", "99")
    assert x.model == replace(model, d_ff=99)
    config.write_text(f"start_from: {source}\nmodel: {{dropout: 0.3}}\n")
    assert chosen(translation, "--config", config).model == replace(model, dropout=0.3)
    assert chosen(language_model, "--start-from", source) == replace(chosen(language_model), start_from=source)
    sound = random_speech_run(tmp_path / "sound")
    plain = json.loads((sound / "config.json").read_text())
    recipes = chosen(speech_to_text).decoding
    plain["experiment"] |= {"decoding": to_dict(recipes) | {"alpha": 0.1, "alignment_heads": [[0, 1], [1, 0]]}}
    (sound / "config.json").write_text(json.dumps(plain))
    x = chosen(speech_to_text, "--start-from", sound)
    assert to_dict(x.model) == plain["model"] and to_dict(x.features) == plain["features"]
    assert x.decoding == replace(recipes, alignment_heads=((0, 1), (1, 0)))  # which are the model's
    (sound / "config.json").write_text(json.dumps(plain | {"model": plain["model"] | {"d_model": "wide"}}))
    reason = "does not describe a TransformerConfig: it must be a whole number, but it is 'wide' @ $.d_model"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{sound}/config.json {reason}')}$"):
        chosen(speech_to_text, "--start-from", sound)


def test_flags_for_training_a_vocabulary_conflict_with_a_given_one(chosen, run_recipe, translator, tmp_path):
    for recipe, words, named in (
        (translation, ["--no-joint", "--vocab-size", 300], "vocab_size=300, joint=False"),
        (translation, ["--normalization", "nmt_nfkc"], "normalization=nmt_nfkc"),
        (language_model, ["--tokenizer", "byte_bpe"], "tokenizer=byte_bpe"),
    ):
        assert run_recipe(recipe, "--start-from", translator, *words) == (
            2, "", "transduce: a vocabulary is either trained, or taken from --tokenizer FILE or the run to start from, but "
            f"{named} is for training one; leave it out, or the other\n",
        )  # fmt: skip
        assert run_recipe(recipe, *words, "--run", tmp_path)[0] == 0
    begun = shutil.copytree(translator, tmp_path / "begun")  # what it began with, it compares
    assert run_recipe(translation, "--start-from", translator, "--vocab-size", 300, "--run", begun)[0] == 0
    file = ["--tokenizer", tmp_path / "my.json"]
    assert (
        run_recipe(translation, *file, "--no-joint")[0]
        == run_recipe(language_model, *file, "--vocab-size", 300)[0]
        == 2
    )
    chosen(translation, *file, tmp_path / "other.json", "--no-joint")


def test_columns_in_a_file_apply_to_a_table_of_a_flag(chosen, tmp_path):
    (tmp_path / "columns.yaml").write_text("corpus: {target_column: german}\n")
    corpus = chosen(translation, "files", "--config", tmp_path / "columns.yaml", "--train-table", "a.jsonl").corpus
    assert (corpus.target_column, corpus.train_table) == ("german", Path("a.jsonl"))


def test_a_closed_pipe_ends_training_with_exit_code_130(monkeypatch, capsys):
    def closed(x):
        raise BrokenPipeError(32, "Broken pipe")

    code = recipe_main(closed, translation.SETTINGS, default="commands", description="", arguments=[])
    assert (code, capsys.readouterr().err) == (130, f"transduce: {INTERRUPTED}\n")


def parts(config) -> tuple:
    """The classes of a configuration and of its fields, however deep: what its flags and files depend on."""
    inner = [getattr(config, each.name) for each in fields(config)]
    return (type(config), *(parts(each) for each in inner if is_dataclass(each)))


def kinds(recipe) -> list[str]:
    """Names of settings, one of each kind: corpus or features are of another class."""
    first = {parts(setting): name for name, (_, setting) in reversed(recipe.SETTINGS.items())}
    return list(first.values())[::-1]


def each_kind(default):
    """A recipe and the name of a setting: one of each recipe by default, and before landing one of each kind."""
    got = [(recipe, name) for recipe in RECIPES for name in kinds(recipe)]
    marks = [[] if default(recipe) == name else [pytest.mark.long] for recipe, name in got]
    names = [f"{recipe.__name__}-{name}" for recipe, name in got]
    cases = [pytest.param(*case, marks=mark, id=id) for case, mark, id in zip(got, marks, names, strict=True)]
    return pytest.mark.parametrize(("recipe", "name"), cases)


by_name = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)


@each_kind(lambda recipe: kinds(recipe)[-1])
def test_print_config_is_read_back(recipe, name, run_recipe, chosen, tmp_path):
    """From the default setting, whose corpus or features may be of another class."""
    setting = recipe.SETTINGS[name][1]
    code, out, _ = run_recipe(recipe, name, "--print-config", "--training.seed", "7")
    assert code == 0
    (tmp_path / "x.yaml").write_text(out)
    want = replace(setting, training=replace(setting.training, seed=7))
    assert to_dict(chosen(recipe, "--config", tmp_path / "x.yaml")) == to_dict(want)
    code, again, _ = run_recipe(recipe, "--config", tmp_path / "x.yaml", "--print-config")
    assert code == 0 and again.splitlines()[1:] == out.splitlines()[1:]


def test_print_config_has_only_changed_fields_with_their_help(run_recipe, chosen, tmp_path):
    """Of flags and of the setting, also where a flag takes back what the setting says; nothing else."""
    words = ("--model.positions", "sinusoidal", "--training.optim.eps", "1e-7", "--symbols", "<2de> # '\"")
    code, out, _ = run_recipe(translation, "multi30k", *words, "--print-config")
    plain = flatten(yaml.safe_load(out))
    got = flatten(to_dict(chosen(translation, "multi30k", *words)))
    assert code == 0 and {name: got[name] for name in plain} == plain
    assert plain["model.positions"] == "sinusoidal" and plain["training.optim.eps"] == 1e-7
    assert plain["training.optim.optimizer"] == "muon" and plain["symbols"] == "<2de> # '\""
    assert not {"device", "joint", "training.seed", "training.compile", "model.norm_eps"} & {*plain}
    line = "    peak_rate: 0.005  # Learning rate at the end of the warm-up\n"
    assert out.startswith("# python recipes/recipe.py multi30k --config FILE\n") and line in out
    assert all(" # " in each or each.endswith(":") for each in out.splitlines()[1:])
    (tmp_path / "x.yaml").write_text(out)
    assert chosen(translation, "--config", tmp_path / "x.yaml") == chosen(translation, "multi30k", *words)


@by_name
def test_every_setting_can_be_read_from_a_file(recipe, tmp_path):
    """By itself it is the same; from the default setting, it is written the same."""
    default = recipe.SETTINGS["commands"][1]
    for name, (_, setting) in recipe.SETTINGS.items():
        (tmp_path / "x.json").write_text(json.dumps(to_dict(setting)))
        if name != "commands" and hasattr(setting.corpus, "data"):
            assert with_files(setting, [tmp_path / "x.json"]) == setting
        assert to_dict(with_files(default, [tmp_path / "x.json"])) == to_dict(setting)
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(to_dict(setting)))
    assert to_dict(with_files(default, [tmp_path / "x.yaml"])) == to_dict(setting)


def test_flags_override_files_and_files_the_setting(chosen, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "vocab_size: 500\ntraining:\n  max_minutes: 3\n  optim: {peak_rate: 5e-3, betas: [0.8, 0.9]}\n"
        "corpus: {train_source: a.en, train_target: a.de}\n"
    )
    x = chosen(translation, "multi30k", "--vocab-size", "600", "--config", tmp_path / "a.yaml")
    setting = translation.SETTINGS["multi30k"][1]
    optim = replace(setting.training.optim, peak_rate=5e-3, betas=(0.8, 0.9))
    training = replace(setting.training, max_minutes=3.0, optim=optim)
    corpus = Files(train_source=Path("a.en"), train_target=Path("a.de"))
    assert isinstance(setting.corpus, Folder)
    assert x == replace(setting, vocab_size=600, training=training, corpus=corpus)


def test_removed_fields_of_earlier_versions_are_ignored(chosen, tmp_path):
    """Of its experiment, and of the model that another run starts from."""
    sound = random_speech_run(tmp_path / "sound")
    plain = json.loads((sound / "config.json").read_text())
    want = chosen(speech_to_text, "--start-from", sound)
    plain["model"]["encoder"]["input"]["conv_dims"] = 1
    plain["experiment"] = to_dict(speech_to_text.COMMANDS) | {"interctc_column": None, "data": "abc"}
    del plain["specified"]
    (sound / "config.json").write_text(json.dumps(plain))
    assert chosen(speech_to_text, "--start-from", sound) == want
    assert chosen(speech_to_text, "--config", sound / "config.json") == speech_to_text.COMMANDS
    plain["experiment"]["interctc_column"] = "phones"
    (sound / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"config\.json must have interctc_column=none, as this version has no such"):
        chosen(speech_to_text, "--config", sound / "config.json")


def test_the_config_of_a_run_gives_its_experiment(chosen, tmp_path):
    x = chosen(translation, "--no-joint", "--run", "runs/mine")
    plain = {"format": 1, "model": {}, "experiment": {**to_dict(x), "data": "abc"}}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    assert chosen(translation, "multi30k", "--config", tmp_path / "config.json") == x


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"training": {"max_update": 3}}, "there is no field training.max_update; did you mean max_updates?"),
        (
            {"training.optim.peak_rate": 3},
            "fields are nested, but training.optim.peak_rate has a dot; write training: {optim: {peak_rate: ...}}",
        ),
        ({1.5: 3}, "fields are nested, but 1.5 has a dot; write 1: {5: ...}"),
        ({"vocab-size": 3}, "there is no field vocab-size; here it is vocab_size"),  # not those of encoder and decoder
        ({"training": {"max_updates": "3"}}, 'training.max_updates must be a whole number, but it is "3"'),
        ({"training": 3}, "training must be an object of fields, but it is 3"),
    ],
)
def test_a_wrong_field_of_a_file_is_named(run_recipe, tmp_path, plain, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(plain))
    assert run_recipe(translation, "--config", path) == (2, "", f"transduce: {path}: {message}\n")


@pytest.mark.parametrize(
    ("plain", "name", "value"),
    [
        ({"vocab_sice": 3}, "vocab_sice", "vocab_size?"),
        ({"NEXT": "x"}, "NEXT", "decoding?"),  # of the class, and no field
        ({"training": {"max_updates": True}}, "training.max_updates", "true"),
        ({"training": {"max_updates": 1.5}}, "training.max_updates", "1.5"),
        ({"training": {"max_minutes": "long"}}, "training.max_minutes", '"long"'),
        ({"joint": "False"}, "joint", '"False"'),
        ({"training": {"precision": "fp8"}}, "training.precision", '"fp8"'),
        ({"training": {"optim": {"betas": [0.9]}}}, "training.optim.betas", "[0.9]"),
        ({"training": {"patience": 0}}, "patience", "patience=0"),
        ([1], "the configuration", "[1]"),
    ],
)
def test_other_wrong_fields_are_named_with_their_values(tmp_path, plain, name, value):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=rf"^{re.escape(f'{path}: ')}.*\b{re.escape(name)}\b.*{re.escape(value)}$"):
        with_files(translation.COMMANDS, [path])


@pytest.mark.parametrize("number", ["0500", "-010", "1:30", "1:30.5", "01_0", "2024-06-01"])
def test_ambiguous_yaml_numbers_and_dates_are_text(run_recipe, tmp_path, number):
    path = tmp_path / "x.yaml"
    path.write_text(f"training: {{max_minutes: {number}}}\n")
    assert run_recipe(translation, "--config", path) == (
        2, "", f'transduce: {path}: training.max_minutes must be a number or null, but it is "{number}"\n'
    )  # fmt: skip
    path.write_text(f"run: {number}\nsymbols: {number}\ndecoding: {{glossary: {{{number}: {number}}}}}\n")
    x = with_files(translation.COMMANDS, [path])
    assert (str(x.run), x.symbols, x.decoding.glossary) == (number, number, ((number, number),))


@pytest.mark.parametrize(("number", "want"), [("0x10", 16), ("0b101", 5), ("1_000", 1000), ("+7", 7), ("0", 0)])
def test_yaml_integers_are_read_like_python(tmp_path, number, want):
    path = tmp_path / "x.yaml"
    path.write_text(f"training: {{seed: {number}}}\n")
    assert with_files(translation.COMMANDS, [path]).training.seed == want


@pytest.mark.parametrize(("word", "read"), [("no", False), ("on", True), ("1e3", 1000.0), ("null", None)])
def test_glossary_terms_that_yaml_converts_are_refused(run_recipe, tmp_path, word, read):
    path = tmp_path / "x.yaml"
    path.write_text(f"decoding: {{glossary: {{{word}: nein}}}}\n")
    assert run_recipe(translation, "--config", path) == (
        2, "", f"transduce: {path}: the keys of decoding.glossary must be text, but one is {read}, as YAML reads no, "
            "on, 1e3 and null; put quotes around it\n",
    )  # fmt: skip
    path.write_text(f"decoding: {{glossary: {{'{word}': nein, 5: fünf}}}}\n")
    assert with_files(translation.COMMANDS, [path]).decoding.glossary == ((word, "nein"), ("5", "fünf"))


def test_invalid_config_files_are_refused(run_recipe, tmp_path):
    path = tmp_path / "x.json"
    message = f"--config takes a file, .json or .yaml, but {path} is none; --print-config writes one"
    assert run_recipe(translation, "--config", path) == (2, "", f"transduce: {message}\n")
    path.write_text("{")
    code, _, err = run_recipe(translation, "--config", path)
    assert code == 2 and err.startswith(
        f"transduce: --config takes JSON, or YAML in a .yaml, but {path} is not: Expecting "
    )
    message = "--config takes a file, .json or .yaml, but nothing follows it; --print-config writes one"
    assert (
        run_recipe(translation, "--config")
        == run_recipe(translation, "--config=")
        == (2, "", f"transduce: {message}\n")
    )


@pytest.mark.parametrize(
    ("word", "way_out"),
    [
        ("multi3k", "did you mean multi30k?"),
        ("xyz", "name one of commands, paper, multi30k, multilingual, files, files_base"),
    ],
)
def test_a_wrong_setting_suggests_the_nearest_one(run_recipe, word, way_out):
    assert run_recipe(translation, word, "--run", "x") == (
        2,
        "",
        f"transduce: there is no setting {word!r}; {way_out}\n",
    )


def flags(page: str) -> dict[str, str]:
    """Every flag of a page of help in one column, with its text."""
    got: dict[str, str] = {}
    flag = None
    for line in page.splitlines():
        begins = re.match(r"(│ |  )--?[a-z]", line)  # a text may have a flag at the beginning of a line, further in
        line = line.strip("│ ")
        if begins:
            head, _, text = line.partition("  ")
            flag = head.split()[0].rstrip(",")
            got[flag] = text
        elif not re.match(r"[\w(]|--[a-z]", line) or line.endswith(" options"):
            flag = None
        elif flag:
            got[flag] += f" {line}"
    return {flag: text.strip() for flag, text in got.items()}


def has_text(text: str) -> bool:
    return re.search("[a-z]{2}", re.sub(r"\((default|required|the run's).*", "", text)) is not None


def test_the_help_parser_detects_missing_texts():
    page = "│ --a INT        (default: 3)  │\n│ --bc {x,y}     │\n│      What it is. (default: x) │\n│ --d    Some. │"
    assert {flag: has_text(text) for flag, text in flags(page).items()} == {"--a": False, "--bc": True, "--d": True}


@each_kind(lambda recipe: kinds(recipe)[0])
def test_every_flag_of_a_recipe_has_help_and_help_is_short(recipe, name, run_recipe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (code, short, _), (_, full, _) = (run_recipe(recipe, name, word) for word in ("--help", "--help-all"))
    short, got = set(flags(short)), flags(full)
    assert code == 0 and [flag for flag, text in got.items() if not has_text(text)] == []
    fields = flatten(to_dict(recipe.SETTINGS[name][1]))
    names = {"--" + path.replace("_", "-").removeprefix("corpus.") for path in fields}
    assert names - set(got) <= {"--model.encoder", "--model.decoder"}  # a half that is not there has no flags
    assert {"--config", "--print-config", "--help-all"} <= set(got)
    assert short < set(got) and len(short) <= 20
    assert {"--run", "--device", "--start-from", "--training.max-updates", "--config"} <= short


@pytest.mark.parametrize("command", [name for name in COMMANDS if not name.startswith("train ")])
def test_every_flag_of_a_command_has_a_help_text(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    got = flags(capsys.readouterr().out)
    assert 0 < len(got) <= 20 and [flag for flag, text in got.items() if not has_text(text)] == []


@pytest.mark.parametrize("command", ["translate", "transcribe", "generate"])
def test_help_all_of_a_command_shows_more_flags(command, capsys, monkeypatch):
    pages = []
    for width, word in ((120, "--help"), (240, "-h"), (120, "--help-all")):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit):
            main([command, "a", word])
        pages.append(capsys.readouterr().out)
    named = [set(re.findall(r"--[a-z][\w-]*", page)) for page in pages]
    short, full = flags(pages[0]), flags(pages[2])
    assert named[0] == named[1] and len(short) <= 20 and len(full) > len(short) + 5
    assert [flag for flag, text in full.items() if not has_text(text)] == []
    for flag, text in short.items():  # it says how the whole text begins
        begins = re.sub(r" \((default: .*|required|the run's)\)$", "", text)
        assert full[flag].startswith(begins) or flag == "--help-all"
    assert set(short) <= {*full}
    with pytest.raises(SystemExit):
        main(["describe", "--help"])
    assert "--help-all" not in capsys.readouterr().out


def test_help_of_transduce_train_names_that_command(capsys):
    for words in (["--help"], ["multi30k", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(["train", "translation", *words])
        assert stop.value.code == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: transduce train translation") and "recipes/" not in out


def test_ctrl_c_prints_how_to_resume(monkeypatch, capsys):
    def stopped(x):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["recipes/translation.py", "--device=cpu"])
    assert recipe_main(stopped, translation.SETTINGS, default="commands", description="") == 130
    message = "transduce: stopped; run the same command again to resume from the newest checkpoint\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_missing_teacher_is_refused_before_reading_data(monkeypatch, tmp_path, capsys):
    words = ["recipes/translation.py", "--device=cpu", "--training.teachers", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", words)
    assert recipe_main(lambda x: 1 / 0, translation.SETTINGS, default="commands", description="") == 2
    err = capsys.readouterr().err
    assert err.startswith("transduce: training.teachers: ") and f"{tmp_path / 'none'} does not exist" in err


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_ends_with_an_example_command(recipe, tmp_path, capsys):
    words = ["commands", "--run", str(tmp_path / "run")]
    code = recipe_main(lambda _: None, recipe.SETTINGS, default="commands", description="", arguments=words)
    *_, report, following = capsys.readouterr().out.splitlines()
    assert code == 0 and report.endswith(str(tmp_path / "run" / "report.html"))
    program, command, run, *_ = following.removeprefix("try it: ").split()
    assert (program, run) == ("transduce", str(tmp_path / "run")) and command in COMMANDS
