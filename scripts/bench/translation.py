"""Speed and BLEU of a trained run and of CTranslate2 with the same weights, from file to file.

Times include everything but loading, also tokenization. Several threads of CTranslate2 share a
batch, or have one each ("batches at once"). The systems take turns. Prints median and range of
`--repeats` rounds, and the minimum CPU seconds of a round, which other work on the machine affects
less.

    python scripts/bench translation RUN SOURCE REFERENCE
    python scripts/bench translation RUN SOURCE REFERENCE --beam-size 1 --threads 1
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from bench.turns import speed, take_turns, timed
from tyro.conf import Positional

import transduce as td
from transduce.arguments import Group
from transduce.data.lines import read_lines
from transduce.interop.ctranslate2 import export_ctranslate2, vocabulary_of
from transduce.interop.pretrained import Parts
from transduce.process import keep_memory
from transduce.run import load_run

System = Callable[[list[str]], list[str]]
OURS = "transduce float32"
BASELINE = "CTranslate2 float32"


def load_ctranslate2(
    path: Path,
    directory: Path,
    kind: str,
    *,
    beam_size: int,
    batch_size: int,
    threads: int = 1,
    at_once: int = 1,
) -> System:
    """CTranslate2 with a run's weights, tokenizers and length penalty, as near as it has one.

    Args:
        path: the run.
        directory: where its export goes.
        kind: of CTranslate2's numbers.
        threads: of each batch.
        at_once: batches at a time.
    """
    import ctranslate2

    run = load_run(path)
    source = run.source_tokenizer
    target = run.target_tokenizer
    assert source and target
    export_ctranslate2(Parts(td.load_model(path), source, target, {}), directory)
    translator = ctranslate2.Translator(
        str(directory), compute_type=kind, intra_threads=threads, inter_threads=at_once
    )
    ids = {name: i for i, name in enumerate(vocabulary_of(target, target.vocab_size))}
    suppressed = [target.tokens([i]) for i in target.suppressed if i != target.unk_id]

    def translate(lines: list[str]) -> list[str]:
        results = translator.translate_batch(
            [source.tokens(row) for row in source.encode(lines)],
            beam_size=beam_size,
            max_batch_size=batch_size,
            max_input_length=0,
            suppress_sequences=suppressed,
            disable_unk=True,
            min_decoding_length=0,
            length_penalty=1.0 if beam_size > 1 else 0.0,
        )
        return target.decode([[ids[token] for token in each.hypotheses[0]] for each in results])

    return translate


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    run: Positional[Path]
    """A run of text to text."""
    source: Positional[Path]
    """Lines to translate."""
    reference: Positional[Path]
    """Their translations."""
    beam_size: int = 5
    """Hypotheses of a sentence."""
    batch_size: int = 64
    """Sentences of CTranslate2, and as many tokens of ours."""
    threads: int = 2
    """Threads of every system."""
    repeats: int = 5
    """Rounds."""


def load_systems(lines: list[str], directory: Path, x: Options) -> dict[str, System]:
    """The translation systems by name; exports of the run go to `directory`."""
    translator = td.load_translator(x.run)
    n_tokens = x.batch_size * sum(map(len, translator.sources(lines))) // len(lines)
    options: dict[str, Any] = {
        "beam_size": x.beam_size,
        "batch_tokens": max(n_tokens, translator.decoding.max_source_length + 1),
    }
    systems: dict[str, System] = {
        OURS: partial(translator, **options),
        "transduce int8": partial(td.load_translator(x.run, dtype=torch.int8), **options),
    }
    sizes = {"beam_size": x.beam_size, "batch_size": x.batch_size}
    for kind in ("float32", "int8"):
        load = partial(load_ctranslate2, x.run, directory / kind, kind, **sizes)
        systems[f"CTranslate2 {kind}"] = load(threads=x.threads)
        if x.threads > 1:
            systems[f"CTranslate2 {kind}, batches at once"] = load(at_once=x.threads)
    return systems


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    keep_memory()  # as commands do
    lines = read_lines(x.source)
    references = read_lines(x.reference)

    def translate(system: System) -> list[str]:
        torch.set_num_threads(x.threads)  # CTranslate2 sets those of the process, too
        return system(lines)

    with tempfile.TemporaryDirectory() as directory:
        systems = load_systems(lines, Path(directory), x)
        for system in systems.values():
            system(lines[: x.batch_size])  # warm-up
        calls = {name: partial(timed, partial(translate, s)) for name, s in systems.items()}
        turns = take_turns(calls, x.repeats)
    rates = {name: [len(lines) / turn.seconds for turn in runs] for name, runs in turns.items()}
    expected = turns[OURS][-1].result
    for name, runs in turns.items():
        output = runs[-1].result
        same = sum(map(str.__eq__, output, expected)) / len(lines)
        print(
            f"beam {x.beam_size}  {name:28} {speed(rates[name], rates[BASELINE], 'sentences/s')}  "
            f"{min(turn.cpu_seconds for turn in runs):.3f} CPU s  "
            f"BLEU {sacrebleu.corpus_bleu(output, [references]).score:5.2f}  "
            f"same output {same:7.2%}"
        )
