"""The translation recipe: one training from end to end, and what its fields become."""

import json
import math
import os
import re
import shutil
from dataclasses import replace

import pytest
import sacrebleu
import sentencepiece
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

import transduce as td
from recipes.translation import SETTINGS, run
from tests.recipes.small import loss_parts, metrics, translator as small
from tests.runs import library_tokenizer
from tests.serve.conftest import client_of, serving
from transduce.cli.common import Machine
from transduce.cli.main import main
from transduce.cli.serve import load_served
from transduce.config import differences, to_dict
from transduce.data.corpus import Directions, Files
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.experiment.command import choose
from transduce.experiment.config import with_vocabularies
from transduce.experiment.start import saved_tokenizers
from transduce.run import load_run
from transduce.serve import ServeConfig


def test_run_directory_is_complete(translation_run, parallel_text, tmp_path):
    directory, scores = translation_run.run, translation_run.scores
    assert set(scores) == {f"{m}.{s}" for m in ("bleu", "bleu.lowercase", "chrf") for s in ("greedy", "beam2")}
    assert {path.name for path in directory.glob("[!.]*")} == {
        "config.json", "model.safetensors", "tokenizer.model", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "MODEL_CARD.md", "checkpoints", "test.greedy.txt", "test.beam2.txt", "test.json",
        "test.errors.txt", "report.html",
    }  # fmt: skip
    assert all("|version:" in each["score"] for each in json.loads((directory / "test.json").read_text()))
    assert [line["update"] for line in metrics(directory, "valid")] == [1, 2]
    assert "% padding; left out: 0 blank, 0 too long" in translation_run.printed

    moved = shutil.copytree(directory, tmp_path / "moved")
    lines = (parallel_text / "test.en").read_text().removesuffix("\n").split("\n")
    kept = (moved / "test.beam2.txt").read_text().removesuffix("\n").split("\n")
    translator = td.load(moved)
    assert translator(lines) == kept
    sources = (parallel_text / "train.en").read_text().splitlines()
    lengths = [len(ids) for ids in translator.source_tokenizer.encode(sources)]
    assert min(lengths) < translator.decoding.split_length <= max(lengths)


def test_finished_model_is_a_checkpoint_or_their_mean(translation_run):
    """Of three: both checkpoints, and their mean, which is that of the best and that of the last."""
    folder = translation_run.run
    one, two = (load_file(folder / "checkpoints" / f"{u:08d}" / "model.safetensors") for u in (1, 2))
    got = load_file(folder / "model.safetensors")
    candidates = [one, two, {name: (one[name] + two[name]) / 2 for name in one}]
    assert sum(all(abs(got[name] - each[name]).max() < 1e-6 for name in got) for each in candidates) == 1


def test_model_card_has_scores_and_reproduces_the_experiment(translation_run, monkeypatch):
    directory = translation_run.run
    card = (directory / "MODEL_CARD.md").read_text()
    assert all(f": {each['score']}\n" in card for each in json.loads((directory / "test.json").read_text()))
    (command,) = re.findall(r"^transduce train translation (.*)$", card, flags=re.MULTILINE)
    monkeypatch.chdir(directory)
    again = choose(SETTINGS, command.split(), default="commands")
    assert replace(again, run=directory) == translation_run.x
    config = json.loads((directory / "config.json").read_text())
    assert config["specified"] == to_dict(translation_run.x)
    changed = {line.split(":")[0] for line in differences(config["specified"], config["experiment"])}
    sizes = {f"model.{side}.input.vocab_size" for side in ("encoder", "decoder")}
    assert changed == {"data", "decoding.split_length", *sizes}


def fail_on_tokenizer_training(*_, **__):
    pytest.fail("a tokenizer was trained anew")


def test_repeated_command_changes_nothing_and_others_are_refused(translation_run, parallel_text, tmp_path, monkeypatch):
    """Nor is a tokenizer trained: it takes minutes for a large corpus, and another library may learn another one."""
    copy = shutil.copytree(translation_run.run, tmp_path / "run")
    monkeypatch.setattr(SentencePieceTokenizer, "train", fail_on_tokenizer_training)
    first = small(copy, parallel_text)
    assert run(first) == translation_run.scores
    assert (copy / "model.safetensors").read_bytes() == (translation_run.run / "model.safetensors").read_bytes()
    for name in ("tokenize", "decoding.target_language"):  # a run that was begun before there were such fields goes on
        assert name not in load_run(copy).resume_key()
    with pytest.raises(ValueError, match=r"this differs: tokenize: .* -> char\. Name another directory"):
        run(replace(first, tokenize="char"))
    with pytest.raises(ValueError, match=r"this differs: max_length: 256 -> 255\. Name another directory"):
        run(replace(first, max_length=255))


def test_a_finished_model_is_kept_until_there_is_a_newer_checkpoint(translation_run, parallel_text, tmp_path):
    """Whatever the times of the files: those of a copied run say when and in which order they were copied."""
    copy = shutil.copytree(translation_run.run, tmp_path / "run")
    first = small(copy, parallel_text)
    model, average = copy / "model.safetensors", b"an average that somebody has made"
    model.write_bytes(average)
    os.utime(model, (0, 0))
    with pytest.raises(ValueError, match="model"):
        run(first)
    assert model.read_bytes() == average
    (newest,) = copy.glob("checkpoints/*/finished")
    newest.unlink()  # as in a checkpoint of updates after that model
    assert run(first) == translation_run.scores
    assert (copy / "model.before.safetensors").read_bytes() == average


def test_missing_attention_map_is_drawn_on_resume(translation_run, parallel_text, tmp_path):
    copy = shutil.copytree(translation_run.run, tmp_path / "run")
    (picture,) = copy.glob("samples/*.attention.png")
    picture.unlink()
    assert run(small(copy, parallel_text)) == translation_run.scores and picture.exists()


def test_one_vocabulary_per_side(parallel_text, tmp_path, untrained):
    x = small(tmp_path / "run", parallel_text, joint=False, corpus=brief(parallel_text))
    trainer = untrained(run, x)
    assert {path.name for path in x.run.glob("*.model")} == {"source.model", "target.model"}
    translator = td.load(x.run)
    source, target = translator.source_tokenizer, translator.tokenizer
    assert source.model != target.model and trainer.model.config.tie == "output"
    assert source.decode(source.encode(["Open it."])) == ["Open it."]
    table = trainer.model.source_input.weight
    assert len(table) == source.vocab_size and table is not trainer.model.output


def brief(folder, train="valid"):
    """Training and validation on four lines each, and no test."""
    sides = [folder / f"{split}.{language}" for split in (train, "test") for language in ("en", "de")]
    names = ("train_source", "train_target", "valid_source", "valid_target")
    return Files(**dict(zip(names, sides, strict=True)))


def test_lowercase_ignores_capitals(translation_run, parallel_text, tmp_path, untrained):
    """Capitals change nothing, and validation does not count those of the references."""
    x = small(tmp_path / "run", parallel_text, lowercase=True, corpus=brief(parallel_text))
    trainer = untrained(run, x)
    assert load_run(x.run).experiment["validate_by"] == "bleu.lowercase"
    assert trainer.validate(trainer.model).metrics.keys() == {"loss", "perplexity", "bleu.lowercase"}
    translate = td.load(x.run)
    lines = (parallel_text / "test.en").read_text().splitlines()
    upper = [line.upper() for line in lines]
    assert translate(lines) == translate(upper)
    assert translate.source_tokenizer.encode(lines) == translate.source_tokenizer.encode(upper)
    with_capitals = load_run(translation_run.run).source_tokenizer
    assert with_capitals.encode(lines) != with_capitals.encode(upper)

    with pytest.raises(
        ValueError, match=r"lowercase needs a tokenizer without capitals, but .*run keeps them; leave out"
    ):
        run(small(tmp_path / "other", parallel_text, lowercase=True, start_from=translation_run.run))
    there = saved_tokenizers(tmp_path / "other", x.run, lowercase=True)
    assert there is not None and there[0].model == (x.run / "tokenizer.model").read_bytes()
    with pytest.raises(ValueError, match=r"^the tokenizer of .*run has no capitals, .*; add --lowercase, or name ano"):
        run(small(tmp_path / "other", parallel_text, start_from=x.run))
    tokenizers = [each.run / "tokenizer.model" for each in (x, translation_run)]  # the target alone is validated
    assert (
        saved_tokenizers(tmp_path / "other", None, tokenizers, lowercase=False)[0].model == tokenizers[0].read_bytes()
    )
    with pytest.raises(ValueError, match="has no capitals"):
        saved_tokenizers(tmp_path / "other", None, tokenizers[::-1], lowercase=False)


def test_transcripts_are_added_to_the_training_data(parallel_text, tmp_path, untrained, capsys):
    x = small(tmp_path / "run", parallel_text, transcripts=True, corpus=brief(parallel_text))
    untrained(run, x)
    n = len((parallel_text / "valid.en").read_text().splitlines())
    assert f"train: {2 * n} pairs, " in capsys.readouterr().out
    assert load_run(x.run).experiment["transcripts"]


def test_large_corpora_are_read_in_pools(parallel_text, tmp_path, monkeypatch, untrained, capsys):
    for name in ("parallel_text", "text_batches"):
        monkeypatch.setattr(f"transduce.data.{name}.POOL", 60)
    x = small(tmp_path / "run", parallel_text, cache=tmp_path / "cache", corpus=brief(parallel_text, "train"))
    untrained(run, x)
    printed = capsys.readouterr().out
    assert "150 pairs" in printed and " in 3 pools, each of which is an epoch; " in printed
    monkeypatch.setattr("transduce.data.parallel_text._survey", lambda *_: pytest.fail("the text was read again"))
    untrained(run, replace(x, run=tmp_path / "other"))


def test_start_from_copies_weights_and_tokenizer(
    translation_run, parallel_text, tmp_path, monkeypatch, untrained, capsys
):
    monkeypatch.setattr(SentencePieceTokenizer, "train", fail_on_tokenizer_training)
    source = translation_run.run
    x = small(tmp_path / "tuned", parallel_text, start_from=source, corpus=brief(parallel_text))
    trainer = untrained(run, replace(x, training=replace(x.training, freeze=("encoder", "target_input"))))
    assert f"starts from {source}: " in capsys.readouterr().out
    old, new = load_file(source / "model.safetensors"), load_file(x.run / "model.safetensors")
    assert old.keys() == new.keys() and all((old[name] == new[name]).all() for name in old)
    frozen = {name for name, p in trainer.model.named_parameters() if not p.requires_grad}
    assert {name for name in frozen if not name.startswith("encoder.")} == {"output"}  # the table that all share
    assert {name for name in old if name.startswith("encoder.")} < frozen
    assert (x.run / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()
    assert trainer.pretrained


def test_given_tokenizer_keeps_matching_embeddings_of_start_from(
    translation_run, parallel_text, tmp_path, untrained, capsys
):
    """Unigram with T5's special ids; the same command goes on without the file, and symbols are pieces."""
    sentencepiece.SentencePieceTrainer.train(
        input=str(parallel_text / "train.en"), model_prefix=str(tmp_path / "my"), model_type="unigram", vocab_size=90,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    x = small(tmp_path / "run", parallel_text, tokenizer=(tmp_path / "my.model",), symbols="<2de>")
    x = replace(x, start_from=translation_run.run, corpus=brief(parallel_text))
    untrained(run, x)
    assert re.search(r"\ntarget: \d+ of 92 pieces keep their vectors\n", capsys.readouterr().out)  # its 90, <s>, <2de>
    (tmp_path / "my.model").unlink()
    untrained(run, x)
    translator = td.load(x.run)
    assert translator.source_tokenizer.tokens(translator.source_tokenizer.encode(["<2de>"])[0])[-1] == "<2de>"
    assert len(translator(["Open the letter."])) == 1


@pytest.mark.parametrize("kinds", [("unigram",), ("bpe", "sentencepiece")])
def test_tokenizers_json_instead_of_sentencepiece(translation_run, parallel_text, tmp_path, kinds, untrained, capsys):
    """Its ids are what the model reads and writes, whatever its special tokens are, and it lies in the run directory.

    A greedy search with the library itself says what the translation is.
    """
    english = (parallel_text / "train.en").read_text().splitlines()
    library, files = library_tokenizer(kinds[0], english), [tmp_path / "my.json"]
    library.save(str(files[0]))
    if len(kinds) > 1:
        files.append(translation_run.run / "tokenizer.model")
    x = small(tmp_path / "run", parallel_text, tokenizer=tuple(files), start_from=translation_run.run)
    x = replace(x, corpus=brief(parallel_text))
    untrained(run, x)
    out = capsys.readouterr().out
    names = {path.name for path in x.run.glob("*.json")} & {"tokenizer.json", "source.json", "target.json"}
    assert names == ({"tokenizer.json"} if len(kinds) == 1 else {"source.json"})
    before, *_ = saved_tokenizers(translation_run.run)
    kept = len(set(library.get_vocab()) & set(before.tokens(range(before.vocab_size))))
    side = "target" if len(kinds) == 1 else "source"  # a table that all share is told of once
    assert f"{side}: {kept} of {library.get_vocab_size()} pieces keep their vectors" in out and kept > 30
    files[0].unlink()
    untrained(run, x)  # goes on without it

    translator, model = td.load(x.run), td.load_model(x.run)
    target = library if len(kinds) == 1 else None
    bos, eos, pad, unk = map(library.token_to_id, ("<s>", "</s>", "<pad>", "<unk>")) if target else (2, 3, 0, 1)
    for line in (parallel_text / "test.en").read_text().splitlines()[:3]:
        source = torch.tensor([[*library.encode(line).ids, library.token_to_id("</s>")]])
        ids = [bos]
        while len(ids) < 9 and (ids[-1] != eos or len(ids) == 1):
            logits = model(source=source, target_in=torch.tensor([ids]))[0, -1]
            logits[[bos, pad, unk]] = -math.inf
            ids.append(int(logits.argmax()))
        ids = ids[1:]
        ((got,),) = translator.translate([line], td.SearchConfig(beam_size=1, length_ratio=0.0, length_extra=8))
        assert got.tokens == [i for i in ids if i != eos] and got.finished == (eos in ids)
        assert got.text == (target.decode(got.tokens) if target else before.decode([got.tokens])[0])
        (score,) = translator.score([line], [got.text])
        wanted = torch.tensor([*(target.encode(got.text).ids if target else before.encode([got.text])[0]), eos])
        logits = model(source=source, target_in=torch.tensor([[bos, *wanted[:-1]]]))[0]
        torch.testing.assert_close(score.log_probs, -cross_entropy(logits, wanted, reduction="none"))


def test_consistency_loss_is_added(parallel_text, tmp_path, untrained):
    """Dropout makes their predictions differ."""
    x = small(tmp_path / "run", parallel_text, corpus=brief(parallel_text))
    parts = loss_parts(untrained(run, replace(x, training=replace(x.training, consistency=2.0))))
    assert parts["consistency"] > 1e-6
    assert parts["loss"] == pytest.approx(parts["cross_entropy"] + 2 * parts["consistency"], rel=1e-4)


def test_distillation_from_another_run(translation_run, parallel_text, tmp_path, untrained):
    """A run of other tokens is refused, and so is what is no run."""
    teacher, tokens = translation_run.run, (translation_run.run / "tokenizer.model",)
    x = small(tmp_path / "run", parallel_text, tokenizer=tokens, corpus=brief(parallel_text))
    parts = loss_parts(untrained(run, replace(x, training=replace(x.training, teachers=(teacher, teacher)))))
    assert parts["distillation"] > 1e-6
    assert parts["loss"] == pytest.approx((parts["cross_entropy"] + parts["distillation"]) / 2, rel=1e-4)
    for wrong, changes, message in (
        (
            teacher,
            {"tokenizer": (), "vocab_size": 310},
            "differs in source_tokenizer, target_tokenizer, model.vocab_size; train with --tokenizer and its ",
        ),
        (tmp_path / "none", {}, "training.teachers: .*none does not exist"),
    ):
        y = replace(x, run=tmp_path / "other", **changes)
        with pytest.raises(ValueError, match=message):
            run(replace(y, training=replace(y.training, teachers=(wrong,))))


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        ({"lm_weight": 0.3}, "lm_weight needs a language model, but lm_weight=0.3 and none is loaded"),
        ({"begin_with": "<xx>"}, "begin_with takes tokens of the vocabulary, but '<xx>' is not one"),
        ({"words": "known"}, "words=known needs the lexicon of a run of speech to text"),
        ({"ctc_weight": 0.3}, "ctc_weight needs a CTC head"),
        ({"timestamps": True}, "timestamps need timestamp tokens"),
    ],
)
def test_invalid_search_settings_are_refused_before_training(parallel_text, tmp_path, decoding, message):
    x = small(tmp_path / "run", parallel_text, corpus=brief(parallel_text))
    with pytest.raises(ValueError, match=message):
        run(replace(x, decoding=replace(x.decoding, **decoding)))
    assert not x.run.exists()


def test_validate_by_another_measure(parallel_text, tmp_path, untrained):
    """Of the validation data, as is the loss."""
    x = small(tmp_path / "run", parallel_text, validate_by="chrf", corpus=brief(parallel_text))
    got = untrained(run, replace(x, training=replace(x.training, precision="fp32"))).validation()
    sources, references = ((parallel_text / f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    translator = td.load(x.run)
    outputs = translator(sources, td.SearchConfig(beam_size=1))
    log_probs = torch.cat([each.log_probs for each in translator.score(sources, references)])
    assert got.metrics["loss"] == pytest.approx(-log_probs.mean().item(), rel=1e-4)
    assert got.by == "chrf" and got.score == got.metrics["chrf"]
    assert got.metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_builds_a_model(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 320, joint=False)
    assert config.tie == "output"
    with torch.device("meta"):
        td.Transformer(config)


def test_one_model_for_all_directions(parallel_text, tmp_path, untrained, capsys, caplog):
    """Lines begin with a tag, or the tag is put there; either way the outputs are the same, and words are the line's own."""
    corpus = shutil.copytree(parallel_text, tmp_path / "corpus")
    for split in ("train", "valid", "test"):
        lines = (corpus / f"{split}.en").read_text().splitlines()
        (corpus / f"{split}.up").write_text("".join(line.upper() + "\n" for line in lines))
    trained = ("en-de", "de-en", "en-up", "up-en")
    languages = Directions(
        data=corpus, languages=("en", "de", "up"), directions=trained, test_directions=("up-de", "en-up"), valid="valid",
        valid_pairs=3,
    )  # fmt: skip
    x = small(tmp_path / "run", corpus, corpus=languages, vocab_size=340)
    untrained(run, x)
    printed = capsys.readouterr().out
    kept = (x.run / "test.beam2.txt").read_text().removesuffix("\n").split("\n")
    references = [*(corpus / "test.de").read_text().splitlines(), *(corpus / "test.up").read_text().splitlines()]
    places = {None: slice(8), "up-de": slice(4), "en-up": slice(4, 8)}
    rows = json.loads((x.run / "test.json").read_text())
    assert all(f"  {row['score']}\n" in printed for row in rows)
    got = {row.get("group"): row for row in rows if (row["search"], row["measure"]) == ("beam2", "chrf")}
    assert got.keys() == places.keys()
    for group, own in places.items():
        assert got[group]["value"] == pytest.approx(sacrebleu.corpus_chrf(kept[own], [references[own]]).score)
        assert got[group]["score"].startswith(f"{group}: chrF") or group is None

    translator = td.load(x.run)
    lines = [(corpus / f"test.{language}").read_text().splitlines() for language in ("up", "en")]
    assert [*translator(lines[0], target_language="de"), *translator(lines[1], target_language="up")] == kept
    assert translator([f"<2de> {line}" for line in lines[0]]) == kept[:4]
    assert translator(lines[0], source_language="up", target_language="de") == kept[:4]
    (served,) = load_served((x.run,), (), None, ServeConfig(), Machine(device="cpu"))
    with serving([served]) as url, client_of(url) as client:
        targets = {each["code"]: {*each["targets"]} for each in client.get("/languages").json()}
        assert targets == {"en": {"de", "up"}, "de": {"en"}, "up": {"en", "de"}}
        offered = [(each["source"], each["target"]) for each in client.get("/page/runs").json()["runs"]]
        assert offered == [("en", "de"), ("de", "en"), ("en", "up"), ("up", "en"), ("up", "de")]
        for source, target, texts, want in (("up", "de", lines[0], kept[:4]), ("en", "up", lines[1], kept[4:])):
            asked = {"q": texts, "source": source, "target": target}
            assert client.post("/translate", json=asked).json()["translatedText"] == want
            line = {"model": served.name, "line": texts[0], "source": source, "target": target}
            assert client.post("/page/translate", json=line).json()["outputs"][0]["text"] == want[0]
        refused = client.post("/translate", json={"q": "a", "source": "de", "target": "up"})
        assert refused.status_code == 400 and "up to de, but not de to up" in refused.json()["error"]
    scores = translator.score([f"<2de> {line}" for line in lines[0]], kept[:4])
    for here, there in zip(translator.score(lines[0], kept[:4], target_language="de"), scores, strict=True):
        torch.testing.assert_close(here.log_probs, there.log_probs)
    (got,) = translator.align(["OPEN THE FILE"], ["Datei"], target_language="de")
    assert [*got.words.source] == ["OPEN", "THE", "FILE"]

    main(["translate", str(x.run), str(corpus / "test.up"), "--target-language", "de"])
    assert capsys.readouterr().out.removesuffix("\n").split("\n") == kept[:4]
    caplog.clear()
    assert len(translator(["<2de> HERE", "", "THERE"])) == 3
    (record,) = caplog.records
    assert "--target-language" in record.getMessage() and "the first of them line 3" in record.getMessage()
    named = replace(x, run=tmp_path / "other", decoding=replace(x.decoding, target_language="de"))
    with pytest.raises(ValueError, match=r"decoding\.target_language=de"):
        run(named)
    with pytest.raises(ValueError, match="a language is named and line 1 has the tag <2en>: '<2en> HERE'"):
        translator(["<2en> HERE"], target_language="de")
    with pytest.raises(ValueError, match="a language must be one that the model writes"):
        translator(["HERE"], target_language="fr")
