"""The command line as a user meets it: files and streams in, lines out, errors with a way out."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from safetensors.numpy import load_file, save_file

import transduce as td
from tests.runs import ENGLISH, LITTLE, random_run, random_speech_run
from transduce.cli.main import main
from transduce.cli.translate import TranslationSearch, TranslationSettings
from transduce.config import to_dict
from transduce.tasks import seq2seq
from transduce.train.state import Progress

LINES = [ENGLISH[0], "", ENGLISH[1], ENGLISH[2]]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_run(tmp_path_factory.mktemp("cli") / "run", model=LITTLE)


@pytest.fixture
def stdin(monkeypatch):
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


def test_alignments_scores_and_n_best_equal_those_of_python(run, stdin, capsys):
    """Pairs of words behind the text; in JSON the n best, with pairs, tokens and words."""
    ours = td.load(run).translate(LINES, length_ratio=0.5, n_best=2, alignments=True, token_scores=True)
    stdin("\n".join(LINES).encode() + b"\n")
    bounded = ["translate", str(run), "--length-ratio", "0.5", "--alignments"]
    assert main(bounded) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    assert rows == [[o.text, str(o.alignment or "")] for o, _ in ours]
    stdin("\n".join(LINES).encode() + b"\n")
    assert main([*bounded, "--n-best", "2", "--format", "json", "--token-scores"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    assert [each["source"] for each in objects] == LINES
    for each, outputs in zip(objects, ours, strict=True):
        for got, want in zip(each["outputs"], outputs, strict=True):
            assert (got["text"], got["score"], got["log_prob"]) == (want.text, want.score, want.log_prob)
            if not want.tokens:
                continue
            assert [tuple(pair) for pair in got["alignment"]] == want.alignment.pairs
            assert [token["token"] for token in got["tokens"]] == want.token_scores.tokens
            numbers = [token["log_prob"] for token in got["tokens"]]
            assert numbers == pytest.approx(want.token_scores.log_probs.tolist(), abs=1e-4)
            assert [word["word"] for word in got["words"]] == [word.text for word in want.words]
    assert main(["translate", str(run), "--token-scores"]) == 2
    message = "transduce: scores of tokens need --format json, but it is text; add --format json\n"
    assert capsys.readouterr().err == message


def test_attention_maps_agree_with_the_alignments(run, tmp_path, capsys, monkeypatch):
    """What is drawn, read by the labels beside it, gives the pairs that are printed."""
    drawn, attention_map = [], seq2seq.attention_map

    def draw(*parts):
        drawn.append(parts)
        if len(drawn) == 1:  # it takes half a second
            attention_map(*parts)

    monkeypatch.setattr(seq2seq, "attention_map", draw)
    lines = [line for line in LINES if line.strip()]
    (tmp_path / "in").write_text("".join(f"{line}\tMach den alten Brief auf. \n" for line in lines))
    command = ["translate", str(run), str(tmp_path / "in"), "--prefix", "--length-ratio", "0.5", "--device", "cpu"]
    assert main([*command, "--alignments"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.split("\n")]
    translator = td.load_translator(run)
    outputs = translator.translate(lines, length_ratio=0.5, prefix=["Mach den alten Brief auf. "] * len(lines))
    looks = translator.align(lines, [best for best, *_ in outputs])
    for number, look in enumerate(looks):
        look.draw(tmp_path / f"{number}.png", f"line {number}")
        weights, target, source, title, _ = drawn[number]
        assert re.fullmatch(rf"line {number}\nlayer \d of 2, mean over heads", title)
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(target)))
        words, pairs = [[i for i, token in enumerate(side) if token[0] == "▁"] for side in (source, target)], []
        for n, (a, b) in enumerate(pairwise([*words[1], len(target) - (target[-1] == "</s>")])):
            sums = [weights[a:b, c:d].sum() for c, d in pairwise([*words[0], len(source) - 1])]
            pairs.append(f"{sums.index(max(sums))}-{n}")
        assert len(pairs) > 4 and rows[number][1] == " ".join(pairs)
    assert imread(tmp_path / "0.png").std() > 0


@pytest.mark.parametrize("first", ["a", "-"])
def test_translate_reads_several_files_and_writes_one(run, stdin, tmp_path, capsys, monkeypatch, first):
    """One of them may be standard input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(f"{LINES[0]}\n\n")
    (tmp_path / "b").write_text(f"{LINES[2]}\n{LINES[3]}")
    stdin((tmp_path / "a").read_bytes())
    arguments = ["translate", str(run), first, "b", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--length-ratio", "0.5"]) == 0
    want = td.load(run)(LINES, length_ratio=0.5)
    assert (tmp_path / "out").read_text() == "".join(line + "\n" for line in want)
    assert capsys.readouterr().out == ""


def test_only_newlines_end_lines(run, stdin, capsysbinary):
    stdin("Open\u2028the\x0cletter.\r\n\n".encode())
    assert main(["translate", str(run), "--greedy"]) == 0
    out = capsysbinary.readouterr().out
    assert out.count(b"\n") == 2
    assert out.endswith(b"\n\n")


def test_n_best_and_scores(run, stdin, capsys):
    """More than the run's beam of 5 widens it."""
    n = 8
    stdin(f"{LINES[0]}\n{LINES[2]}\n".encode())
    assert main(["translate", str(run), "--n-best", str(n), "--scores", "--length-ratio", "0.5"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    assert len(rows) == 2 * n
    for some in (rows[:n], rows[n:]):
        scores = [float(score) for score, _ in some]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", ["-", "a"])
def test_a_line_that_is_not_utf8_is_reported_and_gives_a_blank_line(run, stdin, capsys, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    raw = f"{LINES[0]}\nb".encode() + b"\xe4d\n" + LINES[2].encode()
    (tmp_path / "a").write_bytes(raw)
    stdin(raw)
    with pytest.raises(SystemExit) as stop:
        main(["translate", str(run), name, "--greedy", "--length-ratio", "0"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert out.split("\n") == [*td.load(run)([LINES[0], "", LINES[2]], beam_size=1, length_ratio=0.0), ""]
    assert err == (
        f"transduce: text must be UTF-8, but {'standard input' if name == '-' else name}, line 2, byte 2 is 0xe4; "
        "convert the file from its encoding, with iconv -f ENCODING -t utf-8 (latin1, cp1250 or utf-16, for example)\n"
        "transduce: 1 of 3 lines could not be translated\n"
    )


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_standard_input_is_refused_with_advice(run, stdin, capsys, pack):
    stdin(pack("".join(f"{line}\n" for line in LINES).encode()))
    with pytest.raises(SystemExit) as stop:
        main(["translate", str(run), "--greedy"])
    assert stop.value.code == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "transduce: text must be UTF-8, but standard input is packed; send it through zcat, or xzcat"


def test_missing_runs_files_and_devices_are_named(run, tmp_path, capsys):
    missing = tmp_path / "missing.txt"
    for words, wrong in (([run, missing], missing), ([missing], missing), ([run, "--device", "abacus"], "'abacus'")):
        assert main(["translate", *map(str, words)]) == 2
        assert str(wrong) in capsys.readouterr().err


def test_an_empty_file_gives_an_empty_file(run, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert main(["translate", str(run), str(tmp_path / "empty"), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_describe_prints_size_vocabulary_and_fields(run, capsys):
    assert main(["describe", str(run)]) == 0
    out = capsys.readouterr().out
    n = sum(p.numel() for p in td.load_model(run).parameters())
    assert f"{n:,} parameters in model.safetensors" in out
    assert "source vocabulary: 330 tokens" in out
    assert f"  model.d_model = {LITTLE.d_model}\n" in out and "input:" not in out


def test_describe_prints_scores_first_and_at_most_40_lines(tmp_path, capsys):
    run = random_run(tmp_path / "run")
    scores = [
        {"search": s, "measure": "bleu", "value": v, "score": f"BLEU {v} sig"} for s, v in (("greedy", 4.5), ("b", 5))
    ]
    (run / "test.json").write_text(json.dumps(scores))
    (run / "validation.json").write_text('{"loss": 1.25, "perplexity": 3.5}')
    lines = [
        '{"update": 10, "epoch": 1, "kind": "valid", "bleu": 3.25, "loss": null, "skipped": 0}',
        '{"update": 12, "kind": "train"}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["describe", str(run)]) == 0
    short = capsys.readouterr().out.splitlines()
    assert short[:4] == [
        "test, greedy: BLEU 4.5 sig",
        "test, b: BLEU 5 sig",
        "validation: loss 1.25, perplexity 3.5",
        "last validation: update 10, epoch 2, bleu 3.25",
    ]
    assert len(short) <= 40
    assert main(["describe", str(run), "--all"]) == 0
    whole = capsys.readouterr().out.splitlines()
    n_hidden = len(set(whole) - set(short))
    assert set(short) - set(whole) == {f"and {n_hidden} more fields: transduce describe {run} --all"}
    assert "  seed = 3" in whole and f"  model.dropout = {td.transformer_tiny().dropout}" in whole


def test_describe_leaves_fields_out_where_scores_fill_the_screen(tmp_path, capsys):
    run = random_run(tmp_path / "run")
    scores = [
        {"search": "greedy", "measure": "bleu", "value": 1, "score": f"{i}: BLEU", "group": i} for i in "abcd" * 10
    ]
    (run / "test.json").write_text(json.dumps(scores))
    assert main(["describe", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[39] == "test, greedy: d: BLEU" and not [line for line in lines if line.startswith("  ")]


def test_describe_prints_the_input_of_a_speech_model(tmp_path, capsys):
    assert main(["describe", str(random_speech_run(tmp_path / "run"))]) == 0
    assert "input: 10 features x 2 frames = 20 numbers per position = d_model: straight in\n" in capsys.readouterr().out


def checkpoint(run: Path, update: int, weights: dict[str, np.ndarray], scores: str) -> None:
    path = run / "checkpoints" / f"{update:08d}"
    path.mkdir(parents=True)
    save_file(weights, path / "model.safetensors")
    (path / "state.json").write_text(f'{{"update": {update}, "validations": {scores}}}')


def test_average_is_the_mean_of_the_last_or_best(tmp_path, capsys):
    run = random_run(tmp_path / "run", model=LITTLE)
    first = load_file(run / "model.safetensors")
    for update, factor in ((10, 1.0), (20, 2.0), (30, 6.0)):
        weights = {name: factor * value for name, value in first.items()}
        checkpoint(run, update, weights, "[[10, 5.0], [20, 7.0], [30, 6.0]]")
    for arguments, mean in ((["--last", "3"], 3.0), (["--last", "1"], 6.0), (["--best", "2"], 4.0)):
        assert main(["average", str(run), *arguments, "--output", str(tmp_path / "mean")]) == 0
        for name, value in load_file(tmp_path / "mean").items():
            np.testing.assert_allclose(value, mean * first[name], rtol=1e-6)
    assert main(["average", str(run), "--last", "4"]) == 2
    assert main(["average", str(run)]) == 2
    assert capsys.readouterr().err == (
        f"transduce: an average takes at least 1 and at most all validated checkpoints, but --last or --best is 4, and {run} has 3\n"
        "transduce: name either --last N or --best N, but neither is given\n"
    )
    assert not (run / "model.before.safetensors").exists()
    assert main(["average", str(run), "--last", "2"]) == 0
    assert capsys.readouterr().out.endswith(f"the previous model is in {run / 'model.before.safetensors'}\n")
    for name, value in load_file(run / "model.before.safetensors").items():
        np.testing.assert_array_equal(value, first[name])
    name, value = next(iter(load_file(run / "model.safetensors").items()))
    np.testing.assert_allclose(value, 4.0 * first[name], rtol=1e-6)


def test_average_ranks_checkpoints_as_training_does(tmp_path, capsys, rng):
    """Of equal scores those with the lowest loss, and of equal losses the latest."""
    run = random_run(tmp_path / "run", model=LITTLE)
    weights = load_file(run / "model.safetensors")
    scores, losses = torch.randint(3, (2, 9), generator=rng).tolist()
    progress = Progress(update=9, validations=list(enumerate(map(float, scores), start=1)), losses=losses)
    for update in range(1, 10):
        checkpoint(run, update, weights, "[]")
    (run / "checkpoints" / "00000009" / "state.json").write_text(json.dumps(to_dict(progress)))
    for k in range(1, 10):
        assert main(["average", str(run), "--best", str(k)]) == 0
        best = ", ".join(map(str, reversed(progress.best(k))))
        assert capsys.readouterr().out.splitlines()[0].endswith(f": mean of the updates {best}")


def test_repeated_or_failed_averages_keep_the_model_before(tmp_path, capsys):
    run = random_run(tmp_path / "run", model=LITTLE)
    trained = (run / "model.safetensors").read_bytes()
    checkpoint(
        run, 10, {name: 2 * value for name, value in load_file(run / "model.safetensors").items()}, "[[10, 5.0]]"
    )
    for _ in range(2):
        assert main(["average", str(run), "--last", "1"]) == 0
        assert (run / "model.before.safetensors").read_bytes() == trained
    path = run / "checkpoints" / "00000010" / "model.safetensors"
    for output, problem in (
        (path, f"an output must not replace what is read, but {path} is {path}"),
        (run / "no" / "mean", f"an output's folder must exist, but {run / 'no'} does not"),
    ):
        assert main(["average", str(run), "--last", "1", "--output", str(output)]) == 2
        assert problem in capsys.readouterr().err
    os.truncate(path, 100)
    assert main(["average", str(run), "--last", "1"]) == 2
    assert (run / "model.before.safetensors").read_bytes() == trained


def test_an_average_drops_the_scores_of_the_model_before(tmp_path, capsys):
    run = random_run(tmp_path / "run", model=LITTLE)
    weights = load_file(run / "model.safetensors")
    scores = json.dumps([{"search": "greedy", "measure": "bleu", "value": 4.5, "score": "BLEU 4.5"}])
    for n, factor in enumerate((2.0, 1.0, 1.0), start=1):  # the third replaces nothing
        checkpoint(run, n, {name: factor * value for name, value in weights.items()}, f"[[{n}, 5.0]]")
        (run / "test.json").write_text(scores)
        (run / "test.errors.txt").write_text("the worst errors")
        assert main(["average", str(run), "--last", "1"]) == 0
        assert main(["describe", str(run)]) == 0
        shown = [capsys.readouterr().out, (run / "MODEL_CARD.md").read_text(), (run / "report.html").read_text()]
        replaced = n < 3
        assert [name for name in ("test.json", "test.errors.txt") if (run / name).exists()] == (
            [] if replaced else ["test.json", "test.errors.txt"]
        )
        assert ("BLEU 4.5" in shown[0]) != replaced and "BLEU 4.5" not in "".join(shown[1:])
        assert (run / "test.before.json").read_text() == scores
        assert (run / "test.errors.before.txt").is_file()


def test_options_override_only_their_fields_of_the_run():
    own = td.SearchConfig(beam_size=7, alpha=1.6, length_extra=3)

    def applied(*, greedy: bool = False, **settings) -> td.SearchConfig:
        search = TranslationSearch(greedy=greedy, settings=TranslationSettings(settings))
        return own.changed(**search.overrides())

    assert applied() == own
    assert applied(greedy=True) == td.SearchConfig(beam_size=1, alpha=1.6, length_extra=3)
    assert applied(alpha=0.0, n_best=2) == td.SearchConfig(beam_size=7, alpha=0.0, n_best=2, length_extra=3)


@pytest.mark.parametrize(
    ("command", "config", "without"),
    [
        (
            "translate",
            td.SearchConfig,
            {
                "ctc_weight",
                "max_seconds",
                "min_seconds",
                "margin",
                "timestamps",
                "words",
                "no_speech_threshold",
                "alignment_heads",
            },
        ),
        (
            "transcribe",
            td.SearchConfig,
            {"max_source_length", "split_length", "source_language", "target_language", "alignment_heads"},
        ),
        ("generate", td.GenerationConfig, set()),
    ],
)
def test_every_applicable_field_is_an_option_with_help(capsys, command, config, without):
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(config) if field.name not in without}
    assert flags <= set(out.split())
    assert not {f"--{name.replace('_', '-')}" for name in without} & set(out.split())
    bare = re.findall(r"(--[a-z-]+) (?:INT|FLOAT) (?:\(default: [\d.]+\) )?(?=--|╰)", out)
    assert bare == []


@pytest.mark.parametrize("raw", ["[{}]", "[1]", '{"loss": "much"}', "no JSON", "[" * 100_000])
def test_describe_works_with_malformed_scores(run, capsys, tmp_path, raw):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "test.json").write_text(raw)
    assert main(["describe", str(copy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].startswith(f"test: {copy / 'test.json'} is not in the format that recipes write (") and len(lines) > 5
    )
