"""What given outputs score, from the command line: against forced scores."""

import json
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.language_runs import TEXT, any_tokenizer, language_model, language_run
from tests.runs import ENGLISH, GERMAN, LITTLE, random_run, random_speech_run, record, sentences
from transduce.cli.main import main
from transduce.tasks.generate import Generator

CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("likelihood")
    for seed in (3, 4):
        random_run(folder / f"text{seed}", seed=seed, model=LITTLE)
    random_speech_run(folder / "speech")
    language_run(folder / "letters")
    record(folder, sentences(2))
    (folder / "a.jsonl").write_text("".join(f'{{"audio": "a{i:02d}.wav", "text": "red"}}\n' for i in range(2)))
    for name, lines in {
        "src": ENGLISH[:2],
        "hyp": GERMAN[:2],
        "said": sentences(2),
        "prose": [TEXT[0].split("\n")[1]],
    }.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    "case", ["text3 src hyp", "text3,text4 src hyp", "speech a.tsv said", "speech a.jsonl said", "letters prose"]
)
def test_printed_scores_equal_those_of_the_python_api(case, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    run, *files = case.split()
    loaded, texts = td.load(run.split(",")), (folder / files[-1]).read_text().splitlines()
    sounds = [folder / f"a{i:02d}.wav" for i in range(2)]
    given = {"text3": [ENGLISH[:2]], "text3,text4": [ENGLISH[:2]], "speech": [sounds], "letters": []}[run]
    want = loaded.score(*given, texts)
    assert main(["score", "likelihood", run, *files, *CPU]) == 0
    assert capsys.readouterr().out == "".join(f"{each.log_prob:.4f}\t{len(each.tokens)}\n" for each in want)
    assert main(["score", "likelihood", run, *files, "--format", "json", *CPU]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, each in zip(rows, want, strict=True):
        assert [token["token"] for token in row["tokens"]] == each.tokens
        assert [token["log_prob"] for token in row["tokens"]] == pytest.approx(each.log_probs.tolist(), abs=1e-4)
        assert row["log_prob"] == pytest.approx(each.log_prob)


def test_a_blank_text_is_scored_by_its_end_token():
    """As a decoder without cache and without our scoring predicts it behind the beginning."""
    tokenizer = any_tokenizer("pieces")
    generator = Generator(language_model(tokenizer.vocab_size), tokenizer)
    bos, eos = tokenizer.required("bos_id", "eos_id")
    with torch.no_grad():
        want = generator.model(target_in=torch.tensor([[bos]]))[0, 0].log_softmax(-1)[eos]
    for text in ("", " \n"):
        (scores,) = generator.score([text])
        assert len(scores.tokens) == 1 and scores.log_prob == pytest.approx(want.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score likelihood text3 src one", "every input has one given text, but there are 2 inputs in src and 1 lines in one"),
        ("score likelihood text3 src", "likelihood takes SRC and HYP for a run with encoder and decoder, or HYP alone for a decoder, "
         "but got 1 files, and text3 has encoder and decoder; name other files, or another run"),
        ("score likelihood text3 - -", "standard input can be read once, but - stands for 2 files; name the others"),
        ("score likelihood text3 src src src", "but got 3 files, and text3 has encoder and decoder"),
        ("score likelihood letters src hyp", "but got 2 files, and letters has decoder; name other files"),
        ("score perplexity letters,letters prose", "perplexity is measured for one run, but letters,letters are 2; name one of them"),
        ("score likelihood letters prose --source-language en", "languages are for a run with an encoder, but letters "
         "is a language model, and got {'source_language': 'en'}; leave them out"),
    ],
)  # fmt: skip
def test_invalid_files_and_runs_are_refused(words, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "one").write_text("one\n")
    assert main([*words.split(), *CPU]) == 2
    assert message in capsys.readouterr().err
