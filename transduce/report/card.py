"""What there is to tell about a run, and its model card: what it is, how good, on what data, and how to make it again."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from transduce.config import flatten, to_dict
from transduce.files import read_json, regular, write_file
from transduce.model.size import n_parameters
from transduce.run import CONFIG, MODEL_CARD, Run, load_run, validations

FIRST = ("model.d_model", "model.n_heads", "model.d_ff", "model.encoder.n_layers", "model.decoder.n_layers",
         "model.dropout", "model.positions", "training.max_updates", "training.max_minutes", "training.optim.peak_rate",
         "training.optim.warmup_steps", "training.precision", "training.seed", "tokens_per_batch", "frames_per_batch",
         "validate_by", "decoding.beam_size", "decoding.alpha", "decoding.ctc_weight")  # fmt: skip
"""Fields that are looked at most."""


def scores(run: Path) -> list[str]:
    """The scores on held-out data, then the last validation, as far as there are any, a line each."""
    told = []
    for path in (run / "test.json", run / "validation.json"):
        try:
            found: Any = json.loads(path.read_bytes()) if path.is_file() else []
            if isinstance(found, dict):
                told.append(f"{path.stem}: " + ", ".join(f"{name} {value:g}" for name, value in found.items()))
            else:
                told += [f"{path.stem}, {each['search']}: {each['score']}" for each in found]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            told.append(
                f"{path.stem}: {path} is not as a recipe writes it ({error!r:.80}); the recipe again makes it anew"
            )
    if valid := validations(run):
        last = {
            name: value for name, value in valid[-1].items() if name not in ("kind", "skipped") and value is not None
        }
        last |= {"epoch": last["epoch"] + 1} if isinstance(last.get("epoch"), int) else {}  # people count from 1
        told.append("last validation: " + ", ".join(f"{name} {value:g}" for name, value in last.items()))
    return told


def facts(run: Run) -> list[str]:
    """The sizes of the vocabularies, and how sound flows in, a line each."""
    sides = (("source", run.source_tokenizer), ("target", run.target_tokenizer))
    told = [f"{name} vocabulary: {side.vocab_size} tokens" for name, side in sides if side is not None]
    return told + ([f"input: {run.model.flow}"] if run.feature_extractor is not None else [])


def fields_of(run: Run) -> dict[str, Any]:
    """Every field of the experiment by its dotted name, with the model as it became."""
    experiment = {name: value for name, value in run.experiment.items() if name != "model"}
    return flatten({**experiment, "model": to_dict(run.model)})


def shown_first(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something, those looked at most first: none that are off or empty."""
    first = {name: fields[name] for name in FIRST if fields.get(name) is not None}
    return {**first, **{name: value for name, value in fields.items() if value not in (None, "", 0, False, [], ())}}


TRANSLATION, SPEECH, LANGUAGE, MASKED = "translation", "speech-to-text", "language-model", "masked-language-model"

ABOUT = {
    TRANSLATION: ("translation", "translates", "transduce translate RUN < in.txt"),
    SPEECH: ("automatic-speech-recognition", "writes down speech", "transduce transcribe RUN talk.wav"),
    LANGUAGE: ("text-generation", "goes on with a text", 'transduce generate RUN --prompt "..."'),
    MASKED: (
        "fill-mask",
        "fills in masked words",
        "python -c \"import transduce as td; print(td.load('RUN')(['a _ .']))\"",
    ),
}
"""By recipe: the hub's word for the task, what such a model does, and a command that does it."""

LICENSE = "# license: says what others may do with the weights, such as cc-by-4.0; it is for you to choose"

MARK = "<!-- transduce wrote this card ({}); once anything in it is changed, it is yours and stays as it is -->\n"


HOW_TO_READ = (
    "What stands in brackets is the 95 % interval. Validation data has chosen among checkpoints, so figures on it are "
    "better than on other data of its kind; test data has chosen nothing."
)

AGAIN = f"transduce train {{}} --config {CONFIG} --run NEW"
"""The command that trains a run of this recipe once more."""

AGAIN_ELSEWHERE = (
    "That is for transduce's own recipes, where the data lies as config.json says; flags name other places. Another "
    "recipe takes the same flags: `python RECIPE.py --config config.json --run NEW`. What is called data is a "
    "SHA-256 of it."
)


def about(run: Run) -> str:
    """What it is, in a sentence."""
    return (
        f"A Transformer that {ABOUT[recipe_of(run)][1]}: {n_parameters(run.model):,} parameters, made with transduce."
    )


def recipe_of(run: Run) -> str:
    """The name of the recipe that makes such runs."""
    if run.model.encoder is None:
        return LANGUAGE
    if run.model.decoder is None:
        return MASKED
    return SPEECH if run.feature_extractor is not None else TRANSLATION


def model_card(directory: Path) -> str:
    """The card of a run, in Markdown, with the header that the hub reads.

    Raises:
        InputError: the directory is no run.
    """
    run = load_run(directory)
    recipe, fields = recipe_of(run), fields_of(run)
    tag, _, command = ABOUT[recipe]
    languages = [fields.get(f"corpus.{side}") for side in ("source", "target")]
    known = [x for x in dict.fromkeys(languages) if isinstance(x, str) and re.fullmatch("[a-z]{2,3}", x)]
    header = ["---", "library_name: transduce", f"pipeline_tag: {tag}", *(["language:"] if known else [])]
    header += [*(f"- {json.dumps(language)}" for language in known), "tags:", "- transduce", LICENSE, "---"]
    data = {name: value for name, value in shown_first(fields).items() if name.split(".")[0] in ("corpus", "data")}
    first = {name: value for name, value in fields.items() if name in FIRST and value}
    imported = run.experiment.get("imported")
    parts = [
        f"# {directory.absolute().name}",
        about(run),
        "## Use",
        f"```\npip install .    # in a clone of transduce\n{command}\n```",
        "RUN is this directory, or `hub:USER/NAME` where it is on the hub (`pip install '.[hub]'`). In Python it is "
        "`transduce.load(RUN)`.",
        "## Figures",
        _bullets(scores(directory)) or "None were measured.",
        HOW_TO_READ,
        "## Data",
        _bullets(f"{name}: {plain(value)}" for name, value in data.items()) or "The run does not say.",
        *([f"It was a {plain(imported)} of transformers, whose own card and licence hold."] if imported else []),
        "## Model and training",
        _bullets([*facts(run), *(f"{name}: {plain(value)}" for name, value in first.items())]),
        "## Limits",
        _bullets(_limits(fields, recipe)),
        *(["## Make it again", f"```\n{AGAIN.format(recipe)}\n```", AGAIN_ELSEWHERE] if imported is None else []),
        f"{made_with(directory)}, and this card with torch {torch.__version__}.",
    ]  # fmt: skip
    text = "\n".join(header) + "\n" + "\n\n".join(parts) + "\n\n"
    return text + MARK.format(_digest(text))


def made_with(directory: Path) -> str:
    """Which version of transduce made the run."""
    return f"Made with transduce {plain(read_json(directory / CONFIG).get('transduce'))}"


def _limits(fields: dict[str, Any], recipe: str) -> list[str]:
    """What a reader should not expect."""
    told = [
        "The figures hold for data like that above; text or sound of another kind comes out worse, by how much nobody has measured."
    ]
    lengths = {
        "decoding.split_length": "Training's texts were mostly no longer than {} tokens; longer ones are cut into sentences.",
        "decoding.max_seconds": "Training's recordings were mostly no longer than {} s; longer ones are cut in their pauses.",
        "model.max_positions": "Its positions end at {}.",
    }
    other = {TRANSLATION: "decoding.max_seconds", SPEECH: "decoding.split_length"}.get(recipe)
    told += [text.format(plain(fields[name])) for name, text in lengths.items() if fields.get(name) and name != other]
    if recipe == SPEECH and fields.get("pronunciations"):
        told.append(
            f"It writes words that its training's texts and {plain(fields['pronunciations'])} had, and no others."
        )
    elif recipe == SPEECH and fields.get("decoding.words") == "known":
        told.append(
            "It writes the words of its lexicon.txt alone; `--words any` lets others come out, and the file may be added to."
        )
    if recipe in (LANGUAGE, MASKED):
        told.append(
            "It has learned which words follow each other, not what is true; what it writes needs a reader's judgement."
        )
    else:
        told.append("Names, numbers and rare words are where it errs most, and it may write fluently what nobody said.")
    return [*told, "Nobody has measured how it treats people of different groups, dialects or accents."]


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def plain(value: object) -> str:
    """A value in one line; of a place on this machine, only the last name."""
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    text = " ".join(str(value).split())
    return Path(text).name if Path(text).is_absolute() else text[:200]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_unchanged(text: str) -> bool:
    """Whether a card is as `model_card` wrote it, by the hash in its last line."""
    body, _, _ = text.rpartition("<!--")
    return text == body + MARK.format(_digest(body))


def write_card(directory: Path) -> Path:
    """Write a run's MODEL_CARD.md, unless somebody has changed the one that is there.

    Raises:
        InputError: the directory is no run.
    """
    path = directory / MODEL_CARD
    if not path.exists() or is_unchanged(regular(path).read_text("utf-8", errors="replace")):
        write_file(path, model_card(directory))
    return path
