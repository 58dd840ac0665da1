"""`transduce score wer | cer`: files in; a rate, its counts, groups and a report out."""

import gzip
import io
import json
import re
import sys

import pytest

from transduce.cli.main import main
from transduce.score.wer import cer, per, wer

RIGHT = ["The cat sat\u2028on the mat.", "show me the money, please", "", "good morning to you all", "fine"]
HYPOTHESES = ["the cart sat down on the", "show the money peas", "uh", "", "fine"]
OTHER = ["the cat sat on the mat", "show me the money please", "", "good morning to all", "fine"]
ROWS = [("u1", "ann", "31"), ("u2", "bob", "42"), ("u3", "ann", ""), ("u4", "bob", "47.5"), ("u5", "eve", "38")]


def lines(*texts):
    return "".join(f"{text}\n" for text in texts).encode()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [("id", "speaker", "age", "text"), *((*row, text) for row, text in zip(ROWS, RIGHT, strict=True))]
    manifest = lines(*("\t".join(row) for row in cells))
    for name, raw in {
        "hyp": lines(*HYPOTHESES),
        "other": lines(*OTHER),
        "ref": lines(*RIGHT),
        "cut": lines(*HYPOTHESES[:3]),
        "blank": lines("", "", "", "", ""),
        "m.tsv": manifest,
        "short.tsv": lines(*manifest.decode().split("\n")[:3]),
        "torn.tsv": lines("id\ttext", "u1\tone", "u2"),
        "empty.tsv": b"",
        "bare.tsv": lines("id\ttext"),
        "ref.gz": gzip.compress(lines(*RIGHT)),
        "m.tsv.gz": gzip.compress(manifest),
        "nemo.json": lines(*(json.dumps({"audio_filepath": "a.wav", "text": text}) for text in RIGHT)),
    }.items():
        (tmp_path / name).write_bytes(raw)
    return tmp_path


@pytest.fixture
def score(files, capsys):
    def run(*arguments):
        assert main(["score", *arguments]) == 0
        return capsys.readouterr().out.removesuffix("\n").split("\n")

    return run


@pytest.fixture
def refusal(files, capsys):
    def run(*arguments):
        assert main(["score", "wer", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.removeprefix("transduce: ").removesuffix("\n")

    return run


@pytest.mark.parametrize(
    ("unit", "measure", "noun", "reference"),
    [
        ("wer", wer, "words", "ref"),
        ("wer", wer, "words", "m.tsv"),
        ("wer", wer, "words", "nemo.json"),
        ("cer", cer, "characters", "ref.gz"),
        ("per", per, "phones", "m.tsv.gz"),
    ],
)
def test_rates_counts_and_utterances_are_printed(score, unit, measure, noun, reference):
    rate, counts, scored = score(unit, "hyp", reference)
    want = measure(HYPOTHESES, RIGHT)
    e = want.errors
    assert rate == str(want)
    assert counts == (
        f"{e.substitutions} substitutions, {e.insertions} insertions, {e.deletions} deletions "
        f"in {e.n_reference} reference {noun}"
    )
    assert scored == (
        "over 5 utterances, 1 (20.0 %) wholly right; in brackets the 95 % interval, 1000 bootstrap resamples"
    )


def test_standard_input_normalization_and_no_interval(score, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*HYPOTHESES))))
    rate, counts, scored = score("wer", "-", "ref", "--normalize", "--resamples", "0")
    assert re.fullmatch(r"WER 64\.71 case:lc\|norm:nfkc-nopunct\|unit:word\|jiwer:[\d.]+", rate)  # 11 of 17, by hand
    assert counts == "2 substitutions, 2 insertions, 7 deletions in 17 reference words"
    assert scored == "over 5 utterances, 1 (20.0 %) wholly right"


@pytest.mark.parametrize("where", [["m.tsv"], ["ref", "--manifest", "m.tsv"]], ids=["in REF", "beside REF"])
def test_rates_by_speaker_are_sorted_worst_first(score, where):
    assert score("wer", "hyp", *where, "--normalize", "--by", "speaker")[3:] == [
        "",
        "speaker  utterances  words    WER  S  I  D",
        "bob               2     10  70.00  1  0  6",
        "ann               2      6  66.67  1  2  1",
        "eve               1      1   0.00  0  0  0",
        "all               5     17  64.71  2  2  7",
    ]


def test_numbers_are_grouped_by_intervals(score):
    table = score("wer", "hyp", "m.tsv", "--normalize", "--by", "age:10")[4:]
    assert [row.split() for row in table] == [
        ["age:10", "utterances", "words", "WER", "S", "I", "D"],
        ["(blank)", "1", "0", "inf", "0", "1", "0"],
        ["40-49", "2", "10", "70.00", "1", "0", "6"],
        ["30-39", "2", "7", "42.86", "1", "1", "1"],
        ["all", "5", "17", "64.71", "2", "2", "7"],
    ]


def test_references_from_a_named_column(score, files):
    german = ["eins zwei", "drei"]
    (files / "de.tsv").write_bytes(lines("german\tid", *(f"{text}\tx" for text in german)))
    (files / "heard").write_bytes(lines("eins", "drei"))
    assert score("wer", "heard", "de.tsv", "--column", "german")[0] == str(wer(["eins", "drei"], german))


def test_references_from_csv_jsonl_and_other_column_names(score, files):
    """Each row is what CSV and JSON say it is, and columns may have the names of other tools."""
    cells = [(text.replace("\u2028", " "), speaker) for text, (_, speaker, _) in zip(RIGHT, ROWS, strict=True)]
    quoted = [f'"{text}",{speaker}' for text, speaker in cells]
    (files / "m.csv").write_bytes(lines("text,speaker", *quoted))
    (files / "cv.tsv").write_bytes(lines("sentence\tclient_id", *map("\t".join, cells)))
    records = [f'{{"text": "{text}", "speaker": "{speaker}"}}' for text, speaker in cells]
    (files / "m.jsonl").write_bytes(lines(*records))
    (files / "texts").write_bytes(lines(*(text for text, _ in cells)))
    want = score("wer", "hyp", "texts", "--manifest", "m.tsv", "--by", "speaker")
    for name in ("m.csv", "m.jsonl", "cv.tsv"):
        assert score("wer", "hyp", name, "--by", "speaker") == want
    rate = score("bleu", "hyp", "texts")
    for name in ("m.csv", "m.jsonl", "cv.tsv"):
        assert score("bleu", "hyp", name) == rate
    assert score("ter", "hyp", "cv.tsv", "--column", "sentence") == score("ter", "hyp", "texts")


def test_lone_surrogates_in_json_become_replacement_characters(score, files):
    (files / "half.jsonl").write_bytes(lines(r'{"text": "the mat\ud83d\u0000"}'))
    (files / "one").write_bytes(lines("the mat"))
    score("wer", "one", "half.jsonl", "--report", "report.txt")
    assert "mat\ufffd\ufffd" in (files / "report.txt").read_text(encoding="utf-8")


def test_a_report_has_rates_and_alignments_by_line_and_id(score, files):
    printed = score("wer", "hyp", "m.tsv", "--report", "report.txt")
    names = [f"line {i}, {row[0]}" for i, row in enumerate(ROWS, start=1)]
    report = (files / "report.txt").read_text(encoding="utf-8")
    assert report == "\n".join(printed) + "\n\n" + wer(HYPOTHESES, RIGHT, resamples=0).report(names)
    score("cer", "hyp", "ref", "--report", "report.txt")
    names = [f"line {i}" for i in range(1, 6)]
    aligned = cer(HYPOTHESES, RIGHT, resamples=0).report(names)
    assert (files / "report.txt").read_text(encoding="utf-8").endswith(aligned)


def test_paired_rates_print_the_difference_and_its_p_value(score):
    first, second, counts, _, verdict, meaning, _ = score("wer", "hyp", "ref", "--paired", "other")
    assert (first, second) == (f"{wer(HYPOTHESES, RIGHT)}  hyp", f"{wer(OTHER, RIGHT)}  other")
    assert counts.endswith("in 17 reference words")
    lead = wer(HYPOTHESES, RIGHT).value - wer(OTHER, RIGHT).value
    shown = re.fullmatch(r"difference (\+\d+\.\d\d) WER \(lower is better\), p = (\d\.\d{4})", verdict)
    assert float(shown[1]) == pytest.approx(lead, abs=0.005)
    assert f"{100 * float(shown[2]):.1f} % of test sets" in meaning
    assert "difference +0.00 WER (lower is better), p = 1.0000" in score("wer", "hyp", "ref", "--paired", "hyp")


def test_files_of_different_lengths_are_refused(refusal):
    assert "cut has 3 and ref has 5" in refusal("cut", "ref")
    assert "hyp has 5 and short.tsv has 2" in refusal("hyp", "short.tsv")
    assert "hyp has 5 and cut has 3" in refusal("hyp", "ref", "--paired", "cut")
    assert "ref has 5 and short.tsv has 2" in refusal("hyp", "ref", "--manifest", "short.tsv")
    for twice in (["-", "-"], ["-", "ref", "--paired", "-"], ["hyp", "-", "--manifest", "-"]):
        assert "standard input" in refusal(*twice)
    assert refusal("hyp", "ref", "--paired", "other", "--resamples", "0") == (
        "resamples must be at least 100, but resamples=0; 1000 is usual"
    )


def test_hypotheses_in_json_or_subtitles_are_refused(refusal, files):
    """What `transcribe --format json` writes is not text, even where it has as many lines."""
    for kind in (".json", ".jsonl", ".srt", ".tsv", ".JSON"):
        for name in (f"hyp{kind}", f"hyp{kind}.gz"):
            assert f"{name} is named {kind}" in refusal(name, "ref")
    assert "hyp.srt is named .srt" in refusal("hyp", "ref", "--paired", "hyp.srt")


def test_missing_files_and_columns_are_refused(refusal):
    assert "nowhere does not exist" in refusal("nowhere", "ref")
    assert "nowhere.tsv does not exist" in refusal("hyp", "nowhere.tsv")
    assert "no.tsv does not exist" in refusal("hyp", "ref", "--manifest", "no.tsv", "--by", "speaker")
    there = "but {!r} is none; it has id, speaker, age, text"
    assert refusal("hyp", "m.tsv", "--by", "sex") == f"--by must name a column of the manifest, {there.format('sex')}"
    assert (
        refusal("hyp", "m.tsv", "--column", "de")
        == f"--column must name a column of the manifest, {there.format('de')}"
    )
    assert refusal("hyp", "ref", "--column", "de") == (
        "--column de needs a manifest, but ref is not named .tsv, .csv or .jsonl"
    )
    assert refusal("hyp", "ref", "--by", "speaker") == (
        "--by must name a column of the manifest, but 'speaker' is none; it has no column, as REF is a text file; add --manifest "
        "M.tsv"
    )
    assert refusal("hyp", "blank") == (
        "an error rate needs at least one word in the references, but all 5 are blank; look for a wrong file or column"
    )


@pytest.mark.parametrize(
    ("by", "why"), [("age:ten", "'ten'"), ("age:0", "WIDTH=0"), ("age:-10", "WIDTH=-10"), ("speaker:10", "'ann'")]
)
def test_invalid_intervals_are_refused(refusal, by, why):
    message = refusal("hyp", "m.tsv", "--by", by)
    assert message.startswith(
        f"--by COLUMN:WIDTH needs numbers in that column, and a whole WIDTH from 1 up, but it is {by!r}, and: "
    )
    assert why in message and message.endswith("; leave :WIDTH out")


def test_invalid_manifests_are_refused(refusal):
    assert refusal("hyp", "empty.tsv") == (
        "a table must begin with a line that names its columns, but empty.tsv is empty"
    )
    assert refusal("hyp", "bare.tsv") == "a manifest must have recordings, but bare.tsv has none"
    assert refusal("hyp", "torn.tsv") == (
        "a line must have a cell for every column, but torn.tsv, line 3, has 1 cells for 2 columns (id, text); "
        "tabs separate cells"
    )


def test_a_report_without_a_folder_is_refused(files, capsys):
    assert main(["score", "wer", "hyp", "ref", "--report", "no/report"]) == 2
    assert capsys.readouterr().err == (
        f"transduce: an output's folder must exist, but {files / 'no'} does not; make it, or name another --report\n"
    )


@pytest.mark.parametrize("name", ["hyp", "ref", "m.tsv", "other"])
def test_a_report_never_overwrites_an_input(files, refusal, name):
    before = (files / name).read_bytes()
    said = refusal("hyp", "ref", "--manifest", "m.tsv", "--paired", "other", "--report", name)
    assert said == f"an output must not replace what is read, but {name} is {name}; name another --report"
    assert (files / name).read_bytes() == before


def test_chinese_scored_by_words_gives_a_warning(tmp_path, caplog):
    (tmp_path / "a").write_text("我今天去学校，你呢，想去哪里？\n", encoding="utf-8")
    for measure, instead in (("wer", "cer"), ("cer", ""), ("ter", "chrf"), ("chrf", "")):
        assert main(["score", measure, str(tmp_path / "a"), str(tmp_path / "a"), "--resamples", "0"]) == 0
        assert re.findall(r"use transduce score (\w+)", caplog.text) == [instead] * bool(instead)
        caplog.clear()


@pytest.mark.parametrize(("write", "name"), [("{} {}", "first"), ("{1} ({0})", "last")], ids=["Kaldi", "trn"])
def test_ids_that_count_as_words_give_a_warning(tmp_path, caplog, write, name):
    for side, words in (("hyp", "one two"), ("ref", "one three")):
        rows = [write.format(f"utt-{i:02d}", words) for i in range(20)]
        (tmp_path / side).write_bytes(lines(*rows))
        (tmp_path / f"{side}.words").write_bytes(lines(*[words] * 20))
    assert main(["score", "wer", str(tmp_path / "hyp.words"), str(tmp_path / "ref.words")]) == 0
    assert not caplog.text
    assert main(["score", "wer", str(tmp_path / "hyp"), str(tmp_path / "ref")]) == 0
    word = write.format("utt-00", "").strip()
    assert (
        f"the {name} word, such as '{word}', is right in every line and different in each, so it seems" in caplog.text
    )
