"""Training speed and memory against a plain PyTorch loop: the same sizes, the same run.

English to German Multi30k, one BPE vocabulary of 8000 pieces, 3 + 3 layers, d_model 256, d_ff 1024, 4 heads: 7,577,600
parameters; batches of at most 4096 positions a side, dropout and label smoothing 0.1, Adam, gradients clipped. Without
the data, random ids: sources of 6 to 30 tokens, evenly, targets up to 3 tokens shorter or longer, within 6 to 30.

    plain loop              torch.nn.Transformer, F.cross_entropy and torch.optim.Adam, on our length-bucketed batches;
                            dropout where the paper has it, as ours, which is faster than the module's own
    plain loop, no buckets  the same on sentences in random order, as many toolkits batch them
    transduce ...           Trainer.run, with all a user gets: clipping, skipping, progress bar and metrics

Making batches counts, validation and checkpoints do not. The systems take turns, each going on where it stopped, and the
median of `--rounds` turns of `--updates` updates is printed, and how long the first update took, in which code is
compiled. `--systems` names others: compiled as a whole or by layers, or with `recompute`. Memory is what training adds
to a process of its own.

    python scripts/bench_training.py --data DIRECTORY
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from memory import added_by
from torch import Tensor, nn

import transduce as td
from transduce.data.batch import Batch, Batches, Epoch, pair_batch, pair_epoch
from transduce.data.text.corpus import Folder, corpus_folder
from transduce.data.text.pairs import TextPairs
from transduce.data.text.sentencepiece_bpe import BOS, tokenizers
from transduce.model.positions import sinusoidal
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig


@dataclass(frozen=True)
class Corpus:
    """Ids of sentence pairs, each side ending in EOS, and their batches."""

    source: list[list[int]]
    target: list[list[int]]
    tokens_per_batch: int

    def epoch(self, n: int) -> Epoch:
        """Length-bucketed, as every recipe has them."""
        return pair_epoch(self.source, self.target, tokens_per_batch=self.tokens_per_batch, seed=1, epoch=n, bos=BOS)

    def unsorted(self, n: int) -> Batches:
        """In random order: as many pairs as come, until rows times the longest side reaches the budget."""
        batches: list[list[int]] = [[]]
        longest = 0
        for i in np.random.default_rng((1, n)).permutation(len(self.source)):
            own = max(len(self.source[i]), len(self.target[i]))
            longest = max(longest, own)
            if (len(batches[-1]) + 1) * longest > self.tokens_per_batch:
                batches.append([])
                longest = own
            batches[-1].append(i)
        return Batches(
            len(batches),
            lambda i: pair_batch([self.source[r] for r in batches[i]], [self.target[r] for r in batches[i]], bos=BOS),
        )


def cpu_seconds() -> float:
    """What this process and the compilers that it started have used: beside other work it says more than the clock."""
    return sum(os.times()[:4])


class Clock(Sequence[Batch]):
    """Batches whose tokens are noted when asked for, which may be ahead of use; the time runs from the first of a turn."""

    def __init__(self, epoch: Callable[[int], Sequence[Batch]], device: str) -> None:
        self.make, self.device = epoch, device
        self.n_tokens: list[int] = []
        self.start = self.seconds = self.cpu_start = self.cpu_seconds = 0.0

    def epoch(self, n: int) -> "Clock":
        self.batches = self.make(n)
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        if not self.start:
            self.start, self.cpu_start = time.perf_counter(), cpu_seconds()
        batch = self.batches[i]
        self.n_tokens.append(batch.n_tokens)
        return batch

    def stop(self, n_updates: int) -> float:
        """Target tokens per second of this turn of so many updates; the next batch begins a new one."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds, self.cpu_seconds = time.perf_counter() - self.start, cpu_seconds() - self.cpu_start
        rate = sum(self.n_tokens[:n_updates]) / self.seconds
        self.n_tokens, self.start = [], 0.0
        return rate


class Ours:
    """Turns of `Trainer.run`, each of which resumes from the checkpoint of the one before."""

    def __init__(
        self, objective: CrossEntropy, epoch: Callable[[int], Sequence[Batch]], x: argparse.Namespace, **how: object
    ) -> None:
        self.clock, self.rate, self.n_updates = Clock(epoch, x.device), 0.0, 0
        self.directory = tempfile.TemporaryDirectory()
        config = TrainingConfig(validate_every=10**9, keep_last=1, keep_best=1, **how)  # type: ignore[arg-type]
        self.model = objective.model
        self.trainer = Trainer(
            objective=objective, data=self.clock, validate=self.validate, config=config,
            directory=Path(self.directory.name),
        )  # fmt: skip

    def validate(self, _: nn.Module) -> Validation:
        """Called right after the last update of a turn."""
        self.rate = self.clock.stop(self.n_updates)
        return Validation({"loss": 0.0}, 0.0)

    def __call__(self, n_updates: int) -> float:
        self.n_updates = n_updates
        self.trainer.config = replace(self.trainer.config, max_updates=self.trainer.progress.update + n_updates)
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar amid the table
            self.trainer.run()
        return self.rate


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with one table for both sides and the output, its loss, and what it adds to the paper taken out.

    That is a second norm at the end of each stack, and dropout inside attention and feed-forward.
    """

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.encoder.input.vocab_size, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model, config.n_heads, config.encoder.n_layers, config.decoder.n_layers, config.d_ff,
            config.dropout, batch_first=True,
        )  # fmt: skip
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for module in self.transformer.modules():  # it also drops attention weights and activations, which costs time
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("positions", sinusoidal(0, 512, config.d_model))
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.size(1)])

    def forward(self, batch: Batch) -> Tensor:
        n_source, n_target = batch.source.size(1), batch.target_in.size(1)
        hidden = torch.arange(n_source, device=batch.source.device) >= batch.source_lengths[:, None]
        future = torch.ones(n_target, n_target, dtype=torch.bool, device=batch.source.device).triu(1)
        states = self.transformer(
            self.embed(batch.source), self.embed(batch.target_in), tgt_mask=future, src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden, tgt_is_causal=True,
        )  # fmt: skip
        return F.cross_entropy(
            (states @ self.embedding.weight.T).flatten(0, 1), batch.target_out.flatten(), label_smoothing=SMOOTHING
        )


def there(batch: Batch, device: str) -> Batch:
    """As a tutorial copies: tensor by tensor, waiting for each."""
    tensors = {f.name: t for f in fields(batch) if isinstance(t := getattr(batch, f.name), torch.Tensor)}
    return replace(batch, **{name: t.to(device) for name, t in tensors.items()})


class Plain:
    """Turns of the loop that a tutorial writes, with a model that gives the loss of a batch."""

    def __init__(self, model: nn.Module, epoch: Callable[[int], Sequence[Batch]], x: argparse.Namespace) -> None:
        self.model, self.device, self.clock = model, x.device, Clock(epoch, x.device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
        self.batches = self.endless()

    def endless(self) -> Iterator[Batch]:
        for n in count():
            yield from self.clock.epoch(n)

    def __call__(self, n_updates: int) -> float:
        self.model.train()
        for batch in islice(self.batches, n_updates):
            loss = self.model(there(batch, self.device))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            loss.item()  # a loop shows its loss
        return self.clock.stop(n_updates)


SMOOTHING = 0.1
PLAIN, UNSORTED, FP32, BF16, COMPILED = NAMES = (
    "plain loop", "plain loop, no buckets", "transduce fp32", "transduce bf16", "transduce bf16 compiled",
)  # fmt: skip
MORE = tuple(f"{ours} {how}" for ours in (FP32, BF16) for how in ("compiled", "by layers", "recompute"))
"""Only where --systems names them: compiled as a whole and layer by layer, and with activations computed twice."""


def system(name: str, corpus: Corpus, x: argparse.Namespace) -> Plain | Ours:
    """One of NAMES, with new weights."""
    stack = td.StackConfig(input=td.Tokens(vocab_size=vocabulary(x)), n_layers=1 if x.tiny else 3)
    width = 32 if x.tiny else 256
    config = td.TransformerConfig(
        encoder=stack, decoder=stack, d_model=width, n_heads=4, d_ff=4 * width, dropout=0.1, tie="all",
        recompute="recompute" in name,
    )  # fmt: skip
    torch.manual_seed(1)
    ours, plain = td.Transformer(config), PlainTransformer(config)
    check_sizes(ours, plain)
    if name in (PLAIN, UNSORTED):
        return Plain(plain.to(x.device), corpus.epoch if name == PLAIN else corpus.unsorted, x)
    precision, *how = name.split()[1:]
    whole, layers = ("compiled" in how), ("layers" in how)
    objective = CrossEntropy(ours.to(x.device), label_smoothing=SMOOTHING)
    return Ours(objective, corpus.epoch, x, precision=precision, compile=whole, compile_layers=layers)


def check_sizes(ours: nn.Module, plain: nn.Module) -> None:
    """Stop where the models are not equally large."""
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, plain)]
    if sizes[0] != sizes[1]:
        raise SystemExit(f"both models must have as many parameters, but ours has {sizes[0]} and the plain {sizes[1]}")


def vocabulary(x: argparse.Namespace) -> int:
    return 100 if x.tiny else 8000


def read_corpus(x: argparse.Namespace) -> Corpus:
    """Multi30k's training pairs; without the data, random ids (see above)."""
    budget = 256 if x.tiny else x.tokens_per_batch
    folder = None if x.tiny else x.data or corpus_folder("multi30k")
    if folder:
        text = Folder(data=folder).read("train")
        both = tokenizers(text.source, text.target, vocab_size=vocabulary(x), joint=True)
        pairs = TextPairs(text, *both, tokens_per_batch=budget)
        return Corpus(pairs.source, pairs.target, budget)
    rng = np.random.default_rng(1)
    lengths = rng.integers(6, 31, 300 if x.tiny else 29000)
    sides = lengths, np.clip(lengths + rng.integers(-3, 4, len(lengths)), 6, 30)
    ids = [[rng.integers(4, vocabulary(x), n).tolist() for n in side] for side in sides]
    return Corpus(ids[0], ids[1], budget)


def peak(name: str, ids: Path, x: argparse.Namespace) -> None:
    """Print the MiB that a few updates add to the memory of a process that has the corpus and the model, or of its GPU."""
    run = system(name, Corpus(*json.loads(ids.read_text())), x)
    print(added_by(lambda: run(x.updates), x.device))


def peaks(names: Sequence[str], corpus: Corpus) -> None:
    """Print the memory of every system, measured by this script in a process for each."""
    with tempfile.TemporaryDirectory() as directory:
        ids = Path(directory) / "ids.json"
        ids.write_text(json.dumps([corpus.source, corpus.target, corpus.tokens_per_batch]))
        for name in names:
            again = [sys.executable, *sys.argv, "--peak", name, str(ids)]
            mebibytes = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            print(f"{name:24} {mebibytes:>7} MiB of memory for training", flush=True)


def take_turns(systems: Mapping[str, Plain | Ours], x: argparse.Namespace) -> None:
    """Print how long the first update of each took, and then the speed of each, as a ratio to the first one's."""
    for name, run in systems.items():
        run(1)
        print(
            f"{name:24} {run.clock.seconds:7.1f} s for the first update, {run.clock.cpu_seconds:.1f} s of CPU",
            flush=True,
        )
        if x.warm_up > 1:
            run(x.warm_up - 1)
    rates: dict[str, list[float]] = {name: [] for name in systems}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(x.rounds):
        for name, run in systems.items():
            rates[name].append(run(x.updates))
            times[name].append(1000 * run.clock.cpu_seconds / x.updates)
    middle = {name: statistics.median(rate) for name, rate in rates.items()}
    first = middle[next(iter(systems))]
    for name, rate in rates.items():
        spread = f"{min(rate):,.0f} to {max(rate):,.0f}"
        ratio, each = middle[name] / first, statistics.median(times[name])
        print(
            f"{name:24} {middle[name]:7,.0f} target tokens/s {ratio:6.2f} x  ({spread}), {each:,.0f} ms of CPU",
            flush=True,
        )


def add_turns(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark whose systems take turns."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default: 3)")
    parser.add_argument("--updates", type=int, default=8, help="updates of a turn (default: 8)")
    parser.add_argument("--warm-up", type=int, default=3, help="updates before the first turn (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="a model and corpus of seconds, to try the script")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="Multi30k's folder (default: multi30k in $TRANSDUCE_DATA)")
    add_turns(parser)
    parser.add_argument("--compile", action="store_true", help="torch.compile too; needs a C++ compiler on a CPU")
    every = [*NAMES, *(name for name in MORE if name not in NAMES)]
    parser.add_argument("--systems", nargs="+", choices=every, help="these only; ratios are to the first")
    parser.add_argument("--tokens-per-batch", type=int, default=4096, help="positions of a side (default: 4096)")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory out")
    parser.add_argument("--peak", nargs=2, metavar=("SYSTEM", "IDS"), help="only measure memory (used by itself)")
    return parser.parse_args()


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    if x.peak:
        return peak(x.peak[0], Path(x.peak[1]), x)
    corpus = read_corpus(x)
    names = x.systems or (NAMES if x.compile else NAMES[:-1])
    systems = {name: system(name, corpus, x) for name in names}
    size = sum(p.numel() for p in systems[names[0]].model.parameters())
    print(
        f"{len(corpus.source)} pairs, {size:,} parameters, {x.threads} threads, {x.device}, torch {torch.__version__}"
    )
    take_turns(systems, x)
    if not x.no_memory:
        peaks(names, corpus)


if __name__ == "__main__":
    main()
