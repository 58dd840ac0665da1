"""One Transformer, many transductions. What is listed here is public; nothing else is promised."""

from transduce.checkpoint import load_model
from transduce.decoding import Decoding
from transduce.fill_in import FillIn
from transduce.generator import GenerationConfig, Generator
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.presets import transformer_base, transformer_big, transformer_tiny
from transduce.model.transformer import Transformer
from transduce.pipeline import load
from transduce.transcriber import Transcriber
from transduce.translator import Translator

__all__ = [
    "Decoding",
    "FillIn",
    "Frames",
    "GenerationConfig",
    "Generator",
    "StackConfig",
    "Tokens",
    "Transcriber",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "load",
    "load_model",
    "transformer_base",
    "transformer_big",
    "transformer_tiny",
]
