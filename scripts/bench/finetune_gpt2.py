"""What does an imported GPT-2 bring? Trained elsewhere, imported, fine-tuned on a little text; against from scratch.

    python scripts/bench finetune_gpt2 FOLDER --general general.txt --own own.txt --valid valid.txt

A small GPT-2 and its byte-level BPE are trained on `general` with `transformers` and `tokenizers` alone, saved as these
do, and imported. Then one run starts from it with `own`, one with low-rank changes alone, one begins anew with the same
tokenizer and sizes. Prints updates, minutes, and loss and bits per byte of `valid`; in the first line those of the
import, and the loss that transformers itself gives for the same tokens.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

CONTEXT, VOCABULARY = 64, 2000


def pretrain(folder: Path, text: Path, updates: int, seed: int = 1) -> None:
    """Train and save a GPT-2 of transformers, with linear warm-up and a cosine."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(text)], vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False)
    ids = torch.tensor(tokenizer.encode(text.read_text("utf-8")).ids)
    torch.manual_seed(seed)
    size = tokenizer.get_vocab_size()
    config = GPT2Config(
        vocab_size=size, n_positions=CONTEXT, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=100)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, updates - 100))
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [100])
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
            print(f"transformers, update {update + 1}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


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
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def command(*words: object) -> str:
    """What a command prints."""
    done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def main() -> None:
    """Read the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the models go")
    parser.add_argument("--general", type=Path, required=True, help="text to learn the language from")
    parser.add_argument("--own", type=Path, required=True, help="the little text to be good at")
    parser.add_argument("--valid", type=Path, required=True, help="more of that, to measure with")
    parser.add_argument("--pretrain-updates", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=200, help="of the runs that start from it")
    parser.add_argument("--scratch-updates", type=int, default=1000, help="of the run from scratch")
    parser.add_argument("--rate", default="5e-4", help="peak rate of the run that starts from it")
    parser.add_argument("--lora-rate", default="5e-3", help="the same with low-rank changes")
    parser.add_argument("--scratch-rate", default="2e-3", help="the same from scratch")
    asked = parser.parse_args()
    hub, imported = asked.folder / "transformers", asked.folder / "imported"
    if not (hub / "model.safetensors").is_file():
        hub.mkdir(parents=True, exist_ok=True)
        pretrain(hub, asked.general, asked.pretrain_updates)
    transduce = [sys.executable, "-m", "transduce.cli.main"]
    if not imported.exists():
        command(*transduce, "import", "gpt2", hub, imported)

    def perplexity(run: Path) -> str:
        return command(*transduce, "score", "perplexity", run, asked.valid, "--stride", CONTEXT).splitlines()[0]

    print(f"imported: {perplexity(imported)}; transformers {loss_of_transformers(hub, asked.valid):.4f} nats per token")
    like = ["--start-from", imported, "--training.optim.peak-rate"]
    lora = ["--training.lora.rank", 8, "--training.lora.maps", "q", "v", "wide", "narrow"]
    sizes = [
        "--tokenizer",
        imported / "tokenizer.json",
        "--model.d-model",
        128,
        "--model.d-ff",
        512,
        "--model.n-heads",
        4,
    ]
    sizes += ["--model.decoder.n-layers", 4, "--model.max-positions", CONTEXT, "--model.bias"]
    runs = {
        "started": (asked.updates, [*like, asked.rate]),
        "started, LoRA": (asked.updates, [*like, asked.lora_rate, *lora]),
        "scratch": (asked.scratch_updates, [*sizes, "--training.optim.peak-rate", asked.scratch_rate]),
    }
    for name, (updates, more) in runs.items():
        run, started = asked.folder / name.replace(", ", "_"), time.monotonic()
        every = max(1, updates // 20)
        words = ["train", "language-model", "text", "--train", asked.own, "--valid", asked.valid, "--run", run, *more]
        words += ["--batch-size", 16, "--training.max-updates", updates, "--training.validate-every", every]
        words += ["--training.optim.warmup-steps", 20, "--training.optim.schedule", "cosine"]
        told = command(*transduce, *words)
        print(told, file=sys.stderr)
        minutes = (time.monotonic() - started) / 60
        print(f"{name:14} {updates:5} updates {minutes:6.1f} min   {perplexity(run)}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
