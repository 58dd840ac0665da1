"""The recipe from end to end, with a model too small to be good."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from make_shards import write_shard
from safetensors.numpy import load_file

import transduce as td
from recipes.language_model import COMMANDS, GPT2, SETTINGS, SHAKESPEARE, SHAKESPEARE_CPU, decoder, run
from tests.recipes.interrupt import interrupt
from transduce.cli.common import Machine
from transduce.cli.generate import generate, score_perplexity
from transduce.cli.jobs import Division
from transduce.data.text.language import OneText, Shards, TextFiles, encode_text
from transduce.data.text.tokenizers import load_tokenizer, train_tokenizer
from transduce.experiment.run import with_vocabularies

LINES = ["To be, or not to be: that is the question.", "", "Whether 'tis nobler in the mind to suffer"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 6))
    return tmp_path / "data"


def small(run, data, **fields):
    training = replace(SHAKESPEARE_CPU.training, max_updates=8, validate_every=4)
    model = replace(COMMANDS.model, d_model=16, d_ff=32, n_heads=2, max_positions=11, dropout=0.2)
    generation = td.GenerationConfig(max_length=7)
    changes = {"corpus": OneText(data=data, valid_share=0.3), "training": training} | fields
    return replace(SHAKESPEARE_CPU, run=run, batch_size=4, model=model, generation=generation, device="cpu", **changes)


def test_a_run_directory_is_whole_and_its_parts_agree(tmp_path, data, capsys):
    scores = run(small(tmp_path / "run", data))
    out = capsys.readouterr().out
    kept = json.loads((tmp_path / "run" / "validation.json").read_text())
    text = (data / "input.txt").read_text()
    cut = text[int(len(text) * 0.7) :]
    assert kept == {**scores, "tokens": len(cut) - 1}
    assert f"bigram {scores['bigram.loss']:.4f} nats per token" in out and scores["bigram.loss"] < scores["loss"]
    assert {path.name for path in (tmp_path / "run").glob("[!.]*")} == {
        "MODEL_CARD.md", "config.json", "characters.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "validation.json", "report.html",
    }  # fmt: skip
    valid = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in valid if line["kind"] == "valid"]
    assert len(losses) == 2 and scores["loss"] == min(losses)  # the best checkpoint alone
    samples = (tmp_path / "run" / "samples" / "00000008.tsv").read_text().splitlines()
    before, after, drawn = samples[0].split("\t")
    before, after = (part.replace("\\n", "\n") for part in (before, after))
    assert cut.startswith(before + after) and len(before) == len(after) == 5  # half of the positions
    assert drawn

    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "valid.txt").write_text(cut)
    score_perplexity(
        tmp_path / "moved", tmp_path / "valid.txt", stride=11, machine=Machine(device="cpu"), division=Division()
    )
    told = capsys.readouterr().out
    assert float(re.search(r"([\d.]+) nats per token", told)[1]) == pytest.approx(scores["loss"], abs=1e-4)
    generator = td.load(tmp_path / "moved", device="cpu")
    assert isinstance(generator, td.Generator)
    config = td.GenerationConfig(max_length=6, seed=2)
    (want,) = generator(["To be"], config)
    generate(tmp_path / "moved", prompt=("To be",), generation=config, machine=Machine(device="cpu"))
    assert capsys.readouterr().out == f"To be{want}\n" and len(want) == 6


def test_two_passes_of_a_batch_may_be_compared(tmp_path, data, monkeypatch):
    """Dropout makes their predictions differ, and the log has by how much."""
    monkeypatch.setattr("transduce.train.log.EVERY", 4)
    x = small(tmp_path / "run", data)
    run(replace(x, training=replace(x.training, consistency=2.0)))
    lines = [json.loads(line) for line in (x.run / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["kind"] == "train"):
        assert line["consistency"] > 1e-6
        assert line["loss"] == pytest.approx(line["cross_entropy"] + 2 * line["consistency"], rel=1e-4)
    assert {line["kind"] for line in lines} == {"train", "valid"}


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, data, monkeypatch):
    straight = run(small(tmp_path / "straight", data))
    with monkeypatch.context() as patch:
        interrupt(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            run(small(tmp_path / "again", data))
    assert not (tmp_path / "again" / "model.safetensors").exists()
    assert (tmp_path / "again" / "checkpoints" / "00000006").is_dir()
    assert run(small(tmp_path / "again", data)) == straight
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "again"))
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    (data / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 7))
    with pytest.raises(ValueError, match=r"in .* this differs: data\.train: \w+ -> \w+; data\.valid: "):
        run(small(tmp_path / "again", data))


def with_multiple(config: td.TransformerConfig, multiple: int) -> td.TransformerConfig:
    table = replace(config.decoder.input, multiple=multiple)
    return replace(config, decoder=replace(config.decoder, input=table))


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_text_files_with_bpe(tmp_path, data, kind, capsys):
    files = TextFiles(train=(data / "input.txt",), valid=(data / "input.txt",))
    x = small(tmp_path / "run", data, corpus=files, tokenizer=kind, vocab_size=300)
    x = replace(x, model=with_multiple(x.model, 128))
    scores = run(x)
    assert all(math.isfinite(value) for value in scores.values())
    generator = td.load(tmp_path / "run", device="cpu")
    table = generator.model.config.decoder.input
    assert (table.vocab_size, table.padded_size) == (generator.tokenizer.vocab_size, 384)  # 300 or fewer pieces
    assert len(generator.model.output) == 384
    unpadded = run(replace(x, run=tmp_path / "unpadded", model=with_multiple(x.model, 1)))
    assert scores == pytest.approx(unpadded, rel=1e-4)
    capsys.readouterr()
    score_perplexity(
        tmp_path / "run", data / "input.txt", stride=11, machine=Machine(device="cpu"), division=Division()
    )
    told = float(re.search(r"([\d.]+) nats per token", capsys.readouterr().out)[1])
    assert told == pytest.approx(scores["loss"], abs=1e-4)


def test_shards(tmp_path, data):
    folder = tmp_path / "shards"
    folder.mkdir()
    text = (data / "input.txt").read_text()
    tokenizer = train_tokenizer("byte_bpe", [text], vocab_size=280)
    tokenizer.save(folder / "tokenizer.json")
    ids = encode_text(tokenizer, text)
    for name, part in (("train-00000", ids[:70]), ("train-00001", ids[70:]), ("valid-00000", ids[:60])):
        write_shard(folder / name, part, vocab_size=280, tokenizer=tokenizer.model, source=name)
    x = small(tmp_path / "a", data, corpus=Shards(data=folder, verify=True), batches_per_epoch=3, valid_windows=2)
    other, same = tmp_path / "other.json", tmp_path / "same.json"
    train_tokenizer("byte_bpe", [text], vocab_size=270).save(other)
    tokenizer.save(same)
    for kind, symbols in (("characters", ""), (other, ""), ("byte_bpe", "<2de>")):
        with pytest.raises(ValueError) as error:
            run(replace(x, tokenizer=kind, symbols=symbols))
        assert str(error.value) == (
            f"shards are ids of their own tokenizer, and {folder} has one of the kind byte_bpe, but there is "
            f"tokenizer={kind}, symbols={symbols!r}; use --tokenizer byte_bpe without --symbols, or make other shards: "
            "scripts/make_shards.py --tokenizer FILE"
        )
    assert Shards(data=folder).read(same, 0).tokenizer.model == tokenizer.model
    scores = run(replace(x, tokenizer="byte_bpe"))
    assert json.loads((tmp_path / "a" / "validation.json").read_text())["tokens"] == 2 * 11
    rows = torch.from_numpy(ids[:60].astype("int64")).unfold(0, 12, 22)  # 2 of the 5 windows of 11: every other
    with torch.no_grad():
        logits = td.load_model(tmp_path / "a")(target_in=rows[:2, :-1])
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:2, 1:].flatten())
    assert scores["loss"] == pytest.approx(want.item(), abs=1e-4)


def test_lines_are_texts_where_a_tokenizer_marks_both_ends(data):
    text = (data / "input.txt").read_text()
    kinds = {
        kind: train_tokenizer(kind, [text], vocab_size=300) for kind in ("characters", "byte_bpe", "sentencepiece")
    }
    ids = {kind: encode_text(tokenizer, text).tolist() for kind, tokenizer in kinds.items()}
    assert kinds["characters"].decode([ids["characters"]]) == [text]
    assert ids["byte_bpe"][0] == kinds["byte_bpe"].bos_id and kinds["byte_bpe"].decode([ids["byte_bpe"]]) == [text]
    rows = "".join(chr(i) for i in ids["sentencepiece"]).split(chr(2))[1:]
    assert all(row[-1] == chr(3) for row in rows)
    assert kinds["sentencepiece"].decode([[ord(c) for c in row[:-1]] for row in rows]) == [LINES[0], LINES[2]] * 6


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError) as error:
        TextFiles(train=(tmp_path,)).read("characters", 0)
    assert str(error.value) == (
        "a language model needs text to train on and text to validate on: give --train FILES and --valid FILES, "
        "but there are 1 and 0"
    )
    with pytest.raises(ValueError) as error:
        OneText(data=tmp_path).read("characters", 0)
    assert str(error.value) == f"the text must be DIR/input.txt with --data DIR, but --data is {tmp_path}"
    with pytest.raises(ValueError) as error:
        Shards().read("byte_bpe", 0)
    assert str(error.value) == ("shards lie in a folder: use --data DIR; scripts/make_shards.py makes them from text")
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        "a tokenizer is one of characters.json, tokenizer.json, tokenizer.model, tokenizer.imported.json, tokenizer.pronunciations.json, or a folder with one, "
        f"but {tmp_path} is neither"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_describes_a_model_that_can_be_built(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 300, joint=True)
    assert config.encoder is None and config.norm_position == "pre"
    assert config.positions == ("rotary" if name.startswith("shakespeare") else "learned")
    td.Transformer(replace(config, d_model=48, d_ff=8))


@pytest.mark.parametrize(
    ("setting", "n_layers", "d_model", "n_heads", "context"),
    [(SHAKESPEARE, 6, 384, 6, 256), (SHAKESPEARE_CPU, 4, 128, 4, 64)],
)
def test_characters_are_learned_by_models_of_nanogpts_sizes(setting, n_layers, d_model, n_heads, context):
    """Without its table of positions, and with a gate in the feed-forward, as many parameters but for a percent."""
    nanogpt = decoder(n_layers=n_layers, d_model=d_model, n_heads=n_heads, context=context, dropout=0.0)
    ours, theirs = (
        sum(p.numel() for p in td.Transformer(with_vocabularies(config, 65, 65, joint=True)).parameters())
        for config in (setting.model, nanogpt)
    )
    assert theirs == 65 * d_model + context * d_model + n_layers * (12 * d_model**2 + 2 * d_model) + d_model
    assert ours == pytest.approx(theirs - context * d_model, rel=0.01)


def test_gpt2_has_the_size_of_its_paper_and_47_rows_that_make_its_table_a_multiple_of_128():
    with torch.device("meta"):
        model = td.Transformer(GPT2.model)
    d, v, t = 768, 50257, 1024
    layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d
    assert v * d + t * d + 12 * layer + 2 * d == 124_439_808 and (v + 47) % 128 == 0
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + 47 * d


def test_a_named_tokenizer_is_used_and_symbols_are_tokens(tmp_path, data):
    tokenizer = train_tokenizer("byte_bpe", [(data / "input.txt").read_text()], vocab_size=280)
    tokenizer.save(tmp_path / "mine.json")
    run(small(tmp_path / "run", data, tokenizer=tmp_path / "mine.json", symbols="<2de>"))
    assert load_tokenizer(tmp_path / "run").model == tokenizer.with_symbols(["<2de>"]).model
    run(small(tmp_path / "trained", data, tokenizer="byte_bpe", vocab_size=270, symbols="<2de>"))
    trained = load_tokenizer(tmp_path / "trained")
    assert trained.vocab_size == 270 and trained.tokens(trained.encode(["<2de>"])[0]) == ["<2de>"]


def test_more_updates_have_the_schedule_of_their_number_or_one_of_their_own(tmp_path, data, capsys, monkeypatch):
    """A cosine that has ended goes up to where a longer one would be; in a run that starts from it, it begins anew."""
    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    peak, last, warmup = 2e-3, 1e-4, 3
    optim = replace(SHAKESPEARE_CPU.training.optim, peak_rate=peak, final_rate=last, warmup_steps=warmup)

    def rates(name, updates, **more):
        x = small(tmp_path / name, data, **more)
        run(replace(x, training=replace(x.training, optim=optim, max_updates=updates)))
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [line["rate"] for line in lines if line["kind"] == "train"]

    def formula(update, updates):
        done = (update - warmup) / (updates - warmup)
        cosine = last + (peak - last) * (1 + math.cos(math.pi * done)) / 2
        return peak * update / warmup if update < warmup else cosine

    short = [formula(update, 8) for update in range(1, 9)]
    assert rates("run", 8) == pytest.approx(short)
    assert "goes on" not in capsys.readouterr().out
    assert rates("new", 8, start_from=tmp_path / "run") == pytest.approx(short)
    assert f"starts from {tmp_path / 'run'}: " in capsys.readouterr().out
    assert rates("run", 12) == pytest.approx(short + [formula(update, 12) for update in range(9, 13)])
    assert (
        f"goes on after update 8, in a schedule of 12 updates: the rate was 0.0001 and is now {formula(9, 12):.3g}; for a "
        f"schedule of its own: --start-from {tmp_path / 'run'} --run NEW\n"
    ) in capsys.readouterr().out
