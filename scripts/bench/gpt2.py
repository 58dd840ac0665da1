"""Training speed of GPT-2 124M against a plain compiled loop: the same sizes, the same run.

Context 1024, vocabulary of 50,304 rows, random ids, AdamW, gradients clipped; on a GPU in bf16 and
compiled, on a CPU according to the options.

    plain       a GPT-2 in eighty lines with PyTorch's attention kernel, F.cross_entropy and
                torch.optim.AdamW
    transduce   an update of the Trainer, with clipping, skipping, progress bar and metrics

Both read windows of one stream, which a thread prefetches. For every batch size it prints the
median tokens/s of `--rounds` turns, the ratio to the plain loop, MFU and peak memory. MFU is the
share of the device's bf16 peak that 6 N + 12 L d T operations per token use, with N parameters
without positions, L layers of width d, and context T (Chowdhery et al. 2022, PaLM, appendix B).

    python scripts/bench gpt2 --device cuda
    python scripts/bench gpt2 --device cpu --tiny
"""

import contextlib
import gc
import io
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from bench.memory import added_by
from bench.training_turns import check_sizes, make_trainer
from bench.turns import timed
from torch import Tensor, nn

import transduce as td
from transduce.arguments import Group
from transduce.config import within
from transduce.data.batch import Batch
from transduce.data.text_batches import Stream, TokenWindows
from transduce.device import peak_flops
from transduce.model.meta import flops_per_token
from transduce.model.presets import gpt2
from transduce.train.host import prefetch
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig
from transduce.train.trainer import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cpu or cuda."""
    batch_size: tuple[int, ...] = ()
    """Windows of a batch (default: 16, 32 and 64, on a CPU 1)."""
    accumulate: int = 1
    """Batches of an update."""
    rounds: int = 3
    """Turns of every system."""
    updates: int | None = None
    """Updates of a turn (default: 20, on a CPU 2)."""
    warm_up: int = 3
    """Updates before the first turn."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Numbers of both systems."""
    compile: bool = False
    """Compile on a CPU, too, which needs a compiler."""
    no_compile: bool = False
    """Do not compile on a GPU."""
    peak: float | None = None
    """Operations a second of the device (default: known for some GPUs)."""
    threads: int = 2
    """Threads of PyTorch."""
    tiny: bool = False
    """A model of seconds, to try the script."""

    def __post_init__(self) -> None:
        within("[1, inf)", self, "accumulate")

    @property
    def compiles(self) -> bool:
        """Whether both systems are compiled."""
        return self.compile or (self.device != "cpu" and not self.no_compile)


class PlainBlock(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.merge = nn.Linear(d_model, d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """From ids and next ids to the mean cross-entropy."""

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.decoder.input.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.blocks = nn.ModuleList(
            PlainBlock(config.d_model, config.n_heads) for _ in range(config.decoder.n_layers)
        )
        self.norm = nn.LayerNorm(config.d_model)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def endless(windows: TokenWindows, device: str) -> Iterator[Batch]:
    """Batches on the device, prefetched."""
    batches = windows.epoch(0)
    return prefetch(batches[i % len(batches)].to(torch.device(device)) for i in count())


class Plain:
    """Turns of a carefully written plain loop."""

    def __init__(self, windows: TokenWindows, config: td.TransformerConfig, x: Options) -> None:
        self.x = x
        self.batches = endless(windows, x.device)
        self.model = PlainGPT(config).to(x.device)
        self.loss = torch.compile(self.model) if x.compiles else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def __call__(self, n_updates: int) -> None:
        kind = self.x.device.split(":")[0]
        for _ in range(n_updates):
            for batch in islice(self.batches, self.x.accumulate):
                with torch.autocast(kind, torch.bfloat16, enabled=self.x.precision == "bf16"):
                    loss = self.loss(batch.target_in, batch.target_out)
                (loss / self.x.accumulate).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


class Ours:
    """Turns of the Trainer's own update."""

    def __init__(self, windows: TokenWindows, config: td.TransformerConfig, x: Options) -> None:
        self.batches = endless(windows, x.device)
        self.directory = tempfile.TemporaryDirectory()
        self.accumulate = x.accumulate
        optim = OptimConfig(
            peak_rate=6e-4, warmup_steps=100, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        )
        training = TrainingConfig(
            optim=optim,
            label_smoothing=0.0,
            precision=x.precision,
            compile=x.compiles,
            static_shapes=True,
        )
        objective = CrossEntropy(td.Transformer(config).to(x.device))
        self.trainer = make_trainer(objective, windows, Path(self.directory.name), training)
        with contextlib.redirect_stderr(io.StringIO()):  # no progress bar inside the table
            self.trainer.log.open(self.trainer.progress)

    def __call__(self, n_updates: int) -> None:
        for _ in range(n_updates):
            self.trainer._update(list(islice(self.batches, self.accumulate)))


def model_config(*, tiny: bool) -> td.TransformerConfig:
    """GPT-2 124M without dropout, or a small one."""
    config = replace(gpt2(50304), dropout=0.0, attention_dropout=0.0)
    if not tiny:
        return config
    stack = td.StackConfig(input=td.Tokens(vocab_size=256), n_layers=2)
    return replace(config, decoder=stack, d_model=32, n_heads=2, d_ff=128, max_positions=16)


def measure(make: Callable[[], Plain | Ours], n_updates: int, x: Options) -> tuple[float, int]:
    """Median seconds per turn, and peak MiB, of a system that is alone on the device."""
    gc.collect()
    torch._dynamo.reset()
    torch.manual_seed(1)
    seconds: list[float] = []

    def run_turns() -> None:
        system = make()

        def turn() -> None:
            system(n_updates)
            if x.device != "cpu":
                torch.cuda.synchronize()

        system(x.warm_up)
        if x.device != "cpu":
            torch.cuda.synchronize()
        seconds.extend(timed(turn).seconds for _ in range(x.rounds))

    memory = added_by(run_turns, x.device)
    return statistics.median(seconds), memory


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    on_gpu = x.device != "cpu"
    n_updates = x.updates or (20 if on_gpu else 2)
    peak = x.peak or peak_flops(torch.device(x.device))
    config = model_config(tiny=x.tiny)
    rng = np.random.default_rng(1)
    ids = rng.integers(config.decoder.input.vocab_size, size=1 << 20).astype(np.uint16)
    with torch.device("meta"):
        ours = td.Transformer(config)
        size = check_sizes(ours, PlainGPT(config))
    operations = flops_per_token(ours)
    device = torch.cuda.get_device_name() if on_gpu else f"{x.threads} threads"
    print(
        f"{size:,} parameters, context {config.max_positions}, {operations:,.0f} operations a "
        f"token, {device}, {x.precision}{', compiled' * x.compiles}, torch {torch.__version__}"
    )
    for batch_size in x.batch_size or ((16, 32, 64) if on_gpu else (1,)):
        windows = TokenWindows(
            stream=Stream([ids]),
            context=config.max_positions,
            batch_size=batch_size,
            batches_per_epoch=10**6,
        )
        tokens = batch_size * config.max_positions * x.accumulate * n_updates
        baseline = None
        for name, system in (("plain", Plain), ("transduce", Ours)):
            title = f"batch {batch_size:3}  {name:10}"
            try:
                seconds, memory = measure(partial(system, windows, config, x), n_updates, x)
            except torch.OutOfMemoryError:
                print(f"{title} out of memory", flush=True)
                continue
            rate = tokens / seconds
            if name == "plain":
                baseline = rate
            ratio = f"{rate / baseline:.2f}" if baseline else "-"
            mfu = f"{rate * operations / peak:6.1%} MFU" if peak else "unknown MFU"
            print(
                f"{title} {rate:10,.0f} tokens/s {ratio:>6} x  {mfu}  {memory:7,} MiB", flush=True
            )
