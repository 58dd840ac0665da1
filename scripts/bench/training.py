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
compiled. `--systems` names others: compiled, or with `recompute`. Memory is what training adds
to a process of its own.

    python scripts/bench training --data DIRECTORY
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from bench.memory import added_by
from bench.training_turns import SMOOTHING, Ours, Plain, add_turns, check_sizes, take_turns
from torch import Tensor, nn

import transduce as td
from transduce.data.batch import Batch, Batches, Epoch, pair_batch, pair_epoch
from transduce.data.corpus import Folder, corpus_folder
from transduce.data.sentencepiece_bpe import BOS, train_tokenizer_pair
from transduce.data.text_batches import TextPairs
from transduce.model.inputs import sinusoidal
from transduce.train.objectives import CrossEntropy


@dataclass(frozen=True)
class Corpus:
    """Ids of sentence pairs, each side ending in EOS, and their batches."""

    source: Sequence[Sequence[int]]
    target: Sequence[Sequence[int]]
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


PLAIN, UNSORTED, FP32, BF16, COMPILED = NAMES = (
    "plain loop", "plain loop, no buckets", "transduce fp32", "transduce bf16", "transduce bf16 compiled",
)  # fmt: skip
MORE = tuple(f"{ours} {how}" for ours in (FP32, BF16) for how in ("compiled", "recompute"))
"""Only where --systems names them: compiled, and with activations computed twice."""


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
    objective = CrossEntropy(ours.to(x.device), label_smoothing=SMOOTHING)
    return Ours(objective, corpus.epoch, x, precision=precision, compile="compiled" in how)


def vocabulary(x: argparse.Namespace) -> int:
    return 100 if x.tiny else 8000


def read_corpus(x: argparse.Namespace) -> Corpus:
    """Multi30k's training pairs; without the data, random ids (see above)."""
    budget = 256 if x.tiny else x.tokens_per_batch
    folder = None if x.tiny else x.data or corpus_folder("multi30k")
    if folder:
        text = Folder(data=folder).read("train")
        both = train_tokenizer_pair(text.source, text.target, vocab_size=vocabulary(x), joint=True)
        pairs = TextPairs(text, *both, tokens_per_batch=budget)
        return Corpus(*pairs.ids(0), budget)
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
        all_ids = [corpus.source, corpus.target, corpus.tokens_per_batch]
        ids.write_text(json.dumps(all_ids, default=np.ndarray.tolist))
        for name in names:
            again = [sys.executable, str(Path(__file__).parent), "training", *sys.argv[1:], "--peak", name, str(ids)]
            mebibytes = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            print(f"{name:24} {mebibytes:>7} MiB of memory for training", flush=True)


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
