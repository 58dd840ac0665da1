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
    )


def speech_small(n_features: int = 40, stack: int = 4, target: int = 400) -> TransformerConfig:
    """MFCC frames straight in: 40 coefficients by 4 frames are the 160 numbers of d_model. For minutes to a few hours.

    Pre-norm, a CTC head and GELU, as small speech models have them.
    """
    return TransformerConfig(
        encoder=StackConfig(input=Frames(n_features=n_features, stack=stack), n_layers=6),
        decoder=StackConfig(input=Tokens(vocab_size=target), n_layers=3),
        d_model=160,
        n_heads=4,
        d_ff=640,
        dropout=0.1,
        activation="gelu",
        norm_position="pre",
        ctc=True,
    )


def speech_small_projected(n_features: int = 40, stack: int = 4, target: int = 400) -> TransformerConfig:
    """The same with one linear map between frames and encoder, for any number of features."""
    straight = speech_small(n_features, stack, target)
    assert straight.encoder is not None
    frames = Frames(n_features=n_features, stack=stack, project=True)
    return replace(straight, encoder=replace(straight.encoder, input=frames))


PRESETS = {
    "tiny": transformer_tiny,
    "base": transformer_base,
    "big": transformer_big,
    "speech_small": speech_small,
    "speech_small_projected": speech_small_projected,
}
