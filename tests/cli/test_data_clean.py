"""`transduce data clean`: what teaches nothing goes, counted and kept; what comes from OPUS is read as it is."""

import csv
import gzip
import json
import os
import zipfile

import pytest

from transduce.cli.clean import FIRST
from transduce.cli.main import main
from transduce.data.corpus import Files

GOOD = [
    ("A dog runs.", "Ein Hund läuft."),
    ("Open the café door, please.", "Öffne bitte die Tür des Cafés."),
    ("10 %", "10 Prozent"),
]
BAD = [
    ("blank", ("Nothing", " ")),
    ("duplicate", GOOD[0]),
    ("untranslated", ("The same.", "The same.")),
    ("wrong encoding", ("The door is open.", "Die TÃ¼r ist offen.")),
    ("wrong encoding", ("The door", "Die T\ufffdr")),
    ("too long", ("many " * 21, "viele " * 21)),
    ("length ratio", ("A short one.", "Ein Satz, der sehr viel mehr sagt, als darin steht, und nicht endet.")),
    ("other script", ("The door is open.", "Дверь открыта.")),
]
PAIRS = [*GOOD, *(pair for _, pair in BAD)]


@pytest.fixture
def clean(tmp_path, capsys):
    """The command; its exit code, what it printed, and the files that it wrote."""

    def run(*files):
        words = [
            "data",
            "clean",
            *map(str, files),
            "--source",
            "en",
            "--target",
            "de",
            "--output",
            str(tmp_path / "out" / "c"),
        ]
        code = main([*words, "--max-words", "20"])
        said = capsys.readouterr()
        written = {path.name: path.read_text().splitlines() for path in (tmp_path / "out").glob("*")}
        return code, said.out or said.err.splitlines()[-1], written

    return run


def put(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_removed_pairs_are_written_with_their_reason(tmp_path, clean):
    sides = [put(tmp_path / name, side) for name, side in zip("ab", zip(*PAIRS, strict=True), strict=True)]
    code, said, written = clean(*sides)
    assert code == 0
    assert list(zip(written["c.en"], written["c.de"], strict=True)) == GOOD
    assert written["c.removed.tsv"] == ["\t".join((reason, *pair)) for reason, pair in BAD]
    assert f"{tmp_path}/out/c.de: 3 pairs; {tmp_path}/out/c.removed.tsv: 2 wrong encoding, 1 " in said


def test_usual_english_chinese_pairs_are_kept(tmp_path, clean):
    good = [
        ("I like to read books in the library every day after school.", "我每天放学后喜欢在图书馆看书。"),
        ("The government announced yesterday that it would raise taxes.", "政府昨天宣布将提高税收。"),
    ]
    bad = ("He said that the meeting had been postponed because of the heavy snow.", "他说会议。")
    code, _, written = clean(put(tmp_path / "a.tsv", map("\t".join, [*good, bad])))
    assert code == 0
    assert written["c.removed.tsv"] == ["\t".join(("length ratio", *bad))]


def test_tsv_moses_zip_and_tmx_give_the_same_pairs(tmp_path, clean):
    tsv = put(tmp_path / "a.tsv", map("\t".join, GOOD))
    moses = tmp_path / "Tatoeba.zip"
    with zipfile.ZipFile(moses, "w") as packed:
        packed.writestr("README", "about")
        for language, side in zip(("de", "en"), ([t for _, t in GOOD], [s for s, _ in GOOD]), strict=True):
            packed.writestr(f"Tatoeba.de-en.{language}", "\n".join(side) + "\n")
    units = "".join(
        f'<tu><tuv xml:lang="EN-us"><seg>{s}</seg></tuv><tuv xml:lang="de"><seg>{t}</seg></tuv></tu>' for s, t in GOOD
    )
    alone = '<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu><tu><tuv xml:lang="fr"><seg>seul</seg></tuv></tu>'
    text = f'<?xml version="1.0"?><tmx version="1.4"><body>{units}{alone}</body></tmx>'
    tmx, packed_tmx = put(tmp_path / "a.tmx", [text]), tmp_path / "a.tmx.gz"
    packed_tmx.write_bytes(gzip.compress(text.encode()))
    for path in (tsv, moses, tmx, packed_tmx):
        code, _, written = clean(path)
        assert code == 0 and list(zip(written["c.en"], written["c.de"], strict=True)) == GOOD
        assert written["c.removed.tsv"] == ["blank\talone\t"] * (path in (tmx, packed_tmx))
    for path in (tmx, moses):  # training reads them as they are
        files = Files(train_table=path, source_column="en", target_column="de")
        assert [*files.read("train")] == GOOD


def test_notes_and_markup_of_tmx_are_skipped(tmp_path, clean):
    """Neither notes and properties of a text, nor the markup of another format inside it."""
    unit = (
        '<tu><note>by hand</note><tuv xml:lang="en-US"><prop type="x">P</prop>'
        '<seg>Press <bpt i="1">&lt;b&gt;</bpt>OK<ept i="1">&lt;/b&gt;</ept>\n now.</seg></tuv>'
        '<tuv lang="de"><note>n</note><seg>Jetzt <hi>OK</hi> drücken.<ph>&lt;br/&gt;</ph></seg></tuv><tuv/></tu>'
    )
    for name, namespace, encoding in (("a", "", "utf-8"), ("b", ' xmlns="http://www.lisa.org/tmx14"', "utf-16")):
        path = tmp_path / f"{name}.tmx"
        head = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
        path.write_bytes(f"{head}<tmx{namespace}><body>{unit}</body></tmx>".encode(encoding))
        code, _, written = clean(path)
        assert (code, written["c.en"], written["c.de"]) == (0, ["Press OK now."], ["Jetzt OK drücken."])


def test_en_matches_regional_english_if_a_unit_has_no_en(tmp_path, clean):
    texts = {"en": "film", "en-GB": "picture", "en-US": "movie"}
    units = [["en", "en-GB"], ["en-GB", "en"], ["en-US"]]
    body = "".join(
        f'<tu>{"".join(f"""<tuv lang="{n}"><seg>a {texts[n]}</seg></tuv>""" for n in names)}'
        '<tuv lang="de"><seg>ein Film</seg></tuv></tu>'
        for names in units
    )
    path = put(tmp_path / "a.tmx", [f"<tmx><body>{body}</body></tmx>"])
    files = Files(train_table=path, source_column="en", target_column="de")
    assert files.read("train").source == ["a film", "a film", "a movie"]
    for name in ("en-GB", "en_GB"):  # as OPUS writes it
        files = Files(train_table=path, source_column=name, target_column="de")
        assert files.read("train").source == ["a picture", "a picture"]


def test_tables_are_read_by_language_column(tmp_path, clean):
    table = tmp_path / "a.csv"
    with table.open("w", newline="") as file:  # the csv module as the witness
        csv.writer(file).writerows([("n", "de", "en"), *((i, t, s) for i, (s, t) in enumerate(GOOD))])
    rows = [{"translation": {"en": s, "de": t}} for s, t in GOOD]
    lines = put(tmp_path / "a.jsonl", [*map(json.dumps, rows), ""])
    assert list(zip(*map(clean(table)[2].get, ("c.en", "c.de")), strict=True)) == GOOD
    files = Files(train_table=lines, source_column="translation.en", target_column="translation.de")
    assert [*files.read("train")] == GOOD
    files = Files(train_table=table.rename(tmp_path / "a.tmx.csv"), source_column="en", target_column="de")
    assert [*files.read("train")] == GOOD
    code, said, _ = clean(lines)
    assert code == 2 and f"{lines}, line 1, has no en of that kind; it has translation.en, translation.de;" in said


@pytest.mark.parametrize(
    ("encoding", "part"), [("latin1", "line 1, byte 7 is 0xfc; convert"), ("utf-16", "line 1, has a zero byte")]
)
def test_few_bad_bytes_drop_pairs_and_many_are_an_error(tmp_path, clean, encoding, part):
    pairs = [(f"a dog {i}", f"ein grüner Hund {i}") for i in range(20)]
    source = put(tmp_path / "a.en", [s for s, _ in pairs])
    target = tmp_path / "a.de"
    target.write_bytes("".join(f"{t}\n" for _, t in pairs).encode().replace(b"Hund 7", b"H\xfcnd \0"))
    code, said, written = clean(source, target)
    assert (code, len(written["c.de"])) == (0, 19) and said.endswith("1 wrong encoding\n")
    assert written["c.removed.tsv"] == ["wrong encoding\ta dog 7\tein grüner H\ufffdnd \ufffd"]
    target.write_bytes("".join(f"{t}\n" for _, t in pairs).encode(encoding))
    code, said, _ = clean(source, target)
    assert code == 2 and f"text must be UTF-8, but {target}, {part}" in said


def test_unreadable_files_are_errors_of_one_line(tmp_path, clean):
    assert clean()[1] == "transduce: a parallel text is one or two files, but there are 0"
    for name in ("a.zip", "a.tmx"):
        path = put(tmp_path / name, ["nothing of the kind"])
        code, said, _ = clean(path)
        assert code == 2 and said.startswith(f"transduce: {path} is not a complete ")
    for encoding, reason in (("klingon", "unknown encoding"), ("gb18030", "multi-byte encodings are not supported")):
        path = put(tmp_path / "b.tmx", [f'<?xml version="1.0" encoding="{encoding}"?><tmx/>'])
        assert f"{path} is not a complete TMX file: {reason}" in clean(path)[1]
    path = put(tmp_path / "b.tmx", ["<tmx><body/></tmx>"])
    assert f"{path} has no en of that kind; it has none; name" in clean(path)[1]
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as packed:
        packed.writestr("x.en", "one\ntwo\n")
        packed.writestr("x.de", "eins\n")
    assert "c.zip: x.en has 2 and " in clean(tmp_path / "c.zip")[1]
    path = put(tmp_path / "d.tmx", ['<tmx><body><tu><tuv lang="en"><seg>a</seg></tuv></tu></body></tmx>'])
    assert f"{path} has no de of that kind; it has en; name" in clean(path)[1]
    code, said, written = clean(put(tmp_path / "e.tsv", ["one\t", "\tzwei"]))
    assert code == 2 and written["c.removed.tsv"] == ["blank\tone\t", "blank\t\tzwei"]
    assert "2 blank" in said
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        packed.writestr("x.en", "one\n")
    assert f"{tmp_path / 'b.zip'} has no de of that kind; it has en; name" in clean(tmp_path / "b.zip")[1]
    assert clean(*[tmp_path / "a.tmx"] * 3)[1] == "transduce: a parallel text is one or two files, but there are 3"


def test_a_text_may_begin_with_many_blank_pairs(tmp_path, clean):
    code, _, written = clean(put(tmp_path / "a.tsv", ["\t"] * (FIRST + 1) + ["A dog.\tEin Hund."]))
    assert (code, written["c.de"]) == (0, ["Ein Hund."])


def test_outputs_never_overwrite_inputs_or_each_other(tmp_path, clean):
    (tmp_path / "out").mkdir()
    source, target = (put(tmp_path / "out" / f"c.{ending}", ["1", "2"]) for ending in ("en", "de"))
    assert "an output must not replace what is read, but " in clean(source, target)[1]
    assert source.read_text() == target.read_text() == "1\n2\n"
    words = ["--source", "en", "--target", "en", "--output", str(tmp_path / "same")]
    assert main(["data", "clean", str(source), str(target), *words]) == 2
    assert not [*tmp_path.glob("same*")]


def test_numbers_have_no_script(tmp_path, clean):
    lines = [f"{i}.\t{i}.)" for i in range(30)] + ["A dog.\tEin Hund.", "A cat.\tКошка."]
    code, said, written = clean(put(tmp_path / "a.tsv", [*lines, "Two dogs.\tZwei Hunde."]))
    assert (code, written["c.de"][-2:]) == (0, ["Ein Hund.", "Zwei Hunde."]) and said.endswith(": 1 other script\n")


def test_text_that_a_browser_read_as_windows_1252_is_wrong_encoding(tmp_path, clean):
    """It keeps the bytes that have no letter there, such as the last one of a closing quote."""
    wrong = "".join(bytes([b]).decode("cp1252", "ignore") or chr(b) for b in "Sie sagte: “Ja”".encode())
    assert wrong.endswith("Jaâ€\x9d")
    put(tmp_path / "a.en", ["She said yes."] * 2)
    put(tmp_path / "a.de", [wrong, "Sie sagte: “Ja”"])
    code, said, written = clean(tmp_path / "a.en", tmp_path / "a.de")
    assert (code, written["c.de"]) == (0, ["Sie sagte: “Ja”"]) and said.endswith(": 1 wrong encoding\n")


def test_invalid_characters_are_wrong_encoding_or_blank(tmp_path, clean):
    rows = [("a \ud800 b", "c"), ("d \0 e", "f"), ("\u200b", "c"), ("\ufeff\u200d", "c"), ("a", "b")]
    code, said, written = clean(put(tmp_path / "a.jsonl", [json.dumps({"en": s, "de": t}) for s, t in rows]))
    assert (code, written["c.en"]) == (0, ["a"]) and "2 wrong encoding, 2 blank" in said
    texts = [f"a dog {i}".encode() for i in range(20)] + [b"a caf\xe9"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x.en", b"\n".join(texts))
        packed.writestr("x.de", "\n".join(f"ein Hund {i}" for i in range(21)))
    code, said, written = clean(tmp_path / "a.zip")
    assert (code, len(written["c.en"])) == (0, 20) and said.endswith(": 1 wrong encoding\n")


def test_a_pipe_is_read_once(clean, monkeypatch):
    monkeypatch.setattr("transduce.cli.clean.FIRST", 7)
    end, begin = os.pipe()
    rows = "".join(f"dog {i}\tHund {i}\n" for i in range(2000))
    os.write(begin, rows.encode())  # less than a pipe holds
    os.close(begin)
    code, _, written = clean(f"/dev/fd/{end}")
    os.close(end)
    assert (code, written["c.en"]) == (0, [f"dog {i}" for i in range(2000)])


def test_language_codes_may_have_underscores(tmp_path, clean):
    unit = '<tu><tuv xml:lang="en_US"><seg>a dog</seg></tuv><tuv xml:lang="de_DE"><seg>ein Hund</seg></tuv></tu>'
    _, _, written = clean(put(tmp_path / "a.tmx", [f"<tmx><body>{unit}</body></tmx>"]))
    assert (written["c.en"], written["c.de"]) == (["a dog"], ["ein Hund"])


def test_the_expected_script_is_the_most_frequent_one(tmp_path, clean):
    """Japanese mixes three, which are one here, and has letters of half a width, too."""
    pairs = [("A dog.", "犬です。"), ("Tokyo", "東京"), ("Coffee", "コーヒー"), ("Wrong", "Something else")]
    code, said, written = clean(put(tmp_path / "a.tsv", map("\t".join, [*pairs, ("Ｔｅａ", "ｵﾁｬ")])))
    assert (code, len(written["c.de"])) == (0, 4) and said.endswith("1 other script\n")
