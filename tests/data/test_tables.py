"""Pairs in Parquet and Arrow files are those of the same text in lines; what cannot be read is named."""

import gzip
import json
import re
from pathlib import Path

import pytest

from transduce.data import tables
from transduce.data.corpus import Files
from transduce.data.parallel_text import PairFiles, ParallelText

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PAIRS = [("one", "eins"), ("two\nlines", "zwei\u2028Zeilen"), ("", "drei"), ("four", None), ("five", "f\0nf")]
TEXT = ParallelText(["one", "two lines", "five"], ["eins", "zwei\u2028Zeilen", "f\ufffdnf"], 2)


def table(pairs=PAIRS):
    """The pairs as two columns, as a struct, and as a column that is named with a dot; and a number."""
    columns = {"en": [s for s, _ in pairs], "de": [t for _, t in pairs], "n": list(range(len(pairs)))}
    columns |= {"translation": [{"en": s, "de": t} for s, t in pairs], "text.de": columns["de"]}
    return pyarrow.table(columns)


def written(path: Path, content, *, stream: bool = False) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(content, path, row_group_size=2)
    else:
        open_writer = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
        with open_writer(str(path), content.schema) as writer:
            writer.write_table(content, max_chunksize=2)
    return path


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "categories"])
def test_every_arrow_string_type_is_read(tmp_path, kind):
    """Polars writes views into Arrow files, and pandas a column of categories as a dictionary."""
    column = pyarrow.array(["Hallo", "Tür", "Hallo"])
    column = column.dictionary_encode() if kind == "categories" else column.cast(kind)
    path = written(tmp_path / "a.arrow", pyarrow.table({"en": ["a", "b", "c"], "de": column}), stream=True)
    assert Files(train_table=path, source_column="en", target_column="de").read("train").target == column.to_pylist()


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("translation.en", "translation.de"), ("en", "text.de")])
@pytest.mark.parametrize(("name", "stream"), [("a.parquet", False), ("a.arrow", False), ("a.arrow", True)])
def test_tables_equal_the_same_text_in_lines(tmp_path, name, stream, source, target):
    path = written(tmp_path / name, table(), stream=stream)
    files = Files(train_table=path, test_table=path, hold_out=1, source_column=source, target_column=target)
    assert files.read("train") == TEXT
    train, valid, _ = files.splits(0)
    assert sorted(train.source + valid.source) == sorted(TEXT.source) and len(valid) == 1


def test_a_folder_is_read_in_order_of_file_names(tmp_path):
    for i, name in enumerate(("b.parquet", "a.arrow")):
        written(tmp_path / name, table([(f"s{i}", f"t{i}")]))
    (tmp_path / "README.md").write_text("not a table")
    assert PairFiles(tables.table_files(tmp_path), ("en", "de")).read() == ParallelText(["s1", "s0"], ["t1", "t0"])


def test_a_folder_must_be_one_split_and_follows_state_json(tmp_path):
    for name in ("train-0.parquet", "train-1.parquet"):
        written(tmp_path / name, table())
    assert len(tables.table_files(tmp_path)) == 2
    written(tmp_path / "validation-0.parquet", table())
    with pytest.raises(
        ValueError, match=rf"^a folder of tables is one split, but {tmp_path} has train, validation; move"
    ):
        tables.table_files(tmp_path)
    for name in ("train-0.parquet", "train-1.parquet"):
        (tmp_path / name).unlink()
    for name in ("x_dev.parquet", "testament.csv", "a.csv", "a.csv.gz", "b.CSV", "b.CSV.GZ"):
        (tmp_path / name).touch()
    assert len(tables.table_files(tmp_path)) == 5  # one split, and a.csv.gz is a.csv
    (tmp_path / "wmt16-test-00000.csv").touch()
    with pytest.raises(ValueError, match=r"test, validation; move|dev, test; move"):
        tables.table_files(tmp_path)
    for after in (" data", " (1)", "@en", "+"):
        folder = tmp_path / after
        folder.mkdir()
        for name in (f"train{after}.csv", f"my test{after}.csv"):
            (folder / name).touch()
        with pytest.raises(ValueError, match="has test, train; move"):
            tables.table_files(folder)
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):
        written(saved / name, table(), stream=True)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert [path.name for path in tables.table_files(saved)] == ["data-00000-of-00001.arrow"]


def test_a_table_that_is_missing_is_named_and_not_left_out(tmp_path):
    """Of a folder that was copied in part, or under a wrong name."""
    written(tmp_path / "data-0.arrow", table(), stream=True)
    listed = [{"filename": f"data-{i}.arrow"} for i in range(2)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": listed}))
    for path, missing in ((tmp_path, "data-1.arrow"), (tmp_path / "x.csv", "x.csv"), (tmp_path / "x.tmx", "x.tmx")):
        with pytest.raises(ValueError) as error:
            tables.table_files(path)
        assert str(error.value) == f"a text must be a file, plain or .gz, but {tmp_path / missing} does not exist"


@pytest.mark.parametrize(
    ("one", "other"),
    [("trainset", "testset"), ("training", "testing"), ("traindata", "evaluation"), ("devset", "test")],
)
def test_other_names_of_splits_are_recognized(tmp_path, one, other):
    for name in (one, other, "latest", "dataset", "contest"):
        (tmp_path / f"{name}.csv").touch()
    with pytest.raises(ValueError, match=r"^a folder of tables is one split, but .* has \w+, \w+; move each"):
        tables.table_files(tmp_path)
    (tmp_path / f"{other}.csv").unlink()
    assert len(tables.table_files(tmp_path)) == 4


def test_csv_and_jsonl_may_be_gzip_or_uppercase(tmp_path):
    for name, text in (("a.csv", "one,eins"), ("B.CSV", "two,zwei")):
        (tmp_path / name).write_text(f"en,de\n{text}\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"en,de\nthree,drei\n"))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"en": "four", "de": "vier"}\n'))
    read = PairFiles(tables.table_files(tmp_path), ("en", "de")).read()
    assert sorted(read.target) == ["drei", "eins", "vier", "zwei"]


def test_csv_cells_may_be_long(tmp_path):
    document = "wort " * 60_000
    (tmp_path / "a.csv").write_text(f'en,de\none,eins\n\nlong,"{document}"\n')
    assert [*tables.each_cell_row(tmp_path / "a.csv", ("en", "de"))] == [("one", "eins"), ("long", document)]


def test_a_duplicate_column_is_refused(tmp_path):
    twice = pyarrow.Table.from_arrays([pyarrow.array([name]) for name in "abc"], names=["en", "en", "de"])
    path = written(tmp_path / "a.arrow", twice)
    with pytest.raises(ValueError, match=r"has no en of that kind; it has de; name"):
        PairFiles((path,), ("en", "de")).read()


def test_a_missing_column_is_refused_with_the_existing_ones(tmp_path):
    path = written(tmp_path / "a.parquet", table())
    with pytest.raises(ValueError) as error:
        PairFiles((path,), ("en", "fr")).read()
    assert str(error.value) == (
        f"source and target must be columns of text, but {path} has no fr of that kind; it has en, de, translation.en, "
        "translation.de, text.de; name them with --source-column and --target-column (in transduce data clean with "
        "--source and --target)"
    )
    for column in ("n", "translation", "translation.fr", "en.de"):
        there = "en, de, translation.en, translation.de, text.de"
        with pytest.raises(ValueError, match=re.escape(f"{path} has no {column} of that kind; it has {there};")):
            PairFiles((path,), ("en", column)).read()


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"nothing of the kind", lambda raw: b""]
)
def test_a_damaged_file_is_refused(tmp_path, name, damage):
    path = written(tmp_path / name, table())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a complete Parquet or Arrow file: "):
        PairFiles((path,), ("en", "de")).read()


def test_other_files_and_a_missing_pyarrow_are_refused(tmp_path, monkeypatch):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(
            ValueError, match=re.escape(f", .csv, .csv.gz, .jsonl, .jsonl.gz, .tmx, .tmx.gz, .zip, but {path} is none")
        ):
            tables.table_files(path)
    monkeypatch.setattr("transduce.errors.find_spec", lambda name: None)
    path = written(tmp_path / "a.parquet", table())
    with pytest.raises(ValueError, match=re.escape("pip install '.[arrow]'")):
        Files(train_table=path).read("train")


def test_a_json_list_is_not_a_text_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "good day", "de": ["guten", "Tag"], "tags": [1]}\n')
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 1, has no de of that kind; it has en;")):
        PairFiles((path,), ("en", "de")).read()
