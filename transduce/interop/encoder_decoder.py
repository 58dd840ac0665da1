"""Read encoder-decoder models of text as transformers saves them: Marian and those that come from fairseq."""

from collections.abc import Sequence
from pathlib import Path

from transduce.data.text.imported import ImportedTokenizer
from transduce.errors import InputError
from transduce.files import read_json, regular
from transduce.interop.config_json import our_config, our_fields
from transduce.interop.generation import Generation
from transduce.interop.names import ENCODER_DECODER
from transduce.interop.settings import BARTSettings, MarianSettings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.transformer import Transformer


def read_model(directory: Path, settings: BARTSettings) -> Transformer:
    """Read the weights, in one file or in shards, of the model that config.json describes.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or there are no weights.
    """
    weights = read_tensors(directory)
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        weights["final_logits_bias"] = bias.flatten()
    ours = our_fields(settings) | {"output_bias": "final_logits_bias" in weights}
    if isinstance(settings, MarianSettings) and not settings.share_encoder_decoder_embeddings:
        ours["decoder"]["input"] = {"vocab_size": settings.decoder_vocab_size or settings.vocab_size}
    elif settings.tie_word_embeddings:
        ours["tie"] = "all"
    if settings.model_type == "m2m_100":
        ours["first_position"] = settings.pad_token_id + 1
    config = our_config(ours, directory)
    tables = [f"model.{half}.embed_tokens.weight" for half in ("encoder", "decoder")]
    shared = "model.shared.weight"
    if config.tie == "all":
        weights = share_table(weights, [shared, *tables, "lm_head.weight"], directory)
    if shared in weights:
        weights = dict.fromkeys(tables, weights[shared]) | weights
    if config.positions == "learned" and settings.model_type != "blenderbot":  # the first two rows stand for none
        weights |= {name: table[2:] for name, table in weights.items() if name.endswith("embed_positions.weight")}
    return fill_transformer(config, ENCODER_DECODER, weights, directory)


def piece_tokenizer(
    directory: Path,
    generation: Generation,
    vocab_size: int,
    model: str,
    table: str = "vocab.json",
    *,
    opening: Sequence[int] = (),
) -> ImportedTokenizer:
    """The tokenizer of a SentencePiece model, and of a table with the ids of its pieces.

    Args:
        opening: ids that stand before every text.
    """
    pieces = read_table(directory / table, vocab_size)
    spm = regular(directory / model).read_bytes()
    special = generation.special_ids(unk=pieces.index("<unk>"))
    return ImportedTokenizer.of_pieces(spm, pieces, special=special, opening=opening)


def read_table(path: Path, size: int) -> list[str]:
    """The pieces by id of a vocab.json, which has an id for each piece; "" for ids of the `size` that it does not name.

    Raises:
        InputError: it is something else, or has an id beyond.
    """
    pieces = [""] * size
    for piece, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size:
            raise InputError(f"{path} must have an id of 0 to {size - 1} for every piece, but {piece!r} has {i!r}")
        pieces[i] = piece
    if "<unk>" not in pieces:
        raise InputError(f"{path} must have the piece <unk>, but it has not")
    return pieces
