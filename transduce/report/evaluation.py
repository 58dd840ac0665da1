"""The scores of a finished run on held-out data, printed and kept in the run directory."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from transduce.data.speech.manifest import Recording
from transduce.files import write_file
from transduce.report.page import write_reports
from transduce.run import ERRORS
from transduce.score.alignment import error_report
from transduce.score.bleu import chrf
from transduce.score.measures import get_measure
from transduce.score.score import counted
from transduce.score.tokenization import Tokenization
from transduce.score.wer import wer
from transduce.tasks.config import SearchConfig
from transduce.tasks.load import load_as
from transduce.tasks.transcribe import Transcriber

WORST = 20
"""Utterances or lines that the report of errors shows, and different errors that it counts."""


def speech_report(
    directory: Path,
    test: Sequence[Recording],
    search: SearchConfig,
    device: str,
    *,
    measures: Sequence[str] = ("wer", "cer"),
    tokenize: Tokenization | None = None,
) -> dict[str, float]:
    """Transcribe `test` greedily, with the beam, and with CTC beside it where `search` has it; keep every score.

    A recording that cannot be used is named and counts as a blank transcript; what is written for one without a text
    counts as insertions. Every search reads the sound anew, in chunks, so that memory does not grow with `test`.

    Args:
        test: recordings, of which at least one has a text.
        measures: ("bleu", "chrf") for speech translation.
        tokenize: how BLEU separates words.
    """
    transcriber = load_as(Transcriber, directory, device)
    errors: set[str] = set()

    def decode(how: SearchConfig) -> list[str]:
        found = transcriber.transcribe([recording.audio for recording in test], how)
        for error in (transcript.error for transcript in found if transcript.error):
            if error not in errors:
                print(f"  {error}")
            errors.add(error)
        return [transcript.text for transcript in found]

    return search_report(
        directory,
        decode,
        [(recording.id, recording.text) for recording in test],
        search,
        measures,
        tokenize=tokenize,
        sound_seconds=sum(recording.seconds for recording in test),
        speakers=[recording.speaker for recording in test],
    )


def _searches(search: SearchConfig) -> dict[str, SearchConfig]:
    """Greedy search, the beam without CTC, and the beam with it, as far as `search` has them."""
    plain = replace(search, n_best=1, ctc_weight=0.0)
    beam = f"beam{plain.beam_size}" if plain.beam_size > 1 else "greedy"
    with_ctc = {f"{beam}.ctc": replace(search, n_best=1)} if search.ctc_weight else {}
    return {"greedy": plain.greedy(), beam: plain, **with_ctc}


def search_report(
    directory: Path,
    decode: Callable[[SearchConfig], list[str]],
    pairs: Sequence[tuple[str, str]],
    search: SearchConfig,
    measures: Sequence[str],
    *,
    tokenize: Tokenization | None = None,
    sound_seconds: float | None = None,
    speakers: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> dict[str, float]:
    """Decode test data greedily and as `search` says; print every score with its signature, and keep test.* in the run.

    Args:
        decode: gives one output for every pair, searched in this way.
        pairs: what went in and what should come out.
        measures: their names, such as "bleu".
        tokenize: how BLEU separates words.
        sound_seconds: where sound went in, how long it lasts.
        speakers: where sound went in, who speaks, for a table of their error rates.
        groups: the group of every pair, such as its direction; each group has scores of its own, beside that of all.

    Returns:
        Scores by name, for example "bleu.lowercase.beam5", and "bleu.lowercase.beam5.en-de" of a group.
    """
    values: dict[str, float] = {}
    kept: list[dict[str, object]] = []
    outputs: list[str] = []
    for name, how in _searches(search).items():
        started = time.monotonic()
        outputs = decode(how)
        seconds = time.monotonic() - started
        write_file(directory / f"test.{name}.txt", "".join(line + "\n" for line in outputs))
        told = f" lines in {seconds:.1f} s"
        if sound_seconds is not None:
            told = f" recordings in {seconds:.1f} s, real-time factor {seconds / sound_seconds:.4f}"
        print(f"test, {name}: {len(outputs)}{told}")
        for group in [*dict.fromkeys(groups), ""]:
            chosen = [i for i in range(len(pairs)) if not group or groups[i] == group]
            for measure in (get_measure(name, tokenize) for name in measures):
                score = measure([outputs[i] for i in chosen], [pairs[i][1] for i in chosen])
                told = f"{group}: {score}" if group else f"{score}"
                print(f"  {told}")
                values[".".join(filter(None, (measure.name, name, group)))] = score.value
                found = {
                    "search": name,
                    "measure": measure.name,
                    "value": score.value,
                    "low": score.low,
                    "high": score.high,
                }
                kept.append({**found, **({"group": group} if group else {}), "score": told})
    for (source, reference), output in list(zip(pairs, outputs, strict=True))[:5]:
        print(f"  {source}\n    should be  {reference}\n    is         {output}")
    errors = _errors(name, pairs, outputs, speakers) if "wer" in measures else _worst(name, pairs, outputs)
    write_file(directory / ERRORS, errors)
    write_file(directory / "test.json", json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    write_reports(directory)
    return values


def _errors(search: str, pairs: Sequence[tuple[str, str]], outputs: Sequence[str], speakers: Sequence[str]) -> str:
    """Word errors: of each speaker, where there are several; the worst utterances, aligned; and the frequent ones."""
    ids, references = zip(*pairs, strict=True)
    rate = wer(outputs, references, resamples=0)
    groups = rate.table("speaker", speakers) + "\n\n" if len({*speakers}) > 1 else ""
    found = error_report(rate.aligned, ids, unit=rate.unit, most=WORST, worst=WORST)
    return f"test, {search}: {rate}\n{rate.extent}\n\n{groups}{found}"


def _worst(search: str, pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> str:
    """The lines that are furthest from their references, by the chrF of each alone."""
    lines = zip(pairs, outputs, strict=True)
    wrong = [
        (chrf([output], [right], resamples=0).value, i, source, right, output)
        for i, ((source, right), output) in enumerate(lines, start=1)
        if output != right
    ]
    told = [
        f"test, {search}: {len(wrong)} of {counted(len(outputs), 'line')} differ, the worst by the chrF of each first"
    ]
    for value, i, source, right, output in sorted(wrong)[:WORST]:
        told.append(f"line {i}: chrF {value:.2f}\n  {source}\n    should be  {right}\n    is         {output}")
    return "\n\n".join(told) + "\n"
