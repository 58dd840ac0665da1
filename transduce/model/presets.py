"""Configurations that have a name, with the numbers of their papers."""

from dataclasses import replace

from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig


def transformer_base(
    source: int = 37000, target: int | None = None, n_layers: int = 6
) -> TransformerConfig:
    """63M parameters with one vocabulary of 37,000; the paper says 65M.

    Args:
        source: size of the source vocabulary.
        target: size of the target vocabulary; None: both sides share one vocabulary and one table.
        n_layers: layers on each side.

    Source: Vaswani et al. (2017), table 3, "base".
    """
    return TransformerConfig(
        encoder=StackConfig(input=Tokens(vocab_size=source), n_layers=n_layers),
        decoder=StackConfig(
            input=Tokens(vocab_size=source if target is None else target), n_layers=n_layers
        ),
        tie="all" if target is None else "output",
    )


def transformer_big(source: int = 37000, target: int | None = None) -> TransformerConfig:
    """214M parameters with one vocabulary of 37,000; the paper says 213M.

    Source: Vaswani et al. (2017), table 3, "big".
    """
    return replace(
        transformer_base(source, target), d_model=1024, d_ff=4096, n_heads=16, dropout=0.3
    )


def transformer_tiny(source: int = 10000, target: int | None = None) -> TransformerConfig:
    """2.6M parameters with one vocabulary of 10,000, for small corpora.

    Source: Wu et al. (2021), "Good for Misconceived Reasons", the model called Tiny.
    """
    base = transformer_base(source, target, n_layers=4)
    return replace(base, d_model=128, d_ff=256, n_heads=4, dropout=0.3, init_gain=0.5)


def speech_tiny(
    n_features: int = 40, stack: int = 4, target: int = 400, n_layers: int = 6
) -> TransformerConfig:
    """The paper's layers for minutes of speech, with a CTC head.

    MFCC frames need no projection: 40 features of 4 frames are the 160 numbers of d_model.

    Args:
        target: size of the target vocabulary.
        n_layers: layers of the encoder; the decoder has two.
    """
    return TransformerConfig(
        encoder=StackConfig(input=Frames(n_features=n_features, stack=stack), n_layers=n_layers),
        decoder=StackConfig(input=Tokens(vocab_size=target), n_layers=2),
        d_model=160,
        n_heads=4,
        d_ff=640,
        dropout=0.1,
        init_gain=0.5,
        ctc=True,
    )


def conformer_tiny(
    n_features: int = 40, stack: int = 4, target: int = 400, n_layers: int = 4
) -> TransformerConfig:
    """speech_tiny with Conformer layers, pre-norm, rotary positions and self-conditioned CTC.

    The CTC head also reads the middle of the encoder, and the layers above get its predictions.

    Args:
        target: size of the target vocabulary.
        n_layers: layers of the encoder; the decoder has two.

    Source: Gulati et al. (2020), Conformer; Nozaki and Komatsu (2021), Relaxing the conditional
    independence assumption of CTC-based ASR by conditioning on intermediate predictions.
    """
    tiny = speech_tiny(n_features, stack, target, n_layers)
    return replace(
        tiny,
        decoder=StackConfig(input=Tokens(vocab_size=target), n_layers=2, positions="sinusoidal"),
        d_ff=160,  # there are two feed-forwards in a layer
        activation="silu",
        norm_position="pre",
        positions="rotary",
        conformer_kernel=15,
        ctc_layers=(n_layers // 2,),
        ctc_conditioning=True,
    )


def conformer_small(n_features: int = 40, stack: int = 4, target: int = 500) -> TransformerConfig:
    """For hours of speech: as conformer_tiny, with a deeper and wider encoder."""
    return replace(conformer_tiny(n_features, stack, target, n_layers=6), d_ff=320)


def gpt2(vocab_size: int = 50257, multiple: int = 1, n_layers: int = 12) -> TransformerConfig:
    """124M parameters: a decoder alone, pre-norm, learned positions, GELU, one table.

    Args:
        multiple: see `Tokens`; 128 is good for a GPU.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, table 2;
    dropout of Radford et al. (2018), section 4.1.
    """
    return TransformerConfig(
        decoder=StackConfig(
            input=Tokens(vocab_size=vocab_size, multiple=multiple), n_layers=n_layers
        ),
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
