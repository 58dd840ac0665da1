"""What given outputs score, and reranking by it, from the command line: against forced scores and sums by hand."""

import json
from pathlib import Path

import pytest

import transduce as td
from tests.language_runs import TEXT, language_run
from tests.runs import ENGLISH, GERMAN, LITTLE, random_run, random_speech_run, record, sentences
from tests.tasks.test_search import SHORT
from transduce.cli.main import main

CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("likelihood")
    for seed in (3, 4):
        random_run(folder / f"text{seed}", seed=seed, model=LITTLE)
    random_speech_run(folder / "speech")
    language_run(folder / "letters")
    record(folder, sentences(2))
    for name, lines in {
        "src": ENGLISH[:2],
        "hyp": GERMAN[:2],
        "said": sentences(2),
        "prose": [TEXT[0].split("\n")[1]],
    }.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize("case", ["text3 src hyp", "text3,text4 src hyp", "speech a.tsv said", "letters prose"])
def test_every_text_has_the_log_probability_of_its_tokens(case, folder, capsys, monkeypatch):
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


def test_a_list_is_ranked_by_the_weighted_sum_of_both_scores(folder, tmp_path, capsys):
    """The list that translate writes; a second model in turn reads what the first one wrote."""
    words = ["--n-best", "3", "--scores", "--length-ratio", "0", "--length-extra", "7", *CPU]
    assert main(["translate", str(folder / "text3"), str(folder / "src"), *words]) == 0
    (tmp_path / "nbest").write_text(capsys.readouterr().out)
    rows = [line.split("\t") for line in (tmp_path / "nbest").read_text().splitlines()]
    other, want = td.load_translator(folder / "text4"), []
    for start, line in ((0, ENGLISH[0]), (3, ENGLISH[1])):
        some = rows[start : start + 3]
        scores = other.score([line] * 3, [text for _, text in some])
        penalties = [((5 + len(each.tokens)) / 6) ** other.decoding.alpha for each in scores]
        sums = [
            0.5 * float(own) + 2 * each.log_prob / penalty
            for (own, _), each, penalty in zip(some, scores, penalties, strict=True)
        ]
        want += sorted(zip(sums, [text for _, text in some], strict=True), key=lambda pair: -pair[0])
    command = ["rerank", str(folder / "text4"), str(folder / "src"), str(tmp_path / "nbest"), *CPU]
    assert main([*command, "--weight", "2", "--own-weight", "0.5", "--all"]) == 0
    got = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [float(score) for score, _ in got] == pytest.approx([score for score, _ in want], abs=1e-3)
    assert sorted(text for _, text in got) == sorted(text for _, text in want)
    assert main([*command, "--weight", "-2", "--own-weight", "0"]) == 0
    worst = capsys.readouterr().out.splitlines()
    assert len(worst) == 2
    for line, text, start in zip(ENGLISH[:2], worst, (0, 3), strict=True):
        texts = [text for _, text in rows[start : start + 3]]
        scores = {
            t: s.log_prob / ((5 + len(s.tokens)) / 6) ** other.decoding.alpha
            for t, s in zip(texts, other.score([line] * 3, texts), strict=True)
        }
        assert scores[text] == pytest.approx(min(scores.values()))


def test_no_input_has_no_list(folder, tmp_path, capsys):
    (tmp_path / "none").touch()
    assert main(["rerank", str(folder / "text4"), str(tmp_path / "none"), str(tmp_path / "none"), *CPU]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score likelihood text3 src one", "every input has one given text, but there are 2 inputs in src and 1 lines in one"),
        ("score likelihood text3 src", "likelihood takes SRC and HYP of a run with an encoder, as text3 is, but got one file; name both"),
        ("score likelihood text3 - -", "standard input can be read once, but - stands for 2 files; name the others"),
        ("score likelihood text3 src src src", "likelihood takes SRC and HYP, or of a language model HYP alone, but got 3 files"),
        ("rerank text3 src bad", "every input has equally many texts, as translate --n-best N --scores writes them, but there are "
         "2 inputs in src and 3 lines in bad"),
        ("rerank speech a.tsv heard --backwards", "backwards asks how likely an input comes of an output, but this run takes "
         "sound; load one of text"),
        ("rerank letters src bad", "a text is scored with its input by a run with encoder and decoder, but letters has no encoder; "
         "name another run (score likelihood scores HYP alone by a language model)"),
        ("score likelihood letters src hyp", "a text is scored with its input by a run with encoder and decoder, but letters has "
         "no encoder; name another run (score likelihood scores HYP alone by a language model)"),
        ("rerank text3 src src", "a line of a list is a score, a tab and a text, as translate --n-best 5 --scores writes it, but "
         f"it is {ENGLISH[0]!r}"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(words, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "one").write_text("one\n")
    (folder / "bad").write_text("1\ta\n" * 3)
    (folder / "heard").write_text("1\ta\n" * 2)
    assert main([*words.split(), *CPU]) == 2
    assert message in capsys.readouterr().err


def test_what_is_reranked_in_python_keeps_all_but_its_score(folder):
    first, second = (td.load_translator(folder / f"text{seed}") for seed in (3, 4))
    lists = first.translate(ENGLISH[:2], SHORT, n_best=3)
    found = second.rerank(ENGLISH[:2], lists, own_weight=0.0)
    for outputs, ranked in zip(lists, found, strict=True):
        assert sorted(o.tokens for o in ranked) == sorted(o.tokens for o in outputs)
        assert sorted(o.log_prob for o in ranked) == sorted(o.log_prob for o in outputs)
        assert [o.score for o in ranked] == sorted((o.score for o in ranked), reverse=True)
    assert second.rerank(ENGLISH[:2], lists, weight=0.0) == lists


def test_backwards_it_is_the_input_that_is_scored(folder, tmp_path, capsys):
    """How likely each line comes of each of its outputs, by forced scores of the swapped pairs; the list's own score beside it."""
    lists = [["Hallo", "Guten Tag", "Nein"], ["Ja", "Zwei", "Drei Hunde"]]
    (tmp_path / "nbest").write_text("".join(f"{-i}\t{text}\n" for texts in lists for i, text in enumerate(texts)))
    other, want = td.load_translator(folder / "text4"), []
    for line, texts in zip(ENGLISH[:2], lists, strict=True):
        sums = [
            0.5 * -i + 3 * s.log_prob / ((5 + len(s.tokens)) / 6) ** other.decoding.alpha
            for i, s in enumerate(other.score(texts, [line] * 3))
        ]
        want.append(max(zip(sums, texts, strict=True)))
    command = ["rerank", str(folder / "text4"), str(folder / "src"), str(tmp_path / "nbest"), "--backwards", *CPU]
    assert main([*command, "--weight", "3", "--own-weight", "0.5"]) == 0
    assert capsys.readouterr().out.splitlines() == [text for _, text in want]
    assert main([*command, "--weight", "3", "--own-weight", "0.5", "--all"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [float(score) for score, _ in rows[::3]] == pytest.approx([score for score, _ in want], abs=1e-3)
