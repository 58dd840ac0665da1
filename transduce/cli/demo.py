"""`transduce demo`: train on the bundled corpus, then try the models."""

import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from transduce.cli import serve as serving
from transduce.cli.common import Flag, Machine, interact
from transduce.errors import InputError
from transduce.serve import ServeConfig

if TYPE_CHECKING:
    from transduce.tasks.outputs import WordAlignment
    from transduce.tasks.translate import Translator

EXAMPLES = 3
"""Number of test sentences and of test recordings that are shown first."""


def demo(
    folder: Positional[Annotated[Path, arg(metavar="[FOLDER]", help_behavior_hint="")]] = Path(
        "runs/demo"
    ),
    *,
    speech: Flag = False,
    serve: Flag = False,
) -> None:
    """Train a translator in a minute on two cores; then type English, and read German.

    The corpus consists of spoken commands, such as "Did my sister delete the old letter?". The same
    command again resumes a stopped training, or goes straight to the prompt.

    Args:
        folder: Folder of the runs; runs/demo by default.
        speech: Train a speech recognizer too, three minutes more, and translate what you say into
            the microphone, or bundled recordings.
        serve: Open the models in a browser instead of the prompt.
    """
    if serve:
        serving.require_server("--serve")
    runs = [_translator(folder / "translation")]
    if speech:
        runs.append(_recognizer(folder / "speech"))
    if serve:
        access = serving.Access()
        Timer(2.0, webbrowser.open, (f"http://{access.host}:{access.port}",)).start()
        serving.serve(tuple(runs), access=access, limits=ServeConfig(), machine=Machine())
        return
    _show(*runs)


def _show(text_run: Path, speech_run: Path | None = None) -> None:
    """Print examples, then translate what is typed."""
    from transduce.recipes import DATA
    from transduce.tasks.load import load_transcriber, load_translator

    corpus = DATA / "commands"
    translator = load_translator(text_run)
    print("== English in, German out; below each German word its English word")
    for line in (corpus / "test.en").read_text(encoding="utf-8").splitlines()[:EXAMPLES]:
        print(f"> {line}")
        _show_translation(translator, line)
    if speech_run:
        transcriber = load_transcriber(speech_run)
        for name, sound in _sounds(sorted((corpus / "sound" / "test").glob("*.opus"))[:EXAMPLES]):
            (transcript,) = transcriber([sound])
            print(f"> {name}: {transcript}")
            _show_translation(translator, transcript)
    interact(lambda line, _: _show_translation(translator, line))


def _translator(run: Path) -> Path:
    """Train the recipe's setting for 300 updates, a minute on two cores, and return the run."""
    from transduce.recipes import translation

    setting = translation.COMMANDS
    # Muon needs fewer updates
    optim = replace(setting.training.optim, optimizer="muon", warmup_steps=60)
    training = replace(setting.training, optim=optim, max_updates=300)
    # it also translates what the recognizer writes
    setting = replace(setting, run=run, training=training, transcripts=True)
    name = "a translator of spoken commands, English to German: a minute on two cores"
    return _trained(name, translation, setting)


def _recognizer(run: Path) -> Path:
    """Train the recipe's setting on one view of each batch, three minutes on two cores."""
    from transduce.recipes import speech_to_text

    setting = speech_to_text.COMMANDS
    setting = replace(
        setting,
        run=run,
        frames_per_batch=5000,
        ctc_consistency=0.0,
        augmentation=replace(setting.augmentation, n_time_masks=2),
        training=replace(
            setting.training,
            optim=replace(setting.training.optim, weight_decay=1.0),
            max_updates=800,
            validate_every=400,
        ),
    )
    name = "a recognizer of spoken commands: three minutes on two cores"
    return _trained(name, speech_to_text, setting)


def _trained(name: str, recipe: Any, setting: Any) -> Path:
    """Train a recipe's setting, unless its run has a score already; return the run."""
    run: Path = setting.run
    if not (run / "test.json").is_file():
        print(f"== training {name}")
        recipe.run(setting)
        print(f"the learning curve is {run / 'learning_curve.png'}\n")
    return run


def _show_translation(translator: "Translator", line: str) -> None:
    """Print the translation, and below each of its words the source word with most attention."""
    ((output,),) = translator.translate([line], n_best=1, alignments=True)
    print("\n".join(_two_rows(output.alignment)) if output.alignment else output.text)
    print()


def _two_rows(alignment: "WordAlignment") -> list[str]:
    """The target words, and below each the source word that it is aligned with."""
    pairs = [(alignment.target[i], alignment.source[k]) for k, i in alignment.pairs]
    columns = [[word.ljust(max(map(len, pair))) for word in pair] for pair in pairs]
    return [f"  {'  '.join(row).rstrip()}" for row in zip(*columns, strict=True)]


def _sounds(recordings: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yield a recording from the microphone, or these files if there is none or no terminal."""
    from transduce.data.audio import record

    if sys.stdin.isatty():
        try:
            yield "you", record(lambda: input("speak a command; Enter ends it "))
            return
        except (InputError, OSError) as error:
            print(f"no microphone ({error}), so bundled recordings are transcribed")
    for path in recordings:
        yield path.name, path
