"""A language model beside what translates and transcribes: against the sum of both alone."""

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.decode.test_ngram import by_rule, plain
from tests.kernels import needs_cpp
from tests.language_runs import language_model
from tests.runs import ENGLISH, GERMAN, record, sentences
from tests.tasks.test_ensemble import whole_model
from tests.tasks.test_search import SHORT
from transduce.cli.main import main
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.files import save_weights
from transduce.run import Run, load_run, save_run

DOUBLE = {"dtype": torch.float64}
CPU = ["--device", "cpu"]
WEIGHT = 0.7


def language_model_of(run: Path, directory: Path) -> Path:
    """A run with the target tokenizer of another, in a file that is not the same but holds the same."""
    tokenizer = load_run(run).target_tokenizer
    model = language_model(tokenizer.vocab_size)
    save_run(directory, Run(model.config, {}, None, tokenizer))
    save_weights(directory / "model.safetensors", model)
    return directory


def arpa_of(run: Path, path: Path, lines: list[str], capsys) -> Path:
    """One- and two-grams of lines as `transduce tokenize` writes them, with add-one counts: words are tokens."""
    (path.parent / "text").write_text("\n".join(lines) + "\n")
    assert main(["tokenize", str(run), str(path.parent / "text")]) == 0
    rows = [["<s>", *line.split(), "</s>"] for line in capsys.readouterr().out.splitlines()]
    words = {word for row in rows for word in row}
    pairs = {pair for row in rows for pair in pairwise(row)}
    one = "".join(f"{-1 - i % 7 / 4}\t{word}\t{-i % 5 / 9}\n" for i, word in enumerate(sorted(words)))
    two = "".join(f"{-i % 6 / -5 - 0.05}\t{' '.join(pair)}\n" for i, pair in enumerate(sorted(pairs)))
    path.write_text(f"\\data\\\n\\1-grams:\n-3\t<unk>\n{one}\n\\2-grams:\n{two}\n\\end\\\n")
    return path


@pytest.fixture(scope="module")
def text(two_vocabularies) -> Path:
    return two_vocabularies


@pytest.fixture(scope="module")
def speech(speech_run) -> Path:
    return speech_run


@torch.no_grad()
def by_model(lm: Path, tokens: list[int]) -> float:
    out = torch.tensor(tokens)[:, None]
    logits = whole_model(lm)(target_in=torch.tensor([[BOS, *tokens[:-1]]]))[0]
    return logits.log_softmax(-1).gather(1, out).sum().item()


@pytest.mark.parametrize("kind", ["run", "arpa"])
@pytest.mark.parametrize("task", ["text", "speech"])
def test_outputs_have_the_weighted_sum_of_log_probs(task, kind, request, tmp_path, capsys):
    run = request.getfixturevalue(task)
    load = td.load_translator if task == "text" else td.load_transcriber
    inputs = ENGLISH[:2] if task == "text" else [r.audio for r in record(tmp_path, sentences(2))]
    if kind == "run":
        lm = language_model_of(run, tmp_path / "lm")
    else:
        lm = arpa_of(run, tmp_path / "lm.arpa", GERMAN if task == "text" else sentences(4), capsys)
    fused, alone = load(run, **DOUBLE, lm=lm), load(run, **DOUBLE)
    way = {"n_best": 3, "lm_weight": WEIGHT, "alpha": 0.0, "token_scores": True}
    if task == "text":
        got, plain_ones = fused.translate(inputs, SHORT, **way), alone.translate(inputs, SHORT, n_best=3, alpha=0.0)
    else:
        got = [t.segments[0].outputs for t in fused.transcribe(inputs, SHORT, **way)]
        plain_ones = [t.segments[0].outputs for t in alone.transcribe(inputs, SHORT, n_best=3, alpha=0.0)]
    assert [o.tokens for row in got for o in row] != [o.tokens for row in plain_ones for o in row]
    sources, n_checked = alone.sources(inputs), 0
    for source, outputs in zip(sources, got, strict=True):
        for output in outputs:
            tokens = [*output.tokens, *[EOS] * output.finished]
            source_rows = torch.tensor([source]) if isinstance(source, list) else source[None].double()
            with torch.no_grad():
                logits = whole_model(run)(source=source_rows, target_in=torch.tensor([[BOS, *tokens[:-1]]]))[0]
            own = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum().item()
            if kind == "run":
                more = by_model(lm, tokens)
            else:
                grams, words = plain(lm.read_text()), ["<s>", *alone.tokenizer.tokens(tokens)]
                words = [word if (word,) in grams else "<unk>" for word in words]
                more = math.log(10) * sum(by_rule(grams, (a,), b) for a, b in pairwise(words))
            assert output.log_prob == pytest.approx(own + WEIGHT * more, abs=1e-4)
            assert output.token_scores.log_prob == pytest.approx(own, abs=1e-4)
            n_checked += 1
    assert n_checked == 6
    assert fused(inputs, SHORT) == alone(inputs, SHORT)  # without a weight


@pytest.mark.parametrize("task", ["text", "speech"])
def test_the_command_line_takes_a_language_model(task, request, tmp_path, capsys):
    run = request.getfixturevalue(task)
    lm = language_model_of(run, tmp_path / "lm")
    inputs = [r.audio for r in record(tmp_path, sentences(2))]
    if task == "text":
        (tmp_path / "in.txt").write_text("\n".join(ENGLISH[:2]) + "\n")
    words = [str(tmp_path / "in.txt")] if task == "text" else list(map(str, inputs))
    words += ["--length-ratio", "0", "--length-extra", "7", "--no-repeat-ngram", "4", *CPU]
    command = ["translate" if task == "text" else "transcribe", str(run), *words]
    assert main([*command, "--lm", str(lm), "--lm-weight", "2"]) == 0
    want = td.load(run, lm=lm)(ENGLISH[:2] if task == "text" else inputs, SHORT, lm_weight=2.0)
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in want)
    if task == "speech":  # a segment each
        assert main([*command, "--lm", str(lm), "--lm-weight", "2", "--stream"]) == 0
        assert capsys.readouterr().out == "".join(f"{line}\n" for line in want)
    for some, reason in (
        (["--lm", str(lm)], f"lm={lm} and lm_weight=0.0"),
        (["--lm-weight", "2"], "there is no --lm and lm_weight=2.0"),
    ):
        assert main([*command, *some]) == 2
        assert f"--lm and --lm-weight go together, but {reason};" in capsys.readouterr().err


def test_partial_output_belongs_to_its_language_model(text, tmp_path, capsys):
    first, second = (language_model_of(text, tmp_path / name) for name in ("first", "second"))
    config = (second / "config.json").read_text()
    (second / "config.json").write_text(config.replace('"dropout": 0.0', '"dropout": 0.1'))
    (tmp_path / "in.txt").write_text(ENGLISH[0] + "\n")
    words = [
        "translate",
        str(text),
        str(tmp_path / "in.txt"),
        "--output",
        str(tmp_path / "out"),
        "--part",
        "1/1",
        *CPU,
        "--length-ratio",
        "0",
    ]
    assert main([*words, "--greedy", "--lm", str(first), "--lm-weight", "1"]) == 0
    assert main([*words, "--greedy", "--lm", str(second), "--lm-weight", "1"]) == 2
    assert "was begun with others: lm: " in capsys.readouterr().err


def test_incompatible_language_models_are_refused(text, letters_run, tmp_path):
    letters = letters_run
    (tmp_path / "wrong.arpa").write_text("nothing\n")
    for run, lm, message in (
        (text, letters, f"a language model must have the tokens of the run that it is used with, but {letters} has others than "
         f"{text}; train it with --tokenizer and the target's tokenizer file of that run"),
        (letters, letters, f"only a run that translates or transcribes takes a language model, but {letters} is a language model; use "
         "transduce generate"),
        (text, tmp_path / "none", f"a language model is a run directory or a file of n-grams, but {tmp_path / 'none'} does not exist; "
         "check the path"),
        (text, tmp_path / "wrong.arpa", f"{tmp_path / 'wrong.arpa'}: an n-gram model is an ARPA file whose 1-grams are the "
         "run's tokens, but 0 of its 0 1-grams are; make its text with transduce tokenize RUN"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            td.load(run, lm=lm)
    with pytest.raises(ValueError, match=f"{re.escape(str(text))} translates; use transduce translate$"):
        td.load(text, lm=text)
    message = "lm_weight needs a language model, but lm_weight=0.5 and none is loaded; name one with --lm, or td.load(RUN, lm=...)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        td.load(text)(ENGLISH[:1], lm_weight=0.5)


@needs_cpp
def test_language_model_stays_float32_beside_an_int8_run(text, tmp_path):
    lm, bos = language_model_of(text, tmp_path / "lm"), torch.tensor([BOS])
    translator = td.load(text, dtype=torch.int8, lm=lm)
    assert translator.engine.output.int8
    want = td.load_generator(lm).scorer(bos[:, None]).step(bos)
    torch.testing.assert_close(translator.lm.begin(1).step(bos), want, rtol=0, atol=0)
    assert len(translator(ENGLISH[:2], SHORT, lm_weight=WEIGHT)) == 2
