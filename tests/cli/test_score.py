"""`transduce score`: files in, a score with its signature out."""

import gzip
import io
import re
import sys

import pytest

from transduce.cli.main import main
from transduce.score.measures import bleu

RIGHT = ["The cat sat on the mat", "and looked at\u2028the dog \x0c for a while", "a bird sang"]
GOOD = ["the cat sat on the mat", "and looked at\u2028the dog \x0c for a while", ""]
POOR = ["the cat sat on a hat", "and stared at a dog for a long while", "birds"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("ref", RIGHT), ("hyp", GOOD), ("other", POOR), ("cut", GOOD[:2]), ("empty", [])):
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "hyp.gz").write_bytes(gzip.compress((tmp_path / "hyp").read_bytes()))
    return tmp_path


def run(measure, *arguments):
    assert main(["score", measure, *arguments]) == 0


@pytest.fixture
def refusal(files, capsys):
    def run(*arguments):
        assert main(["score", "bleu", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.removeprefix("transduce: ").removesuffix("\n")

    return run


@pytest.mark.parametrize("hypotheses", ["hyp", "hyp.gz", "-"])
def test_scores_of_plain_gzip_and_standard_input(files, hypotheses, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((files / "hyp").read_bytes())))
    run("bleu", hypotheses, "ref")
    assert capsys.readouterr().out.splitlines() == [
        str(bleu(GOOD, RIGHT)),
        "over 3 lines; in brackets the 95 % interval, 1000 bootstrap resamples",
    ]


def test_line_separators_inside_lines_do_not_split_them(files, capsys):
    run("bleu", "ref", "ref", "--resamples", "0")
    assert capsys.readouterr().out.splitlines()[0].startswith("BLEU 100.00 nrefs:1|")


@pytest.mark.parametrize(("measure", "beginning"), [("bleu", "BLEU "), ("chrf", "chrF2 "), ("ter", "TER ")])
def test_every_metric_takes_several_references_and_lowercase(files, measure, beginning, capsys):
    run(measure, "hyp", "ref", "other", "--lowercase")
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(beginning)
    assert "nrefs:2|" in line
    assert "case:lc" in line
    run(measure, "hyp", "ref", "ref")
    assert "nrefs:2|" in capsys.readouterr().out


def test_paired_scores_print_the_difference_and_its_p_value(files, capsys):
    run("ter", "other", "ref", "--paired", "hyp")
    first, second, lines, verdict, meaning, rule = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"TER \d+\.\d\d \[.*\] nrefs:1\|.*  other", first)
    assert re.fullmatch(r"TER \d+\.\d\d \[.*\] nrefs:1\|.*  hyp", second)
    assert lines.startswith("over 3 lines;")
    higher = float(first.split()[1]) - float(second.split()[1])
    shown = re.fullmatch(r"difference (\+\d+\.\d\d) TER \(lower is better\), p = (\d\.\d{4})", verdict)
    assert float(shown[1]) == pytest.approx(higher, abs=0.011)
    assert f"{100 * float(shown[2]):.1f} % of test sets" in meaning
    assert rule == "Below 0.025, the difference is significant at the usual two-sided 5 % level."


def test_a_system_paired_with_itself_has_difference_0(files, capsys):
    run("bleu", "hyp", "ref", "--paired", "hyp.gz")
    assert "difference +0.00 BLEU (higher is better), p = 1.0000\n" in capsys.readouterr().out


def test_files_of_different_lengths_are_refused(refusal):
    assert refusal("cut", "ref") == (
        "hypotheses and references must have the same number of lines, but cut has 2 and ref has 3; "
        "look for lines lost, added or split on the way"
    )
    assert "hyp has 3 and cut has 2" in refusal("hyp", "ref", "--paired", "cut")
    assert refusal("empty", "empty") == "a score needs at least one line, but empty has none"


def test_hypotheses_named_json_are_refused(refusal):
    rule = "hypotheses must be text, one utterance or sentence a line, but hyp.json is named .json; "
    rule += "transduce transcribe --format text makes such a file; if it is one, rename it"
    assert refusal("hyp.json", "ref") == refusal("hyp", "ref", "--paired", "hyp.json") == rule


def test_missing_references_and_two_standard_inputs_are_refused(refusal):
    assert refusal("-") == "a score needs a reference, but only - was given; write HYP REF [REF2 ...]"
    assert refusal("-", "ref", "-") == ("standard input can be read once, but - stands for 2 files; name the others")


def test_bytes_that_are_not_utf8_are_refused_by_file_and_line(files, refusal):
    (files / "latin").write_bytes("fine\nna\u00efve\nfine\n".encode("latin-1"))
    assert "latin, line 2" in refusal("latin", "ref")
    assert "nowhere does not exist" in refusal("nowhere", "ref")
