"""CTC by brute force: the probability of every transcript, summed over all labellings of all frames."""

import itertools
import math
from collections import defaultdict

from torch import Tensor


def transcripts(logits: Tensor, blank: int) -> dict[tuple[int, ...], float]:
    """Every possible transcript of one sentence's frames (S, V), and its probability."""
    probabilities = []
    for frame in logits.tolist():
        norm = sum(math.exp(x) for x in frame)
        probabilities.append([math.exp(x) / norm for x in frame])
    got: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(logits.size(1)), repeat=len(probabilities)):
        said = tuple(label for label, _ in itertools.groupby(path) if label != blank)
        got[said] += math.prod(p[label] for p, label in zip(probabilities, path, strict=True))
    return got


def log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def next_log_probs(
    got: dict[tuple[int, ...], float], prefix: tuple[int, ...], *, vocab_size: int, eos: int, blank: int
) -> list[float]:
    """For every token, the log-probability that it follows a transcript's prefix; for EOS, that none follows."""
    begins: dict[tuple[int, ...], float] = defaultdict(float)
    for said, p in got.items():
        begins[said[: len(prefix) + 1]] += p if said[: len(prefix)] == prefix else 0.0
    total = math.fsum(begins.values())
    scores = [log(begins.get((*prefix, token), 0.0) / total) for token in range(vocab_size)]
    scores[eos], scores[blank] = log(got.get(prefix, 0.0) / total), -math.inf
    return scores
