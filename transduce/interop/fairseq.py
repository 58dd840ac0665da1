"""Read models like M2M-100, NLLB and BART as transformers saves them; most come from fairseq. The numbers stay the same."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.interop.encoder_decoder import read_model
from transduce.interop.generation import one_end, read_decoding, read_generation, refusal
from transduce.interop.pretrained import (
    TOKENIZER,
    Imported,
    read_optional,
    read_table,
)

KINDS = ("m2m_100", "bart", "mbart", "pegasus", "blenderbot")

LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""What tags of languages look like in NLLB and mBART: eng_Latn, en_XX."""

M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd "
    "si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M-100 and of its models for WMT21 (`language_codes`), in the order of their tags, which no file has."""


def import_run(directory: Path) -> Imported:
    """Read a model and its tokenizer: tokenizer.json, or sentencepiece.bpe.model and vocab.json of M2M-100.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors; or a file of the tokenizer is missing or does not fit the model.
    Source: Fan et al. (2021), M2M-100; NLLB team (2022); Lewis et al. (2020), BART; Liu et al. (2020), mBART.
    """
    model, theirs = read_model(directory, *KINDS)
    said = one_end(directory, read_generation(directory, theirs), theirs)
    forced, settings = said.get("forced_bos_token_id"), read_optional(directory / TOKENIZER)
    source, target = _tokenizers(directory, theirs | said | {"forced_bos_token_id": forced}, settings)
    n_forced = 1 if target.opens_by_language else len(target.opening)
    return Imported(model, source, target, read_decoding(directory, said, theirs["vocab_size"], n_forced=n_forced))


def _tokenizers(
    directory: Path, theirs: dict[str, Any], settings: dict[str, Any]
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """Those of source and target, with the languages that the files name, if any."""
    size, forced = theirs["vocab_size"], theirs.get("forced_bos_token_id")
    special = {"bos": theirs["decoder_start_token_id"], "eos": theirs["eos_token_id"], "pad": theirs["pad_token_id"]}
    parts, added = dict[str, Any](size=size), dict[str, Any]()
    if (directory / "tokenizer.json").is_file():
        tokenizer = JSONTokenizer.load(directory / "tokenizer.json")
        plain = _without_ids_from(size, json.loads(tokenizer.model))
        added = {token["content"]: token["id"] for token in plain["added_tokens"]}
        cutter: dict[str, Any] = {"tokenizer": plain}
        languages = {token: i for token, i in added.items() if LANGUAGE.fullmatch(token)}
        unknown, (opening, closing) = (
            added.get("<unk>", tokenizer.unk_id),
            _around(plain.get("post_processor") or {}, special["eos"]),
        )
    elif (directory / "sentencepiece.bpe.model").is_file() and (directory / "vocab.json").is_file():
        pieces = read_table(directory / "vocab.json", size)
        unknown, first = pieces.index("<unk>"), 1 + max(i for i, piece in enumerate(pieces) if piece)
        names = M2M100[settings.get("language_codes", "m2m100")].split()
        languages = {name: first + i for i, name in enumerate(names) if first + i < size}
        cutter = {"sentencepiece": b64encode((directory / "sentencepiece.bpe.model").read_bytes()).decode()}
        cutter["pieces"], opening, closing = pieces, [], []
    else:
        raise InputError(
            f"a tokenizer is tokenizer.json, or sentencepiece.bpe.model and vocab.json, but {directory} has neither; write it "
            "with transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    marks = {0, special["eos"], special["pad"], *languages.values(), *added.values()}
    for name in ("forced_bos_token_id", "decoder_start_token_id"):  # a text shows what is none
        if theirs.get(name) is not None and theirs[name] not in marks:
            raise refusal(directory, name, "a special token", theirs[name])
    parts |= {"special": special | {"unk": unknown}, "languages": languages}
    tags, by_id = {*languages.values()}, {i: name for name, i in languages.items()}
    kind = str(settings.get("tokenizer_class"))
    behind = bool(tags & {*closing})
    if kind.startswith("NllbTokenizer"):  # which makes its own of what tokenizer.json says
        behind = bool(settings.get("legacy_behaviour"))
    source = ImportedTokenizer.of(
        cutter,
        opening=[i for i in opening if i not in tags],
        closing=[i for i in closing if i not in tags],
        place="closing" if behind else "opening",
        **parts,
    )
    begun_by_tag = forced is None and kind.startswith("MBartTokenizer")
    target = ImportedTokenizer.of(
        cutter,
        opening=[] if forced is None or forced in tags else [forced],
        place="bos" if begun_by_tag else "opening",
        **parts,
    )
    reads, writes = str(settings.get("src_lang")), str(by_id.get(forced, settings.get("tgt_lang")))
    return (
        source.with_language(reads) if reads in languages else source,
        target.with_language(writes) if writes in languages else target,
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


def _around(post_processor: dict[str, Any], eos_id: int) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer.json puts before every text, and behind its end."""
    if "cls" in post_processor:  # as RoBERTa and BART have it
        return [post_processor["cls"][1]], []
    before, behind = list[int](), list[int]()
    ids, found = post_processor.get("special_tokens", {}), before
    for part in post_processor.get("single", []):
        if "Sequence" in part:
            found = behind
        else:
            found += ids[part["SpecialToken"]["id"]]["ids"]
    if eos_id not in behind:
        raise InputError(
            f"texts must end with eos_token_id={eos_id}, but the post_processor of tokenizer.json puts {behind} behind them"
        )
    return before, [i for i in behind if i != eos_id]
