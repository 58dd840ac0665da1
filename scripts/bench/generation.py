"""Generation speed against transformers' GPT2LMHeadModel and CTranslate2: the same random weights, prompts and run.

Greedy, and every text gets exactly `--tokens` new tokens (nothing ends), so that new tokens/s compare; the outputs are
compared token by token. Reading the prompt counts. The systems take turns, and the median of `--repeats` is printed.

    python scripts/bench generation
    python scripts/bench generation --device cuda
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from bench.turns import compare
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.device import computes_bf16
from transduce.engine.select import engine_for
from transduce.interop import read_model
from transduce.kernels import library
from transduce.model.transformer import Transformer

Generate = Callable[[Tensor, int], list[list[int]]]
"""Prompts (B, P) and the number of new tokens to the new tokens."""


def rival(*, tiny: bool) -> GPT2LMHeadModel:
    """GPT-2 124M, or a small one, with random weights."""
    small = {"vocab_size": 503, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128} if tiny else {}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**small, initializer_range=0.06, bos_token_id=0, eos_token_id=0)).eval()


def their_generate(model: GPT2LMHeadModel) -> Generate:
    """transformers' generate; EOS never comes, for none is told."""

    def generate(prompts: Tensor, n_tokens: int) -> list[list[int]]:
        output = model.generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=False, use_cache=True,
            min_new_tokens=n_tokens, max_new_tokens=n_tokens, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        return output[:, prompts.size(1) :].tolist()

    return generate


def our_generate(model: Transformer) -> Generate:
    """Sampler at temperature 0."""

    def generate(prompts: Tensor, n_tokens: int) -> list[list[int]]:
        constraints = Constraints(prompts.new_full((len(prompts),), n_tokens), eos_id=None)
        outputs = Sampler(ModelScorer(model, prompts=prompts), prompts, constraints, sampling=GREEDY).run()
        return [best.tokens for best, *_ in outputs]

    return generate


def engine_generate(model: Transformer, directory: Path, compute_type: str, threads: int) -> Generate:
    """CTranslate2's generate_batch."""
    from bench.ctranslate2_rival import generator

    engine = generator(model, directory, compute_type, threads)

    def generate(prompts: Tensor, n_tokens: int) -> list[list[int]]:
        found = engine.generate_batch(
            [[f"t{token}" for token in row] for row in prompts.tolist()], max_length=n_tokens, min_length=n_tokens,
            include_prompt_in_result=False, end_token=[], sampling_topk=1,
        )  # fmt: skip
        return [each.sequences_ids[0] for each in found]

    return generate


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, nargs="+", help="texts; 1 and 16, on a GPU 64 too")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of every prompt")
    parser.add_argument("--tokens", type=int, default=None, help="new tokens of every text; 64, on a GPU 256")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model of seconds, to try the script")
    x = parser.parse_args()
    on_gpu = x.device != "cpu"
    x.batch_size = x.batch_size or ([1, 16, 64] if on_gpu else [1, 16])
    x.tokens = x.tokens or (16 if x.tiny else 256 if on_gpu else 64)
    return x


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    theirs = rival(tiny=x.tiny)
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        ours = read_model(Path(directory))
        n_parameters = sum(p.numel() for p in ours.parameters())
        on_cpu, folder = x.device == "cpu", Path(directory)
        systems = {
            "transformers float32": their_generate(deepcopy(theirs).to(x.device)),
            "transduce float32": our_generate(engine_for(deepcopy(ours).to(x.device))),
        }
        if on_cpu and library() is not None:
            systems["transduce int8"] = our_generate(engine_for(deepcopy(ours), int8=True))
        if on_cpu and find_spec("ctranslate2"):
            for kind in ("float32", "int8"):
                systems[f"CTranslate2 {kind}"] = engine_generate(ours, folder / kind, kind, x.threads)
    if computes_bf16(torch.device(x.device)):
        systems["transformers bfloat16"] = their_generate(theirs.to(x.device, torch.bfloat16))
        systems["transduce bfloat16"] = our_generate(ours.to(x.device, torch.bfloat16))
    where = torch.cuda.get_device_name() if x.device.startswith("cuda") else f"{x.threads} threads"
    print(f"{n_parameters:,} parameters, prompts of {x.prompt}, {x.tokens} new tokens, {x.device} ({where})")
    rng = torch.Generator().manual_seed(1)
    for size in x.batch_size:
        prompts = torch.randint(theirs.config.vocab_size, (size, x.prompt), generator=rng).to(x.device)
        for generate in systems.values():
            generate(prompts, min(x.tokens, 8))  # warm-up
        compare(
            f"batch {size:3}",
            {name: partial(generate, prompts, x.tokens) for name, generate in systems.items()},
            n_tokens=x.tokens,
            repeats=x.repeats,
            exact=lambda name: name.startswith("transduce") and "float32" in name and x.device == "cpu",
        )


if __name__ == "__main__":
    main()
