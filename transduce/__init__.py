"""One Transformer, many transductions. The names listed here are public; all others may change."""

from typing import TYPE_CHECKING

from transduce.process import lazily

if TYPE_CHECKING:
    from transduce.errors import InputError as InputError
    from transduce.model.config import (
        Frames as Frames,
        StackConfig as StackConfig,
        Tokens as Tokens,
        TransformerConfig as TransformerConfig,
    )
    from transduce.model.presets import (
        transformer_base as transformer_base,
        transformer_big as transformer_big,
        transformer_tiny as transformer_tiny,
    )
    from transduce.model.transformer import Transformer as Transformer
    from transduce.run import load_model as load_model
    from transduce.tasks.config import (
        GenerationConfig as GenerationConfig,
        SearchConfig as SearchConfig,
    )
    from transduce.tasks.fill_mask import FillMask as FillMask
    from transduce.tasks.generate import Generator as Generator
    from transduce.tasks.load import (
        load as load,
        load_fill_mask as load_fill_mask,
        load_generator as load_generator,
        load_transcriber as load_transcriber,
        load_translator as load_translator,
        show as show,
    )
    from transduce.tasks.outputs import TokenScores as TokenScores, Word as Word
    from transduce.tasks.seq2seq import Alignment as Alignment
    from transduce.tasks.transcribe import Transcriber as Transcriber
    from transduce.tasks.translate import Translator as Translator
else:
    __getattr__, __dir__ = lazily(__name__, __file__)
