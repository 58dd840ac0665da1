"""Encoder-decoder models of transformers with random weights and sizes, their tokenizers, and what they write."""

import io
import random
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import nn

import transduce as td
from tests.runs import ENGLISH
from transduce.cli.main import main


def drawn(n: int, *, default: Collection[int], long: Collection[int]) -> list[Any]:
    """Seeds 0 to n - 1 for parametrize: some in the default tier, some marked long, the others nightly."""

    def tier(seed: int) -> list[pytest.MarkDecorator]:
        return [] if seed in default else [pytest.mark.long if seed in long else pytest.mark.nightly]

    return [pytest.param(seed, marks=tier(seed)) for seed in range(n)]


LINES = [*ENGLISH[:9], "", "Ünknown ☃ signs, 東京!", "two  spaces ", "a < b"]


def sentencepiece_model(texts: list[str], *, vocab_size: int, kind: str = "unigram", **how: Any) -> bytes:
    """Learned from these texts, with the special pieces that opus-mt and fairseq have: <unk> 0, <s> 1, </s> 2."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type=kind, vocab_size=vocab_size,
        hard_vocab_limit=False, minloglevel=2, num_threads=1, **how,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(*models: bytes) -> list[str]:
    """Every piece of some models, but <unk>, <s> and </s>, once."""
    each = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    return list(dict.fromkeys(p.id_to_piece(i) for p in each for i in range(3, p.get_piece_size())))


def random_sizes(rng: random.Random) -> dict[str, Any]:
    """Sizes of which none is round, as the configurations of Marian, M2M-100, BART and mBART call them."""
    heads, width = rng.choice([1, 2, 3, 5]), rng.randint(4, 9)
    ffn = rng.randint(11, 40)
    return {
        "d_model": heads * width, "encoder_layers": rng.randint(1, 3), "decoder_layers": rng.randint(1, 3),
        "encoder_attention_heads": heads, "decoder_attention_heads": heads, "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn, "activation_function": rng.choice(["swish", "silu", "gelu", "relu", "gelu_new"]),
        "scale_embedding": rng.random() < 0.5, "init_std": 0.3,
    }  # fmt: skip


def random_search(rng: random.Random, **more: Any) -> Any:
    """How to search, as generation_config.json says it.

    Outputs that max_length cuts are those of `generate` unless their
    last token is forced to be the end, which it counts; so there is room then.
    """
    from transformers import GenerationConfig

    longest = rng.randint(15, 60) if more["forced_eos_token_id"] is None else 90
    if (num_beams := rng.randint(1, 5)) > 1:
        more |= {"length_penalty": rng.choice([0.0, 0.6, 1.0, 1.3]), "early_stopping": rng.random() < 0.3}
    else:
        more |= {"repetition_penalty": rng.choice([1.0, 1.3])}
    return GenerationConfig(
        num_beams=num_beams, max_length=longest, no_repeat_ngram_size=rng.choice([0, 0, 2, 3]),
        min_length=rng.choice([0, 0, 5]), do_sample=False, **more,
    )  # fmt: skip


@torch.no_grad()
def randomize(model: nn.Module, rng: random.Random, *, eos_id: int, biased: bool = True) -> None:
    """Random norms and biases, too; and a bias of the output by which texts end."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    if biased:
        model.final_logits_bias.normal_(generator=generator)
        model.final_logits_bias[0, eos_id] += rng.uniform(1, 4)
    model.eval()


@torch.no_grad()
def compare(theirs: nn.Module, tokenizer: Any, directory: Path) -> tuple[float, list[str], list[str]]:
    """The largest difference of logits, and what the command and `generate` write for LINES."""
    run = directory.with_name("run")
    assert main(["import", str(directory), str(run)]) == 0
    translator = td.load_translator(run)
    lines = [line for line in LINES if line.strip()]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    sources = [row[mask == 1].tolist() for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    assert [list(row) for row in translator.sources(lines)] == sources
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(4, theirs.config.vocab_size // 2, (len(lines), 7), generator=rng)  # without padding
    want = theirs(**batch, decoder_input_ids=target).logits
    lengths = batch.attention_mask.sum(dim=1)
    got = td.load_model(run)(source=batch.input_ids, source_lengths=lengths, target_in=target)
    written = tokenizer.batch_decode(theirs.generate(**batch), skip_special_tokens=True)
    # M2M100Tokenizer leaves tags there
    texts = (re.sub("__[a-z]+__", "", text).strip() if "__" in text else text for text in written)
    ours = translated(run, LINES)
    return float((got - want).abs().max()), ours, [next(texts) if line.strip() else "" for line in LINES]


def translated(run: Path, lines: list[str], *flags: str) -> list[str]:
    """What the command writes."""
    given, written = run.with_name("in.txt"), run.with_name("out.txt")
    given.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert main(["translate", str(run), str(given), "--output", str(written), *flags]) == 0
    return written.read_text(encoding="utf-8").split("\n")[:-1]
