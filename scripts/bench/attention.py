"""Time and memory of an update with softmax and with linear self-attention, by text length.

A decoder-only model with 2 layers, d_model 128, 4 heads and d_ff 512, on random tokens from a
vocabulary of 256; one text per batch, Adam. Prints the median seconds per update, the peak memory
that an update adds to the process, and the size of the cache after decoding one text of that
length.

    OMP_NUM_THREADS=1 python scripts/bench attention
"""

import statistics

import torch
from bench.memory import added_by
from bench.turns import timed

import transduce as td
from transduce.data.text_batches import window_batch
from transduce.train.objectives import CrossEntropy

VOCABULARY = 256


def measure(attention: str, length: int, rounds: int) -> tuple[float, int, float]:
    """Seconds and MiB of an update, and MiB of a full cache."""
    torch.manual_seed(1)
    stack = td.StackConfig(input=td.Tokens(vocab_size=VOCABULARY), n_layers=2)
    config = td.TransformerConfig(
        decoder=stack, d_model=128, n_heads=4, d_ff=512, attention=attention
    )
    model = td.Transformer(config)
    objective = CrossEntropy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = window_batch([torch.randint(VOCABULARY, (length + 1,)).numpy()])

    def update() -> None:
        loss, _ = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    update()  # allocates Adam's moments
    memory = added_by(update)
    seconds = statistics.median(timed(update).seconds for _ in range(rounds))
    cache = model.eval().new_cache()
    with torch.inference_mode():
        model.decode(batch.target_in[:, :length], cache=cache)
    n_bytes = sum(buffer.nbytes for layer in cache.layers for buffer in layer.buffers)
    return seconds, memory, n_bytes / 2**20


def main(*, lengths: tuple[int, ...] = (256, 1024, 4096), rounds: int = 5) -> None:
    """Measure both kinds of attention.

    Args:
        lengths: tokens of a text.
        rounds: timed updates.
    """
    for length in lengths:
        for attention in ("softmax", "linear"):
            seconds, memory, cache = measure(attention, length, rounds)
            print(
                f"{length:6,} tokens  {attention:8} {seconds:8.3f} s an update  {memory:5,} MiB  "
                f"cache {cache:6.2f} MiB"
            )
