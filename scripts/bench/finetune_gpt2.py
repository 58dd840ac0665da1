"""How much does fine-tuning an imported GPT-2 on a little text help, against training from scratch?

    python scripts/bench finetune_gpt2 FOLDER --general general.txt --own own.txt --valid valid.txt

A small GPT-2 and its byte-level BPE are trained on `general` with `transformers` and `tokenizers`
alone, saved as these do, and imported. Then one run starts from it with `own`, one with LoRA, and
one begins from scratch with the same tokenizer and sizes. Prints updates, minutes, and loss and
bits per byte of `valid`; in the first line those of the import, and the loss that transformers
itself gives for the same tokens.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from bench.subprocesses import transduce
from tyro.conf import Positional, arg

from transduce.arguments import Group

CONTEXT = 64
"""Tokens of a window."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    folder: Positional[Path]
    """Where the models go."""
    general: Path
    """Text to learn the language from."""
    text: Annotated[Path, arg(name="own")]
    """The little text to fine-tune on."""
    valid: Path
    """Text like that, to measure with."""
    pretrain_updates: int = 2000
    """Of the model to import."""
    updates: int = 200
    """Of the runs that start from it."""
    scratch_updates: int = 1000
    """Of the run from scratch."""
    rate: str = "5e-4"
    """Peak rate of the run that starts from the import."""
    lora_rate: str = "5e-3"
    """The same with LoRA."""
    scratch_rate: str = "2e-3"
    """The same from scratch."""


def pretrain(folder: Path, text: Path, updates: int) -> None:
    """Train and save a GPT-2 of transformers, with linear warm-up and a cosine."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
        get_cosine_schedule_with_warmup,
    )

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = ByteLevelBPETokenizer()
    end = "<|endoftext|>"
    tokenizer.train([str(text)], vocab_size=2000, special_tokens=[end], show_progress=False)
    ids = torch.tensor(tokenizer.encode(text.read_text("utf-8")).ids)
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, max(101, updates))
    for update in range(updates):
        starts = torch.randint(len(ids) - CONTEXT, (32,))
        batch = torch.stack([ids[i : i + CONTEXT] for i in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if update % 100 == 99:
            print(f"transformers, update {update + 1}: loss {loss.item():.3f}", file=sys.stderr)
    model.save_pretrained(folder)
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=end)
    saved.save_pretrained(folder)


def loss_of_transformers(folder: Path, text: Path) -> float:
    """Nats per token of <|endoftext|> and the text, in windows that do not overlap."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer.eos_token_id, *tokenizer(text.read_text("utf-8")).input_ids])
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, CONTEXT):
            window = ids[start : start + CONTEXT + 1]
            logits = model(window[None, :-1]).logits[0]
            loss = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
            total += loss.item()
    return total / (len(ids) - 1)


def main(x: Group[Options]) -> None:
    hub = x.folder / "transformers"
    imported = x.folder / "imported"
    if not (hub / "model.safetensors").is_file():
        hub.mkdir(parents=True, exist_ok=True)
        pretrain(hub, x.general, x.pretrain_updates)
    if not imported.exists():
        transduce("import", "gpt2", hub, imported)

    def perplexity(run: Path) -> str:
        output = transduce("score", "perplexity", run, x.valid, "--stride", CONTEXT)
        return output.splitlines()[0]

    theirs = loss_of_transformers(hub, x.valid)
    print(f"imported: {perplexity(imported)}; transformers {theirs:.4f} nats per token")
    start = ["--start-from", imported, "--training.optim.peak-rate"]
    lora = ["--training.lora.rank", 8, "--training.lora.maps", "q", "v", "wide", "narrow"]
    sizes = ["--tokenizer", imported / "tokenizer.json", "--model.d-model", 128]
    sizes += ["--model.d-ff", 512, "--model.n-heads", 4, "--model.decoder.n-layers", 4]
    sizes += ["--model.max-positions", CONTEXT, "--model.bias"]
    scratch = [*sizes, "--training.optim.peak-rate", x.scratch_rate]
    runs: dict[str, tuple[int, list[Any]]] = {
        "started": (x.updates, [*start, x.rate]),
        "started, LoRA": (x.updates, [*start, x.lora_rate, *lora]),
        "scratch": (x.scratch_updates, scratch),
    }
    for name, (updates, flags) in runs.items():
        run = x.folder / name.replace(", ", "_")
        command = ["train", "language-model", "text", "--train", x.text, "--valid", x.valid]
        command += ["--run", run, "--batch-size", 16, "--training.max-updates", updates]
        command += ["--training.validate-every", max(1, updates // 20)]
        command += ["--training.optim.warmup-steps", 20, "--training.optim.schedule", "cosine"]
        began = time.monotonic()
        print(transduce(*command, *flags), file=sys.stderr)
        minutes = (time.monotonic() - began) / 60
        print(f"{name:14} {updates:5} updates {minutes:6.1f} min   {perplexity(run)}", flush=True)
