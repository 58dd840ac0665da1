"""Estimate n-grams of the tokens of a text, as an ARPA file for --lm.

    transduce tokenize RUN transcripts.txt > transcripts.tok
    python scripts/corpora/ngrams.py lm.arpa transcripts.tok --order 8
    transduce transcribe RUN FILE --lm lm.arpa --lm-weight 0.3

Probabilities are those of Witten and Bell (1991), interpolated with all shorter histories. A file that is named several times
counts as often, such as the transcripts of the training beside more text of another kind. All counts are in memory: for more than
some millions of tokens take KenLM's lmplz, which writes such files, too.
"""

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from transduce.cli.large_files import check_output
from transduce.data.lines import read_lines
from transduce.errors import InputError, exit_code
from transduce.files import write_file

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
IMPOSSIBLE = -99.0  # log10 of the probability of BOS, by convention

History = tuple[str, ...]


def count(lines: Iterable[str], order: int) -> dict[History, Counter[str]]:
    """How often each token follows each history of at most order - 1 tokens. Only spaces separate tokens: U+00A0 is one."""
    counts: defaultdict[History, Counter[str]] = defaultdict(Counter)
    for line in lines:
        tokens = [BOS, *filter(None, line.split(" ")), EOS]
        for i in range(1, len(tokens)):
            for start in range(max(0, i - order + 1), i + 1):
                counts[tuple(tokens[start:i])][tokens[i]] += 1
    return counts


def estimate(counts: dict[History, Counter[str]]) -> tuple[dict[History, float], dict[History, float]]:
    """Probabilities of n-grams, and the backoff weights of histories.

    After a history that is followed n times by t different tokens, a token that follows c times has the probability
    (c + t q) / (n + t), where q is its probability after the history without its first token, or 1 / V.
    """
    uniform = 1 / (len(counts[()]) + 1)
    probabilities: dict[History, float] = {}
    backoffs: dict[History, float] = {}
    for history in sorted(counts, key=len):
        following = counts[history]
        n, t = following.total(), len(following)
        backoffs[history] = t / (n + t)
        for token, c in following.items():
            shorter = probabilities[(*history[1:], token)] if history else uniform
            probabilities[(*history, token)] = (c + t * shorter) / (n + t)
    probabilities.setdefault((UNK,), backoffs[()] * uniform)
    return probabilities, backoffs


def arpa(probabilities: dict[History, float], backoffs: dict[History, float]) -> str:
    """The ARPA format: log10 of a probability, the n-gram, and log10 of its backoff weight."""
    grams: defaultdict[int, list[str]] = defaultdict(list)
    for gram, p in [((BOS,), 0.0), *probabilities.items()]:
        columns = [f"{math.log10(p) if p else IMPOSSIBLE:.5f}", " ".join(gram)]
        if gram in backoffs:
            columns.append(f"{math.log10(backoffs[gram]):.5f}")
        grams[len(gram)].append("\t".join(columns))
    head = [f"ngram {n}={len(grams[n])}" for n in sorted(grams)]
    body = [part for n in sorted(grams) for part in ("", f"\\{n}-grams:", *grams[n])]
    return "\n".join(["\\data\\", *head, *body, "", "\\end\\", ""])


def make(path: Path, texts: list[Path], order: int) -> None:
    """Write the n-grams of texts.

    Raises:
        InputError: there are no tokens, the order is below 1, or ARPA cannot be written.
    """
    if order < 1:
        raise InputError(f"--order must be at least 1, the number of tokens of an n-gram, but it is {order}")
    check_output(path, texts, option="ARPA")
    counts = count((line for text in texts for line in read_lines(text)), order)
    if len(counts[()]) < 2:
        raise InputError(f"n-grams are estimated from lines of tokens, but {', '.join(map(str, texts))} has none")
    probabilities, backoffs = estimate(counts)
    write_file(path, arpa(probabilities, backoffs).encode())
    print(f"{path}: {len(probabilities):,} n-grams of up to {order} tokens")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arpa", type=Path, metavar="ARPA", help="file to write")
    parser.add_argument("text", type=Path, nargs="+", metavar="TEXT", help="lines of tokens, plain or .gz")
    parser.add_argument("--order", type=int, default=8, metavar="N", help="tokens of an n-gram (default: %(default)s)")
    x = parser.parse_args(arguments)
    return exit_code(lambda: make(x.arpa, x.text, x.order), interrupted="stopped; nothing was written")


if __name__ == "__main__":
    sys.exit(main())
