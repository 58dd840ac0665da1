"""Generation speed against transformers' GPT2LMHeadModel and CTranslate2, with one model.

The weights are random, the search greedy. Every text gets exactly `--tokens` new tokens (EOS is
suppressed), so that new tokens/s are comparable; outputs are compared token by token. Times include
reading the prompt. The systems take turns, and the median of `--repeats` rounds is printed.

    python scripts/bench generation
    python scripts/bench generation --device cuda
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.rivals import (
    DTYPES,
    exact_system,
    for_ctranslate2,
    our_engine,
    quiet_transformers,
    system_names,
)
from bench.turns import compare
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from transduce.arguments import Group
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.interop import read_model

Generate = Callable[[Tensor, int], list[list[int]]]
"""Prompts (B, P) and the number of new tokens to the new tokens."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    device: str = "cpu"
    """cpu or cuda."""
    batch_size: tuple[int, ...] = ()
    """Texts (default: 1 and 16, on a GPU 64 too)."""
    prompt: int = 32
    """Tokens of every prompt."""
    tokens: int | None = None
    """New tokens of every text (default: 64, on a GPU 256)."""
    repeats: int = 3
    """Rounds."""
    threads: int = 2
    """Threads of each system."""
    tiny: bool = False
    """A model of seconds, to try the script."""


def rival(*, tiny: bool) -> GPT2LMHeadModel:
    """GPT-2 124M, or a small one, with random weights."""
    sizes = {"vocab_size": 503, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128}
    config = GPT2Config(
        **(sizes if tiny else {}), initializer_range=0.06, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


def generate_transformers(
    model: GPT2LMHeadModel, prompts: Tensor, n_tokens: int
) -> list[list[int]]:
    """A Generate by transformers, without a token that ends a text."""
    output = model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        use_cache=True,
        min_new_tokens=n_tokens,
        max_new_tokens=n_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[:, prompts.size(1) :].tolist()


def generate_ours(model: Any, prompts: Tensor, n_tokens: int) -> list[list[int]]:
    """A Generate by Sampler at temperature 0."""
    constraints = Constraints(prompts.new_full((len(prompts),), n_tokens), eos_id=None)
    scorer = ModelScorer(model, prompts=prompts)
    outputs = Sampler(scorer, prompts, constraints, sampling=GREEDY).run()
    return [best.tokens for best, *_ in outputs]


def generate_ctranslate2(generator: Any, prompts: Tensor, n_tokens: int) -> list[list[int]]:
    """A Generate by CTranslate2's generate_batch."""
    results = generator.generate_batch(
        [[f"t{token}" for token in row] for row in prompts.tolist()],
        max_length=n_tokens,
        min_length=n_tokens,
        include_prompt_in_result=False,
        end_token=[],
        sampling_topk=1,
    )
    return [result.sequences_ids[0] for result in results]


def load_generate(name: str, directory: Path, x: Options) -> Generate:
    """The function of a system, with the model that transformers has written to `directory`."""
    toolkit, kind = name.split()
    if toolkit == "transformers":
        theirs = GPT2LMHeadModel.from_pretrained(directory).eval().to(x.device, DTYPES[kind])
        return partial(generate_transformers, theirs)
    model = read_model(directory)
    if toolkit == "transduce":
        return partial(generate_ours, our_engine(model, x.device, kind))
    import ctranslate2

    path = for_ctranslate2(model, directory / kind)
    generator = ctranslate2.Generator(path, compute_type=kind, intra_threads=x.threads)
    return partial(generate_ctranslate2, generator)


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    quiet_transformers()
    on_gpu = x.device != "cpu"
    n_tokens = x.tokens or (16 if x.tiny else 256 if on_gpu else 64)
    theirs = rival(tiny=x.tiny)
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        systems = {name: load_generate(name, Path(directory), x) for name in system_names(x.device)}
    device = torch.cuda.get_device_name() if on_gpu else f"{x.threads} threads"
    print(
        f"{theirs.num_parameters():,} parameters, prompts of {x.prompt}, {n_tokens} new tokens, "
        f"{x.device} ({device})"
    )
    rng = torch.Generator().manual_seed(1)
    for size in x.batch_size or ((1, 16, 64) if on_gpu else (1, 16)):
        shape = (size, x.prompt)
        prompts = torch.randint(theirs.config.vocab_size, shape, generator=rng).to(x.device)
        for generate in systems.values():
            generate(prompts, min(n_tokens, 8))  # warm-up
        compare(
            f"batch {size:3}",
            {name: partial(generate, prompts, n_tokens) for name, generate in systems.items()},
            n_tokens=n_tokens,
            repeats=x.repeats,
            exact=exact_system(x.device),
        )
