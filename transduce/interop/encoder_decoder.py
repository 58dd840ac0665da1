"""Read encoder-decoder models of text as transformers saves them; most come from fairseq.

They are M2M-100, NLLB, BART, mBART, Pegasus and Blenderbot, and the weights of Marian. The numbers
stay the same.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import read_json, regular
from transduce.interop.config_json import our_config, our_fields
from transduce.interop.generation import (
    Generation,
    read_decoding,
    read_generation,
    require_settings,
)
from transduce.interop.names import ENCODER_DECODER
from transduce.interop.pretrained import TOKENIZER, Imported, read_optional
from transduce.interop.settings import BARTSettings, MarianSettings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.transformer import Transformer

LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""What tags of languages look like in NLLB and mBART: eng_Latn, en_XX."""

M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy "
    "ga gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv "
    "mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw "
    "ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages in the order of their tags, which no file has, by `language_codes`: of M2M-100 and of
its models for WMT21."""


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
        ours["decoder"]["input"] = {
            "vocab_size": settings.decoder_vocab_size or settings.vocab_size
        }
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
    if (
        config.positions == "learned" and settings.model_type != "blenderbot"
    ):  # the first two rows stand for none
        weights |= {
            name: table[2:]
            for name, table in weights.items()
            if name.endswith("embed_positions.weight")
        }
    return fill_transformer(config, ENCODER_DECODER, weights, directory)


def read_run(directory: Path, settings: BARTSettings) -> Imported:
    """Read a model and its tokenizer.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer
            here lacks, or no safetensors; or a file of the tokenizer is missing or does not fit the
            model.
    Source: Fan et al. (2021), M2M-100; NLLB team (2022); Lewis et al. (2020), BART; Liu et al.
    (2020), mBART.
    """
    model = read_model(directory, settings)
    generation = read_generation(directory, settings)
    source, target = _tokenizers(directory, generation, settings.vocab_size)
    n_forced = 1 if target.opens_by_language else len(target.opening)
    return Imported(
        model,
        source,
        target,
        read_decoding(directory, generation, settings.vocab_size, n_forced=n_forced),
    )


class Vocabulary(NamedTuple):
    """What the files say of the tokens of both sides."""

    make: Callable[..., ImportedTokenizer]
    """Makes a tokenizer of these tokens from the other arguments of `ImportedTokenizer.of`."""
    unk_id: int | None
    special_ids: set[int]
    languages: dict[str, int]
    """The ids of tags of languages."""
    opening: list[int]
    """What stands before every text of the source."""
    closing: list[int]
    """What stands behind its end."""


def _read_vocabulary(directory: Path, size: int, end: int, language_codes: str) -> Vocabulary:
    """Read tokenizer.json, or sentencepiece.bpe.model and vocab.json of M2M-100."""
    if (directory / "tokenizer.json").is_file():
        tokenizer = JSONTokenizer.load(directory / "tokenizer.json")
        plain = _without_ids_from(size, json.loads(tokenizer.model))
        added = {token["content"]: token["id"] for token in plain["added_tokens"]}
        languages = {token: i for token, i in added.items() if LANGUAGE.fullmatch(token)}
        unk_id = added.get("<unk>", tokenizer.unk_id)
        around = _around(LibraryTokenizer.from_str(json.dumps(plain)), end)
        make = partial(ImportedTokenizer.of, {"tokenizer": plain}, size=size)
        return Vocabulary(make, unk_id, {*added.values()}, languages, *around)
    spm = directory / "sentencepiece.bpe.model"
    if not spm.is_file() or not (directory / "vocab.json").is_file():
        raise InputError(
            "a tokenizer is tokenizer.json, or sentencepiece.bpe.model and vocab.json, but "
            f"{directory} has neither; "
            "write it with transformers: "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    pieces = read_table(directory / "vocab.json", size)
    first = 1 + max(i for i, piece in enumerate(pieces) if piece)
    tags = enumerate(M2M100[language_codes].split(), first)
    languages = {name: i for i, name in tags if i < size}
    make = partial(ImportedTokenizer.of_pieces, spm.read_bytes(), pieces)
    return Vocabulary(make, pieces.index("<unk>"), {*languages.values()}, languages, [], [])


def _tokenizers(
    directory: Path, generation: Generation, size: int
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """Those of source and target, with the languages that the files name, if any."""
    settings = read_optional(directory / TOKENIZER)
    kind = str(settings.get("tokenizer_class"))
    forced = generation.forced_bos_token_id
    vocabulary = _read_vocabulary(
        directory, size, generation.end_id, settings.get("language_codes", "m2m100")
    )
    marks = {None, 0, generation.end_id, generation.pad_token_id, *vocabulary.special_ids}
    require_settings(  # a text shows what is none
        directory,
        generation,
        ("forced_bos_token_id", "a special token", forced in marks),
        ("decoder_start_token_id", "a special token", generation.decoder_start_token_id in marks),
    )
    tags = {i: name for name, i in vocabulary.languages.items()}
    behind = any(i in tags for i in vocabulary.closing)
    if kind.startswith("NllbTokenizer"):  # which makes its own of what tokenizer.json says
        behind = bool(settings.get("legacy_behaviour"))
    make = partial(
        vocabulary.make,
        special=generation.special_ids(unk=vocabulary.unk_id),
        languages=vocabulary.languages,
    )
    source = make(
        opening=[i for i in vocabulary.opening if i not in tags],
        closing=[i for i in vocabulary.closing if i not in tags],
        place="closing" if behind else "opening",
    )
    target = make(
        opening=[] if forced is None or forced in tags else [forced],
        place="bos" if forced is None and kind.startswith("MBartTokenizer") else "opening",
    )
    source_language = settings.get("src_lang")
    target_language = (
        settings.get("tgt_lang") if forced is None else tags.get(forced, settings.get("tgt_lang"))
    )
    return (
        source.with_language(source_language)
        if source_language in vocabulary.languages
        else source,
        target.with_language(target_language)
        if target_language in vocabulary.languages
        else target,
    )


def _without_ids_from(size: int, plain: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without the tokens for which a model has no vector.

    These are added tokens, and the one right behind its last one.     So bart-large-cnn has no
    vector for <mask>. More tokens than these would be those of another model.
    """
    beyond = {token["content"] for token in plain["added_tokens"] if token["id"] >= size}
    if isinstance(vocab := plain["model"]["vocab"], dict):
        beyond |= {token for token, i in vocab.items() if i == size}
        plain["model"]["vocab"] = {token: i for token, i in vocab.items() if token not in beyond}
        merges = [
            each.split(" ") if isinstance(each, str) else each
            for each in plain["model"].get("merges", [])
        ]
        plain["model"]["merges"] = [pair for pair in merges if not beyond & {*pair, "".join(pair)}]
    plain["added_tokens"] = [
        token for token in plain["added_tokens"] if token["content"] not in beyond
    ]
    return plain


def _around(library: LibraryTokenizer, end: int) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before every text, and behind its end.

    Raises:
        InputError: texts have another end.
    """
    encoding = library.encode("a")
    n_before = encoding.special_tokens_mask.index(0)
    n_text = encoding.special_tokens_mask.count(0)
    behind = encoding.ids[n_before + n_text :]
    if end not in behind:
        raise InputError(
            f"texts must end with eos_token_id={end}, but tokenizer.json puts {behind} behind them"
        )
    return encoding.ids[:n_before], [i for i in behind if i != end]


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
    """The pieces of a vocab.json by their ids, which are below `size`; "" where there is none.

    Raises:
        InputError: it is something else, or has an id beyond.
    """
    pieces = [""] * size
    for piece, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size:
            raise InputError(
                f"{path} must have an id of 0 to {size - 1} for every piece, but {piece!r} has "
                f"{i!r}"
            )
        pieces[i] = piece
    if "<unk>" not in pieces:
        raise InputError(f"{path} must have the piece <unk>, but it has not")
    return pieces
