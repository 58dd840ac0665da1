"""What is kept of a large text belongs to the columns that were read of it."""

import pytest

from transduce.data import parallel_text as parallel
from transduce.data.corpus import Files


def test_other_columns_of_a_file_have_their_own_cache(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("transduce.data.parallel_text.POOL", 2)
    columns = {name: [f"{name} {i}" for i in range(5)] for name in ("en", "de", "fr")}
    parquet.write_table(arrow.table(columns), tmp_path / "all.parquet")
    got = {}
    for source, target in (("en", "de"), ("de", "en"), ("en", "fr")):
        files = Files(train_table=tmp_path / "all.parquet", source_column=source, target_column=target, hold_out=1)
        train, valid, _ = files.splits(1, tmp_path / "cache")
        assert isinstance(train, parallel.LargeText)
        assert valid.source[0].startswith(source) and valid.target[0].startswith(target)
        assert all(s.startswith(source) and t.startswith(target) for s, t in zip(*train.sample(), strict=True))
        got[source, target] = (train.folder, train.digest)
    assert len({*got.values()}) == len({folder for folder, _ in got.values()}) == 3
