"""Speed and BLEU of a trained run beside CTranslate2 with the same weights: real text, from file to file.

Tokenizing counts, and so does everything else but loading. Several threads of CTranslate2 share a batch, or each have one
("batches at once"). The systems take turns; median and range of `--repeats` rounds, and the least CPU seconds of one, which
other work on the machine changes less.

    python scripts/bench translation RUN SOURCE REFERENCE
    python scripts/bench translation RUN SOURCE REFERENCE --beam-size 1 --threads 1
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch

import transduce as td
from transduce.data.lines import read_lines
from transduce.interop.ctranslate2 import export_ctranslate2, vocabulary_of
from transduce.process import keep_memory
from transduce.run import load_run

System = Callable[[list[str]], list[str]]


def engine(
    run: Path, directory: Path, kind: str, *, beam_size: int, batch: int, threads: int = 1, at_once: int = 1
) -> System:
    """CTranslate2 with the run's weights, tokenizers and length penalty, as near as it has one; `at_once` batches at once."""
    import ctranslate2

    source, tokenizer = (own := load_run(run)).source_tokenizer, own.target_tokenizer
    assert source and tokenizer
    export_ctranslate2(td.load_model(run), directory, source=source, target=tokenizer)
    loaded = ctranslate2.Translator(str(directory), compute_type=kind, intra_threads=threads, inter_threads=at_once)
    ids = {name: i for i, name in enumerate(vocabulary_of(tokenizer, tokenizer.vocab_size))}
    never = [tokenizer.tokens([i]) for i in tokenizer.suppressed if i != tokenizer.unk_id]
    settings: dict[str, Any] = {"beam_size": beam_size, "max_batch_size": batch, "max_input_length": 0}
    settings |= {"suppress_sequences": never, "disable_unk": True, "min_decoding_length": 0}
    settings["length_penalty"] = 1.0 if beam_size > 1 else 0.0

    def translate(lines: list[str]) -> list[str]:
        rows = [source.tokens(row) for row in source.encode(lines)]
        found = loaded.translate_batch(rows, **settings)
        return tokenizer.decode([[ids[token] for token in each.hypotheses[0]] for each in found])

    return translate


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of text to text")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="sentences of CTranslate2; as many tokens of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    keep_memory()  # as commands do
    lines, references = read_lines(x.source), read_lines(x.reference)
    plain, rounded = td.load_translator(x.run), td.load_translator(x.run, dtype=torch.int8)
    tokens = x.batch_size * sum(map(len, plain.sources(lines))) // len(lines)
    how: dict[str, Any] = {"beam_size": x.beam_size, "batch_tokens": max(tokens, plain.decoding.max_source_length + 1)}
    systems: dict[str, System] = {"transduce float32": partial(plain, **how), "transduce int8": partial(rounded, **how)}
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("float32", "int8"):
            rival = partial(engine, x.run, Path(directory) / kind, kind, beam_size=x.beam_size, batch=x.batch_size)
            systems[f"CTranslate2 {kind}"] = rival(threads=x.threads)
            if x.threads > 1:
                systems[f"CTranslate2 {kind}, batches at once"] = rival(at_once=x.threads)
        taken: dict[str, list[float]] = {name: [] for name in systems}
        cpu: dict[str, list[float]] = {name: [] for name in systems}
        outputs: dict[str, list[str]] = {}
        for system in systems.values():
            system(lines[: x.batch_size])  # warm-up
        for _ in range(x.repeats):
            for name, system in systems.items():
                torch.set_num_threads(x.threads)  # CTranslate2 sets those of the process, too
                start, start_cpu = time.perf_counter(), time.process_time()
                outputs[name] = system(lines)
                taken[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - start_cpu)
    baseline = statistics.median(taken["CTranslate2 float32"])
    for name, seconds in taken.items():
        fast, median, slow = (len(lines) / each for each in (min(seconds), statistics.median(seconds), max(seconds)))
        same = sum(map(str.__eq__, outputs[name], outputs["transduce float32"])) / len(lines)
        score = sacrebleu.corpus_bleu(outputs[name], [references]).score
        print(
            f"beam {x.beam_size}  {name:28} {median:8.1f} sentences/s ({slow:.1f} to {fast:.1f})  "
            f"{baseline / statistics.median(seconds):5.2f} x  {min(cpu[name]):.3f} CPU s  "
            f"BLEU {score:5.2f}  same output {same:7.2%}"
        )


if __name__ == "__main__":
    main()
