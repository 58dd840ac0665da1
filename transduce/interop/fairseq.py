"""Read models like M2M-100, NLLB and BART as transformers saves them; most come from fairseq. The numbers stay the same."""

import json
import re
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.interop.encoder_decoder import read_model as read_model, read_table
from transduce.interop.generation import Generation, read_decoding, read_generation, require_settings
from transduce.interop.pretrained import TOKENIZER, Imported, read_optional
from transduce.interop.settings import BARTSettings

LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""What tags of languages look like in NLLB and mBART: eng_Latn, en_XX."""

M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd "
    "si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M-100 and of its models for WMT21 (`language_codes`), in the order of their tags, which no file has."""


def read_run(directory: Path, settings: BARTSettings) -> Imported:
    """Read a model and its tokenizer: tokenizer.json, or sentencepiece.bpe.model and vocab.json of M2M-100.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors; or a file of the tokenizer is missing or does not fit the model.
    Source: Fan et al. (2021), M2M-100; NLLB team (2022); Lewis et al. (2020), BART; Liu et al. (2020), mBART.
    """
    model = read_model(directory, settings)
    generation = read_generation(directory, settings, Generation)
    source, target = _tokenizers(directory, generation, settings.vocab_size)
    n_forced = 1 if target.opens_by_language else len(target.opening)
    return Imported(model, source, target, read_decoding(directory, generation, settings.vocab_size, n_forced=n_forced))


class Vocabulary(NamedTuple):
    """What the files say of the tokens of both sides."""

    cutter: dict[str, Any]
    """What cuts texts, as ImportedTokenizer has it."""
    unk_id: int | None
    special_ids: set[int]
    languages: dict[str, int]
    """The ids of tags of languages."""
    opening: list[int]
    """What stands before every text of the source."""
    closing: list[int]
    """What stands behind its end."""


def _read_vocabulary(directory: Path, size: int, end: int, language_codes: str) -> Vocabulary:
    if (directory / "tokenizer.json").is_file():
        tokenizer = JSONTokenizer.load(directory / "tokenizer.json")
        plain = _without_ids_from(size, json.loads(tokenizer.model))
        added = {token["content"]: token["id"] for token in plain["added_tokens"]}
        languages = {token: i for token, i in added.items() if LANGUAGE.fullmatch(token)}
        unk_id = added.get("<unk>", tokenizer.unk_id)
        around = _around(LibraryTokenizer.from_str(json.dumps(plain)), end)
        return Vocabulary({"tokenizer": plain}, unk_id, {*added.values()}, languages, *around)
    spm = directory / "sentencepiece.bpe.model"
    if not spm.is_file() or not (directory / "vocab.json").is_file():
        raise InputError(
            f"a tokenizer is tokenizer.json, or sentencepiece.bpe.model and vocab.json, but {directory} has neither; "
            "write it with transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    pieces = read_table(directory / "vocab.json", size)
    first = 1 + max(i for i, piece in enumerate(pieces) if piece)
    names = M2M100[language_codes].split()
    languages = {name: first + i for i, name in enumerate(names) if first + i < size}
    cutter = {"sentencepiece": b64encode(spm.read_bytes()).decode(), "pieces": pieces}
    return Vocabulary(cutter, pieces.index("<unk>"), {*languages.values()}, languages, [], [])


def _tokenizers(directory: Path, generation: Generation, size: int) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """Those of source and target, with the languages that the files name, if any."""
    settings = read_optional(directory / TOKENIZER)
    kind = str(settings.get("tokenizer_class"))
    forced = generation.forced_bos_token_id
    vocabulary = _read_vocabulary(directory, size, generation.end_id, settings.get("language_codes", "m2m100"))
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
        ImportedTokenizer.of,
        vocabulary.cutter,
        size=size,
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
    target_language = settings.get("tgt_lang") if forced is None else tags.get(forced, settings.get("tgt_lang"))
    return (
        source.with_language(source_language) if source_language in vocabulary.languages else source,
        target.with_language(target_language) if target_language in vocabulary.languages else target,
    )


def _without_ids_from(size: int, plain: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without added tokens for which a model has no vector, and without the token right behind its last one.

    So bart-large-cnn has no vector for <mask>. More tokens than these would be those of another model.
    """
    beyond = {token["content"] for token in plain["added_tokens"] if token["id"] >= size}
    if isinstance(vocab := plain["model"]["vocab"], dict):
        beyond |= {token for token, i in vocab.items() if i == size}
        plain["model"]["vocab"] = {token: i for token, i in vocab.items() if token not in beyond}
        merges = [each.split(" ") if isinstance(each, str) else each for each in plain["model"].get("merges", [])]
        plain["model"]["merges"] = [pair for pair in merges if not beyond & {*pair, "".join(pair)}]
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] not in beyond]
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
        raise InputError(f"texts must end with eos_token_id={end}, but tokenizer.json puts {behind} behind them")
    return encoding.ids[:n_before], [i for i in behind if i != end]
