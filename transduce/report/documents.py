"""Two documents of a run: its model card (task, scores, data, and how to reproduce it), and
report.html, a page that needs no other file and no network."""

import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, select_autoescape

from transduce.config import Json, flatten, to_dict
from transduce.errors import InputError
from transduce.files import read_json, regular, write_file
from transduce.model.meta import n_parameters
from transduce.plot import NAMES, curve_svg, curves
from transduce.report.record import progress, read_samples, read_scores, score_files
from transduce.run import (
    CONFIG,
    ERRORS,
    MODEL_CARD,
    REPORT,
    SAMPLES,
    Run,
    load_run,
    read_metrics,
)

FIRST = (
    "model.d_model", "model.n_heads", "model.d_ff", "model.encoder.n_layers",
    "model.decoder.n_layers", "model.dropout", "model.positions", "training.max_updates",
    "training.max_minutes", "training.optim.peak_rate", "training.optim.warmup_steps",
    "training.precision", "training.seed", "tokens_per_batch", "frames_per_batch", "validate_by",
    "decoding.beam_size", "decoding.alpha", "decoding.ctc_weight",
)  # fmt: skip
"""Configuration fields that are shown first."""


MAX_ERRORS = 60_000
"""Characters of an error report."""

MAX_PICTURE = 450_000
"""Bytes of a picture."""


@dataclass(frozen=True)
class Picture:
    """A picture of attention."""

    name: str
    title: str
    update: str
    content: bytes
    """The PNG; empty where it is too large."""


@dataclass(frozen=True)
class Recipe:
    """A kind of run."""

    name: str
    hub_task: str
    """The hub's name of the task."""
    does: str
    command: str
    """A command that uses such a run."""


TRANSLATION = Recipe("translation", "translation", "translates", "transduce translate RUN < in.txt")
SPEECH = Recipe(
    "speech-to-text",
    "automatic-speech-recognition",
    "transcribes speech",
    "transduce transcribe RUN talk.wav",
)
LANGUAGE = Recipe(
    "language-model",
    "text-generation",
    "continues a text",
    'transduce generate RUN --prompt "..."',
)
MASKED = Recipe(
    "masked-language-model",
    "fill-mask",
    "fills in masked words",
    "python -c \"import transduce as td; print(td.load('RUN')(['a _ .']))\"",
)

MARK = (
    "<!-- transduce wrote this card ({}); once anything in it is changed, it is yours and stays as "
    "it is -->\n"
)

HOW_TO_READ = (
    "Brackets contain the 95 % interval. Validation data was used to choose among checkpoints, so "
    "figures on it are better than on other data of its kind; test data was not used for any "
    "choice."
)

AGAIN_ELSEWHERE = (
    "This command is for transduce's own recipes, with the data where config.json says; flags name "
    "other places. Other recipes take the same flags: `python RECIPE.py --config config.json --run "
    "NEW`. Fields called data are a SHA-256 of it."
)

templates = Environment(
    loader=PackageLoader("transduce.report"),
    autoescape=select_autoescape(["html"]),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def recipe_of(run: Run) -> Recipe:
    """The recipe that makes such runs."""
    if run.model.encoder is None:
        return LANGUAGE
    if run.model.decoder is None:
        return MASKED
    return SPEECH if run.feature_extractor is not None else TRANSLATION


def scores(run: Path) -> list[tuple[str, str]]:
    """Labels and values of the scores on held-out data, then of the last validation, as far as
    there are any."""
    labelled = []
    for path in score_files(run):
        try:
            rows = read_scores(path)
        except InputError as error:
            labelled.append((path.stem, str(error)))
            continue
        labelled += [(f"{path.stem}, {row.search}", row.score) for row in rows if row.search]
        if values := [f"{row.measure} {row.value:g}" for row in rows if not row.search]:
            labelled.append((path.stem, ", ".join(values)))
    if lines := [line for line in read_metrics(run) if line.get("kind") == "valid"]:
        last = {name: x for name, x in lines[-1].items() if isinstance(x, int | float)}
        last.pop("skipped", None)
        if "epoch" in last:
            last["epoch"] += 1  # people count from 1
        labelled.append(
            ("last validation", ", ".join(f"{name} {value:g}" for name, value in last.items()))
        )
    return labelled


def facts(run: Run) -> list[str]:
    """The sizes of the vocabularies, and the input of sound, a line each."""
    sides = (("source", run.source_tokenizer), ("target", run.target_tokenizer))
    lines = [
        f"{name} vocabulary: {side.vocab_size} tokens" for name, side in sides if side is not None
    ]
    if run.feature_extractor is not None:
        lines.append(f"input: {run.model.input_description}")
    return lines


def fields_of(run: Run) -> Json:
    """Every field of the experiment by its dotted name, with the final configuration of the
    model."""
    experiment = {name: value for name, value in run.experiment.items() if name != "model"}
    return flatten({**experiment, "model": to_dict(run.model)})


def shown_first(fields: Json) -> Json:
    """The fields that are neither off nor empty, those of FIRST first."""
    first = {name: fields[name] for name in FIRST if fields.get(name) is not None}
    return first | {name: x for name, x in fields.items() if x not in (None, "", 0, False, [], ())}


def plain(value: object) -> str:
    """A value in one line; of an absolute path, only the last name."""
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    text = " ".join(str(value).split())
    return Path(text).name if Path(text).is_absolute() else text[:200]


def about(run: Run) -> Json:
    """The contents that the card and the report page of a run share."""
    recipe = recipe_of(run)
    version = read_json(run.directory / CONFIG).get("transduce")
    return {
        "name": run.directory.absolute().name,
        "recipe": recipe,
        "about": f"A Transformer that {recipe.does}: {n_parameters(run.model):,} parameters, "
        "made with transduce.",
        "scores": scores(run.directory),
        "how_to_read": HOW_TO_READ,
        "facts": facts(run),
        "fields": fields_of(run),
        "imported": run.experiment.get("imported"),
        "again": f"transduce train {recipe.name} --config {CONFIG} --run NEW",
        "again_elsewhere": AGAIN_ELSEWHERE,
        "made_with": f"Made with transduce {plain(version)}",
    }


def model_card(directory: Path) -> str:
    """The card of a run, in Markdown, with the header that the hub reads.

    Raises:
        InputError: the directory is not a run.
    """
    known = about(load_run(directory))
    fields = known["fields"]
    sides = dict.fromkeys(fields.get(f"corpus.{side}") for side in ("source", "target"))
    text = templates.get_template("card.md").render(
        known,
        languages=[
            each for each in sides if isinstance(each, str) and re.fullmatch("[a-z]{2,3}", each)
        ],
        data={
            k: v for k, v in shown_first(fields).items() if k.split(".")[0] in ("corpus", "data")
        },
        first={k: v for k, v in fields.items() if k in FIRST and v},
        torch_version=torch.__version__,
    )
    return text + MARK.format(_digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_unchanged(text: str) -> bool:
    """Whether a card is as `model_card` wrote it, by the hash in its last line."""
    body, _, _ = text.rpartition("<!--")
    return text == body + MARK.format(_digest(body))


def write_card(directory: Path) -> Path:
    """Write a run's MODEL_CARD.md, unless the existing one was edited.

    Raises:
        InputError: the directory is not a run.
    """
    path = directory / MODEL_CARD
    if not path.exists() or is_unchanged(regular(path).read_text("utf-8", errors="replace")):
        write_file(path, model_card(directory))
    return path


def write_reports(directory: Path) -> None:
    """Write a run's report.html, and its MODEL_CARD.md unless that was edited.

    Raises:
        InputError: the directory is not a run.
    """
    write_card(directory)
    write_file(directory / REPORT, page(directory).encode("utf-8", "replace"))


def page(directory: Path) -> str:
    """The page of a run, also while it is trained: below 1 MB, and the same for the same files.

    Text of the run is escaped. Clock times are inside <time>, or after "seconds".

    Raises:
        InputError: the directory is not a run.
    """
    known = about(load_run(directory))
    metrics = read_metrics(directory)
    updates, clock = progress(directory, metrics)
    return templates.get_template("page.html").render(
        known,
        fields=shown_first(known["fields"]) | known["fields"],
        progress=updates,
        clock=clock,
        curves={
            NAMES.get(name, name): curve_svg(name, lines)
            for name, lines in curves(metrics).items()
            if any(lines)
        },
        samples=read_samples(directory / SAMPLES),
        picture=_picture(directory / SAMPLES),
        errors=_errors(directory / ERRORS),
        card=MODEL_CARD,
    )


def _picture(folder: Path) -> Picture | None:
    """The last picture that a training drew, if there is one."""
    path = max((path for path in folder.glob("*.png") if path.is_file()), default=None)
    if path is None:
        return None
    update, _, title = path.stem.partition(".")
    content = path.read_bytes()
    name = f"{SAMPLES}/{path.name}"
    return Picture(name, title, update.lstrip("0"), content if len(content) <= MAX_PICTURE else b"")


def _errors(path: Path) -> str:
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    if len(text) <= MAX_ERRORS:
        return text
    return text[:MAX_ERRORS].rpartition("\n")[0] + f"\n\nand more in {path.name}"


templates.filters |= {"plain": plain, "base64": b64encode}
