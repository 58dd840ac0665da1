"""Small language models for tests: real tokenizers, random weights that are large enough for lively texts."""

from pathlib import Path

import torch
from tokenizers import Tokenizer as Pieces, decoders, models, pre_tokenizers, trainers

from transduce.config import to_dict
from transduce.data.base_tokenizer import CharTokenizer, Tokenizer
from transduce.data.json_tokenizer import END, JSONTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.files import save_weights
from transduce.interop.pretrained import Parts
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run
from transduce.tasks.config import GenerationConfig

TEXT = ["ROMEO:\nBut soft, what light!\n", "JULIET:\nAy me. Größe, 東京 🙂\n", "All: Speak, speak; it's done.\n"] * 4


def byte_bpe(texts: list[str], *, size: int) -> JSONTokenizer:
    """Trained with the library's own trainer; END is id 0."""
    pieces = Pieces(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    return JSONTokenizer(pieces.to_str().encode())


def any_tokenizer(kind: str) -> Tokenizer:
    """A small one of this kind."""
    if kind == "characters":
        return CharTokenizer.train(TEXT)
    return byte_bpe(TEXT, size=290) if kind == "bytes" else SentencePieceTokenizer.train(TEXT, vocab_size=330)


def untokenized(model: Transformer) -> Parts:
    """What is exported of a model whose tokenizer is none of other libraries."""
    return Parts(model, None, any_tokenizer("characters"), to_dict(GenerationConfig()))


def language_model(vocab_size: int, *, seed: int = 3, **changes) -> Transformer:
    """A decoder alone whose next token depends on those before."""
    stack = StackConfig(input=Tokens(vocab_size=vocab_size), n_layers=2)
    defaults = {"d_model": 16, "n_heads": 2, "d_ff": 24, "norm_position": "pre", "dropout": 0.0, "max_positions": 40}
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(decoder=stack, **(defaults | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
    return model.eval()


def language_run(directory: Path, kind: str = "characters", **changes) -> Path:
    """A run directory of a language model that has learned nothing."""
    tokenizer = any_tokenizer(kind)
    model = language_model(tokenizer.vocab_size, **changes)
    save_run(directory, Run(model.config, {"seed": 3}, None, tokenizer))
    save_weights(directory / "model.safetensors", model)
    return directory
