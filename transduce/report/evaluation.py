"""Scores of a finished run on test data, printed and written into the run directory."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from transduce.data.manifest import Recording
from transduce.files import write_file
from transduce.report.documents import write_reports
from transduce.report.record import HeldOutScore
from transduce.run import ERRORS
from transduce.score.measures import Tokenization, chrf, get_measure
from transduce.score.score import Measure, counted
from transduce.score.wer import ErrorRate, wer
from transduce.tasks.config import SearchConfig
from transduce.tasks.load import load_as
from transduce.tasks.transcribe import Transcriber

WORST = 20
"""Utterances or lines in the report of errors, and different errors in its table."""

SHOWN = 5
"""Examples that are printed."""


def speech_report(
    directory: Path,
    test: Sequence[Recording],
    search: SearchConfig,
    device: str,
    *,
    canary: Sequence[Recording] = (),
    measures: Sequence[str] = ("wer", "cer"),
    tokenize: Tokenization | None = None,
) -> dict[str, float]:
    """Transcribe `test` greedily, with the beam, and with CTC if `search` has it; score each.

    A recording that cannot be used is named and counts as a blank transcript; text for a recording
    without a reference counts as insertions. Every search reads the sound anew, in chunks, so that
    memory does not grow with `test`.

    Args:
        test: recordings, of which at least one has a text.
        canary: other recordings, which are scored separately.
        measures: ("bleu", "chrf") for speech translation.
        tokenize: how BLEU separates words.
    """
    transcriber = load_as(Transcriber, directory, device)
    every = [*test, *canary]
    errors: set[str] = set()

    def decode(config: SearchConfig) -> list[str]:
        transcripts = transcriber.transcribe([recording.audio for recording in every], config)
        for transcript in transcripts:
            if transcript.error and transcript.error not in errors:
                print(f"  {transcript.error}")
                errors.add(transcript.error)
        return [transcript.text for transcript in transcripts]

    return search_report(
        directory,
        decode,
        [(recording.id, recording.text) for recording in every],
        search,
        measures,
        tokenize=tokenize,
        groups=[""] * len(test) + ["canary"] * len(canary),
        recordings=every,
    )


def search_report(
    directory: Path,
    decode: Callable[[SearchConfig], list[str]],
    pairs: Sequence[tuple[str, str]],
    search: SearchConfig,
    measures: Sequence[str],
    *,
    tokenize: Tokenization | None = None,
    groups: Sequence[str] = (),
    recordings: Sequence[Recording] = (),
) -> dict[str, float]:
    """Decode test data greedily and as `search` says; print all scores, and write test.*.

    Args:
        decode: gives one output for every pair under a search configuration.
        pairs: sources, or names of recordings, and references.
        measures: their names, such as "bleu".
        tokenize: how BLEU separates words.
        groups: the group of every pair, such as its direction; each group is scored separately,
            beside all pairs. If the first pairs have the group "", only they are the test.
        recordings: the sources, if they are sound.

    Returns:
        Scores by name, for example "bleu.lowercase.beam5", and "bleu.lowercase.beam5.en-de" of a
        group.
    """
    groups = groups or [""] * len(pairs)
    n_test = groups.count("") or len(pairs)
    rows: list[HeldOutScore] = []
    for name, config in _searches(search).items():
        started = time.monotonic()
        outputs = decode(config)
        seconds = time.monotonic() - started
        lines = "".join(line + "\n" for line in outputs[:n_test])
        write_file(directory / f"test.{name}.txt", lines)
        speed = f"lines in {seconds:.1f} s"
        if recordings:
            factor = seconds / sum(recording.seconds for recording in recordings)
            speed = f"recordings in {seconds:.1f} s, real-time factor {factor:.4f}"
        print(f"test, {name}: {len(outputs)} {speed}")
        rows += _scores(name, outputs, pairs, groups, [get_measure(m, tokenize) for m in measures])
    pairs, outputs, recordings = pairs[:n_test], outputs[:n_test], recordings[:n_test]
    for (source, reference), output in list(zip(pairs, outputs, strict=True))[:SHOWN]:
        print(_example(source, reference, output))
    _write(directory, rows)
    by_words = "wer" in measures
    errors = _word_errors(pairs, outputs, recordings) if by_words else _worst_lines(pairs, outputs)
    write_file(directory / ERRORS, f"test, {name}: {errors}")
    write_reports(directory)
    return {".".join(filter(None, (row.measure, row.search, row.group))): row.value for row in rows}


def _searches(search: SearchConfig) -> dict[str, SearchConfig]:
    """Greedy search; beam search or sampling without CTC; and the same with CTC, as far as `search`
    has them."""
    plain = replace(search, n_best=1, ctc_weight=0.0)
    drawn = "sampled" if plain.sample else f"beam{plain.beam_size}"
    name = drawn if plain.sample or plain.beam_size > 1 else "greedy"
    with_ctc = {f"{name}.ctc": replace(search, n_best=1)} if search.ctc_weight else {}
    return {"greedy": plain.greedy(), name: plain, **with_ctc}


def _scores(
    search: str,
    outputs: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    groups: Sequence[str],
    measures: Sequence[Measure],
) -> list[HeldOutScore]:
    """Print and return the scores of each group, and of all."""
    rows = []
    for group in dict.fromkeys([*groups, ""]):
        chosen = [i for i, each in enumerate(groups) if each == group] or range(len(pairs))
        for measure in measures:
            score = measure([outputs[i] for i in chosen], [pairs[i][1] for i in chosen])
            row = HeldOutScore(
                search=search,
                measure=measure.name,
                value=score.value,
                low=score.low,
                high=score.high,
                group=group,
                score=f"{group}: {score}" if group else str(score),
            )
            rows.append(row)
            print(f"  {row.score}")
    return rows


def _write(directory: Path, rows: Sequence[HeldOutScore]) -> None:
    """Write test.json, without groups where there are none."""
    plain = [{k: v for k, v in asdict(row).items() if v != ""} for row in rows]
    write_file(directory / "test.json", json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def _example(source: str, reference: str, output: str) -> str:
    return f"  {source}\n    should be  {reference}\n    is         {output}"


def _word_errors(
    pairs: Sequence[tuple[str, str]], outputs: Sequence[str], recordings: Sequence[Recording]
) -> str:
    """Word errors: of each speaker, where there are several; the worst utterances, aligned; and the
    frequent ones."""
    names, references = zip(*pairs, strict=True)
    rate = wer(outputs, references, resamples=0)
    assert isinstance(rate, ErrorRate)
    speakers = [recording.speaker for recording in recordings]
    table = rate.table("speaker", speakers) + "\n\n" if len({*speakers}) > 1 else ""
    return f"{rate}\n{rate.description}\n\n{table}{rate.report(names, most=WORST, worst=WORST)}"


def _worst_lines(pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> str:
    """The lines that differ most from their references, by the chrF of each line."""
    differing = [i for i, (_, reference) in enumerate(pairs) if outputs[i] != reference]
    values = {i: chrf([outputs[i]], [pairs[i][1]], resamples=0).value for i in differing}
    head = (
        f"{len(differing)} of {counted(len(outputs), 'line')} differ, "
        "the worst by the chrF of each first"
    )
    lines = [
        f"line {i + 1}: chrF {values[i]:.2f}\n{_example(*pairs[i], outputs[i])}"
        for i in sorted(differing, key=values.__getitem__)[:WORST]
    ]
    return "\n\n".join([head, *lines]) + "\n"
