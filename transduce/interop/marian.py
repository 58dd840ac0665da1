"""Read Marian translation models (opus-mt) as transformers saves them. The numbers stay the same."""

from pathlib import Path
from typing import NamedTuple

from transduce.data.text.imported import ImportedTokenizer
from transduce.files import regular
from transduce.interop.config_json import read_settings
from transduce.interop.encoder_decoder import read_model as read_model
from transduce.interop.generation import Generation, read_decoding, read_generation, require_settings
from transduce.interop.pretrained import TOKENIZER, Imported, read_optional, read_table
from transduce.interop.settings import MarianSettings
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer


class Marian(NamedTuple):
    """A model in evaluation mode, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    """The first id of target_in; in Marian's models it is the padding id."""
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """Read config.json and the weights, in one file or in shards, of a MarianMTModel.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights.
    Source: Junczys-Dowmunt et al. (2018), Marian; file format of transformers' save_pretrained.
    """
    settings = read_settings(directory, ["marian"])
    assert isinstance(settings, MarianSettings) and settings.decoder_start_token_id is not None
    model = read_model(directory, settings)
    return Marian(model, settings.decoder_start_token_id, settings.eos_token_id[0], settings.pad_token_id)


def read_run(directory: Path, settings: MarianSettings) -> Imported:
    """Read a MarianMTModel with its MarianTokenizer: source.spm, target.spm, vocab.json and perhaps target_vocab.json.

    Raises:
        InputError: as `import_marian`; or a file of the tokenizer is missing or does not fit the model.
    """
    model = read_model(directory, settings)
    generation = read_generation(directory, settings, Generation)
    require_settings(
        directory,
        generation,
        ("forced_bos_token_id", "null", generation.forced_bos_token_id is None),
        (
            "decoder_start_token_id",
            "pad_token_id or eos_token_id",
            generation.decoder_start_token_id in (generation.pad_token_id, generation.end_id),
        ),
    )
    separate = read_optional(directory / TOKENIZER).get("separate_vocabs") is True
    sides, config = [], model.config
    for side, stack in (("source", config.encoder), ("target", config.decoder)):
        assert stack is not None and isinstance(stack.input, Tokens)
        name = "target_vocab.json" if separate and side == "target" else "vocab.json"
        pieces = read_table(directory / name, stack.input.vocab_size)
        special = generation.special_ids(unk=pieces.index("<unk>"))
        spm = regular(directory / f"{side}.spm").read_bytes()
        sides.append(ImportedTokenizer.of_pieces(spm, pieces, special=special))
    source, target = sides
    decoding = read_decoding(directory, generation, config.vocab_size)
    return Imported(model, target if source.model == target.model else source, target, decoding)
