"""Compare a run with all of its exports: greedy outputs and their log-probabilities.

    python scripts/ops/compare_exports.py RUN lines.txt [--to ctranslate2 onnx marian gpt2 llama] [--n 100]

Lines are translated, or gone on from. For each kind prints the largest difference of a token's log-probability, given
the tokens before it, and how many outputs are the same. For what cannot be exported, the reason is printed.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import transduce as td
from transduce.cli.main import main as transduce

KINDS = ("ctranslate2", "onnx", "marian", "gpt2", "llama")
LENGTH = 30
"""Maximum tokens of an output."""

Rows = list[list[int]]
Judge = Callable[[Rows, Rows], list[np.ndarray]]
"""From sources or prompts, and outputs, to the log-probabilities of each output's tokens."""
Writer = Callable[[Rows], Rows]
"""From sources or prompts to greedy outputs, without their end."""


class Ours:
    """The run itself."""

    def __init__(self, run: Path, lines: list[str]) -> None:
        self.task = task = td.load(run, "cpu")
        assert isinstance(task, td.Translator | td.Generator)
        self.tokenizer, self.vocab_size = task.tokenizer, task.model.vocab_size
        if isinstance(task, td.Translator):
            self.rows = task.sources(lines)
            way: dict[str, Any] = {"beam_size": 1, "max_length": LENGTH, "length_extra": LENGTH}
            results = task.translate(lines, token_scores=True, **way)
            self.begin = [*self.tokenizer.required("bos_id"), *self.tokenizer.opening]
        else:
            self.rows = [task.encode(line) for line in lines]
            results = task.generate(lines, td.GenerationConfig(max_length=LENGTH, temperature=0.0), token_scores=True)
            self.begin = []
        self.outputs = [each[0].tokens for each in results]
        self.log_probs = [each[0].token_scores.log_probs[: len(each[0].tokens)].numpy() for each in results]
        self.never = [*self.tokenizer.suppressed] if self.begin else [*task.suppressed]

    def ends(self, row: list[int]) -> list[int]:
        """An output without its end, and what follows that."""
        eos = self.tokenizer.eos_id
        return row[: row.index(eos)] if eos in row else row


def ctranslate2(ours: Ours, directory: Path) -> tuple[Judge, Writer]:
    import ctranslate2

    names = json.loads(next(directory.glob("*vocabulary.json")).read_text())
    sides = [directory / f"{side}_vocabulary.json" for side in ("source", "target")]
    source, target = (json.loads(path.read_text()) if path.exists() else names for path in sides)
    never = [[target[i]] for i in ours.never]

    def tokens(rows: Rows, table: list[str] = target) -> list[list[str]]:
        return [[table[i] for i in row] for row in rows]

    if not ours.begin:
        generator = ctranslate2.Generator(str(directory))
        options = {
            "max_length": LENGTH,
            "sampling_topk": 1,
            "include_prompt_in_result": False,
            "suppress_sequences": never,
        }

        def judge(rows: Rows, outputs: Rows) -> list[np.ndarray]:
            joined = [row + output for row, output in zip(rows, outputs, strict=True)]
            results = generator.score_batch(tokens(joined))
            return [np.array(each.log_probs[len(row) - 1 :]) for each, row in zip(results, rows, strict=True)]

        return judge, lambda rows: [each.sequences_ids[0] for each in generator.generate_batch(tokens(rows), **options)]

    translator = ctranslate2.Translator(str(directory))
    n_begin, bare = len(ours.begin) - 1, json.loads((directory / "config.json").read_text())["add_source_eos"]

    def read(rows: Rows) -> list[list[str]]:
        return tokens([row[:-1] for row in rows] if bare else rows, source)

    def judge_pairs(rows: Rows, outputs: Rows) -> list[np.ndarray]:
        results = translator.score_batch(read(rows), tokens([[*ours.begin[1:], *row] for row in outputs]))
        return [np.array(each.log_probs[n_begin:-1]) for each in results]

    def write(rows: Rows) -> Rows:
        results = translator.translate_batch(
            read(rows), target_prefix=tokens([ours.begin[1:]] * len(rows)), beam_size=1, min_decoding_length=0,
            max_decoding_length=LENGTH + n_begin, suppress_sequences=never,
        )  # fmt: skip
        return [[target.index(token) for token in each.hypotheses[0][n_begin:]] for each in results]

    return judge_pairs, write


def onnx(ours: Ours, directory: Path) -> tuple[Judge, Writer]:
    import onnxruntime

    config = json.loads((directory / "config.json").read_text())
    step = onnxruntime.InferenceSession(str(directory / "step.onnx"))
    encoder = onnxruntime.InferenceSession(str(directory / "encoder.onnx")) if ours.begin else None

    def steps(row: list[int], choose: Callable[[int, np.ndarray], int | None]) -> None:
        """Feed what `choose` gives for each number of tokens read, and their logits, until it gives None."""
        known: dict[str, Any] = {}
        if encoder is not None:
            names = ["memory_keys", "memory_values", "memory_lengths"]
            source = {"source": np.array([row]), "lengths": np.array([len(row)])}
            known = dict(zip(names, encoder.run(None, source), strict=True))
        prefix, n = ours.begin or row, 0
        keys = values = np.zeros((config["n_layers"], 1, config["n_kv_heads"], 0, config["d_head"]), dtype=np.float32)
        token: int | None = prefix[0]
        while token is not None:
            logits, keys, values = step.run(
                None, {"tokens": np.array([token]), "keys": keys, "values": values, **known}
            )
            n += 1
            token = prefix[n] if n < len(prefix) else choose(n - len(prefix), logits[0])

    def judge(rows: Rows, outputs: Rows) -> list[np.ndarray]:
        results: list[np.ndarray] = []
        for row, output in zip(rows, outputs, strict=True):
            scores: list[float] = []

            def force(
                i: int, logits: np.ndarray, output: list[int] = output, scores: list[float] = scores
            ) -> int | None:
                if i == len(output):
                    return None
                scores.append(float(torch.from_numpy(logits).log_softmax(0)[output[i]]))
                return output[i]

            steps(row, force)
            results.append(np.array(scores))
        return results

    def write(rows: Rows) -> Rows:
        results: Rows = []
        for row in rows:
            output: list[int] = []

            def greedy(i: int, logits: np.ndarray, output: list[int] = output) -> int | None:
                logits[ours.never] = -np.inf
                output.append(int(logits.argmax()))
                return None if i + 1 == LENGTH or output[-1] == ours.tokenizer.eos_id else output[-1]

            steps(row, greedy)
            results.append(ours.ends(output))
        return results

    return judge, write


def transformers(ours: Ours, directory: Path) -> tuple[Judge, Writer]:
    import transformers

    kind = transformers.MarianMTModel if ours.begin else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(directory).eval()
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": LENGTH, "max_length": None}
    options |= {"suppress_tokens": [i for i in ours.never if i < model.config.vocab_size] or None}
    if (eos := ours.tokenizer.eos_id) is not None:
        options |= {"eos_token_id": eos, "pad_token_id": eos}

    @torch.no_grad()
    def judge(rows: Rows, outputs: Rows) -> list[np.ndarray]:
        results = []
        for row, output in zip(rows, outputs, strict=True):
            first = ours.begin or row
            ids = {"decoder_input_ids" if ours.begin else "input_ids": torch.tensor([[*first, *output]])}
            logits = model(**({"input_ids": torch.tensor([row])} if ours.begin else {}), **ids).logits
            log_probs = logits[0, len(first) - 1 : -1].log_softmax(-1)
            results.append(log_probs.gather(1, torch.tensor(output)[:, None])[:, 0].numpy())
        return results

    @torch.no_grad()
    def write(rows: Rows) -> Rows:
        results = [model.generate(torch.tensor([row]), **options)[0].tolist() for row in rows]
        return [ours.ends(new[1 if ours.begin else len(row) :]) for new, row in zip(results, rows, strict=True)]

    return judge, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--to", nargs="+", default=KINDS, choices=KINDS, help="kinds of exports; all of them")
    parser.add_argument("--n", type=int, default=100, help="lines at most")
    args = parser.parse_args()
    lines = [line for line in args.lines.read_text("utf-8").split("\n") if line.strip()][: args.n]
    ours = Ours(args.run, lines)
    for kind in args.to:
        with TemporaryDirectory() as folder:
            directory = Path(folder) / kind
            if transduce(["export", str(args.run), str(directory), "--to", kind]):
                continue
            judge, write = {"ctranslate2": ctranslate2, "onnx": onnx}.get(kind, transformers)(ours, directory)
            pairs = zip(judge(ours.rows, ours.outputs), ours.log_probs, strict=True)
            difference = max(
                (float(np.abs(theirs - log_probs).max()) for theirs, log_probs in pairs if len(log_probs)), default=0.0
            )
            same = sum(a == b for a, b in zip(write(ours.rows), ours.outputs, strict=True))
        print(f"{kind}: largest difference {difference:.1e}, {same} of {len(lines)} outputs are the same", flush=True)


if __name__ == "__main__":
    main()
