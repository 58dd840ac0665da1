"""`transduce score likelihood` and `transduce rerank`: how likely a run finds outputs that are given."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from transduce.cli.common import STDIN, Machine, OptionalFile, Runs, each_run, local, read_side, side_name
from transduce.cli.output import check_output, writing
from transduce.data.speech.manifest import manifest_audio
from transduce.errors import InputError
from transduce.tasks.formats import plain_tokens

Language = Annotated[str, arg(help_behavior_hint="")]


def score_likelihood(
    run: Positional[Runs],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[SRC] HYP", help_behavior_hint="(required)")]],
    *,
    format: Literal["text", "json"] = "text",
    source_language: Language = "",
    target_language: Language = "",
    output: OptionalFile = None,
    machine: Machine,
) -> None:
    """Write the natural log-probability that a run gives to each text, and its number of tokens: to filter pairs by.

    Args:
        files: What the texts come from, and the texts, line by line: files, plain or .gz, or -. Of sound, SRC is a
            manifest (.tsv), or has names of files, one a line. A language model takes HYP alone.
        format: text: log-probability, a tab, number of tokens. json: an object per line, with the log-probability of
            every token.
        source_language: Of SRC, in a model of many languages: en, eng_Latn ...
        target_language: Of HYP, in such a model.
        output: Where it goes; standard output if not given.
    """
    _check_stdin(files)
    if len(files) not in (1, 2):
        raise InputError(f"likelihood takes SRC and HYP, or of a language model HYP alone, but got {len(files)} files")
    check_output(output, files)  # now, and not when all is computed
    loaded = _loaded(run, machine, alone=len(files) == 1)
    texts = read_side(files[-1])
    if len(files) == 1:
        scores = loaded.score(texts)
    else:
        scores = loaded.score(_inputs(loaded, files[0]), texts, **_languages(source_language, target_language))
    with writing(output, unit="line", total=None, inputs=files) as (out, _):
        for each in scores:
            plain = {"log_prob": each.log_prob, "tokens": plain_tokens(each)}
            text = f"{each.log_prob:.4f}\t{len(each.tokens)}"
            out.write((text if format == "text" else json.dumps(plain, ensure_ascii=False)) + "\n")


def rerank(
    run: Positional[Runs],
    source: Positional[Annotated[Path, arg(metavar="SRC")]],
    lists: Positional[Annotated[Path, arg(metavar="NBEST")]],
    *,
    weight: float = 1.0,
    own_weight: float = 1.0,
    backwards: Annotated[bool, arg(help_behavior_hint="")] = False,
    all: Annotated[bool, arg(help_behavior_hint="")] = False,
    source_language: Language = "",
    target_language: Language = "",
    output: OptionalFile = None,
    machine: Machine,
) -> None:
    """Choose among n outputs of every input by what another run thinks of them: where it is too slow to search with.

    The score of an output is --own-weight times the score that the list has, plus --weight times the run's (its
    log-probability over its length penalty).

    Args:
        source: What was translated; sound by names or manifest.
        lists: As translate --n-best N --scores writes it: score, tab, text; N lines for each line of SRC.
        weight: Of the run's score.
        own_weight: Of the score in the list.
        backwards: RUN translates the other way: how likely is SRC given each?
        all: Write whole lists, best first, as rerank can read them.
        source_language: Of SRC, in a model of many languages: en, eng_Latn ...
        target_language: Of NBEST, in such a model.
        output: Where the texts go; standard output if not given.
    """
    from transduce.tasks.search import Output

    _check_stdin([source, lists])
    check_output(output, [source, lists])
    loaded = _loaded(run, machine, alone=False)
    rows = [Output(text, score=score) for score, text in map(_scored, read_side(lists))]
    inputs = _inputs(loaded, source)
    n, rest = divmod(len(rows), max(1, len(inputs)))
    if rest or not n:
        raise InputError(
            f"a list has equally many outputs for every input, but there are {len(rows)} lines in {side_name(lists)} and "
            f"{len(inputs)} in {side_name(source)}; make it with --n-best N --scores"
        )
    languages = _languages(*((target_language, source_language) if backwards else (source_language, target_language)))
    told = {"weight": weight, "own_weight": own_weight, "backwards": backwards, **languages}
    found = loaded.rerank(inputs, [rows[i : i + n] for i in range(0, len(rows), n)], **told)
    with writing(output, unit="line", total=None, inputs=[source, lists]) as (out, _):
        for ranked in found:
            out.writelines(
                f"{o.score:.4f}\t{o.text}\n" if all else f"{o.text}\n" for o in (ranked if all else ranked[:1])
            )


def _loaded(run: Path, machine: Machine, *, alone: bool) -> Any:
    """The run: a language model if texts stand `alone`, else what translates or transcribes."""
    from transduce.run import load_run
    from transduce.tasks.generate import Generator
    from transduce.tasks.transcribe import Transcriber
    from transduce.tasks.translate import Translator

    run = local(run)
    if alone:
        return machine.load(Generator, run)
    sound = load_run(each_run(run)[0]).feature_extractor is not None
    return machine.load(Transcriber, run) if sound else machine.load(Translator, run)


def _inputs(loaded: Any, source: Path) -> Sequence[Any]:
    """What flows in."""
    from transduce.tasks.transcribe import Transcriber

    sound = isinstance(loaded, Transcriber)
    return manifest_audio(source) if sound and source.suffix == ".tsv" else read_side(source)


def _languages(source: str, target: str) -> dict[str, str]:
    """Those that are named, as settings of a search."""
    return {name: code for name, code in (("source_language", source), ("target_language", target)) if code}


def _scored(line: str) -> tuple[float, str]:
    """The score and the text of a line of a list.

    Raises:
        InputError: there is no score.
    """
    score, tab, text = line.partition("\t")
    try:
        return float(score if tab else "no tab"), text
    except ValueError as error:
        raise InputError(
            f"a line of a list is a score, a tab and a text, as translate --n-best 5 --scores writes it, but it is {line!r:.60}"
        ) from error


def _check_stdin(files: Sequence[Path]) -> None:
    if (n := list(files).count(STDIN)) > 1:
        raise InputError(f"standard input can be read once, but - stands for {n} files; name the others")
