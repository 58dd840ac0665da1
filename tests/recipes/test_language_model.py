"""The recipe of language models: one training from end to end, and what its fields become."""

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch

import transduce as td
from recipes.language_model import GPT2, SETTINGS, SHAKESPEARE, SHAKESPEARE_CPU, decoder, run
from tests.recipes.small import LINES, generator as small, loss_parts, metrics
from transduce.cli.common import Machine
from transduce.cli.likelihood import score_perplexity
from transduce.cli.main import main
from transduce.config import with_fields
from transduce.data.language import OneText, TextFiles, encode_text
from transduce.data.shards import Shards, write_shard
from transduce.data.tokenizer_files import load_tokenizer, train_tokenizer
from transduce.experiment.config import with_vocabularies


def test_run_directory_is_complete_and_consistent(language_run, running_text, tmp_path, capsys):
    directory, scores = language_run.run, language_run.scores
    kept = json.loads((directory / "validation.json").read_text())
    text = (running_text / "input.txt").read_text()
    cut = text[int(len(text) * 0.7) :]
    assert kept == {**scores, "tokens": len(cut) - 1}
    assert f"bigram {scores['bigram.loss']:.4f} nats per token" in language_run.printed
    assert scores["bigram.loss"] < scores["loss"]
    assert {path.name for path in directory.glob("[!.]*")} == {
        "MODEL_CARD.md", "config.json", "characters.json", "model.safetensors", "metrics.jsonl", "learning_curve.png", "samples",
        "tensorboard", "checkpoints", "validation.json", "report.html",
    }  # fmt: skip
    losses = [line["loss"] for line in metrics(directory, "valid")]
    assert len(losses) == 2 and scores["loss"] == min(losses)  # the best checkpoint alone
    samples = (directory / "samples" / "00000002.tsv").read_text().splitlines()
    before, after, drawn = samples[0].split("\t")
    before, after = (part.replace("\\n", "\n") for part in (before, after))
    assert cut.startswith(before + after) and len(before) == len(after) == 5  # half of the positions
    assert drawn

    moved = shutil.copytree(directory, tmp_path / "moved")
    (tmp_path / "valid.txt").write_text(cut)
    machine = Machine(device="cpu")
    score_perplexity(moved, tmp_path / "valid.txt", stride=11, machine=machine)
    out = capsys.readouterr().out
    assert float(re.search(r"([\d.]+) nats per token", out)[1]) == pytest.approx(scores["loss"], abs=1e-4)
    generator = td.load(moved, device="cpu")
    assert isinstance(generator, td.Generator)
    (want,) = generator(["To be"], td.GenerationConfig(max_length=6, seed=2))
    assert (
        main(["generate", str(moved), "--prompt", "To be", "--max-length", "6", "--seed", "2", "--device", "cpu"]) == 0
    )
    assert capsys.readouterr().out == f"To be{want}\n" and len(want) == 6


def test_validation_samples_ignore_min_length(running_text, tmp_path, untrained):
    """Half of the positions, which are the decoder's."""
    x = small(tmp_path / "run", running_text, generation=td.GenerationConfig(min_length=50))
    trainer = untrained(run, with_fields(x, model={"decoder": {"max_positions": 8}}))
    assert trainer.data.context == 8
    assert {len(drawn.replace("\\n", "\n")) for *_, drawn in trainer.validation().samples} == {4}


def test_invalid_generation_settings_are_refused_before_training(running_text, tmp_path):
    x = small(tmp_path / "run", running_text, generation=td.GenerationConfig(suppress=(999,)))
    with pytest.raises(ValueError, match=r"^suppress and logit_bias take ids from 0 to \d+ .*, but one has 999; leave"):
        run(x)
    assert not x.run.exists()


def test_resume_with_other_data_is_refused(language_run, running_text, tmp_path):
    data = shutil.copytree(running_text, tmp_path / "data")
    (data / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 7))
    copy = shutil.copytree(language_run.run, tmp_path / "run")
    with pytest.raises(ValueError, match=r"in .* this differs: data\.train: \w+ -> \w+; data\.valid: "):
        run(small(copy, data))


def test_consistency_loss_is_added(running_text, tmp_path, untrained):
    """Dropout makes their predictions differ."""
    x = small(tmp_path / "run", running_text)
    parts = loss_parts(untrained(run, replace(x, training=replace(x.training, consistency=2.0))))
    assert parts["consistency"] > 1e-6
    assert parts["loss"] == pytest.approx(parts["cross_entropy"] + 2 * parts["consistency"], rel=1e-4)


def with_multiple(config: td.TransformerConfig, multiple: int) -> td.TransformerConfig:
    table = replace(config.decoder.input, multiple=multiple)
    return replace(config, decoder=replace(config.decoder, input=table))


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_text_files_with_bpe(tmp_path, running_text, untrained, kind, capsys):
    """A padded table computes the same, and the run scores the text as the recipe does."""
    data, scores = running_text, []
    files = TextFiles(train=(data / "input.txt",), valid=(data / "input.txt",))
    x = small(tmp_path / "run", data, corpus=files, tokenizer=kind, vocab_size=300)
    x = replace(x, model=with_multiple(x.model, 128))
    untrained(lambda x: scores.append(run(x)), x)
    assert all(math.isfinite(value) for value in scores[0].values())
    generator = td.load(tmp_path / "run", device="cpu")
    table = generator.model.config.decoder.input
    assert (table.vocab_size, table.padded_size) == (generator.tokenizer.vocab_size, 384)  # 300 or fewer pieces
    assert len(generator.model.output) == 384
    unpadded = replace(x, run=tmp_path / "unpadded", model=with_multiple(x.model, 1))
    untrained(lambda x: scores.append(run(x)), unpadded)
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    capsys.readouterr()
    score_perplexity(tmp_path / "run", data / "input.txt", stride=11, machine=Machine(device="cpu"))
    loss = float(re.search(r"([\d.]+) nats per token", capsys.readouterr().out)[1])
    assert loss == pytest.approx(scores[0]["loss"], abs=1e-4)


def test_shards(tmp_path, running_text, untrained):
    data, scores = running_text, {}
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
            f"shards are ids of the tokenizer in their folder, a JSONTokenizer in {folder}, but there is "
            f"tokenizer={kind}, symbols={symbols!r}; leave these out, or make other shards: "
            "transduce data shards --tokenizer FILE"
        )
    language = Shards(data=folder).read(same, 0)
    assert language.tokenizer.model == tokenizer.model
    assert language.train.vocab_size == language.valid.vocab_size == 280
    (folder / "train-00000.bin").rename(folder / "train-00002.bin")
    with pytest.raises(ValueError) as error:
        Shards(data=folder).read(same, 0)
    assert str(error.value) == (
        f"shards are numbered from 0 without a gap, but {folder / 'train-00001.bin'} stands where train-00000.bin is "
        "missing; make it again with transduce data shards"
    )
    (folder / "train-00002.bin").rename(folder / "train-00000.bin")
    untrained(lambda x: scores.update(run(x)), replace(x, tokenizer="byte_bpe"))
    assert json.loads((tmp_path / "a" / "validation.json").read_text())["tokens"] == 2 * 11
    rows = torch.from_numpy(ids[:60].astype("int64")).unfold(0, 12, 22)  # 2 of the 5 windows of 11: every other
    with torch.no_grad():
        logits = td.load_model(tmp_path / "a")(target_in=rows[:2, :-1])
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:2, 1:].flatten())
    assert scores["loss"] == pytest.approx(want.item(), abs=1e-4)


def test_tokenizers_with_bos_and_eos_encode_line_by_line(running_text):
    text = (running_text / "input.txt").read_text()
    kinds = {
        kind: train_tokenizer(kind, [text], vocab_size=300) for kind in ("characters", "byte_bpe", "sentencepiece")
    }
    ids = {kind: encode_text(tokenizer, text).tolist() for kind, tokenizer in kinds.items()}
    assert kinds["characters"].decode([ids["characters"]]) == [text]
    assert ids["byte_bpe"][0] == kinds["byte_bpe"].bos_id and kinds["byte_bpe"].decode([ids["byte_bpe"]]) == [text]
    rows = "".join(chr(i) for i in ids["sentencepiece"]).split(chr(2))[1:]
    assert all(row[-1] == chr(3) for row in rows)
    assert kinds["sentencepiece"].decode([[ord(c) for c in row[:-1]] for row in rows]) == [LINES[0], LINES[2]] * 6


def test_missing_data_and_tokenizers_are_errors(tmp_path):
    with pytest.raises(ValueError) as error:
        TextFiles(train=(tmp_path,)).read("characters", 0)
    assert str(error.value) == (
        "a language model needs text to train on and text to validate on: give --train FILES and --valid FILES, "
        "but there are 1 and 0"
    )
    with pytest.raises(ValueError) as error:
        OneText(data=tmp_path).read("characters", 0)
    assert str(error.value) == f"the text must be DIR/input.txt with --data DIR, but {tmp_path} has none"
    with pytest.raises(ValueError) as error:
        Shards().read("byte_bpe", 0)
    assert str(error.value) == ("shards need a folder: use --data DIR; transduce data shards makes them from text")
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        "a tokenizer is one of characters.json, tokenizer.json, tokenizer.model, tokenizer.imported.json, tokenizer.pronunciations.json, or a folder with one, "
        f"but {tmp_path} is neither"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_builds_a_model(name):
    config = with_vocabularies(SETTINGS[name][1].model, 300, 300, joint=True)
    assert config.encoder is None and config.norm_position == "pre"
    assert config.positions == ("rotary" if name.startswith("shakespeare") else "learned")
    with torch.device("meta"):
        td.Transformer(config)


@pytest.mark.parametrize(
    ("setting", "n_layers", "d_model", "n_heads", "context", "n_tables"),
    [(SHAKESPEARE, 6, 384, 6, 256, 1), (SHAKESPEARE_CPU, 4, 128, 4, 64, 2)],
)
def test_shakespeare_models_have_the_sizes_of_nanogpt(setting, n_layers, d_model, n_heads, context, n_tables):
    """Without its table of positions, but in the small size with an output table, and with a gate in the feed-forward, as
    many parameters but for a percent."""
    nanogpt = decoder(n_layers=n_layers, d_model=d_model, n_heads=n_heads, context=context, dropout=0.0)
    with torch.device("meta"):
        models = [td.Transformer(with_vocabularies(config, 65, 65, joint=True)) for config in (setting.model, nanogpt)]
    ours, theirs = (sum(p.numel() for p in model.parameters()) for model in models)
    assert theirs == 65 * d_model + context * d_model + n_layers * (12 * d_model**2 + 2 * d_model) + d_model
    assert ours == pytest.approx(theirs + (65 * (n_tables - 1) - context) * d_model, rel=0.01)


def test_gpt2_has_its_papers_size_and_47_padded_rows():
    with torch.device("meta"):
        model = td.Transformer(GPT2.model)
    d, v, t = 768, 50257, 1024
    layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d
    assert v * d + t * d + 12 * layer + 2 * d == 124_439_808 and (v + 47) % 128 == 0
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + 47 * d


def test_given_tokenizer_and_symbols_are_used(tmp_path, running_text, untrained):
    data = running_text
    tokenizer = train_tokenizer("byte_bpe", [(data / "input.txt").read_text()], vocab_size=280)
    tokenizer.save(tmp_path / "mine.json")
    untrained(run, small(tmp_path / "run", data, tokenizer=tmp_path / "mine.json", symbols="<2de>"))
    assert load_tokenizer(tmp_path / "run").model == tokenizer.with_symbols(["<2de>"]).model
    untrained(run, small(tmp_path / "trained", data, tokenizer="byte_bpe", vocab_size=270, symbols="<2de>"))
    trained = load_tokenizer(tmp_path / "trained")
    assert trained.vocab_size == 270 and trained.tokens(trained.encode(["<2de>"])[0]) == ["<2de>"]


def test_a_recipe_runs_as_a_command(running_text, tmp_path, untrained):
    words = "language-model shakespeare_cpu --training.max-updates 2 --training.validate-every 1 --batch-size 2"
    model = "--model.d-model 16 --model.d-ff 32 --model.n-heads 2 --model.max-positions 8 --generation.max-length 3"

    def command(words):
        with pytest.raises(SystemExit) as stop:
            main(["train", *words])
        assert stop.value.code == 0

    where = ["--data", str(running_text), "--run", str(tmp_path / "run")]
    trainer = untrained(command, [*words.split(), *model.split(), *where])
    assert trainer.config.max_updates == 2 and trainer.model.config.d_model == 16
    assert (tmp_path / "run" / "validation.json").is_file()
    plain = json.loads((tmp_path / "run" / "config.json").read_text())
    assert plain["experiment"]["training"]["max_updates"] == 2
