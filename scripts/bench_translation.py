"""Speed and BLEU of a trained run beside CTranslate2 with the same weights: real text, from file to file.

Tokenizing counts, and so does everything else but loading. The systems take turns; median and range of `--repeats` rounds.
A post-norm model with sinusoidal positions and one vocabulary, as `transformer_tiny` and `_base` are.

    python scripts/bench_translation.py RUN SOURCE REFERENCE
    python scripts/bench_translation.py RUN SOURCE REFERENCE --beam-size 1 --threads 1
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sacrebleu
import torch
from transformers import MarianConfig, MarianMTModel

import transduce as td
from transduce.data.text.corpus import read_lines
from transduce.interop.marian import residual_order, their_weights
from transduce.model.transformer import Transformer

System = Callable[[list[str]], list[str]]


def as_marian(model: Transformer, bos_id: int, eos_id: int) -> MarianMTModel:
    """The same model as transformers has it; its sentences begin with an embedding of their own, not with zeros."""
    c, encoder, decoder = model.config, model.config.encoder, model.config.decoder
    assert encoder and decoder and (c.norm_position, c.positions, c.tie) == ("post", "sinusoidal", "all")
    config = MarianConfig(
        vocab_size=model.vocab_size, d_model=c.d_model, encoder_layers=encoder.n_layers, decoder_layers=decoder.n_layers,
        encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff, encoder_attention_heads=c.n_heads, forced_eos_token_id=None,
        decoder_attention_heads=c.n_heads, activation_function=c.activation, scale_embedding=c.scale_embeddings,
        max_position_embeddings=c.max_positions, pad_token_id=bos_id, eos_token_id=eos_id, decoder_start_token_id=bos_id,
    )  # fmt: skip
    theirs = MarianMTModel(config).eval()
    own, back = dict(theirs.named_parameters(remove_duplicate=False)), residual_order(c.d_model).argsort()
    with torch.no_grad():
        for name, (weight, dimension) in their_weights(model).items():
            target = own.get(name, own["model.shared.weight"])
            target.copy_(weight if dimension is None else weight.index_select(dimension, back))
    return theirs


def engine(translator: td.Translator, directory: Path, kind: str, threads: int, beam_size: int, batch: int) -> System:
    """CTranslate2 with the run's weights, tokenizers and length penalty, as near as it has one."""
    import ctranslate2
    from ctranslate2_rival import AnyVocabulary, save

    bos, eos = translator.tokenizer.required("bos_id", "eos_id")
    spec = AnyVocabulary().get_model_spec(as_marian(translator.model, bos, eos))
    spec.decoder.start_from_zero_embedding = False
    names = [f"t{i}" for i in range(translator.model.vocab_size)]
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register(names)
    spec.config.bos_token = spec.config.decoder_start_token = names[bos]
    spec.config.eos_token, spec.config.unk_token, spec.config.add_source_eos = names[eos], names[bos], False
    save(spec, directory)
    loaded = ctranslate2.Translator(str(directory), compute_type=kind, intra_threads=threads)
    suppressed = [[names[i]] for i in translator.tokenizer.suppressed if i != bos]

    def translate(lines: list[str]) -> list[str]:
        rows = [[names[i] for i in ids] for ids in translator.sources(lines)]
        settings: dict[str, Any] = {"beam_size": beam_size, "max_batch_size": batch, "suppress_sequences": suppressed}
        settings |= {"length_penalty": 1.0 if beam_size > 1 else 0.0, "max_input_length": 0, "disable_unk": True}
        found = loaded.translate_batch(rows, **settings)
        return translator.tokenizer.decode([[int(token[1:]) for token in each.hypotheses[0]] for each in found])

    return translate


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of text to text")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="sentences of CTranslate2; as many tokens of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    x = arguments()
    torch.set_num_threads(x.threads)
    lines, references = read_lines(x.source), read_lines(x.reference)
    plain, rounded = td.load_translator(x.run), td.load_translator(x.run, dtype=torch.int8)
    tokens = x.batch_size * sum(map(len, plain.sources(lines))) // len(lines)
    how: dict[str, Any] = {"beam_size": x.beam_size, "batch_tokens": max(tokens, plain.decoding.max_source_length + 1)}
    systems: dict[str, System] = {"transduce float32": partial(plain, **how), "transduce int8": partial(rounded, **how)}
    if plain.shortlist:
        systems |= {f"{name} shortlist": partial(system, shortlist=True) for name, system in systems.items()}
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("float32", "int8"):
            folder = Path(directory) / kind
            systems[f"CTranslate2 {kind}"] = engine(plain, folder, kind, x.threads, x.beam_size, x.batch_size)
        taken: dict[str, list[float]] = {name: [] for name in systems}
        outputs: dict[str, list[str]] = {}
        for system in systems.values():
            system(lines[: x.batch_size])  # warm-up
        for _ in range(x.repeats):
            for name, system in systems.items():
                start = time.perf_counter()
                outputs[name] = system(lines)
                taken[name].append(time.perf_counter() - start)
    rival = statistics.median(taken["CTranslate2 float32"])
    for name, seconds in taken.items():
        fast, median, slow = (len(lines) / each for each in (min(seconds), statistics.median(seconds), max(seconds)))
        same = sum(map(str.__eq__, outputs[name], outputs["transduce float32"])) / len(lines)
        score = sacrebleu.corpus_bleu(outputs[name], [references]).score
        print(
            f"beam {x.beam_size}  {name:28} {median:8.1f} sentences/s ({slow:.1f} to {fast:.1f})  "
            f"{rival / statistics.median(seconds):5.2f} x  BLEU {score:5.2f}  same output {same:7.2%}"
        )


if __name__ == "__main__":
    main()
