"""Training speed and memory against a plain PyTorch loop: the same sizes, the same run.

English to German Multi30k, one BPE vocabulary of 8000 pieces, 3 + 3 layers, d_model 256, d_ff 1024,
4 heads: 7,577,600 parameters; batches of at most 4096 positions per side, dropout and label
smoothing 0.1, Adam, gradients clipped. Without the data, random ids: sources of 6 to 30 tokens,
evenly, targets up to 3 tokens shorter or longer, within 6 to 30.

    plain loop              torch.nn.Transformer, F.cross_entropy and torch.optim.Adam, on our
                            length-bucketed batches; dropout where the paper and we have it, which
                            is faster than the module's own
    plain loop, no buckets  the same on sentences in random order, as many toolkits batch them
    transduce ...           Trainer.run, with clipping, skipping, progress bar and metrics

Times include making batches, but not validation and checkpoints. The systems take turns, and each
resumes where it stopped. Prints the median of `--rounds` turns of `--updates` updates, and the time
of the first update, which includes compilation. `--systems` selects other systems: compiled, or
with `recompute`. Memory is what training adds to a separate process.

    python scripts/bench training --data DIRECTORY
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from bench.memory import added_by
from bench.subprocesses import this_benchmark
from bench.training_turns import (
    SMOOTHING,
    Ours,
    Plain,
    TurnOptions,
    check_sizes,
    compare_training,
)
from torch import Tensor, nn

import transduce as td
from transduce.arguments import Group
from transduce.data.batch import Batch, Batches, Epoch, pair_batch, pair_epoch
from transduce.data.corpus import Folder, corpus_folder
from transduce.data.sentencepiece_bpe import BOS, train_tokenizer_pair
from transduce.data.text_batches import TextPairs
from transduce.model.inputs import sinusoidal
from transduce.train.objectives import CrossEntropy

PLAIN, UNSORTED, FP32, BF16, COMPILED = NAMES = (
    "plain loop",
    "plain loop, no buckets",
    "transduce fp32",
    "transduce bf16",
    "transduce bf16 compiled",
)
MORE = ("transduce fp32 compiled", "transduce fp32 recompute", "transduce bf16 recompute")
"""Systems that run only if --systems names them: compiled, and with recomputed activations."""


@dataclass(frozen=True, kw_only=True)
class Options(TurnOptions):
    """Options of this benchmark."""

    data: Path | None = None
    """Multi30k's folder (default: multi30k in $TRANSDUCE_DATA)."""
    compile: bool = False
    """Use torch.compile, too; needs a C++ compiler on a CPU."""
    systems: tuple[Literal[NAMES + MORE], ...] = ()
    """Measure these only; ratios are to the first."""
    tokens_per_batch: int = 4096
    """Positions of a side."""
    no_memory: bool = False
    """Do not measure memory."""
    peak: tuple[str, Path] | None = None
    """Only measure the memory of a system on a file of ids (used by itself)."""


@dataclass(frozen=True)
class Corpus:
    """Ids of sentence pairs, each side ending in EOS, and their batches."""

    source: Sequence[Sequence[int]]
    target: Sequence[Sequence[int]]
    tokens_per_batch: int

    def epoch(self, n: int) -> Epoch:
        """Length-bucketed batches, as in every recipe."""
        return pair_epoch(
            self.source,
            self.target,
            tokens_per_batch=self.tokens_per_batch,
            seed=1,
            epoch=n,
            bos=BOS,
        )

    def unsorted(self, n: int) -> Batches:
        """Batches in random order: pairs are added until rows times the longest side reaches the
        budget."""
        batches: list[list[int]] = [[]]
        longest = 0
        for i in np.random.default_rng((1, n)).permutation(len(self.source)):
            length = max(len(self.source[i]), len(self.target[i]))
            longest = max(longest, length)
            if (len(batches[-1]) + 1) * longest > self.tokens_per_batch:
                batches.append([])
                longest = length
            batches[-1].append(i)

        def batch(i: int) -> Batch:
            source, target = ([side[r] for r in batches[i]] for side in (self.source, self.target))
            return pair_batch(source, target, bos=BOS)

        return Batches(len(batches), batch)


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with one table for both sides and the output, and its loss.

    Its additions to the paper are removed: a second norm at the end of each stack, and dropout
    inside attention and feed-forward.
    """

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.encoder.input.vocab_size, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.n_heads,
            config.encoder.n_layers,
            config.decoder.n_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("positions", sinusoidal(0, 512, config.d_model))
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def embed(self, ids: Tensor) -> Tensor:
        vectors = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(vectors + self.positions[: ids.size(1)])

    def forward(self, batch: Batch) -> Tensor:
        n_source = batch.source.size(1)
        n_target = batch.target_in.size(1)
        device = batch.source.device
        hidden = torch.arange(n_source, device=device) >= batch.source_lengths[:, None]
        future = torch.ones(n_target, n_target, dtype=torch.bool, device=device).triu(1)
        states = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_in),
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        logits = (states @ self.embedding.weight.T).flatten(0, 1)
        return F.cross_entropy(logits, batch.target_out.flatten(), label_smoothing=SMOOTHING)


def model_config(*, tiny: bool, recompute: bool = False) -> td.TransformerConfig:
    """The Transformer described above, or a small one."""
    d_model = 32 if tiny else 256
    stack = td.StackConfig(input=td.Tokens(vocab_size=vocab_size(tiny)), n_layers=1 if tiny else 3)
    return td.TransformerConfig(
        encoder=stack,
        decoder=stack,
        d_model=d_model,
        n_heads=4,
        d_ff=4 * d_model,
        dropout=0.1,
        tie="all",
        recompute=recompute,
    )


def system(name: str, corpus: Corpus, x: TurnOptions) -> Plain | Ours:
    """The system of this name, with new weights."""
    config = model_config(tiny=x.tiny, recompute="recompute" in name)
    torch.manual_seed(1)
    ours = td.Transformer(config)
    plain = PlainTransformer(config)
    check_sizes(ours, plain)
    if name in (PLAIN, UNSORTED):
        epochs = corpus.epoch if name == PLAIN else corpus.unsorted
        return Plain(plain.to(x.device), epochs, x)
    objective = CrossEntropy(ours.to(x.device), label_smoothing=SMOOTHING)
    precision = name.split()[1]
    return Ours(objective, corpus.epoch, x, precision=precision, compile="compiled" in name)


def vocab_size(tiny: bool) -> int:
    return 100 if tiny else 8000


def read_corpus(data: Path | None, tokens_per_batch: int, *, tiny: bool) -> Corpus:
    """Multi30k's training pairs; without the data, random ids (see above)."""
    if data and not tiny:
        text = Folder(data=data).read("train")
        tokenizers = train_tokenizer_pair(
            text.source, text.target, vocab_size=vocab_size(tiny), joint=True
        )
        pairs = TextPairs(text, *tokenizers, tokens_per_batch=tokens_per_batch)
        return Corpus(*pairs.ids(0), tokens_per_batch)
    rng = np.random.default_rng(1)
    source = rng.integers(6, 31, 300 if tiny else 29000)
    target = np.clip(source + rng.integers(-3, 4, len(source)), 6, 30)
    source_ids, target_ids = (
        [rng.integers(4, vocab_size(tiny), n).tolist() for n in lengths]
        for lengths in (source, target)
    )
    return Corpus(source_ids, target_ids, 256 if tiny else tokens_per_batch)


def print_memory(names: Sequence[str], corpus: Corpus) -> None:
    """Print the memory of every system, measured in a separate process for each."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ids.json"
        ids = [corpus.source, corpus.target, corpus.tokens_per_batch]
        path.write_text(json.dumps(ids, default=np.ndarray.tolist))
        for name in names:
            mebibytes = this_benchmark("--peak", name, path)
            print(f"{name:24} {mebibytes:>7} MiB of memory for training", flush=True)


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    if x.peak:
        name, ids = x.peak
        run = system(name, Corpus(*json.loads(ids.read_text())), x)
        print(added_by(lambda: run(x.updates), x.device))
        return
    corpus = read_corpus(x.data or corpus_folder("multi30k"), x.tokens_per_batch, tiny=x.tiny)
    names = x.systems or (NAMES if x.compile else NAMES[:-1])
    systems = {name: system(name, corpus, x) for name in names}
    size = sum(p.numel() for p in systems[names[0]].model.parameters())
    print(
        f"{len(corpus.source)} pairs, {size:,} parameters, {x.threads} threads, {x.device}, "
        f"torch {torch.__version__}"
    )
    compare_training(systems, x)
    if not x.no_memory:
        print_memory(names, corpus)
