"""The recipe from end to end, with a model too small to be good."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace

import pytest
import sacrebleu
import sentencepiece
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

import transduce as td
from recipes.translation import COMMANDS, SETTINGS, run
from tests.runs import library_tokenizer
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.data.text.corpus import Files, Folder
from transduce.data.text.directions import Directions
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.experiment.command import choose
from transduce.experiment.run import with_vocabularies
from transduce.experiment.start import saved_tokenizers
from transduce.run import load_run
from transduce.tasks.shortlist import FILE
from transduce.train.config import LoRAConfig
from transduce.train.trainer import Trainer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corner of the corpus that ships."""
    folder = tmp_path_factory.mktemp("corpus")
    assert isinstance(COMMANDS.corpus, Folder)
    assert COMMANDS.corpus.data is not None
    for split, n in (("train", 300), ("valid", 12), ("test", 9)):
        for language in ("en", "de"):
            lines = (COMMANDS.corpus.data / f"{split}.{language}").read_text().split("\n")[:n]
            (folder / f"{split}.{language}").write_text("".join(line + "\n" for line in lines))
    return folder


def small(run, corpus, **fields):
    return replace(
        COMMANDS,
        run=run,
        corpus=Folder(data=corpus, valid="valid"),
        vocab_size=400,
        model=replace(COMMANDS.model, d_model=16, d_ff=32, n_heads=2),
        training=replace(COMMANDS.training, max_updates=6, validate_every=3, precision="bf16"),
        **fields,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    """The directory of a finished run, and its scores."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run(small(folder, corpus))


def test_lowercase_reads_without_capitals(corpus, finished, tmp_path, monkeypatch):
    """Capitals change nothing, and validation does not count those of the references."""
    monkeypatch.setattr("transduce.train.log.learning_curve", lambda metrics, path: None)  # pictures take time
    x = small(tmp_path / "run", corpus, lowercase=True)
    run(x)
    assert load_run(x.run).experiment["validate_by"] == "bleu.lowercase"
    translate = td.load(x.run)
    lines = (corpus / "test.en").read_text().splitlines()
    upper = [line.upper() for line in lines]
    assert translate(lines) == translate(upper)
    assert translate.source_tokenizer.encode(lines) == translate.source_tokenizer.encode(upper)
    with_capitals = td.load(finished[0]).source_tokenizer
    assert with_capitals.encode(lines) != with_capitals.encode(upper)

    with pytest.raises(
        ValueError, match=r"lowercase wants a tokenizer without capitals, but .*run keeps them; leave out"
    ):
        run(small(tmp_path / "other", corpus, lowercase=True, start_from=finished[0]))
    there = saved_tokenizers(tmp_path / "other", x.run, lowercase=True)
    assert there is not None and there[0].model == (x.run / "tokenizer.model").read_bytes()


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished run to go on with."""
    return shutil.copytree(finished[0], tmp_path / "run")


def test_the_card_of_a_run_has_its_scores_and_makes_it_again(finished, monkeypatch):
    directory, _ = finished
    card = (directory / "MODEL_CARD.md").read_text()
    assert all(f": {each['score']}\n" in card for each in json.loads((directory / "test.json").read_text()))
    (command,) = re.findall(r"^transduce train translation (.*)$", card, flags=re.MULTILINE)
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "argv", ["recipe", *command.split()])
    again = choose(SETTINGS, default="commands", description=None)
    experiment = json.loads((directory / "config.json").read_text())["experiment"]
    assert to_dict(replace(again, run=directory)) | {"data": experiment["data"]} == experiment


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "one per side"])
def test_a_run_directory_is_whole(tmp_path, corpus, joint, capsys):
    scores = run(small(tmp_path / "run", corpus, joint=joint))
    assert set(scores) == {f"{m}.{s}" for m in ("bleu", "bleu.lowercase", "chrf") for s in ("greedy", "beam5")}
    names = {path.name for path in (tmp_path / "run").glob("[!.]*")}
    tokenizers = {"tokenizer.model"} if joint else {"source.model", "target.model"}
    assert names == tokenizers | {
        "config.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples", "tensorboard",
        "MODEL_CARD.md", "checkpoints", "test.greedy.txt", "test.beam5.txt", "test.json", "test.errors.txt", "report.html",
    }  # fmt: skip
    assert all("|version:" in each["score"] for each in json.loads((tmp_path / "run" / "test.json").read_text()))
    valid = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in valid if line["kind"] == "valid"] == [3, 6]
    assert "% padding; left out: 0 blank, 0 too long" in capsys.readouterr().out

    (tmp_path / "run").rename(tmp_path / "moved")
    lines = (corpus / "test.en").read_text().removesuffix("\n").split("\n")
    kept = (tmp_path / "moved" / "test.beam5.txt").read_text().removesuffix("\n").split("\n")
    translator = td.load(tmp_path / "moved")
    assert translator(lines) == kept
    lengths = [len(ids) for ids in translator.source_tokenizer.encode((corpus / "train.en").read_text().splitlines())]
    assert min(lengths) < translator.decoding.split_length <= max(lengths)


def test_the_same_command_again_changes_nothing_and_another_is_refused(finished, copy, corpus):
    first = small(copy, corpus)
    assert run(first) == finished[1]
    assert (copy / "model.safetensors").read_bytes() == (finished[0] / "model.safetensors").read_bytes()
    with pytest.raises(ValueError) as error:
        run(replace(first, bpe_dropout=0.1))
    assert str(error.value) == (
        f"a run goes on with the configuration it began with, but in {copy} this differs: "
        f"bpe_dropout: 0.0 -> 0.1. Name another directory with --run, and --start-from {copy} to go on from its weights"
    )


def test_a_corpus_that_memory_need_not_hold_trains_and_goes_on_the_same_way(tmp_path, corpus, monkeypatch, capsys):
    """Pools of sixty pairs; the power goes in the second one, and nobody reads the text again."""
    for name in ("stored_pairs", "corpus"):
        monkeypatch.setattr(f"transduce.data.text.{name}.POOL", 60)
    straight, cut = (small(tmp_path / name, corpus, cache=tmp_path / "cache") for name in ("straight", "cut"))
    scores = run(straight)
    assert "300 pairs" in (said := capsys.readouterr().out) and " in 5 pools, each of which is an epoch; " in said
    update = Trainer._update

    def power_cut(trainer, *group, **more):
        if trainer.progress.update == 5:
            raise InterruptedError
        update(trainer, *group, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", power_cut)
        with pytest.raises(InterruptedError):
            run(cut)
    state = json.loads((tmp_path / "cut" / "checkpoints" / "00000003" / "state.json").read_text())
    assert state["epoch"] > 0
    monkeypatch.setattr("transduce.data.text.parallel._survey", lambda *_: pytest.fail("the text was read again"))
    assert run(cut) == scores
    first, second = (folder / "model.safetensors" for folder in (straight.run, cut.run))
    assert first.read_bytes() == second.read_bytes()


def test_a_run_that_goes_on_takes_its_own_tokenizers(finished, copy, corpus, monkeypatch):
    """Training them again takes minutes for a large corpus, and another version of the library may learn others."""

    def again(*_, **__):
        pytest.fail("a tokenizer was trained anew")

    monkeypatch.setattr(SentencePieceTokenizer, "train", again)
    assert run(small(copy, corpus)) == finished[1]


def newest(directory):
    """The weights at the end of a training; the finished model may be the one that it started from."""
    return load_file(max(directory.glob("checkpoints/*")) / "model.safetensors")


def test_a_run_starts_from_another_one(finished, tmp_path, corpus, monkeypatch, capsys):
    """With its tokenizer and all its weights; what is frozen stays, the rest goes on, and the source is left alone."""
    source, _ = finished
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}

    def again(*_, **__):
        pytest.fail("a tokenizer was trained anew")

    monkeypatch.setattr(SentencePieceTokenizer, "train", again)
    x = small(tmp_path / "tuned", corpus, start_from=source)
    run(replace(x, training=replace(x.training, freeze=("encoder", "target_input"))))
    assert f"starts from {source}: " in capsys.readouterr().out
    old, new = load_file(source / "model.safetensors"), newest(tmp_path / "tuned")
    assert old.keys() == new.keys()
    frozen = {name for name in old if name.startswith("encoder.")} | {"output"}  # the table that all share
    assert {name for name in old if (old[name] == new[name]).all()} == frozen
    assert (tmp_path / "tuned" / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_low_rank_changes_are_merged_into_the_finished_model(finished, tmp_path, corpus, capsys):
    """It loads like any other; the same command again finds it finished, and a third run starts from it."""
    x = small(tmp_path / "tuned", corpus, start_from=finished[0])
    x = replace(x, training=replace(x.training, lora=LoRAConfig(rank=2, maps=("q", "wide"))))
    scores = run(x)
    layers = 2 * x.model.encoder.n_layers  # of both sides, each with q and wide, the decoder's with cross.q too
    trained = layers * (2 * (16 + 16) + 2 * (16 + 32)) + layers // 2 * 2 * (16 + 16)
    old, new = load_file(finished[0] / "model.safetensors"), newest(tmp_path / "tuned")
    frozen = sum(weight.size for weight in old.values())
    assert f"trained: {trained:,} parameters; frozen: {frozen:,}\n" in capsys.readouterr().out
    assert old.keys() == new.keys()
    changed = {name for name in old if (old[name] != new[name]).any()}
    assert {name.split(".", 3)[3] for name in changed} == {
        "attention.qkv.weight", "cross.q.weight", "feed_forward.wide.weight",
    }  # fmt: skip
    kv = "decoder.layers.0.attention.qkv.weight"
    assert (old[kv][16:] == new[kv][16:]).all() and (old[kv][:16] != new[kv][:16]).any()
    assert run(x) == scores
    assert len(td.load(tmp_path / "tuned")(["Open the letter."])) == 1
    run(small(tmp_path / "third", corpus, start_from=tmp_path / "tuned"))
    assert f"starts from {tmp_path / 'tuned'}: {len(new)} of {len(new)} tensors; new: none\n" in capsys.readouterr().out


@pytest.mark.long
def test_a_tokenizer_of_a_file_keeps_vectors_of_another_run(finished, tmp_path, corpus, capsys):
    """Unigram with T5's special ids; the same command goes on without the file, and symbols are pieces."""
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus / "train.en"), model_prefix=str(tmp_path / "my"), model_type="unigram", vocab_size=90,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    x = small(tmp_path / "run", corpus, tokenizer=(tmp_path / "my.model",), symbols="<2de>", start_from=finished[0])
    scores = run(x)
    assert re.search(r"\ntarget: \d+ of 92 pieces keep their vectors\n", capsys.readouterr().out)  # its 90, <s>, <2de>
    (tmp_path / "my.model").unlink()
    assert run(x) == scores
    translator = td.load(tmp_path / "run")
    assert translator.source_tokenizer.tokens(translator.source_tokenizer.encode(["<2de>"])[0])[-1] == "<2de>"
    assert len(translator(["Open the letter."])) == 1


@pytest.mark.parametrize("kinds", [("unigram",), ("bpe", "sentencepiece")])
def test_json_of_the_library_tokenizers_in_place_of_sentencepiece(
    finished, tmp_path, corpus, kinds, capsys, monkeypatch
):
    """Its ids are what the model reads and writes, whatever its special tokens are, and it lies in the run directory.

    A greedy search with the library itself says what the translation is.
    """
    monkeypatch.setattr("transduce.train.log.learning_curve", lambda metrics, path: None)  # pictures take time
    monkeypatch.setattr("transduce.experiment.validation._aligned", lambda *_: {})
    english = (corpus / "train.en").read_text().splitlines()
    library, files = library_tokenizer(kinds[0], english), [tmp_path / "my.json"]
    library.save(str(files[0]))
    if len(kinds) > 1:
        files.append(finished[0] / "tokenizer.model")
    x = small(tmp_path / "run", corpus, tokenizer=tuple(files), start_from=finished[0])
    training = replace(x.training, max_updates=2, validate_every=2, precision="fp32", keep_last=1)
    ours = [corpus / f"{split}.{language}" for split in ("valid", "test") for language in ("en", "de")]  # few lines
    names = ("train_source", "train_target", "valid_source", "valid_target")
    x = replace(x, corpus=Files(**dict(zip(names, ours, strict=True))), training=training)
    run(x)
    told = capsys.readouterr().out
    names = {path.name for path in x.run.glob("*.json")} & {"tokenizer.json", "source.json", "target.json"}
    assert names == ({"tokenizer.json"} if len(kinds) == 1 else {"source.json"})
    before, *_ = saved_tokenizers(finished[0])
    kept = len(set(library.get_vocab()) & set(before.tokens(range(before.vocab_size))))
    side = "target" if len(kinds) == 1 else "source"  # a table that all share is told of once
    assert f"{side}: {kept} of {library.get_vocab_size()} pieces keep their vectors" in told and kept > 30
    files[0].unlink()
    run(x)  # goes on without it

    translator, model = td.load(x.run), td.load_model(x.run)
    target = library if len(kinds) == 1 else None
    bos, eos, pad, unk = map(library.token_to_id, ("<s>", "</s>", "<pad>", "<unk>")) if target else (2, 3, 0, 1)
    for line in (corpus / "test.en").read_text().splitlines()[:3]:
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


def test_the_recipe_learns_a_shortlist_of_what_it_trained_on(finished, copy, tmp_path, corpus, monkeypatch):
    """The same table as the command makes of the same text, in the run directory, with which the run translates."""
    monkeypatch.setattr("transduce.train.log.learning_curve", lambda metrics, path: None)  # pictures take time
    monkeypatch.setattr("transduce.experiment.validation._aligned", lambda *_: {})
    x = small(tmp_path / "with", corpus, shortlist=True, start_from=finished[0])
    sides = [corpus / f"{split}.{language}" for split in ("valid", "test") for language in ("en", "de")]  # few lines
    names = ("train_source", "train_target", "valid_source", "valid_target")
    x = replace(x, corpus=Files(**dict(zip(names, sides, strict=True))))
    training = replace(x.training, max_updates=1, validate_every=1, precision="fp32", keep_last=1)
    assert run(replace(x, training=training)) == {}
    assert main(["shortlist", str(copy), *map(str, sides[:2])]) == 0
    got, want = (load_file(folder / FILE) for folder in (tmp_path / "with", copy))
    assert got.keys() == want.keys() and all((got[name] == want[name]).all() for name in want)
    assert not (finished[0] / FILE).exists()
    translator, line = td.load(tmp_path / "with"), ["Open the letter."]
    (source,) = translator.sources(line)
    ((output,),) = translator.translate(line, shortlist=True, length_ratio=0.0, length_extra=9)
    assert set(output.tokens) <= {*got["always"].tolist(), *got["table"][source].flatten().tolist()}


def test_two_passes_of_a_batch_may_be_compared(tmp_path, corpus, monkeypatch):
    """Dropout makes their predictions differ, and the log has by how much."""
    monkeypatch.setattr("transduce.train.log.EVERY", 3)
    x = small(tmp_path / "run", corpus, decoding=td.SearchConfig(beam_size=1))
    run(replace(x, training=replace(x.training, consistency=2.0, max_updates=3)))
    lines = [json.loads(line) for line in (x.run / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["kind"] == "train"):
        assert line["consistency"] > 1e-6
        assert line["loss"] == pytest.approx(line["cross_entropy"] + 2 * line["consistency"], rel=1e-4)
    assert {line["kind"] for line in lines} == {"train", "valid"}


def test_another_run_teaches(finished, tmp_path, corpus, monkeypatch):
    """What it predicts is in the log; a run of other tokens is refused, and so is what is no run."""
    monkeypatch.setattr("transduce.train.log.EVERY", 3)
    tokens = (finished[0] / "tokenizer.model",)
    x = small(tmp_path / "run", corpus, tokenizer=tokens, decoding=td.SearchConfig(beam_size=1))
    run(replace(x, training=replace(x.training, teachers=(finished[0], finished[0]), max_updates=3)))
    lines = [json.loads(line) for line in (x.run / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["kind"] == "train"):
        assert line["distillation"] > 1e-6
        assert line["loss"] == pytest.approx((line["cross_entropy"] + line["distillation"]) / 2, rel=1e-4)
    assert {line["kind"] for line in lines} == {"train", "valid"}
    for teacher, changes, message in (
        (
            finished[0],
            {"vocab_size": 420},
            "but .* has other source tokens; train with --tokenizer and its tokenizer file",
        ),
        (tmp_path / "none", {"tokenizer": tokens}, "training.teachers: .*none does not exist"),
    ):
        y = replace(small(tmp_path / "other", corpus), **changes)
        with pytest.raises(ValueError, match=message):
            run(replace(y, training=replace(y.training, teachers=(teacher,))))


def test_another_measure_decides(tmp_path, corpus):
    run(small(tmp_path / "run", corpus, validate_by="chrf"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = [line["chrf"] for line in lines if line["kind"] == "valid"]
    state = json.loads((tmp_path / "run" / "checkpoints" / "00000006" / "state.json").read_text())
    assert [score for _, score in state["validations"]] == scores and len(scores) == 2


def test_the_finished_model_is_one_of_the_candidates(finished):
    """Of three: both checkpoints, and their mean, which is that of the best and that of the last."""
    folder, _ = finished
    three, six = (load_file(folder / "checkpoints" / f"{u:08d}" / "model.safetensors") for u in (3, 6))
    found = load_file(folder / "model.safetensors")
    candidates = [three, six, {name: (three[name] + six[name]) / 2 for name in three}]
    assert sum(all(abs(found[name] - each[name]).max() < 1e-6 for name in found) for each in candidates) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_describes_a_model_that_can_be_built(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 320, joint=False)
    assert config.tie == "output"
    td.Transformer(replace(config, d_model=32, d_ff=8))


def test_one_model_for_all_directions(tmp_path, corpus, capsys, caplog):
    """Lines begin with a tag, or the tag is put there; either way the outputs are the same, and words are the line's own."""
    corpus = shutil.copytree(corpus, tmp_path / "corpus")
    for split in ("train", "valid", "test"):
        lines = (corpus / f"{split}.en").read_text().splitlines()
        (corpus / f"{split}.up").write_text("".join(line.upper() + "\n" for line in lines))
    trained = ("en-de", "de-en", "en-up", "up-en")
    languages = Directions(
        data=corpus, languages=("en", "de", "up"), directions=trained, test_directions=("up-de", "en-up"), valid="valid",
        valid_pairs=3,
    )  # fmt: skip
    x = replace(small(tmp_path / "run", corpus), corpus=languages)
    scores = run(x)
    assert {name for name in scores if name.startswith("bleu.greedy")} == {
        "bleu.greedy", "bleu.greedy.up-de", "bleu.greedy.en-up",
    }  # fmt: skip
    printed = capsys.readouterr().out
    kept = (tmp_path / "run" / "test.beam5.txt").read_text().removesuffix("\n").split("\n")
    references = [*(corpus / "test.de").read_text().splitlines(), *(corpus / "test.up").read_text().splitlines()]
    places = {None: slice(18), "up-de": slice(9), "en-up": slice(9, 18)}
    rows = json.loads((tmp_path / "run" / "test.json").read_text())
    assert all(f"  {row['score']}\n" in printed for row in rows)
    found = {row.get("group"): row for row in rows if (row["search"], row["measure"]) == ("beam5", "chrf")}
    assert found.keys() == places.keys()
    for group, own in places.items():
        assert found[group]["value"] == pytest.approx(sacrebleu.corpus_chrf(kept[own], [references[own]]).score)
        assert found[group]["score"].startswith(f"{group}: chrF") or group is None

    translator = td.load(tmp_path / "run")
    lines = [(corpus / f"test.{language}").read_text().splitlines() for language in ("up", "en")]
    assert [*translator(lines[0], target_language="de"), *translator(lines[1], target_language="up")] == kept
    assert translator([f"<2de> {line}" for line in lines[0]]) == kept[:9]
    assert translator(lines[0], source_language="up", target_language="de") == kept[:9]
    told = translator.score([f"<2de> {line}" for line in lines[0]], kept[:9])
    for here, there in zip(translator.score(lines[0], kept[:9], target_language="de"), told, strict=True):
        torch.testing.assert_close(here.log_probs, there.log_probs)
    (found,) = translator.align(["OPEN THE FILE"], ["Datei"], target_language="de")
    assert [*found.words.source] == ["OPEN", "THE", "FILE"]

    main(["translate", str(tmp_path / "run"), str(corpus / "test.up"), "--target-language", "de"])
    assert capsys.readouterr().out.removesuffix("\n").split("\n") == kept[:9]
    caplog.clear()
    assert len(translator(["<2de> HERE", "", "THERE"])) == 3
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "and 1 of 3 lines do not say which, the first of them line 3: it guesses; name one with --target-language, or begin "
        "every line with a tag such as <2de>"
    )
    named = replace(x, run=tmp_path / "other", decoding=replace(x.decoding, target_language="de"))
    with pytest.raises(
        ValueError, match=r"say which language to write, but decoding\.target_language=de; leave it out"
    ):
        run(named)
    with pytest.raises(ValueError, match="a language is named and line 1 has the tag <2en>: '<2en> HERE'; leave one"):
        translator(["<2en> HERE"], target_language="de")
    with pytest.raises(ValueError, match="a language must be one that the model writes"):
        translator(["HERE"], target_language="fr")
