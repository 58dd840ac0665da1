"""Time and memory of a training update with softmax and with linear self-attention, by the length of the text.

A decoder alone of 2 layers, d_model 128, 4 heads and d_ff 512, over 256 random tokens; one text a batch, Adam. Printed are
the median seconds of an update, what an update adds to the process's memory at its peak, and, of decoding one text of that
length with a cache, what the cache holds at its end.

    OMP_NUM_THREADS=1 python scripts/bench attention
"""

import argparse
import statistics
import time

import torch
from bench.memory import added_by

import transduce as td
from transduce.data.text_batches import window_batch
from transduce.train.objectives import CrossEntropy

VOCABULARY = 256


def measure(attention: str, length: int, rounds: int) -> tuple[float, int, float]:
    """Seconds and MiB of an update, and MiB of a full cache."""
    torch.manual_seed(1)
    stack = td.StackConfig(input=td.Tokens(vocab_size=VOCABULARY), n_layers=2)
    model = td.Transformer(td.TransformerConfig(decoder=stack, d_model=128, n_heads=4, d_ff=512, attention=attention))
    objective, optimizer = CrossEntropy(model), torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = window_batch([torch.randint(VOCABULARY, (length + 1,)).numpy()])

    def update() -> None:
        loss, _ = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    update()  # makes Adam's moments
    memory, seconds = added_by(update), []
    for _ in range(rounds):
        start = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - start)
    cache = model.eval().new_cache()
    with torch.inference_mode():
        model.decode(batch.target_in[:, :length], cache=cache)
    held = sum(buffer.nbytes for layer in cache.layers for buffer in layer.buffers)
    return statistics.median(seconds), memory, held / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    x = parser.parse_args()
    for length in x.lengths:
        for attention in ("softmax", "linear"):
            seconds, memory, held = measure(attention, length, x.rounds)
            print(
                f"{length:6,} tokens  {attention:8} {seconds:8.3f} s an update  {memory:5,} MiB  cache {held:6.2f} MiB"
            )


if __name__ == "__main__":
    main()
