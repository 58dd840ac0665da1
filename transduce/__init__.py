"""One Transformer, many transductions. What is listed here is public; nothing else is promised."""

from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.presets import transformer_base, transformer_big, transformer_tiny
from transduce.model.transformer import Transformer
from transduce.run import load_model
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.load import load
from transduce.tasks.search import SearchConfig
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

__all__ = [
    "FillMask",
    "Frames",
    "GenerationConfig",
    "Generator",
    "SearchConfig",
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
