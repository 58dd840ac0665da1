"""Lines stay where they are, pairs stay together, and what is wrong is named by file, line and byte."""

import csv
import gzip
import io
import re
from pathlib import Path

import pytest

from transduce.data.corpus import Files, Folder, corpus_folder
from transduce.data.lines import decode_lines, read_lines
from transduce.data.parallel_text import PairFiles, ParallelText
from transduce.data.tables import split_table


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85", "\r", "\u3000"])
def test_only_newlines_end_lines(tmp_path, mark):
    path = write(tmp_path / "a", f"one{mark}still one\ntwo\n")
    assert read_lines(path) == [f"one{mark}still one", "two"]


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\na\n", ["", "a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\n\r\nb", ["a", "", "b"]),
        (b"a \t\n b\n", ["a \t", " b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),  # the mark of the file goes, a character stays
    ],
)
def test_decode_lines(raw, lines):
    assert list(decode_lines(io.BytesIO(raw), "text")) == lines


def test_a_gzip_file_reads_like_a_plain_one(tmp_path):
    text = "\ufeffGrüße\u2028an alle\r\n日本語\n\n"
    plain, packed = write(tmp_path / "a.de", text), write(tmp_path / "b.de.gz", gzip.compress(text.encode()))
    assert read_lines(plain) == read_lines(str(packed)) == ["Grüße\u2028an alle", "日本語", ""]


def test_an_undecodable_byte_is_named_by_file_line_and_byte(tmp_path):
    path = write(tmp_path / "a.fr", "déjà\nça et là\n".encode() + "un café\n".encode("latin1"))
    with pytest.raises(ValueError) as caught:
        read_lines(path)
    assert str(caught.value) == (
        f"text must be UTF-8, but {path}, line 3, byte 7 is 0xe9; "
        "convert the file from its encoding, with iconv -f ENCODING -t utf-8 (latin1, cp1250 or utf-16, for example)"
    )


@pytest.mark.parametrize("cut", ["end", "middle", "start"])
def test_a_damaged_gzip_file_is_refused_by_name(tmp_path, cut):
    whole = gzip.compress(b"".join(b"line %d\n" % i for i in range(1000)))
    damaged = {
        "end": whole[:-20],
        "middle": whole[:200] + bytes(range(255, 155, -1)) + whole[300:],
        "start": b"not gzip at all",
    }[cut]
    path = write(tmp_path / "a.gz", damaged)
    with pytest.raises(ValueError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path} is not a whole gzip file: ")


def test_unequal_line_counts_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "a.en", "one\ntwo\nthree\n"), write(tmp_path / "a.de", "eins\nzwei\n")
    with pytest.raises(ValueError) as caught:
        PairFiles((source, target)).read()
    assert str(caught.value) == (
        f"parallel files must have the same number of lines, but {source} has 3 and {target} has 2"
    )


def test_sgml_of_test_sets_is_refused(tmp_path):
    """Both sides of WMT's have equally many lines."""
    source, target = tmp_path / "src.en.sgm", tmp_path / "ref.de.sgm"
    source.write_text('<srcset srclang="any">\n<seg id="1">A dog.</seg>\n</srcset>\n')
    target.write_text('<refset trglang="de">\n<seg id="1">Ein Hund.</seg>\n</refset>\n')
    message = (
        f"parallel text has a sentence a line, but {source} has markup by its name; extract its text, as sacrebleu --echo "
        "writes that of WMT's test sets"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PairFiles((source, target)).read()


def test_pairs_with_a_blank_side_are_dropped_and_counted(tmp_path):
    source = write(tmp_path / "a.en", "one\n\n \t\nfour\n\u3000\nsix\n")
    target = write(tmp_path / "a.de", "eins\nzwei\ndrei\n\n\nsechs\n")
    assert PairFiles((source, target)).read() == ParallelText(["one", "six"], ["eins", "sechs"], n_blank=4)
    assert len(PairFiles((source, target)).read()) == 2


def test_a_corpus_of_blank_pairs_is_refused(tmp_path):
    source, target = write(tmp_path / "a.en", "one\n\n"), write(tmp_path / "a.de", "\nzwei\n")
    with pytest.raises(ValueError) as caught:
        PairFiles((source, target)).read()
    assert str(caught.value) == (
        f"a corpus needs a pair with text on both sides, but there is none in the 2 lines of {source} and {target}"
    )


def test_empty_files_are_refused(tmp_path):
    empty = write(tmp_path / "empty", "")
    for paths, message in (
        ((empty, empty), f"there is none in the 0 lines of {empty} and {empty}"),
        ((empty,), f"there is none in the 0 lines of {empty}"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            PairFiles(paths).read()


def test_a_tsv_has_two_columns(tmp_path):
    path = write(tmp_path / "a.tsv", "one two\teins zwei\n\tdrei\nvier \t four\n")
    assert PairFiles((path,)).read() == ParallelText(["one two", "vier "], ["eins zwei", " four"], n_blank=1)


def test_a_tsv_may_have_the_quotes_of_pandas(tmp_path):
    """Which are those of the module csv; other quotes are a part of the text, as in Common Voice."""
    pairs = [('"Go", he said.', "plain"), ('"Go!"', '"'), ('5" long', '"a" and ""b""'), ("Go.", '""')]
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(pairs)
    assert '"""Go"", he said."\tplain' in (tmp_path / "a.tsv").read_text()
    write(tmp_path / "b.tsv", "".join("\t".join(pair) + "\n" for pair in pairs))
    for name in ("a.tsv", "b.tsv"):
        assert [*PairFiles((tmp_path / name,))] == pairs
        _, rows = split_table(["source\ttarget", *read_lines(tmp_path / name)], name)
        assert [tuple(row) for _, row in rows] == pairs


def test_a_tsv_line_with_a_wrong_number_of_cells_is_refused(tmp_path):
    for line, n in (("no tab here", 1), ("", 1), ("a\tb\tc", 3), ("a\tb\t", 3)):
        path = write(tmp_path / "a.tsv", f"one\teins\n{line}\nthree\tdrei\n")
        with pytest.raises(
            ValueError, match=re.escape(f"{path}, line 2, has {n} cells for 2 columns (source, target)")
        ):
            PairFiles((path,)).read()


def test_split_table_returns_header_and_rows():
    header, rows = split_table(["id\ttext", "u1\tone two", "", "u2\t", ""], "m.tsv")
    assert (header, [*rows]) == (["id", "text"], [(2, ["u1", "one two"]), (4, ["u2", ""])])
    header, rows = split_table(["id", "", "u"], "m.tsv")
    assert (header, [*rows]) == (["id"], [(2, [""]), (3, ["u"])])


def corpus(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "val", "test"):
        write(folder / f"{split}.en", f"{split} one\n")
        write(folder / f"{split}.de.gz", gzip.compress(f"{split} eins\n".encode()))
    return folder


def test_a_folder_has_three_splits_plain_or_gzip(tmp_path):
    folder = Folder(data=corpus(tmp_path / "captions"))
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        assert folder.read(split) == ParallelText([f"{name} one"], [f"{name} eins"])
    swapped = Folder(data=tmp_path / "captions", source="de", target="en", test="val")
    assert swapped.read("test") == ParallelText(["val eins"], ["val one"])


def test_the_corpus_folder_comes_from_the_environment(tmp_path, monkeypatch):
    corpus(tmp_path / "captions")
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path))
    assert Folder(data=corpus_folder("captions")).read("train").target == ["train eins"]
    monkeypatch.setenv("TRANSDUCE_DATA", "")
    assert corpus_folder("captions") is None
    monkeypatch.delenv("TRANSDUCE_DATA")
    assert corpus_folder("captions") is None


def test_a_missing_data_folder_is_an_error_with_advice():
    with pytest.raises(ValueError) as caught:
        Folder().read("train")
    assert str(caught.value) == "a folder of parallel text must be named: use --data DIR, or set TRANSDUCE_DATA"


def test_a_missing_file_is_refused_with_those_of_the_folder(tmp_path):
    full, empty, nowhere = corpus(tmp_path / "captions"), tmp_path / "empty", tmp_path / "nowhere"
    empty.mkdir()
    there = "test.de.gz, test.en, train.de.gz, train.en, val.de.gz, val.en"
    with pytest.raises(ValueError) as caught:
        Folder(data=full, source="fr").read("train")
    assert str(caught.value) == f"the folder {full} must hold train.fr or train.fr.gz, but it holds {there}"
    for folder in (empty, nowhere):
        with pytest.raises(ValueError, match=re.escape(f"the folder {folder} must hold train.fr")):
            Folder(data=folder, source="fr").read("train")


def test_a_split_is_two_files_or_one_tsv(tmp_path):
    source, target = write(tmp_path / "a", "one\n"), write(tmp_path / "b", "eins\n")
    tsv = write(tmp_path / "c", "two\tzwei\n")
    files = Files(train_source=source, train_target=target, valid_tsv=tsv)
    assert files.read("train") == ParallelText(["one"], ["eins"])
    assert files.read("valid") == ParallelText(["two"], ["zwei"])
    assert files.splits(0)[2] is None


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_incomplete_or_ambiguous_splits_are_refused(tmp_path, split):
    path = write(tmp_path / "a", "one\n")
    for given in (("source",), ("target",), ("source", "tsv"), ("source", "target", "tsv"), ("tsv", "table"), ()):
        if split == "test" and not given:
            continue  # no test split is no mistake: see above
        fields = {part: path if part in given else None for part in ("source", "target", "tsv", "table")}
        with pytest.raises(ValueError) as caught:
            Files(**{f"{split}_{part}": value for part, value in fields.items()}).read(split)
        for part, value in fields.items():
            assert f"--{split}-{part}" in str(caught.value) and f"{split}_{part}={value}" in str(caught.value)
        assert ("--hold-out" in str(caught.value)) == (split == "valid" and not given)


def test_column_names_without_a_table_are_refused():
    with pytest.raises(
        ValueError, match=r"only tables have named columns, but .* are de and en, and no table is named"
    ):
        Files(train_tsv=Path("a.tsv"), source_column="de", target_column="en").read("train")


def test_missing_validation_text_is_refused_with_all_options():
    with pytest.raises(ValueError) as caught:
        Files().read("valid")
    assert str(caught.value) == (
        "the valid text is two files, a TSV or a table: give --valid-source and --valid-target, or --valid-tsv, "
        "or --valid-table, or --hold-out 500, but valid_source=None, valid_target=None, valid_tsv=None and valid_table=None"
    )


def test_validation_can_be_held_out_of_the_training_text(tmp_path, caplog):
    """By the seed, in order; what equals a held-out pair on both sides leaves too, and one side alone does not."""
    pairs = [(f"s{i % 40}", f"t{i % 60}") for i in range(200)]  # pair i equals pair i + 120
    tsv = write(tmp_path / "a", "".join(f"{s}\t{t}\n" for s, t in pairs))
    test = write(tmp_path / "b", "s1\tt1\n" * 3)
    corpus = Files(train_tsv=tsv, test_tsv=test, hold_out=30)
    train, valid, kept = corpus.splits(7)
    held, left = (list(zip(text.source, text.target, strict=True)) for text in (valid, train))
    assert len(held) == 30 and kept == ParallelText(["s1"] * 3, ["t1"] * 3)
    assert left == [pair for pair in pairs if pair not in held] and set(left) | set(held) == set(pairs)
    places = iter(pairs)
    assert all(pair in places for pair in held)  # in order
    (said,) = (r.getMessage() for r in caplog.records)
    assert len(left) < 200 - 30 and re.findall(r"\d+", said) == ["30"]
    assert corpus.splits(7) == (train, valid, kept) and corpus.splits(8)[1] != valid


def test_invalid_hold_out_is_refused(tmp_path):
    tsv = write(tmp_path / "a", "one\teins\n" * 5)
    with pytest.raises(ValueError) as caught:
        Files(train_tsv=tsv, hold_out=1).splits(1)
    assert str(caught.value) == (
        "training needs pairs besides those held out, but hold_out=1 takes all of the 5 that it is drawn from; "
        "hold out fewer"
    )
    for fields, reason in (
        ({"valid_tsv": tsv, "hold_out": 1}, "hold_out=1 and files"),
        ({"hold_out": -1}, "hold_out=-1"),
    ):
        with pytest.raises(ValueError, match=reason):
            Files(train_tsv=tsv, **fields).splits(1)
