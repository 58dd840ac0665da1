"""`transduce data clean`: what teaches nothing goes, counted and kept; what comes from OPUS is read as it is."""

import zipfile

import pytest

from transduce.cli.main import main

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


def test_pairs_that_teach_nothing_go_and_are_kept_with_the_reason(tmp_path, clean):
    sides = [put(tmp_path / name, side) for name, side in zip("ab", zip(*PAIRS, strict=True), strict=True)]
    code, said, written = clean(*sides)
    assert code == 0
    assert list(zip(written["c.en"], written["c.de"], strict=True)) == GOOD
    assert written["c.removed.tsv"] == ["\t".join((reason, *pair)) for reason, pair in BAD]
    assert f"{tmp_path}/out/c.de: 3 pairs; {tmp_path}/out/c.removed.tsv: 2 wrong encoding, 1 " in said


def test_tsv_moses_zips_and_tmx_are_the_same_text(tmp_path, clean):
    tsv = put(tmp_path / "a.tsv", map("\t".join, GOOD))
    moses = tmp_path / "Tatoeba.zip"
    with zipfile.ZipFile(moses, "w") as packed:
        packed.writestr("README", "about")
        for language, side in zip(("de", "en"), ([t for _, t in GOOD], [s for s, _ in GOOD]), strict=True):
            packed.writestr(f"Tatoeba.de-en.{language}", "\n".join(side) + "\n")
    units = "".join(
        f'<tu><tuv xml:lang="EN-us"><seg>{s}</seg></tuv><tuv xml:lang="de"><seg>{t}</seg></tuv></tu>' for s, t in GOOD
    )
    alone = '<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>'
    tmx = put(tmp_path / "a.tmx", [f'<?xml version="1.0"?><tmx version="1.4"><body>{units}{alone}</body></tmx>'])
    for path in (tsv, moses, tmx):
        code, _, written = clean(path)
        assert code == 0 and list(zip(written["c.en"], written["c.de"], strict=True)) == GOOD
        assert written["c.removed.tsv"] == []


def test_what_cannot_be_read_is_told_in_a_line(tmp_path, clean):
    assert clean()[1] == "transduce: a parallel text is one or two files, but there are 0"
    for name in ("a.zip", "a.tmx"):
        path = put(tmp_path / name, ["nothing of the kind"])
        code, said, _ = clean(path)
        assert code == 2 and said.startswith(f"transduce: {path} is no whole ")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        packed.writestr("x.en", "one\n")
    assert "must have a file that ends in .de, but" in clean(tmp_path / "b.zip")[1]
    assert clean(*[tmp_path / "a.tmx"] * 3)[1] == "transduce: a parallel text is one or two files, but there are 3"


def test_the_script_is_the_one_that_most_of_the_text_has(tmp_path, clean):
    """Japanese mixes three, which are one here."""
    pairs = [("A dog.", "犬です。"), ("Tokyo", "東京"), ("Coffee", "コーヒー"), ("Wrong", "Something else")]
    code, said, written = clean(put(tmp_path / "a.tsv", map("\t".join, pairs)))
    assert (code, len(written["c.de"])) == (0, 3) and said.endswith("1 other script\n")
