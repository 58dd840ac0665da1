"""Read Marian translation models (opus-mt) as transformers saves them. The numbers stay the same."""

from pathlib import Path
from typing import NamedTuple

from transduce.data.text.imported import ImportedTokenizer
from transduce.files import regular
from transduce.interop.encoder_decoder import read_model
from transduce.interop.generation import one_end, read_decoding, read_generation, refusal
from transduce.interop.pretrained import TOKENIZER, Imported, read_optional, read_table
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
    model, theirs = read_model(directory, "marian")
    return Marian(model, theirs["decoder_start_token_id"], theirs["eos_token_id"], theirs["pad_token_id"])


def import_run(directory: Path) -> Imported:
    """Read a MarianMTModel with its MarianTokenizer: source.spm, target.spm, vocab.json and perhaps target_vocab.json.

    Raises:
        InputError: as `import_marian`; or a file of the tokenizer is missing or does not fit the model.
    """
    model, theirs = read_model(directory, "marian")
    said = one_end(directory, read_generation(directory, theirs), theirs)
    if (forced := said.get("forced_bos_token_id")) is not None:
        raise refusal(directory, "forced_bos_token_id", "null", forced)
    if (start := said["decoder_start_token_id"]) not in (said["pad_token_id"], said["eos_token_id"]):
        raise refusal(directory, "decoder_start_token_id", "pad_token_id or eos_token_id", start)
    separate = read_optional(directory / TOKENIZER).get("separate_vocabs") is True
    sides, config = [], model.config
    for side, stack in (("source", config.encoder), ("target", config.decoder)):
        assert stack is not None and isinstance(stack.input, Tokens)
        name = "target_vocab.json" if separate and side == "target" else "vocab.json"
        pieces = read_table(directory / name, stack.input.vocab_size)
        ids = {"bos": start, "eos": said["eos_token_id"], "pad": said["pad_token_id"]}
        ids["unk"] = pieces.index("<unk>")
        sides.append(ImportedTokenizer.of_pieces(regular(directory / f"{side}.spm").read_bytes(), pieces, special=ids))
    source, target = sides
    decoding = read_decoding(directory, said, config.vocab_size)
    return Imported(model, target if source.model == target.model else source, target, decoding)
