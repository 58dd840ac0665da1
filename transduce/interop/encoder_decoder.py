"""Read encoder-decoder models of text as transformers saves them, and write Marian's.

They are Marian (opus-mt), M2M-100, NLLB, BART, mBART, Pegasus and Blenderbot. Outputs stay the
same.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.config import Json
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError
from transduce.files import read_optional, write_file, write_json
from transduce.interop.generation import (
    GENERATION,
    Generation,
    generation_settings,
    read_decoding,
)
from transduce.interop.pretrained import (
    CLEAN_UP,
    TOKENIZER,
    Parts,
    check_same,
    our_config,
    our_fields,
    pieces_settings,
    read_table,
    their_settings,
    write_model,
    write_tokenizer_settings,
)
from transduce.interop.settings import (
    BARTSettings,
    EncoderDecoderSettings,
    MarianSettings,
    PegasusSettings,
    T5Settings,
    one_of,
)
from transduce.interop.weights import (
    ENCODER_DECODER,
    fill_transformer,
    read_tensors,
    reordered_weights,
)
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Transformer

BEFORE_PIECES = 103
"""Number of Pegasus ids before those of its spiece.model: special tokens, most of them unused."""

LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""The form of language tags in NLLB and mBART: eng_Latn, en_XX."""

M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy "
    "ga gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv "
    "mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw "
    "ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages in the order of their tags, by `language_codes`, for M2M-100 and its WMT21 models; no
file contains this order."""


def read_model(settings: BARTSettings) -> Transformer:
    """Read the weights, in one file or in shards, of the model that config.json describes.

    Raises:
        InputError: the model has parts that Transformer does not support, or there are no weights.
    Source: Junczys-Dowmunt et al. (2018), Marian; Fan et al. (2021), M2M-100; NLLB team (2022);
    Lewis et al. (2020), BART; Liu et al. (2020), mBART; file format of transformers'
    save_pretrained.
    """
    fairseq_learned = settings.model_type in ("bart", "mbart")
    weights = read_tensors(settings.directory, without_position=2 if fairseq_learned else 0)
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        weights["final_logits_bias"] = bias.flatten()
    config = _our_config(settings, "final_logits_bias" in weights)
    return fill_transformer(config, ENCODER_DECODER, weights, settings.directory)


def _our_config(settings: BARTSettings, output_bias: bool) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = our_fields(settings) | {"output_bias": output_bias}
    if isinstance(settings, MarianSettings) and not settings.share_encoder_decoder_embeddings:
        ours["decoder"]["input"] = {
            "vocab_size": settings.decoder_vocab_size or settings.vocab_size
        }
    elif settings.tie_word_embeddings:
        ours["tie"] = "all"
    if settings.model_type == "m2m_100":
        ours["first_position"] = settings.pad_token_id + 1
    return our_config(settings, ours)


def read_run(settings: EncoderDecoderSettings, model: Transformer, generation: Generation) -> Parts:
    """Add the tokenizers and the search settings to a model.

    Raises:
        InputError: a file of the tokenizers is missing or does not fit the model.
    """
    if isinstance(settings, MarianSettings):
        source, target = _marian_tokenizers(generation, settings.vocab_size, model.vocab_size)
    else:
        source, target = _tokenizers(settings, generation)
    n_forced = 1 if target.opens_by_language else len(target.opening)
    decoding = read_decoding(generation, model.vocab_size, n_forced=n_forced)
    # transformers does not cut sources
    decoding["max_source_length"] = max(512, model.config.max_positions)
    return Parts(model, source, target, decoding)


def _marian_tokenizers(
    generation: Generation, source_size: int, target_size: int
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """The tokenizers of source.spm, target.spm, vocab.json and perhaps target_vocab.json."""
    marks = (generation.pad_token_id, generation.end_id, *generation.suppress_tokens)
    generation.check(
        ("forced_bos_token_id", "null", generation.forced_bos_token_id is None),
        (
            "decoder_start_token_id",
            "pad_token_id, eos_token_id or one of suppress_tokens",  # a text shows what is none
            generation.decoder_start_token_id in marks,
        ),
    )
    settings = read_optional(generation.directory / TOKENIZER)
    table = "target_vocab.json" if settings.get("separate_vocabs") is True else "vocab.json"
    source = generation.tokenizer(source_size, "source.spm")
    target = generation.tokenizer(target_size, "target.spm", table)
    return target if source.model == target.model else source, target


class Vocabulary(NamedTuple):
    """The tokens of both sides, as the files define them."""

    make: Callable[..., ImportedTokenizer]
    """Makes a tokenizer of these tokens from the other arguments of `ImportedTokenizer.of`."""
    unk_id: int | None
    special_ids: set[int]
    languages: dict[str, int]
    """The ids of language tags."""
    opening: Sequence[int] = ()
    """The ids before every source text."""
    closing: Sequence[int] = ()
    """The ids after the end of a source text."""


def _read_vocabulary(settings: EncoderDecoderSettings, end: int, language_codes: str) -> Vocabulary:
    """Read tokenizer.json, or spiece.model of T5 and Pegasus, or sentencepiece.bpe.model and
    vocab.json of M2M-100."""
    directory, size = settings.directory, settings.vocab_size
    more = pieces_settings(directory)
    if (directory / "tokenizer.json").is_file():
        stored = JSONTokenizer.load(directory / "tokenizer.json")
        plain = _without_ids_from(size, json.loads(stored.model))
        tokenizer = JSONTokenizer(json.dumps(plain).encode())
        added = {token["content"]: token["id"] for token in plain["added_tokens"]}
        languages = {token: i for token, i in added.items() if LANGUAGE.fullmatch(token)}
        unk_id = added.get("<unk>", tokenizer.unk_id)
        around = _around(LibraryTokenizer.from_str(tokenizer.model.decode()), end)
        cleans_up = plain["model"].get("type") != "BPE" and more["clean_up"]
        parts = {"tokenizer": plain, "clean_up": cleans_up}  # transformers leaves BPE alone
        make = partial(ImportedTokenizer.of, parts, size=size)
        return Vocabulary(make, unk_id, {*added.values()}, languages, *around)
    spm = directory / "spiece.model"
    if spm.is_file():
        return _read_spiece(settings, spm, more)
    spm = directory / "sentencepiece.bpe.model"
    if not spm.is_file() or not (directory / "vocab.json").is_file():
        raise InputError(
            "a tokenizer is tokenizer.json, or spiece.model, or sentencepiece.bpe.model and "
            f"vocab.json, but {directory} has none of them; write it with transformers: "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    if language_codes not in M2M100:
        raise InputError(
            f"language_codes must be {one_of(M2M100)}, but in {directory} it is {language_codes}"
        )
    pieces = read_table(directory / "vocab.json", size)
    first = 1 + max(i for i, piece in enumerate(pieces) if piece)
    tags = enumerate(M2M100[language_codes].split(), first)
    languages = {name: i for i, name in tags if i < size}
    make = partial(ImportedTokenizer.of_pieces, spm.read_bytes(), pieces, more)
    return Vocabulary(make, pieces.index("<unk>"), {*languages.values()}, languages)


def _read_spiece(settings: EncoderDecoderSettings, spm: Path, more: Json) -> Vocabulary:
    """Read spiece.model of T5, whose sentinels are not in it, or of Pegasus; `more` has the
    optional parts of the tokenizer."""
    size = settings.vocab_size
    try:
        model = SentencePieceProcessor(model_file=str(spm))
    except RuntimeError as error:
        raise InputError(f"{spm} is no SentencePiece model: {error}") from error
    first = BEFORE_PIECES if isinstance(settings, PegasusSettings) else 0
    pieces = [""] * first + model.id_to_piece([*range(len(model))])
    n_extra = read_optional(settings.directory / TOKENIZER).get("extra_ids", 100) or 0
    if isinstance(settings, T5Settings) and len(pieces) + n_extra <= size:
        more["added_tokens"] = more["added_tokens"] or [
            {"content": f"<extra_id_{i}>", "id": len(pieces) + n_extra - 1 - i, "special": True}
            for i in range(n_extra)
        ]
    pieces += [""] * (size - len(pieces))
    make = partial(ImportedTokenizer.of_pieces, spm.read_bytes(), pieces, more)
    return Vocabulary(make, first + model.unk_id(), set(), {})


def _tokenizers(
    settings: EncoderDecoderSettings, generation: Generation
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """The tokenizers of source and target, with the languages that the files name, if any."""
    names = read_optional(settings.directory / TOKENIZER)
    kind = str(names.get("tokenizer_class"))
    forced = generation.forced_bos_token_id
    codes = str(names.get("language_codes") or "m2m100")
    vocabulary = _read_vocabulary(settings, generation.end_id, codes)
    marks = {None, 0, generation.end_id, generation.pad_token_id, *vocabulary.special_ids}
    generation.check(  # a text shows what is none
        ("forced_bos_token_id", "a special token", forced in marks),
        ("decoder_start_token_id", "a special token", generation.decoder_start_token_id in marks),
    )
    tags: dict[int | None, str] = {i: name for name, i in vocabulary.languages.items()}
    behind = any(i in tags for i in vocabulary.closing)
    if kind.startswith("NllbTokenizer"):  # which ignores tokenizer.json in this
        behind = bool(names.get("legacy_behaviour"))
    make = partial(
        vocabulary.make,
        special=generation.special_ids() | {"unk": vocabulary.unk_id},
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
    if (language := str(names.get("src_lang"))) in vocabulary.languages:
        source = source.with_language(language)
    if (language := tags.get(forced, str(names.get("tgt_lang")))) in vocabulary.languages:
        target = target.with_language(language)
    return source, target


def _without_ids_from(size: int, plain: Json) -> Json:
    """A tokenizer.json without the tokens for which the model has no vector, such as <mask> in
    bart-large-cnn."""
    if isinstance(vocab := plain["model"]["vocab"], dict):
        plain["model"]["vocab"] = {token: i for token, i in vocab.items() if i < size}
    added = plain.get("added_tokens", [])
    plain["added_tokens"] = [token for token in added if token["id"] < size]
    return plain


def _around(library: LibraryTokenizer, end: int) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before every text, and after its end.

    Raises:
        InputError: texts end with another token.
    """
    encoding = library.encode("a")
    n_before = encoding.special_tokens_mask.index(0)
    n_text = encoding.special_tokens_mask.count(0)
    behind = encoding.ids[n_before + n_text :]
    if end not in behind:
        raise InputError(
            f"texts must end with eos_token_id={end}, but tokenizer.json puts {behind} after them"
        )
    return encoding.ids[:n_before], [i for i in behind if i != end]


def export_marian(parts: Parts, directory: Path) -> bool:
    """Write a directory for MarianMTModel.from_pretrained and, with SentencePiece tokenizers, for
    MarianTokenizer.from_pretrained.

    Returns:
        Whether the tokenizers were written, too.

    Raises:
        InputError: the model is not a Marian model; the message says why.
    """
    model, source, target, decoding, _ = parts
    config = model.config
    theirs = _their_config(config, target)
    weights = reordered_weights(model, ENCODER_DECODER)
    bias = weights.get("final_logits_bias", torch.zeros(config.vocab_size))
    weights["final_logits_bias"] = bias[None]
    if config.tie != "none":
        del weights["lm_head.weight"]
    if config.tie == "all":
        weights["model.shared.weight"] = weights.pop("model.decoder.embed_tokens.weight")
        del weights["model.encoder.embed_tokens.weight"]
    write_model(directory, theirs, weights)
    search = {
        "decoder_start_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "pad_token_id": target.pad_id,
        "max_length": config.max_positions,
    }
    write_json(directory / GENERATION, search | generation_settings(decoding, target.suppressed))
    if source is None or sentencepiece_of(source) is None or sentencepiece_of(target) is None:
        return False
    _write_tokenizers(directory, source, target, config.max_positions)
    return True


def _their_config(config: TransformerConfig, tokenizer: Tokenizer) -> Json:
    """Translate our fields into the settings that config.json has.

    Raises:
        InputError: the model lacks an encoder or a decoder over tokens, or has parts that Marian
            lacks.
    """
    encoder, decoder = config.encoder, config.decoder
    if encoder is None or decoder is None or not isinstance(encoder.input, Tokens):
        raise InputError(
            "a Marian model turns tokens into tokens, but this model does not; it cannot be "
            "exported as one"
        )
    start, end = tokenizer.required("bos_id", "eos_id")
    theirs = their_settings(config, "marian", "MarianMTModel") | {
        "vocab_size": encoder.input.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "encoder_layers": encoder.n_layers,
        "share_encoder_decoder_embeddings": config.tie == "all",
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end if tokenizer.pad_id is None else tokenizer.pad_id,
        "forced_eos_token_id": None,
    }
    check_same(theirs, partial(_our_config, output_bias=config.output_bias), config)
    return theirs


def _write_tokenizers(
    directory: Path, source: Tokenizer, target: Tokenizer, max_positions: int
) -> None:
    """Write SentencePiece models, tables of their ids and tokenizer_config.json."""
    separate = target.all_tokens != source.all_tokens
    tables = {"vocab.json": source} | ({"target_vocab.json": target} if separate else {})
    for name, side in tables.items():
        pieces = {piece: i for i, piece in enumerate(side.all_tokens) if piece}
        write_file(directory / name, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")
    for name, tokenizer in {"source.spm": source, "target.spm": target}.items():
        write_file(directory / name, sentencepiece_of(tokenizer) or b"")
    pad, unk, eos = target.tokens(target.required("pad_id", "unk_id", "eos_id"))
    tokens = {"pad_token": pad, "unk_token": unk, "eos_token": eos}
    settings = tokens | {"separate_vocabs": separate}
    if isinstance(target, ImportedTokenizer):
        settings[CLEAN_UP] = target.clean_up
    write_tokenizer_settings(directory, "MarianTokenizer", max_positions, settings)


def sentencepiece_of(tokenizer: Tokenizer) -> bytes | None:
    """The SentencePiece model of a tokenizer; None if it is of another kind."""
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.sentencepiece()
    return tokenizer.model if isinstance(tokenizer, SentencePieceTokenizer) else None
