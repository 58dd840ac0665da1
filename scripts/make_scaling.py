"""How far does data-parallel training scale? Writes scaling.md: what is measured here, and what follows from it.

    python scripts/make_scaling.py [--device cuda] [--output scripts/scaling.md]

Every update all processes exchange one flat float32 gradient (train/distributed.py). Its size and the operations of an
update are counted, the time of an update is measured on one process of this machine, and the efficiency of 8, 64 and 512
GPUs follows from bandwidths and a share of the GPU's peak that are assumed, and printed with the table.
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import transduce as td
from transduce.data.batch import Batch
from transduce.experiment.run import with_vocabularies
from transduce.model.presets import gpt2
from transduce.model.transformer import Transformer
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig, optimizer, step

EXTRA = 5
"""Numbers beside the gradient: tokens, the loss, its one part, the stop request and the clock; and one per weight, whether
a batch has used it."""
FIRST_GPUS = 8
"""Processes among which the paper's, or the recipe's, tokens of an update are shared."""


@dataclass(frozen=True)
class Cluster:
    """What is assumed of the GPUs: an H100 or H200 and its network, from NVIDIA's data sheets."""

    gpus_per_node: int = 8
    peak: float = 989e12
    """Dense bf16 operations a second."""
    share: float = 0.4
    """Of the peak that training uses."""
    nvlink: float = 450e9
    """Bytes a second that a GPU sends to others of its node."""
    network: float = 50e9
    """Bytes a second that a GPU sends to other nodes: one adapter of 400 Gb/s each."""
    used: float = 0.8
    """Of both bandwidths that an exchange reaches."""
    latency: float = 10e-6
    """Seconds of one hop of an exchange."""

    def exchange(self, n_bytes: int, n_gpus: int) -> float:
        """Seconds of an all-reduce by rings, first inside each node, then between nodes.

        In a ring of n each sends 2 (n - 1) / n of the bytes. Inside a node that is a part of it for each GPU, so
        between nodes each sends its part of the bytes alone. Source: Patarasuk and Yuan (2009), Bandwidth optimal
        all-reduce algorithms for clusters of workstations.
        """
        if n_gpus == 1:
            return 0.0
        inside = min(n_gpus, self.gpus_per_node)
        nodes = math.ceil(n_gpus / inside)
        seconds = 2 * (inside - 1) / inside * n_bytes / (self.nvlink * self.used)
        seconds += 2 * (nodes - 1) / nodes * n_bytes / inside / (self.network * self.used)
        return seconds + 2 * math.log2(n_gpus) * self.latency

    def efficiency(self, compute: float, n_bytes: int, n_gpus: int, *, batches: float, overlap: bool) -> float:
        """The share of an update's time that is not waiting for others.

        Args:
            compute: seconds that a process computes for an update.
            batches: into how many it divides its part; the gradient is ready in the last one's backward pass.
            overlap: whether the exchange begins there, two thirds of its time before the end.
        """
        exchange = self.exchange(n_bytes, n_gpus)
        if overlap:
            last = self.exchange(min(n_bytes, 25_000_000), n_gpus)  # the gradient of the first layers comes at the end
            exchange = max(last, exchange - 2 / 3 * compute / max(1.0, batches))
        return compute / (compute + exchange)


@dataclass(frozen=True)
class Job:
    """A model, and how many of its tokens make an update."""

    name: str
    config: td.TransformerConfig
    length: int
    tokens: int
    """Target tokens of an update on FIRST_GPUS processes."""
    rows: int
    """Sequences in a batch of one process."""

    def batch(self, rows: int) -> Batch:
        """Random ids; a source as long as the target where the model reads one."""
        ids, lengths = torch.randint(4, 1000, (rows, self.length)), torch.full((rows,), self.length)
        batch = Batch(target_in=ids, target_out=ids, target_lengths=lengths, n_tokens=ids.numel())
        return replace(batch, source=ids, source_lengths=lengths) if self.config.encoder else batch

    def n_bytes(self) -> int:
        """Bytes of one exchange."""
        with torch.device("meta"):
            return 4 * (EXTRA + sum(1 + p.numel() for p in Transformer(self.config).parameters()))

    def flops_per_token(self) -> float:
        """Operations of training, per target token; the backward pass takes twice those of the forward pass."""
        with torch.device("meta"):
            model, batch = Transformer(self.config), self.batch(1)
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
                memory = model.encode(batch.source, None) if self.config.encoder else None
                model.project(model.decoder_states(batch.target_in, memory=memory))
        return 3 * counter.get_total_flops() / self.length

    def seconds(self, device: torch.device, rows: int, rounds: int) -> float:
        """Median time of forward, backward, clipping and step on so many sequences."""
        objective = CrossEntropy(Transformer(self.config).to(device).train(), label_smoothing=0.1)
        steps, batch = optimizer(objective.model, OptimConfig()), self.batch(rows).to(device)
        times = []
        for _ in range(rounds + 1):
            started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = objective(batch).total / batch.n_tokens
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(objective.model.parameters(), 1.0)
            step(steps, rate=1e-4, finite=norm.isfinite())
            steps.zero_grad(set_to_none=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])


def jobs() -> list[Job]:
    """The paper's two models with its 25,000 target tokens an update, and GPT-2 with about half a million."""
    large = gpt2(n_layers=48)
    large = replace(large, d_model=1600, n_heads=25, d_ff=6400)
    shared = 37_000  # the paper's vocabulary
    base, big = (
        with_vocabularies(c, shared, shared, joint=True) for c in (td.transformer_base(), td.transformer_big())
    )
    return [
        Job("Transformer base", base, 32, 25_000, 98),
        Job("Transformer big", big, 32, 25_000, 98),
        Job("GPT-2 124M", gpt2(), 1024, 491_520, 32),
        Job("GPT-2 1.5B", large, 1024, 491_520, 8),
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def report(measured: dict[str, tuple[int, float]], device: str, cluster: Cluster) -> str:
    """The document."""
    counted, predicted = [], {True: [], False: []}
    for job in jobs():
        n_bytes, flops = job.n_bytes(), job.flops_per_token()
        rows, seconds = measured.get(job.name, (0, math.nan))
        step_here = f"{seconds:.2f} s for {rows * job.length:,} tokens" if rows else "not measured"
        speed = f"{flops * rows * job.length / seconds / 1e9:,.0f}" if rows else ""
        counted.append([job.name, f"{n_bytes / 1e6:,.0f} MB", f"{flops / 1e9:.2f}", step_here, speed])
        for fixed in (True, False):
            row = [job.name]
            for n_gpus in (8, 64, 512):
                tokens = job.tokens / (n_gpus if fixed else FIRST_GPUS)
                compute = flops * tokens / (cluster.peak * cluster.share)
                batches = tokens / (job.rows * job.length)
                shares = [
                    cluster.efficiency(compute, n_bytes, n_gpus, batches=batches, overlap=overlap)
                    for overlap in (False, True)
                ]
                row.append(f"{1000 * compute:,.1f} / {1000 * cluster.exchange(n_bytes, n_gpus):,.1f} ms")
                row.append(" / ".join(f"{100 * share:.0f} %" for share in shares))
            predicted[fixed].append(row)
    head = ["model", *(f"{n} GPUs: {what}" for n in (8, 64, 512) for what in ("compute / exchange", "efficiency"))]
    return f"""# How far data-parallel training scales

Made by `python scripts/make_scaling.py`. Counted, and measured on one process of {device}:

{table(["model", "bytes exchanged per update", "10^9 operations per target token", "an update here", "10^9 operations a second"], counted)}

What follows is predicted, not measured, for GPUs that do {cluster.share:.0%} of {cluster.peak / 1e12:,.0f} x 10^12 bf16
operations a second, {cluster.gpus_per_node} in a node, with {cluster.nvlink / 1e9:.0f} GB/s from each GPU to its node and
{cluster.network / 1e9:.0f} GB/s to others, of which an exchange reaches {cluster.used:.0%}, and {1e6 * cluster.latency:.0f}
microseconds a hop. Efficiency is the share of an update that is computing: without overlap, as the trainer exchanges, and
with an exchange that begins during the backward pass of an update's last batch.

**The same update on more GPUs** (25,000 target tokens for base and big, as in Vaswani et al. 2017; 491,520 for GPT-2):

{table(head, predicted[True])}

**An update that grows with the GPUs**, each with its part of those tokens among {FIRST_GPUS}:

{table(head, predicted[False])}
"""


def main() -> None:
    """Measure, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "scaling.md")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--called", help="what the document calls this machine")
    parser.add_argument("--rounds", type=int, default=3, help="updates that are measured")
    parser.add_argument("--rows", type=int, nargs=4, default=None, help="sequences of each model; 0: not measured")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    all_rows = asked.rows or ([98, 98, 32, 8] if device.type == "cuda" else [32, 16, 1, 0])  # 1.5B wants 25 GB
    torch.manual_seed(1)
    measured = {}
    for job, rows in zip(jobs(), all_rows, strict=True):
        if rows:
            measured[job.name] = (rows, job.seconds(device, rows, asked.rounds))
            print(f"{job.name}: {measured[job.name][1]:.2f} s for {rows} sequences", flush=True)
    called = asked.called or (
        torch.cuda.get_device_name() if device.type == "cuda" else f"a CPU, {torch.get_num_threads()} threads"
    )
    asked.output.write_text(report(measured, called, Cluster()))
    print(f"written: {asked.output}")


if __name__ == "__main__":
    main()
