"""Decoding speed and memory against CTranslate2 and transformers' MarianMTModel: the same weights, sentences and run.

The weights are random. Every sentence gets exactly `--tokens` tokens (EOS is banned everywhere), so that target tokens/s
compare, and the outputs are compared token by token. Sentences are sorted by length; encoding counts. The systems take
turns, and median and range of `--repeats` rounds are printed; at the end, a table of medians. CTranslate2 is measured
where it is installed, in float32 and int8; `--only` names what is measured.

    python scripts/bench decoding --data multi30k_directory
    python scripts/bench decoding --size base --batch-size 1 64 --beam-sizes 5 --only transduce CTranslate2
    python scripts/bench decoding --device cuda --batch-size 1 16 64
    python scripts/bench decoding --profile --only "transduce float32" --batch-size 64 --beam-sizes 5 --threads 1
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from bench.marian import Marian, import_marian
from bench.memory import added_by
from bench.turns import compare
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

from transduce.data.corpus import corpus_folder
from transduce.data.lines import read_lines
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.device import computes_bf16
from transduce.engine.select import engine_for
from transduce.kernels import library

Batch = tuple[Tensor, Tensor]
"""Source ids (B, S) and lengths (B,)."""
Search = Callable[[Batch, int, int], list[list[int]]]
"""A batch, beam_size and the number of tokens to the best output of every sentence."""


SIZES = {"nano": (64, 1, 500), "tiny": (128, 4, 8000), "small": (256, 3, 8000), "base": (512, 6, 32000)}
"""By name d_model, layers on each side, and tokens of the joint vocabulary. The feed-forward is four times as wide."""


def rival(size: str = "small") -> MarianMTModel:
    """A MarianMTModel with random weights."""
    width, layers, vocabulary = SIZES[size]
    config = MarianConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_ffn_dim=4 * width,
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
            outputs = Sampler(scorer, starts, constraints, sampling=GREEDY).run()
        else:
            outputs = beam_search(scorer, starts, constraints, BeamConfig(beam_size=beam_size, alpha=0.0))
        return [best.tokens for best, *_ in outputs]

    return search


def engine_search(marian: Marian, directory: Path, compute_type: str, threads: int) -> Search:
    """CTranslate2's translate_batch."""
    from bench.ctranslate2_rival import translator

    ids = {"bos_id": marian.bos_id, "eos_id": marian.eos_id}
    engine = translator(marian.model, directory, compute_type, threads, **ids)

    def search(batch: Batch, beam_size: int, n_tokens: int) -> list[list[int]]:
        rows = zip(*(each.tolist() for each in batch), strict=True)
        lines = [[f"t{token}" for token in row[:length]] for row, length in rows]
        found = engine.translate_batch(
            lines, beam_size=beam_size, max_batch_size=0, min_decoding_length=n_tokens, max_decoding_length=n_tokens,
            length_penalty=0, max_input_length=0,
        )  # fmt: skip
        return [[int(token[1:]) for token in each.hypotheses[0]] for each in found]

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
        search = our_search(marian._replace(model=engine_for(marian.model.to(x.device))))
    vocabulary = SIZES[x.size][2]
    work = batches(source_lengths(x.data, tiny=x.tiny), x.batch_size[0], vocabulary, x.device)
    search((work[-1][0][:2], work[-1][1][:2]), 2, 2)
    print(added_by(lambda: search(work[0], x.beam_sizes[0], x.tokens), x.device))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus_folder("multi30k"), help="the folder of Multi30k")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[64, 1, 8, 256], help="sentences")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[5, 1])
    parser.add_argument("--sentences", type=int, default=512, help="at most; of batch 1 a sixteenth, of 8 a quarter")
    parser.add_argument("--tokens", type=int, default=16, help="target tokens of every sentence")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the names of what is measured")
    parser.add_argument(
        "--profile", action="store_true", help="print where the CPU's time goes, and measure nothing else"
    )
    parser.add_argument("--tiny", action="store_true", help="a model of seconds, to try the script")
    parser.add_argument("--peak", nargs=2, metavar=("SYSTEM", "DIRECTORY"), help="only measure memory (used by itself)")
    x = parser.parse_args()
    if x.tiny:
        x.size = "nano"
    return x


def systems_of(theirs: MarianMTModel, directory: Path, x: argparse.Namespace) -> dict[str, Search]:
    """Everything that can be measured here, by name."""
    theirs.save_pretrained(directory)
    ours = import_marian(directory)

    def loaded(dtype: torch.dtype, *, int8: bool = False) -> Search:
        model = deepcopy(ours.model).to(x.device, dtype)
        return our_search(ours._replace(model=engine_for(model, int8=int8)))

    on_cpu = x.device == "cpu"
    makers: dict[str, Callable[[], Search]] = {"transformers float32": lambda: rival_search(theirs.to(x.device))}
    makers["transduce float32"] = lambda: loaded(torch.float32)
    if computes_bf16(torch.device(x.device)):
        makers["transduce bfloat16"] = lambda: loaded(torch.bfloat16)
    if on_cpu and library() is not None:
        makers["transduce int8"] = lambda: loaded(torch.float32, int8=True)
    if on_cpu and find_spec("ctranslate2"):
        for kind in ("float32", "int8"):
            makers[f"CTranslate2 {kind}"] = partial(engine_search, ours, directory / kind, kind, x.threads)
    return {name: make() for name, make in makers.items() if name.startswith(tuple(x.only))}


def spread(lengths: list[int], n: int) -> list[int]:
    """n of these lengths, evenly chosen."""
    return [lengths[i * len(lengths) // n] for i in range(min(n, len(lengths)))]


def latencies(search: Search, work: list[Batch], beam_size: int, n_tokens: int) -> tuple[float, float]:
    """Median and 95th percentile of the milliseconds that one batch takes."""
    taken = []
    for batch in work:
        start = time.perf_counter()
        search(batch, beam_size, n_tokens)
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken), statistics.quantiles(taken, n=20)[-1]


KINDS = {
    "linear maps": "addmm mm linear _linear_pointwise qlinear_pointwise _addmm_activation",
    "attention": "bmm baddbmm _softmax softmax",
    "norms": "native_layer_norm layer_norm",
    "the choice of tokens": "topk sort argsort amax max logsumexp exp_ exp log_ sum gather scatter_ cumsum_ eq where masked_fill",
    "copies": "copy_ index_select index_copy_ cat index _to_copy",
}
"""PyTorch's operators by what a search needs them for."""


IN_CPP = {
    "linear_map": "linear maps",
    "decoder_states": "decoder steps",
    "encoder_states": "the encoder",
    "project_memory": "the encoder",
    "log_sum_exp": "the choice of tokens",
    "top_k": "the choice of tokens",
    "beam_steps": "the search behind its first step",
}
"""What transduce does in C++, by the same; a decoder step has linear maps, attention and norms in one."""


def shares(search: Search, work: list[Batch], beam_size: int, n_tokens: int) -> dict[str, float]:
    """Shares of the time by KINDS and IN_CPP; the rest, Python among it, is "others"."""
    parts: dict[str, float] = defaultdict(float)
    cpp = library()
    known = {} if cpp is None else {name: getattr(cpp, name) for name in IN_CPP}

    def timed(name: str, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = known[name](*arguments)
        parts[IN_CPP[name]] += time.perf_counter() - start
        return result

    for name in known:
        setattr(cpp, name, partial(timed, name))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        start = time.perf_counter()
        answer(search, work, beam_size, n_tokens)
        total = time.perf_counter() - start
    for name, function in known.items():
        setattr(cpp, name, function)
    times = {event.key.split("::")[-1]: event.self_cpu_time_total * 1e-6 for event in found.key_averages()}
    for kind, names in KINDS.items():
        parts[kind] += sum(times.get(name, 0.0) for name in names.split())
    return {kind: took / total for kind, took in parts.items()} | {"others": 1 - sum(parts.values()) / total}


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if x.peak:
        return peak(x.peak[0], Path(x.peak[1]), x)
    with tempfile.TemporaryDirectory() as directory:
        theirs = rival(x.size)
        systems = systems_of(theirs, Path(directory), x)
        lengths = source_lengths(x.data, tiny=x.tiny)
        told = f"{x.threads} threads, {x.device}, {sum(p.numel() for p in theirs.parameters()):,} parameters"
        print(f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} pieces, {told}")
        rows = [f"| target tokens/s | {' | '.join(systems)} |", "|---" * (1 + len(systems)) + "|"]
        vocabulary = theirs.config.vocab_size
        for beam_size, size in [(beam_size, size) for beam_size in x.beam_sizes for size in x.batch_size]:
            n = max(size, x.sentences // (16 if size == 1 else 4 if size < 32 else 1))
            work = batches(spread(lengths, n), size, vocabulary, x.device)
            for search in systems.values():
                search(work[0], beam_size, x.tokens)  # warm-up
            title = f"beam {beam_size}  batch {len(work[0][0]):3}"
            if x.profile:
                for name, search in systems.items():
                    parts = shares(search, work, beam_size, x.tokens).items()
                    print(f"{title}  {name}: " + ", ".join(f"{kind} {share:.0%}" for kind, share in parts))
                continue
            rates = compare(
                title,
                {name: partial(answer, search, work, beam_size, x.tokens) for name, search in systems.items()},
                n_tokens=x.tokens,
                repeats=x.repeats,
                exact=lambda name: name.startswith("transduce") and "float32" in name and x.device == "cpu",
            )
            rows.append(f"| {title} | {' | '.join(f'{statistics.median(rate):,.0f}' for rate in rates.values())} |")
            if size == 1:
                for name, search in systems.items():
                    median, late = latencies(search, work, beam_size, x.tokens)
                    print(f"{title}  {name:24} {median:9.1f} ms a sentence, 95 % within {late:.1f} ms")
        if x.profile:
            return
        print("\n".join(rows))
        for name in ("transformers", "transduce"):
            if not name.startswith(tuple(x.only)):
                continue
            again = [sys.executable, str(Path(__file__).parent), "decoding", *sys.argv[1:], "--peak", name, directory]
            mebibytes = subprocess.run(again, check=True, capture_output=True, text=True).stdout.strip()
            what = f"beam {x.beam_sizes[0]}  batch {x.batch_size[0]:3}"
            print(f"{what}  {name:24} {mebibytes:>7} MiB of memory for the search")


if __name__ == "__main__":
    main()
