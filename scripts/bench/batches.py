"""How much could a search gain if new sentences took the places of finished ones?

A batch of sentences of similar length shrinks as they end, and the fewer the rows, the more each
costs. Every sentence gets as many tokens as its reference has, with the random weights of the
benchmark decoding. Printed are, in seconds of CPU time,

    today                the search as it is
    always full          as many source and target positions in batches whose sentences all end
                         together, which continuous batching could reach if joining cost nothing
    with longer caches   that with caches longer by half of the mean output, as rows of all ages
                         share them, which is a part of what joining costs

    python scripts/bench batches --data multi30k_directory
    python scripts/bench batches --int8 --beam-sizes 1
"""

import statistics
import tempfile
import time
from itertools import product
from pathlib import Path

import torch
from bench.decoding import Size, rival
from bench.marian import Marian, import_marian, search
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transduce.data.corpus import corpus_folder
from transduce.data.lines import read_lines
from transduce.decode.scorer import ModelScorer
from transduce.engine.select import engine_for

Lengths = list[tuple[int, int]]
"""Tokens of sentences and of their translations."""


class LongCacheScorer(ModelScorer):
    """A scorer whose caches hold `extra` positions more than the search makes."""

    extra = 0
    extra_seconds = 0.0
    """CPU time of reading them."""

    def states(self, tokens: Tensor) -> Tensor:
        start = time.process_time()
        is_first = self.memory is not None
        if is_first and self.extra:
            self.prompts = tokens[:, None].expand(-1, 1 + self.extra)
        states = super().states(tokens)
        if is_first:
            self.extra_seconds = time.process_time() - start
        return states


def read_lengths(data: Path | None, n: int) -> Lengths:
    """n pairs of Multi30k's test set, 1.3 pieces a word and an end; without it, similar ones."""
    if data is None:
        return [(8 + i % 23, 8 + i % 23 + (5 * i) % 7 - 3) for i in range(n)]
    sides = (read_lines(data / f"test_2016_flickr.{side}.gz") for side in ("en", "de"))
    pairs = [
        tuple(round(1.3 * len(line.split())) + 1 for line in pair)
        for pair in zip(*sides, strict=True)
    ]
    return [pairs[i * len(pairs) // n] for i in range(n)]  # type: ignore[misc]


@torch.inference_mode()
def seconds(marian: Marian, pairs: Lengths, size: int, beam_size: int, extra: int = 0) -> float:
    """CPU time of searching these pairs, `size` at a time, without that of reading `extra`."""
    rng = torch.Generator().manual_seed(1)
    total = 0.0
    for batch in (pairs[i : i + size] for i in range(0, len(pairs), size)):
        vocab_size = marian.model.vocab_size
        source = [torch.randint(2, vocab_size, (n,), generator=rng) for n, _ in batch]
        n_tokens = torch.tensor([n for _, n in batch])
        start = time.process_time()
        source_lengths = torch.tensor([*map(len, source)])
        memory = marian.model.encode(pad_sequence(source, batch_first=True), source_lengths)
        scorer = LongCacheScorer(marian.model, memory)
        scorer.extra = extra
        search(marian, scorer, n_tokens, beam_size)
        total += time.process_time() - start
        if extra:  # count a first step of one position instead
            start = time.process_time()
            LongCacheScorer(marian.model, memory).states(torch.full_like(n_tokens, marian.bos_id))
            total += time.process_time() - start - scorer.extra_seconds
    return total


def main(
    *,
    data: Path | None = None,
    size: Size = "small",
    batch_size: tuple[int, ...] = (128, 64),
    beam_sizes: tuple[int, ...] = (5, 1),
    sentences: int = 512,
    repeats: int = 3,
    int8: bool = False,
) -> None:
    """Measure the three searches.

    Args:
        data: the folder of Multi30k (default: multi30k in $TRANSDUCE_DATA).
        size: size of the model.
        batch_size: sentences.
        beam_sizes: 1 is greedy search.
        sentences: how many are searched.
        repeats: rounds.
        int8: round the weights.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rival(size).save_pretrained(folder)
        marian = import_marian(Path(folder))
    marian = marian._replace(model=engine_for(marian.model, int8=int8))
    pairs = sorted(
        read_lengths(data or corpus_folder("multi30k"), sentences), key=lambda pair: -pair[0]
    )
    sides = (sorted(side, reverse=True) for side in zip(*pairs, strict=True))
    together = list(zip(*sides, strict=True))
    extra = round(statistics.mean(target for _, target in pairs) / 2)
    for beam_size, n in product(beam_sizes, batch_size):
        today, full, longer = (
            statistics.median(seconds(marian, some, n, beam_size, more) for _ in range(repeats))
            for some, more in ((pairs, 0), (together, 0), (together, extra))
        )
        print(
            f"beam {beam_size} batch {n:3}: today {today:.2f} s, always full {full:.2f} s, with "
            f"caches longer by {extra} {longer:.2f} s; gain at most {today / full - 1:.1%} and "
            f"{today / longer - 1:.1%}"
        )
