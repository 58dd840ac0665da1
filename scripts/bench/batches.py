"""How much could a search gain if waiting sentences took the places of finished ones (continuous batching)?

A batch of sentences of like length runs down as they end, and fewer rows cost more each. Every sentence gets as many
tokens as its reference has, with the random weights of the benchmark decoding. Measured are, in seconds of processor time,
today's search; the same numbers of source and target positions in batches whose sentences all end together, which is
what continuous batching could reach if joining cost nothing; and that with caches that are longer by half of the mean
output, as rows of all ages stand side by side in them, which is a part of what joining costs.

    python scripts/bench batches --data multi30k_directory
    python scripts/bench batches --int8 --beam-sizes 1
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from bench.decoding import SIZES, rival
from bench.marian import Marian, import_marian
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transduce.data.corpus import corpus_folder
from transduce.data.lines import read_lines
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.engine.select import engine_for


class Older(ModelScorer):
    """A scorer whose caches hold `age` positions more than the search makes; `first` is the time of reading them."""

    age, first = 0, 0.0

    def states(self, tokens: Tensor) -> Tensor:
        before = time.process_time()
        if (begins := self.memory is not None) and self.age:
            self.prompts = tokens[:, None].expand(-1, 1 + self.age)
        found = super().states(tokens)
        self.first += begins * (time.process_time() - before)
        return found


def lengths(data: Path | None, n: int) -> list[tuple[int, int]]:
    """Pieces of n sentences and their translations: 1.3 a word and an end, of Multi30k's test set, else like them."""
    if data is None:
        return [(8 + i % 23, 8 + i % 23 + (5 * i) % 7 - 3) for i in range(n)]
    sides = (read_lines(data / f"test_2016_flickr.{side}.gz") for side in ("en", "de"))
    found = [tuple(round(1.3 * len(line.split())) + 1 for line in pair) for pair in zip(*sides, strict=True)]
    return [found[i * len(found) // n] for i in range(n)]  # type: ignore[misc]


@torch.inference_mode()
def seconds(marian: Marian, pairs: list[tuple[int, int]], size: int, beam_size: int, age: int = 0) -> float:
    """Processor time of searching these sentences, `size` at a time, without reading what `age` adds."""
    rng, total = torch.Generator().manual_seed(1), 0.0
    for some in (pairs[i : i + size] for i in range(0, len(pairs), size)):
        source = [torch.randint(2, marian.model.vocab_size, (n,), generator=rng) for n, _ in some]
        bounds = torch.tensor([n for _, n in some])
        before = time.process_time()
        memory = marian.model.encode(pad_sequence(source, batch_first=True), torch.tensor([*map(len, source)]))
        scorer, starts = Older(marian.model, memory), torch.full((len(some), 1), marian.bos_id)
        scorer.age = age
        constraints = Constraints(bounds, eos_id=marian.eos_id, suppressed=[marian.eos_id])
        if beam_size == 1:
            Sampler(scorer, starts, constraints, sampling=GREEDY).run()
        else:
            beam_search(scorer, starts, constraints, BeamConfig(beam_size=beam_size, alpha=0.0))
        total += time.process_time() - before - (scorer.first if age else 0.0)
        if not age:
            continue
        before = time.process_time()  # a first step of one position
        Older(marian.model, memory).states(starts[:, 0])
        total += time.process_time() - before
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus_folder("multi30k"), help="the folder of Multi30k")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[128, 64], help="sentences")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[5, 1])
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--int8", action="store_true")
    x = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rival(x.size).save_pretrained(folder)
        marian = import_marian(Path(folder))
    marian = marian._replace(model=engine_for(marian.model, int8=x.int8))
    pairs = sorted(lengths(x.data, x.sentences), key=lambda pair: -pair[0])
    together = list(zip(*(sorted(side, reverse=True) for side in zip(*pairs, strict=True)), strict=True))
    age = round(statistics.mean(target for _, target in pairs) / 2)
    for beam_size, size in [(beam_size, size) for beam_size in x.beam_sizes for size in x.batch_size]:
        ways = ((pairs, 0), (together, 0), (together, age))
        rounds = [[seconds(marian, some, size, beam_size, older) for some, older in ways] for _ in range(x.repeats)]
        today, full, old = map(statistics.median, zip(*rounds, strict=True))
        told = f"today {today:.2f} s, always full {full:.2f} s, with caches longer by {age} {old:.2f} s"
        print(f"beam {beam_size} batch {size:3}: {told}; gain at most {today / full - 1:.1%} and {today / old - 1:.1%}")


if __name__ == "__main__":
    main()
