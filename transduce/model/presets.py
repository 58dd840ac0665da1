"""Configurations with a name, with the numbers of their papers."""

from dataclasses import replace

from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig


def transformer_base(source: int = 37000, target: int | None = None) -> TransformerConfig:
    """65M parameters with one vocabulary of 37,000. `target=None`: both sides share one vocabulary and one table.

    Source: Vaswani et al. (2017), table 3, "base".
    """
    return TransformerConfig(
        encoder=StackConfig(input=Tokens(vocab_size=source)),
        decoder=StackConfig(input=Tokens(vocab_size=source if target is None else target)),
        tie="all" if target is None else "output",
    )


def transformer_big(source: int = 37000, target: int | None = None) -> TransformerConfig:
    """213M parameters with one vocabulary of 37,000.

    Source: Vaswani et al. (2017), table 3, "big".
    """
    return replace(transformer_base(source, target), d_model=1024, d_ff=4096, n_heads=16, dropout=0.3)


def transformer_tiny(source: int = 10000, target: int | None = None) -> TransformerConfig:
    """2.6M parameters with one vocabulary of 10,000: what small corpora want.

    Source: Wu et al. (2021), "Good for Misconceived Reasons", the model called Tiny.
    """
    base = transformer_base(source, target)
    assert base.encoder is not None and base.decoder is not None
    return replace(
        base,
        encoder=replace(base.encoder, n_layers=4),
        decoder=replace(base.decoder, n_layers=4),
        d_model=128,
        d_ff=256,
        n_heads=4,
        dropout=0.3,
        init_gain=0.5,
    )


def speech_tiny(n_features: int = 40, stack: int = 4, target: int = 400) -> TransformerConfig:
    """MFCC frames straight in: 40 features by 4 frames are the 160 numbers of d_model. For minutes of speech.

    Pre-norm, a CTC head and GELU, as small speech models have them.
    """
    return TransformerConfig(
        encoder=StackConfig(input=Frames(n_features=n_features, stack=stack), n_layers=4),
        decoder=StackConfig(input=Tokens(vocab_size=target), n_layers=2),
        d_model=160,
        n_heads=4,
        d_ff=320,
        dropout=0.1,
        activation="gelu",
        norm_position="pre",
        ctc=True,
    )


def speech_small(n_features: int = 40, stack: int = 4, target: int = 500) -> TransformerConfig:
    """Frames straight in, with a deeper and wider encoder. For hours of speech."""
    tiny = speech_tiny(n_features, stack, target)
    assert tiny.encoder is not None
    return replace(tiny, encoder=replace(tiny.encoder, n_layers=6), d_ff=640, init_gain=0.5)


def speech_tiny_projected(n_features: int = 40, stack: int = 4, target: int = 400) -> TransformerConfig:
    """speech_tiny with one linear map between frames and encoder, which takes any number of features."""
    straight = speech_tiny(n_features, stack, target)
    assert straight.encoder is not None
    return replace(straight, encoder=replace(straight.encoder, input=replace(straight.frames, project=True)))


def gpt2(vocab_size: int = 50257, multiple: int = 1) -> TransformerConfig:
    """124M parameters: a decoder alone, pre-norm, learned positions, GELU, one table for input and output.

    Args:
        multiple: of the rows of its table; 128 is what a GPU likes.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, table 2; dropout of Radford
    et al. (2018), section 4.1.
    """
    return TransformerConfig(
        decoder=StackConfig(input=Tokens(vocab_size=vocab_size, multiple=multiple), n_layers=12),
        d_model=768,
        n_heads=12,
        d_ff=3072,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu_tanh",
        norm_position="pre",
        positions="learned",
        max_positions=1024,
        scale_embeddings=False,
        init="gpt2",
    )


def _wider(n_layers: int, d_model: int, vocab_size: int) -> TransformerConfig:
    small = gpt2(vocab_size)
    assert small.decoder is not None
    stack = replace(small.decoder, n_layers=n_layers)
    return replace(small, decoder=stack, d_model=d_model, d_ff=4 * d_model, n_heads=d_model // 64)


def gpt2_medium(vocab_size: int = 50257) -> TransformerConfig:
    """355M parameters: 24 layers of 1024 with 16 heads."""
    return _wider(24, 1024, vocab_size)


def gpt2_large(vocab_size: int = 50257) -> TransformerConfig:
    """774M parameters: 36 layers of 1280 with 20 heads."""
    return _wider(36, 1280, vocab_size)


def gpt2_xl(vocab_size: int = 50257) -> TransformerConfig:
    """1.56B parameters: 48 layers of 1600 with 25 heads."""
    return _wider(48, 1600, vocab_size)


PRESETS = {
    "tiny": transformer_tiny,
    "base": transformer_base,
    "big": transformer_big,
    "speech_small": speech_small,
    "speech_tiny": speech_tiny,
    "speech_tiny_projected": speech_tiny_projected,
    "gpt2": gpt2,
    "gpt2_medium": gpt2_medium,
    "gpt2_large": gpt2_large,
    "gpt2_xl": gpt2_xl,
}
