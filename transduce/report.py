"""The scores of a finished run on held-out text, printed and kept."""

import json
import time
from dataclasses import replace
from pathlib import Path

from transduce.data.corpus import ParallelText
from transduce.files import write_file
from transduce.pipeline import Decoding, load
from transduce.score.bleu import bleu, chrf


def test_report(directory: Path, test: ParallelText, decoding: Decoding, device: str) -> dict[str, float]:
    """Translate `test` greedily and with the beam, print every score with its signature, keep test.* in the run.

    Returns:
        Scores by name, for example "bleu.beam5.lowercase".
    """
    translator = load(directory, device)
    searches = {"greedy": replace(decoding, beam_size=1, n_best=1)}
    if decoding.beam_size > 1:
        searches[f"beam{decoding.beam_size}"] = replace(decoding, n_best=1)
    values: dict[str, float] = {}
    kept: list[dict[str, object]] = []
    for name, search in searches.items():
        started = time.monotonic()
        outputs = translator(test.source, search)
        seconds = time.monotonic() - started
        write_file(directory / f"test.{name}.txt", "".join(line + "\n" for line in outputs))
        print(f"test, {name}: {len(outputs)} lines in {seconds:.1f} s")
        for kind, score in (
            ("bleu", bleu(outputs, [test.target])),
            ("bleu.lowercase", bleu(outputs, [test.target], lowercase=True)),
            ("chrf", chrf(outputs, [test.target])),
        ):
            print(f"  {score}")
            values[f"{kind}.{name}"] = score.value
            kept.append({"search": name, "score": str(score)})
    for source, target, output in list(zip(test.source, test.target, outputs, strict=True))[:5]:
        print(f"  {source}\n    should be  {target}\n    is         {output}")
    write_file(directory / "test.json", json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    return values
