"""Decoding speed and memory against transformers' MarianMTModel: the same random weights, sentences and run.

Every sentence gets exactly `--tokens` tokens (EOS is banned on both sides), so that target tokens/s compare, and the
outputs are compared token by token. Sentences are sorted by length; encoding counts. The systems take turns, and the
median of `--repeats` rounds is printed.

    python scripts/bench_decoding.py --data multi30k_directory
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from memory import added_by
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging
from turns import compare

from transduce.data.text.corpus import corpus_folder, read_lines
from transduce.decode.beam import beam_search
from transduce.decode.constraints import Constraints
from transduce.decode.sample import Sampler, Sampling
from transduce.decode.scorer import ModelScorer
from transduce.interop.marian import Marian, import_marian
from transduce.model.packed import pack

Batch = tuple[Tensor, Tensor]
"""Source ids (B, S) and lengths (B,)."""
Search = Callable[[Batch, int, int], list[list[int]]]
"""A batch, beam_size and the number of tokens to the best output of every sentence."""


def rival(*, tiny: bool) -> MarianMTModel:
    """A MarianMTModel with random weights."""
    width, vocabulary = (64, 500) if tiny else (256, 8000)
    config = MarianConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, encoder_attention_heads=4, decoder_attention_heads=4, activation_function="relu",
        scale_embedding=True, max_position_embeddings=256, pad_token_id=1, eos_token_id=0, decoder_start_token_id=1,
        forced_eos_token_id=None, init_std=0.06,
    )  # fmt: skip
    torch.manual_seed(0)
    return MarianMTModel(config).eval()


def rival_search(model: MarianMTModel) -> Search:
    """transformers' generate."""

    def search(batch: Batch, beam_size: int, n_tokens: int) -> list[list[int]]:
        source, lengths = batch
        visible = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        output = model.generate(
            input_ids=source, attention_mask=visible.long(), num_beams=beam_size, do_sample=False, length_penalty=0.0,
            min_new_tokens=n_tokens, max_new_tokens=n_tokens, early_stopping=False,
        )  # fmt: skip
        return output[:, 1:].tolist()

    return search


def our_search(marian: Marian) -> Search:
    """beam_search, or greedy search where beam_size is 1."""

    @torch.inference_mode()
    def search(batch: Batch, beam_size: int, n_tokens: int) -> list[list[int]]:
        source, lengths = batch
        scorer = ModelScorer(marian.model, marian.model.encode(source, lengths))
        bounds = torch.full_like(lengths, n_tokens)
        starts = torch.full_like(source[:, :1], marian.bos_id)
        constraints = Constraints(bounds, eos_id=marian.eos_id, suppressed=[marian.eos_id])
        if beam_size == 1:
            found = Sampler(scorer, starts, constraints, sampling=Sampling(temperature=0.0)).run()
            return [hypothesis.tokens for hypothesis in found]
        return [best.tokens for best, *_ in beam_search(scorer, starts, constraints, beam_size=beam_size, alpha=0.0)]

    return search


def source_lengths(data: Path | None, *, tiny: bool) -> list[int]:
    """Pieces per sentence of Multi30k's test set, taken as 1.3 a word; without the data, 8 ... 30 evenly."""
    if tiny or data is None:
        return [8 + i % 23 for i in range(48 if tiny else 1000)]
    return [round(1.3 * len(line.split())) for line in read_lines(data / "test_2016_flickr.en.gz")]


def batches(lengths: list[int], size: int, vocabulary: int, device: str) -> list[Batch]:
    """Random ids of these lengths, longest first."""
    rng = torch.Generator().manual_seed(1)
    rows = [torch.randint(2, vocabulary, (n,), generator=rng) for n in sorted(lengths, reverse=True)]
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [
        (pad_sequence(part, batch_first=True, padding_value=1).to(device), torch.tensor([*map(len, part)]).to(device))
        for part in parts
    ]


def answer(search: Search, work: list[Batch], beam_size: int, n_tokens: int) -> list[list[int]]:
    """The best output of every sentence."""
    return [row for batch in work for row in search(batch, beam_size, n_tokens)]


def peak(name: str, directory: Path, x: argparse.Namespace) -> None:
    """Print the MiB that one beam search adds to the memory of a process that has the model loaded, or of its GPU."""
    if name == "transformers":
        search = rival_search(MarianMTModel.from_pretrained(directory).eval().to(x.device))
    else:
        marian = import_marian(directory)
        search = our_search(marian._replace(model=pack(marian.model.to(x.device))))
    vocabulary = 500 if x.tiny else 8000
    work = batches(source_lengths(x.data, tiny=x.tiny), x.batch_size[0], vocabulary, x.device)
    search((work[-1][0][:2], work[-1][1][:2]), 2, 2)
    print(added_by(lambda: search(work[0], x.beam_size, x.tokens), x.device))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus_folder("multi30k"), help="the folder of Multi30k")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[64, 32], help="sentences")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16, help="target tokens of every sentence")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model of seconds, to try the script")
    parser.add_argument("--peak", nargs=2, metavar=("SYSTEM", "DIRECTORY"), help="only measure memory (used by itself)")
    return parser.parse_args()


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if x.peak:
        return peak(x.peak[0], Path(x.peak[1]), x)
    with tempfile.TemporaryDirectory() as directory:
        theirs = rival(tiny=x.tiny)
        theirs.save_pretrained(directory)
        ours = import_marian(Path(directory))
        half = ours._replace(model=pack(deepcopy(ours.model).bfloat16().to(x.device)))
        systems = {
            "transformers float32": rival_search(theirs.to(x.device)),
            "transduce float32": our_search(ours._replace(model=pack(ours.model.to(x.device)))),
            "transduce bfloat16": our_search(half),
        }
        lengths = source_lengths(x.data, tiny=x.tiny)
        print(f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} pieces, {x.threads} threads, {x.device}")
        vocabulary = theirs.config.vocab_size
        for beam_size, size in [(x.beam_size, size) for size in x.batch_size] + [(1, x.batch_size[0])]:
            work = batches(lengths, size, vocabulary, x.device)
            for search in systems.values():
                search(work[0], beam_size, x.tokens)  # warm-up
            compare(
                f"beam {beam_size}  batch {len(work[0][0]):3}",
                {name: partial(answer, search, work, beam_size, x.tokens) for name, search in systems.items()},
                n_tokens=x.tokens,
                repeats=x.repeats,
                exact=lambda name: "float32" in name and x.device == "cpu",
            )
        for name in ("transformers", "transduce"):
            again = [sys.executable, *sys.argv, "--peak", name, directory]
            mebibytes = subprocess.run(again, check=True, capture_output=True, text=True).stdout.strip()
            print(
                f"beam {x.beam_size}  batch {x.batch_size[0]:3}  {name:22} {mebibytes:>7} MiB of memory for the search"
            )


if __name__ == "__main__":
    main()
