"""Decoding speed and memory against CTranslate2 and transformers' MarianMTModel, with one model.

The weights are random. Every output has exactly `--tokens` tokens (EOS is suppressed in all
systems), so that target tokens/s are comparable; outputs are compared token by token. Sentences are
sorted by length; times include encoding. The systems take turns; median and range of `--repeats`
rounds are printed, and at the end a table of medians. CTranslate2 is measured if it is installed,
in float32 and int8; `--only` selects systems.

    python scripts/bench decoding --data multi30k_directory
    python scripts/bench decoding --size base --batch-size 1 64 --beam-sizes 5 --only transduce
    python scripts/bench decoding --device cuda --batch-size 1 16 64
    python scripts/bench decoding --profile --only "transduce float32" --batch-size 64 --threads 1
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from bench.marian import Marian, import_marian, search as search_marian
from bench.memory import added_by
from bench.rivals import (
    DTYPES,
    exact_system,
    for_ctranslate2,
    our_engine,
    quiet_transformers,
    system_names,
)
from bench.subprocesses import this_benchmark
from bench.turns import compare, timed
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig, MarianMTModel

from transduce.arguments import Group
from transduce.data.corpus import corpus_folder
from transduce.data.lines import read_lines
from transduce.decode.scorer import ModelScorer
from transduce.kernels import library

Batch = tuple[Tensor, Tensor]
"""Source ids (B, S) and lengths (B,)."""
Search = Callable[[Batch, int, int], list[list[int]]]
"""A batch, beam_size and the number of tokens to the best output of every sentence."""

Size = Literal["nano", "tiny", "small", "base"]
SIZES: dict[Size, tuple[int, int, int]] = {
    "nano": (64, 1, 500),
    "tiny": (128, 4, 8000),
    "small": (256, 3, 8000),
    "base": (512, 6, 32000),
}
"""By name d_model, layers on each side, and tokens of the joint vocabulary; d_ff is 4 d_model."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    data: Path | None = None
    """The folder of Multi30k (default: multi30k in $TRANSDUCE_DATA)."""
    device: str = "cpu"
    """cpu or cuda."""
    size: Size = "small"
    """Size of the model."""
    batch_size: tuple[int, ...] = (64, 1, 8, 256)
    """Sentences."""
    beam_sizes: tuple[int, ...] = (5, 1)
    """1 is greedy search."""
    sentences: int = 512
    """At most; of batch 1 a sixteenth, of 8 a quarter."""
    tokens: int = 16
    """Target tokens of every sentence."""
    repeats: int = 5
    """Rounds."""
    threads: int = 2
    """Threads of each system."""
    only: tuple[str, ...] = ()
    """Beginnings of the names of what is measured."""
    profile: bool = False
    """Print where the CPU's time goes, and measure nothing else."""
    tiny: bool = False
    """A model of seconds, to try the script."""
    peak: tuple[str, Path] | None = None
    """Only measure the memory of a system, whose model is in a directory (used by itself)."""


def rival(size: Size = "small") -> MarianMTModel:
    """A MarianMTModel with random weights."""
    d_model, layers, vocab_size = SIZES[size]
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        init_std=0.06,
    )
    torch.manual_seed(0)
    return MarianMTModel(config).eval()


def search_transformers(
    model: MarianMTModel, batch: Batch, beam_size: int, n_tokens: int
) -> list[list[int]]:
    """A Search by transformers' generate."""
    source, lengths = batch
    visible = torch.arange(source.size(1), device=source.device) < lengths[:, None]
    output = model.generate(
        input_ids=source,
        attention_mask=visible.long(),
        num_beams=beam_size,
        do_sample=False,
        length_penalty=0.0,
        min_new_tokens=n_tokens,
        max_new_tokens=n_tokens,
        early_stopping=False,
    )
    return output[:, 1:].tolist()


@torch.inference_mode()
def search_ours(marian: Marian, batch: Batch, beam_size: int, n_tokens: int) -> list[list[int]]:
    """A Search of our own."""
    source, lengths = batch
    scorer = ModelScorer(marian.model, marian.model.encode(source, lengths))
    outputs = search_marian(marian, scorer, torch.full_like(lengths, n_tokens), beam_size)
    return [best.tokens for best, *_ in outputs]


def search_ctranslate2(
    translator: Any, batch: Batch, beam_size: int, n_tokens: int
) -> list[list[int]]:
    """A Search by CTranslate2's translate_batch."""
    rows = zip(*(part.tolist() for part in batch), strict=True)
    results = translator.translate_batch(
        [[f"t{token}" for token in row[:length]] for row, length in rows],
        beam_size=beam_size,
        max_batch_size=0,
        min_decoding_length=n_tokens,
        max_decoding_length=n_tokens,
        length_penalty=0,
        max_input_length=0,
    )
    return [[int(token[1:]) for token in result.hypotheses[0]] for result in results]


def load_search(name: str, directory: Path, x: Options) -> Search:
    """The search of a system, with the model that transformers has written to `directory`."""
    toolkit, kind = name.split()
    if toolkit == "transformers":
        theirs = MarianMTModel.from_pretrained(directory).eval().to(x.device, DTYPES[kind])
        return partial(search_transformers, theirs)
    marian = import_marian(directory)
    if toolkit == "transduce":
        model = our_engine(marian.model, x.device, kind)
        return partial(search_ours, marian._replace(model=model))
    import ctranslate2

    path = for_ctranslate2(
        marian.model,
        directory / kind,
        bos_id=marian.bos_id,
        eos_id=marian.eos_id,
        add_source_eos=False,
        decoder_start_token=f"t{marian.bos_id}",
    )
    translator = ctranslate2.Translator(path, compute_type=kind, intra_threads=x.threads)
    return partial(search_ctranslate2, translator)


def source_lengths(x: Options) -> list[int]:
    """Subwords per sentence of Multi30k's test set, estimated as 1.3 per word; without it, 8 to
    30."""
    data = x.data or corpus_folder("multi30k")
    if x.tiny or data is None:
        return [8 + i % 23 for i in range(48 if x.tiny else 1000)]
    return [round(1.3 * len(line.split())) for line in read_lines(data / "test_2016_flickr.en.gz")]


def make_batches(lengths: list[int], size: int, x: Options) -> list[Batch]:
    """Random ids of these lengths, longest first."""
    rng = torch.Generator().manual_seed(1)
    vocab_size = SIZES[x.size][2]
    rows = [
        torch.randint(2, vocab_size, (n,), generator=rng) for n in sorted(lengths, reverse=True)
    ]
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [
        (
            pad_sequence(part, batch_first=True, padding_value=1).to(x.device),
            torch.tensor([*map(len, part)]).to(x.device),
        )
        for part in parts
    ]


def search_all(
    search: Search, batches: list[Batch], beam_size: int, n_tokens: int
) -> list[list[int]]:
    """The best output of every sentence."""
    return [row for batch in batches for row in search(batch, beam_size, n_tokens)]


def print_peak(name: str, directory: Path, x: Options) -> None:
    """Print the MiB that one search adds to a process with a loaded model, or to its GPU."""
    search = load_search(f"{name} float32", directory, x)
    batches = make_batches(source_lengths(x), x.batch_size[0], x)
    search((batches[-1][0][:2], batches[-1][1][:2]), 2, 2)
    print(added_by(lambda: search(batches[0], x.beam_sizes[0], x.tokens), x.device))


KINDS = {
    "linear maps": "addmm mm linear _linear_pointwise qlinear_pointwise _addmm_activation",
    "attention": "bmm baddbmm _softmax softmax",
    "norms": "native_layer_norm layer_norm",
    "the choice of tokens": "topk sort argsort amax max logsumexp exp_ exp log_ sum gather "
    "scatter_ cumsum_ eq where masked_fill",
    "copies": "copy_ index_select index_copy_ cat index _to_copy",
}
"""PyTorch's operators by their purpose in a search."""


IN_CPP = {
    "linear_map": "linear maps",
    "decoder_states": "decoder steps",
    "encoder_states": "the encoder",
    "project_memory": "the encoder",
    "log_sum_exp": "the choice of tokens",
    "top_k": "the choice of tokens",
    "beam_steps": "the search after its first step",
}
"""Our C++ functions by purpose; a decoder step combines linear maps, attention and norms."""


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Shares of the time by KINDS and IN_CPP; the rest, such as Python, is "others"."""
    parts: dict[str, float] = defaultdict(float)
    cpp = library()
    functions = {} if cpp is None else {name: getattr(cpp, name) for name in IN_CPP}

    def call(name: str, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = functions[name](*arguments)
        parts[IN_CPP[name]] += time.perf_counter() - start
        return result

    for name in functions:
        setattr(cpp, name, partial(call, name))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        total = timed(work).seconds
    for name, function in functions.items():
        setattr(cpp, name, function)
    times = {
        event.key.split("::")[-1]: event.self_cpu_time_total * 1e-6
        for event in profiler.key_averages()
    }
    for kind, names in KINDS.items():
        parts[kind] += sum(times.get(name, 0.0) for name in names.split())
    rest = 1 - sum(parts.values()) / total
    return {kind: seconds / total for kind, seconds in parts.items()} | {"others": rest}


def measure(
    searches: dict[str, Search], beam_size: int, batches: list[Batch], x: Options
) -> list[float]:
    """Print how fast every search is, or with --profile its shares; gives median tokens/s."""
    title = f"beam {beam_size}  batch {len(batches[0][0]):3}"
    calls = {
        name: partial(search_all, search, batches, beam_size, x.tokens)
        for name, search in searches.items()
    }
    for search in searches.values():
        search(batches[0], beam_size, x.tokens)  # warm-up
    if x.profile:
        for name, work in calls.items():
            parts = ", ".join(f"{kind} {share:.0%}" for kind, share in shares(work).items())
            print(f"{title}  {name}: {parts}")
        return []
    exact = exact_system(x.device)
    rates = compare(title, calls, n_tokens=x.tokens, repeats=x.repeats, exact=exact)
    if len(batches[0][0]) == 1:
        for name, search in searches.items():
            milliseconds = [
                1000 * timed(partial(search, batch, beam_size, x.tokens)).seconds
                for batch in batches
            ]
            median = statistics.median(milliseconds)
            late = statistics.quantiles(milliseconds, n=20)[-1]
            print(f"{title}  {name:24} {median:9.1f} ms a sentence, 95 % within {late:.1f} ms")
    return [statistics.median(rate) for rate in rates.values()]


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    quiet_transformers()
    if x.tiny:
        x = replace(x, size="nano")
    if x.peak:
        return print_peak(*x.peak, x)
    with tempfile.TemporaryDirectory() as directory:
        theirs = rival(x.size)
        theirs.save_pretrained(directory)
        names = [name for name in system_names(x.device, x.only) if name != "transformers bfloat16"]
        searches = {name: load_search(name, Path(directory), x) for name in names}
        lengths = source_lengths(x)
        print(
            f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} pieces, {x.threads} "
            f"threads, {x.device}, {theirs.num_parameters():,} parameters"
        )
        rows = [f"| target tokens/s | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for beam_size, size in product(x.beam_sizes, x.batch_size):
            n = max(size, x.sentences // (16 if size == 1 else 4 if size < 32 else 1))
            n = min(n, len(lengths))
            some = [lengths[i * len(lengths) // n] for i in range(n)]  # evenly chosen
            medians = measure(searches, beam_size, make_batches(some, size, x), x)
            cells = " | ".join(f"{rate:,.0f}" for rate in medians)
            rows.append(f"| beam {beam_size}  batch {min(size, n):3} | {cells} |")
        if x.profile:
            return
        print("\n".join(rows))
        for name in ("transformers", "transduce"):
            if f"{name} float32" in names:
                mebibytes = this_benchmark("--peak", name, directory)
                title = f"beam {x.beam_sizes[0]}  batch {x.batch_size[0]:3}"
                print(f"{title}  {name:24} {mebibytes:>7} MiB of memory for the search")
