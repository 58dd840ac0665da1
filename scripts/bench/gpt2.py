"""Training speed of GPT-2 124M against a plain compiled loop: the same sizes, the same random ids, the same run.

Context 1024, vocabulary of 50,304 rows, AdamW, gradients clipped; on a GPU in bf16 and compiled, on a CPU as asked.

    plain       a GPT-2 in eighty lines with PyTorch's attention kernel, F.cross_entropy and torch.optim.AdamW
    transduce   an update of the Trainer, with all that a user gets: clipping, skipping, progress bar and metrics

Both read windows of one stream, made beforehand by a thread. For every batch size it prints the median tokens/s of
`--rounds` turns, the ratio to the plain loop, MFU and the peak of memory. MFU is the share of the device's bf16 peak
that 6 N + 12 L d T operations a token take, with N parameters but for positions, L layers of width d, and context T
(Chowdhery et al. 2022, PaLM, appendix B).

    python scripts/bench gpt2 --device cuda
    python scripts/bench gpt2 --device cpu --tiny
"""

import argparse
import contextlib
import gc
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from bench.memory import added_by
from torch import Tensor, nn

import transduce as td
from transduce.data.batch import Batch
from transduce.data.text_batches import Stream, TokenWindows
from transduce.device import peak_flops
from transduce.model.meta import flops_per_token
from transduce.model.presets import gpt2
from transduce.train.host import prefetch
from transduce.train.log import standard_sinks
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig


class PlainBlock(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """Ids and what follows them to the mean cross-entropy."""

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.decoder.input.vocab_size, config.d_model)
        self.places = nn.Embedding(config.max_positions, config.d_model)
        self.blocks = nn.ModuleList(PlainBlock(config.d_model, config.n_heads) for _ in range(config.decoder.n_layers))
        self.norm = nn.LayerNorm(config.d_model)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).flatten(0, 1), targets.flatten())


def endless(windows: TokenWindows, device: str) -> Iterator[Batch]:
    """Batches on the device, made beforehand."""
    batches = windows.epoch(0)
    return prefetch(batches[i % len(batches)].to(torch.device(device)) for i in count())


class Plain:
    """Turns of the loop that a tutorial writes, on a good day."""

    def __init__(self, model: PlainGPT, windows: TokenWindows, x: argparse.Namespace) -> None:
        self.model, self.x, self.batches = model, x, endless(windows, x.device)
        self.loss = torch.compile(model) if x.compile else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def __call__(self, n_updates: int) -> None:
        for _ in range(n_updates):
            for batch in islice(self.batches, self.x.accumulate):
                with torch.autocast(self.x.device.split(":")[0], torch.bfloat16, enabled=self.x.precision == "bf16"):
                    loss = self.loss(batch.target_in, batch.target_out)
                (loss / self.x.accumulate).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


class Ours:
    """Turns of the Trainer's own update."""

    def __init__(self, model: td.Transformer, windows: TokenWindows, x: argparse.Namespace) -> None:
        self.batches, self.directory = endless(windows, x.device), tempfile.TemporaryDirectory()
        self.accumulate = x.accumulate
        optim = OptimConfig(peak_rate=6e-4, warmup_steps=100, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        config = TrainingConfig(
            optim=optim, label_smoothing=0.0, precision=x.precision, compile=x.compile, static_shapes=True
        )
        self.trainer = Trainer(
            objective=CrossEntropy(model), data=windows, validate=lambda _: Validation({}, 0.0), config=config,
            directory=Path(self.directory.name),
            sinks=standard_sinks(Path(self.directory.name), config),
        )  # fmt: skip
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar amid the table
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


def measure(make: Callable[[], Plain | Ours], tokens: int, x: argparse.Namespace) -> tuple[float, int]:
    """Median tokens/s and MiB at the peak of a system that is alone on the device."""
    gc.collect()
    on_gpu = x.device != "cpu"
    rates: list[float] = []

    def go() -> None:
        run = make()
        run(x.warm_up)
        for _ in range(x.rounds):
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            run(x.updates)
            if on_gpu:
                torch.cuda.synchronize()
            rates.append(tokens * x.updates / (time.perf_counter() - start))

    added = added_by(go, x.device)
    return statistics.median(rates), added


def row(name: str, rate: float, first: float | None, mfu: float | None, mebibytes: int) -> str:
    """A line of the table; `first` is the plain loop's rate, and None where its memory did not suffice."""
    ratio = f"{rate / first:6.2f}" if first else f"{'-':>6}"
    used = "unknown MFU" if mfu is None else f"{mfu:6.1%} MFU"
    return f"{name:10} {rate:10,.0f} tokens/s {ratio} x  {used}  {mebibytes:7,} MiB"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, nargs="+", help="windows of a batch; 16, 32 and 64, on a CPU 1")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of an update (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default: 3)")
    parser.add_argument("--updates", type=int, help="updates of a turn; 20, on a CPU 2")
    parser.add_argument("--warm-up", type=int, default=3, help="updates before the first turn (default: 3)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="on a GPU yes; a CPU needs a compiler")
    parser.add_argument("--peak", type=float, help="operations a second of the device; known for some GPUs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model of seconds, to try the script")
    x = parser.parse_args()
    if x.accumulate < 1:
        parser.error(f"--accumulate must be 1 or more, but is {x.accumulate}")
    on_gpu = x.device != "cpu"
    x.batch_size = x.batch_size or ([16, 32, 64] if on_gpu else [1])
    x.updates = x.updates or (20 if on_gpu else 2)
    x.compile = on_gpu if x.compile is None else x.compile
    return x


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    device = torch.cuda.get_device_name() if x.device != "cpu" else f"{x.threads} threads"
    peak = x.peak or peak_flops(torch.device(x.device))
    config = model_config(tiny=x.tiny)
    ids = np.random.default_rng(1).integers(config.decoder.input.vocab_size, size=1 << 20).astype(np.uint16)
    with torch.device("meta"):
        models = [PlainGPT(config), td.Transformer(config)]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    if sizes[0] != sizes[1]:
        raise SystemExit(f"both models must have as many parameters, but the plain has {sizes[0]} and ours {sizes[1]}")
    operations = flops_per_token(models[1])
    print(
        f"{sizes[0]:,} parameters, context {config.max_positions}, {operations:,.0f} operations a token, {device}, ",
        end="",
    )
    print(f"{x.precision}{', compiled' * x.compile}, torch {torch.__version__}")
    for rows in x.batch_size:
        windows = TokenWindows(
            stream=Stream([ids]), context=config.max_positions, batch_size=rows, batches_per_epoch=10**6
        )
        systems: dict[str, Callable[[], Plain | Ours]] = {
            "plain": lambda w=windows: Plain(PlainGPT(config).to(x.device), w, x),
            "transduce": lambda w=windows: Ours(td.Transformer(config).to(x.device), w, x),
        }
        rates: dict[str, float] = {}
        for name, make in systems.items():
            torch._dynamo.reset()
            torch.manual_seed(1)
            try:
                rates[name], memory = measure(make, rows * config.max_positions * x.accumulate, x)
            except torch.OutOfMemoryError:
                print(f"batch {rows:3}  {name:10} out of memory", flush=True)
                continue
            mfu = rates[name] * operations / peak if peak else None
            print(f"batch {rows:3}  {row(name, rates[name], rates.get('plain'), mfu, memory)}", flush=True)


if __name__ == "__main__":
    main()
