"""M2M-100, NLLB, BART and mBART of random sizes, with their tokenizers, against transformers."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from tokenizers import Tokenizer as Pieces, decoders, models, pre_tokenizers, processors, trainers

import transduce as td
from tests.interop.rivals import (
    compare,
    drawn,
    pieces_of,
    random_search,
    random_sizes,
    randomize,
    sentencepiece_model,
    translated,
)
from tests.interop.test_marian import changed
from tests.runs import ENGLISH, GERMAN
from tests.serve.conftest import texts_of
from transduce.cli.main import main
from transduce.interop import read_model, read_run
from transduce.interop.encoder_decoder import M2M100
from transduce.interop.pretrained import read_settings
from transduce.serve import ServeConfig
from transduce.serve.app import serve_run
from transduce.serve.http import Languages

pytestmark = pytest.mark.usefixtures("transformers")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXT = ENGLISH + GERMAN


def library(pre: Any, decoder: Any, size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and merges of BPE, as the library `tokenizers` learns them."""
    got = Pieces(models.BPE(unk_token="<unk>"))
    got.pre_tokenizer, got.decoder = pre, decoder
    got.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False))
    model = json.loads(got.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def m2m100(directory: Path) -> Any:
    import transformers

    model = sentencepiece_model(TEXT, vocab_size=120)
    (directory / "spm").write_bytes(model)
    pieces = [*SPECIAL, *pieces_of(model)[:-5]]  # those left out are unknown
    (directory / "vocab").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    return transformers.M2M100Tokenizer(str(directory / "vocab"), str(directory / "spm"), src_lang="en", tgt_lang="de")


def nllb(directory: Path, *, legacy: bool = False) -> Any:
    import transformers

    vocab, merges = library(pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace(), 200)
    languages = ["eng_Latn", "deu_Latn", "fra_Latn"]
    how = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn", "extra_special_tokens": languages}
    return transformers.NllbTokenizer(vocab=vocab, merges=merges, legacy_behaviour=legacy, **how)


def mbart(directory: Path, kind: str = "MBartTokenizer") -> Any:
    import transformers

    got = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(TEXT, vocab_size=120))
    pieces = [(got.id_to_piece(i), got.get_score(i)) for i in range(3, got.get_piece_size())]
    special, languages = ([(name, 0.0) for name in names] for names in (SPECIAL, ["en_XX", "de_DE", "<mask>"]))
    return getattr(transformers, kind)(vocab=[*special, *pieces, *languages], src_lang="en_XX", tgt_lang="de_DE")


def bart(directory: Path) -> Any:
    import transformers

    vocab, merges = library(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), 300)
    return transformers.BartTokenizer(vocab={**vocab, "<mask>": len(vocab)}, merges=merges)


def pegasus(directory: Path) -> Any:
    import transformers

    got = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(TEXT, vocab_size=120))
    pieces = [(got.id_to_piece(i), got.get_score(i)) for i in range(3, got.get_piece_size())]
    unused = [("<mask_1>", 0.0), ("<mask_2>", 0.0), *((f"<unk_{i}>", 0.0) for i in range(2, 103))]
    return transformers.PegasusTokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), *unused, ("<unk>", 0.0), *pieces])


def blenderbot(directory: Path) -> Any:
    import transformers

    vocab, merges = library(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), 300)
    tokenizer = transformers.BlenderbotTokenizer(vocab=vocab, merges=merges)
    ends = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])  # as files on the hub have it
    tokenizer.backend_tokenizer.post_processor = ends
    return tokenizer


FAMILIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "m2m100": (m2m100, "M2M100"),
    "nllb": (nllb, "M2M100"),
    "nllb-legacy": (lambda d: nllb(d, legacy=True), "M2M100"),
    "bart": (bart, "Bart"),
    "mbart": (mbart, "MBart"),
    "mbart50": (lambda d: mbart(d, "MBart50Tokenizer"), "MBart"),
    "pegasus": (pegasus, "Pegasus"),
    "blenderbot": (blenderbot, "Blenderbot"),
}
"""What makes a family's tokenizer, and how its model is called."""

QUICK = ("m2m100", "bart", "mbart")
"""The others differ from them in their tokenizers; NLLB's is in what follows, too."""


def rival(directory: Path, seed: int, family: str) -> tuple[Any, Any]:
    """A model and its tokenizer, saved."""
    import transformers

    rng, (make, kind) = random.Random(seed), FAMILIES[family]
    config, architecture = (getattr(transformers, f"{kind}{part}") for part in ("Config", "ForConditionalGeneration"))
    directory.mkdir()
    tokenizer = make(directory)
    tokenizer.save_pretrained(directory)
    last = tokenizer.get_lang_id("zu") if family == "m2m100" else max(tokenizer.get_vocab().values())
    size = last + 1 + (rng.choice([0, 8]) if family != "m2m100" else 0)  # M2M100Tokenizer writes such ids as <unk>
    tag = {"m2m100": "__de__", "nllb": "deu_Latn", "nllb-legacy": "deu_Latn", "mbart": "de_DE", "mbart50": "de_DE"}
    target = tokenizer.convert_tokens_to_ids(tag.get(family, "<s>" if family == "bart" else "</s>"))
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": target if family == "mbart" else 2}
    if family == "pegasus":
        special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if family == "blenderbot":
        special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    biased = "m2m" not in config.model_type  # else texts hardly end of themselves, and are cut
    forced = {"forced_bos_token_id": None if family in ("mbart", "pegasus", "blenderbot") else target}
    eos = special["eos_token_id"]
    forced["forced_eos_token_id"] = rng.choice([eos, None]) if biased else None
    torch.manual_seed(seed)
    model = architecture(config(**random_sizes(rng), **special, **forced, vocab_size=size, max_position_embeddings=97))
    randomize(model, rng, eos_id=eos, biased=biased)
    # a tag that came again would be a part of n-grams for transformers alone
    tags = {i for token, i in tokenizer.get_added_vocab().items() if "_" in token} | {target}
    tags |= {tokenizer.get_lang_id(code) for code in M2M100["m2m100"].split()} if family == "m2m100" else set()
    tags = {i for i in tags if i != eos}
    banned = [[special["pad_token_id"]], *([i] for i in sorted(tags))]
    model.generation_config = random_search(rng, bad_words_ids=banned, **special, **forced)
    model.save_pretrained(directory)
    return model, tokenizer


def test_pegasus_sentencepiece_ids_equal_those_of_transformers(tmp_path):
    """Which counts them from 103 on, as the first directories on the hub, with spiece.model, need it."""
    import transformers

    rival(directory := tmp_path / "theirs", 0, "pegasus")
    (directory / "tokenizer.json").unlink()
    names = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (directory / "spiece.model").write_bytes(sentencepiece_model(TEXT, vocab_size=120, **names))
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    _, source, target, *_ = read_run(read_settings(directory))
    lines, ids = ["Unknown: ☃", *ENGLISH], theirs(["Unknown: ☃", *ENGLISH])["input_ids"]
    assert source is not None and source.with_eos(source.encode(lines)) == ids
    assert target.decode(ids) == [text.strip() for text in theirs.batch_decode(ids, skip_special_tokens=True)]


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        pytest.param(family, *each.values, marks=each.marks)
        for family in FAMILIES
        for each in drawn(20, default=(4,) if family in QUICK else (), long=(1, 8, 15))
    ],
)
def test_logits_and_outputs_equal_those_of_transformers(tmp_path, family, seed):
    difference, got, want = compare(*rival(tmp_path / "theirs", seed, family), tmp_path / "theirs")
    assert difference < 1e-4
    assert got == want


def test_long_sources_are_cut_with_room_for_special_tokens(tmp_path, caplog):
    rival(tmp_path / "theirs", 1, "bart")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    translator = td.load_translator(tmp_path / "run")
    line = " ".join(ENGLISH[0].split() * 40)
    ids = translator.source_tokenizer.encode([line])[0]
    cut = translator.source_tokenizer.decode([ids[: 97 - 2]])[0]  # <s> and </s>
    assert translator.source_tokenizer.encode([cut])[0] == ids[:95]
    assert translator([line]) == translator([cut])
    assert "was cut to 95" in caplog.text
    translator([line], max_source_length=1)  # less than these two
    assert "was cut to 0" in caplog.text


def test_sources_are_read_up_to_the_last_position_of_the_model(tmp_path, caplog):
    import transformers

    _, tokenizer = rival(directory := tmp_path / "theirs", 4, "m2m100")
    changed(directory / "config.json", max_position_embeddings=700)
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(directory)
    assert main(["import", str(directory), str(tmp_path / "run")]) == 0
    batch = tokenizer([line := " ".join(ENGLISH[0].split() * 60)], return_tensors="pt")
    assert 512 < batch.input_ids.numel() < 700
    translator = td.load_translator(tmp_path / "run")
    (want,) = tokenizer.batch_decode(theirs.generate(**batch), skip_special_tokens=True)
    assert translator([line]) == [re.sub("__[a-z]+__", "", want).strip()]
    assert translator.decoding.max_source_length == 700 and "was cut" not in caplog.text


def test_command_sets_source_and_target_language(tmp_path, capsys):
    theirs, tokenizer = rival(tmp_path / "theirs", 1, "nllb")
    run, chosen = tmp_path / "run", {"source_language": "fra_Latn", "target_language": "eng_Latn"}
    assert main(["import", str(tmp_path / "theirs"), str(run)]) == 0
    tokenizer.src_lang = "fra_Latn"
    forced = tokenizer.convert_tokens_to_ids("eng_Latn")
    batch = tokenizer(ENGLISH[:5], return_tensors="pt", padding=True)
    with torch.no_grad():
        want = tokenizer.batch_decode(theirs.generate(**batch, forced_bos_token_id=forced), skip_special_tokens=True)
    flags = "--source-language fra_Latn --target-language eng_Latn"
    assert translated(run, ENGLISH[:5], *flags.split()) == want
    translator = td.load_translator(run)
    assert translator(ENGLISH[:5], **chosen) == want != translator(ENGLISH[:5])
    got = translator.translate(ENGLISH[:5], token_scores=True, alignments=True, **chosen)
    for (output,) in got:
        assert output.token_scores.log_prob == pytest.approx(output.log_prob, abs=1e-3)
        assert len(output.token_scores.tokens) == len(output.tokens) + output.finished
        assert output.alignment.source and not set(output.alignment.source) & {"fra_Latn", "eng_Latn"}
    capsys.readouterr()
    assert main(["translate", str(run), str(tmp_path / "in.txt"), "--target-language", "en"]) == 2
    assert "(eng_Latn, deu_Latn, fra_Latn), but it is 'en'" in capsys.readouterr().err


def test_scoring_and_alignment_use_the_given_languages(tmp_path, capsys):
    theirs, tokenizer = rival(tmp_path / "theirs", 1, "nllb")
    theirs.set_attn_implementation("eager")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    for name, line in (("in", ENGLISH[0]), ("out", GERMAN[0])):
        (tmp_path / name).write_text(line + "\n")
    translator, got = td.load_translator(tmp_path / "run"), set()
    own = {"source_language": "fra_Latn", "target_language": "fra_Latn"}  # of the run: what is named goes before it
    translator.decoding = translator.decoding.changed(**own)
    for source, target in (("eng_Latn", "deu_Latn"), ("fra_Latn", "deu_Latn"), ("eng_Latn", "fra_Latn")):
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
        labels = tokenizer(text_target=GERMAN[0], return_tensors="pt").input_ids
        with torch.no_grad():
            want = theirs(**tokenizer(ENGLISH[0], return_tensors="pt"), labels=labels, output_attentions=True)
        log_probs = want.logits.log_softmax(-1).gather(-1, labels[..., None])[0, 1:, 0]  # without the language
        capsys.readouterr()
        words = ["score", "likelihood", str(tmp_path / "run"), str(tmp_path / "in"), str(tmp_path / "out")]
        assert main([*words, "--source-language", source, "--target-language", target]) == 0
        log_prob, n_tokens = capsys.readouterr().out.split()
        assert (float(log_prob), int(n_tokens)) == (pytest.approx(log_probs.sum().item(), abs=1e-3), len(log_probs))
        chosen = {"source_language": source, "target_language": target}
        (look,) = translator.align([ENGLISH[0]], [GERMAN[0]], **chosen)
        for ours, weights in zip(look.weights, want.cross_attentions, strict=True):
            torch.testing.assert_close(ours, weights[0, :, 1:], atol=1e-5, rtol=1e-4)
        got.add(log_prob)
    assert len(got) == 3


def test_multilingual_models_require_languages(tmp_path, capsys):
    rival(tmp_path / "theirs", 1, "nllb")
    changed(tmp_path / "theirs" / "tokenizer_config.json", src_lang=None)
    changed(tmp_path / "theirs" / "generation_config.json", forced_bos_token_id=None)
    changed(tmp_path / "theirs" / "tokenizer_config.json", tgt_lang=None)
    run, source, target = tmp_path / "run", ("--source-language", "eng_Latn"), ("--target-language", "deu_Latn")
    assert main(["import", str(tmp_path / "theirs"), str(run)]) == 0
    (tmp_path / "in.txt").write_text("a\n")
    for flags in ((), source, target):
        assert main(["translate", str(run), str(tmp_path / "in.txt"), *flags]) == 2
        err = capsys.readouterr().err
        assert "--source-language and --target-language" in err and "eng_Latn, deu_Latn, fra_Latn" in err
    want = translated(run, ["a b", "c"], *source, *target)
    pair = Languages("eng_Latn", "deu_Latn")
    served = serve_run("nllb", translator := td.load_translator(run), ServeConfig(), [pair])
    assert texts_of(served, pair, ["a b", "c"]) == want
    with pytest.raises(ValueError, match=r"one of the model's .*, but it is 'en'"):
        serve_run("nllb", translator, ServeConfig(), [Languages("en", "de")])


@pytest.mark.parametrize("family", ["nllb", "m2m100"])
def test_any_tokenizer_setting_is_read_or_refused(tmp_path, family):
    rival(directory := tmp_path / "theirs", 1, family)
    settings = read_settings(directory)
    plain = json.loads((directory / "tokenizer_config.json").read_text())
    for name in ("src_lang", "tgt_lang", "language_codes", "tokenizer_class", "legacy_behaviour"):
        for value in (None, "x", 3, True, [], ["x"], {}):
            changed(directory / "tokenizer_config.json", **(plain | {name: value}))
            if (name, family) == ("language_codes", "m2m100") and value:
                message = f"language_codes must be 'm2m100' or 'wmt21', but in {directory} it is {value}"
                with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                    read_run(settings)
            else:
                read_run(settings)


def test_tokenizer_json_needs_added_tokens_but_no_decoder(tmp_path):
    rival(directory := tmp_path / "theirs", 1, "bart")
    path = directory / "tokenizer.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in plain.items() if key != "decoder"}))
    want = Pieces.from_file(str(path)).encode("a b", add_special_tokens=False).ids
    assert read_run(read_settings(directory)).target_tokenizer.encode(["a b"]) == [want]
    path.write_text(json.dumps({key: value for key, value in plain.items() if key != "added_tokens"}))
    with pytest.raises(ValueError, match="its ids must be less than size="):
        read_run(read_settings(directory))


def test_missing_tokenizer_error_names_the_fix(tmp_path, capsys):
    rival(tmp_path / "theirs", 0, "bart")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        "transduce: a tokenizer is tokenizer.json, or spiece.model, or sentencepiece.bpe.model and vocab.json, but "
        f"{tmp_path / 'theirs'} has none of them; write it with transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)\n"
    )


def test_untied_embeddings_are_read_separately(tmp_path):
    """Such a file has a shared table, too, which nothing reads."""
    import transformers

    sizes = random_sizes(random.Random(0)) | {"vocab_size": 30, "max_position_embeddings": 20}
    config = transformers.BartConfig(**sizes, tie_word_embeddings=False)
    theirs = transformers.BartForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9]])
    got = read_model(tmp_path)(source=source, source_lengths=torch.tensor([4]), target_in=target)
    torch.testing.assert_close(got, theirs(input_ids=source, decoder_input_ids=target).logits, rtol=0, atol=1e-4)


def test_tokens_without_an_embedding_are_left_out(tmp_path):
    """As in bart-large-cnn, whose vocabulary ends before <mask>."""
    theirs, tokenizer = rival(tmp_path / "theirs", 3, "bart")
    size = max(tokenizer.get_vocab().values())
    theirs.resize_token_embeddings(size)
    theirs.save_pretrained(tmp_path / "theirs")
    difference, got, want = compare(theirs, tokenizer, tmp_path / "theirs")
    assert difference < 1e-4 and got == want
    translator = td.load_translator(tmp_path / "run")
    assert max(translator.sources(["a <mask> yy"])[0]) < size
    theirs.resize_token_embeddings(size - 2)
    theirs.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "other")]) == 2
