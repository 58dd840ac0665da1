"""A stream of ids, its windows, its shards, and the bigram that is counted from it."""

import hashlib
import itertools
import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from recipes.baselines import bigram_cross_entropy
from transduce.data import language as module
from transduce.data.language import Stream
from transduce.data.shards import open_shards, read_header, write_shard
from transduce.data.text_batches import HeldOutWindows, TokenWindows


def split(ids, *places):
    """The same ids in several arrays, some of them empty."""
    return Stream([part.astype(np.uint16) for part in np.split(np.asarray(ids), places)])


def test_a_stream_reads_across_its_parts():
    for places in ((), (3,), (3, 3, 7), (0, 1, 19)):
        stream = split(range(100, 120), *places)
        assert len(stream) == 20
        for start in range(20):
            for stop in range(start + 1, 21):
                assert stream.read(start, stop).tolist() == list(range(100 + start, 100 + stop))


def test_chunks_and_fingerprint_do_not_depend_on_the_parts(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)
    whole, cut = split(range(20)), split(range(20), 2, 11)
    assert [chunk.tolist() for chunk in cut.chunks(overlap=1)] == [
        list(range(8)), list(range(7, 15)), list(range(14, 20)),
    ]  # fmt: skip
    assert [chunk.tolist() for chunk in cut.chunks(limit=9)] == [list(range(7)), [7, 8]]
    want = hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in range(20))).hexdigest()
    assert whole.fingerprint() == cut.fingerprint() == want != split(range(1, 21)).fingerprint()


def test_training_windows_are_a_function_of_seed_epoch_and_batch():
    windows = TokenWindows(stream=split(range(101), 40), context=5, batch_size=3, seed=4)
    epoch = windows.epoch(2)
    assert len(epoch) == 101 // 15
    for batch in epoch:
        first = batch.target_in[:, :1]
        assert torch.equal(batch.target_in, first + torch.arange(5))  # the ids are the places
        assert torch.equal(batch.target_out, first + torch.arange(1, 6))
        assert batch.n_tokens == 15 and batch.target_lengths.tolist() == [5, 5, 5] and batch.source is None
    again = windows.epoch(2)[3].target_in
    assert torch.equal(again, epoch[3].target_in)
    others = [
        windows.epoch(2)[4],
        windows.epoch(1)[3],
        TokenWindows(stream=split(range(101)), context=5, batch_size=3).epoch(2)[3],
    ]
    assert not any(torch.equal(again, other.target_in) for other in others)
    assert str(windows) == "101 tokens, 6 batches of 3 x 5 an epoch"


def test_windows_start_anywhere_within_the_text():
    windows = TokenWindows(stream=split(range(9)), context=5, batch_size=4, batches_per_epoch=50)
    assert len(windows.epoch(0)) == 50
    assert {row[0] for batch in windows.epoch(0) for row in batch.target_in.tolist()} == {0, 1, 2, 3}


@pytest.mark.parametrize("n_tokens", [2, 5, 6, 7, 26, 29])
def test_validation_predicts_every_token_but_the_first_once(n_tokens):
    batches = HeldOutWindows(split(range(n_tokens)), context=5, batch_size=2)
    assert [t for b in batches for t in b.target_out.flatten().tolist()] == list(range(1, n_tokens))
    assert [t for b in batches for t in b.target_in.flatten().tolist()] == list(range(n_tokens - 1))
    assert sum(b.n_tokens for b in batches) == n_tokens - 1
    assert all(len(b.target_in) <= 2 for b in batches)


@pytest.mark.parametrize("n", [1, 34, 51, 60, 99, 100])
def test_validation_windows_are_evenly_spaced(n):
    """Gaps between them are equal, but for one window, and the last is as near the end."""
    batches = HeldOutWindows(split(range(801)), context=8, batch_size=4, n_windows=n)
    starts = [int(row[0]) // 8 for batch in batches for row in batch.target_in]
    assert len(starts) == n and starts[0] == 0
    gaps = [b - a for a, b in itertools.pairwise([*starts, 100])]
    assert max(gaps) - min(gaps) <= 1


def test_some_validation_windows_are_spread_over_the_text():
    batches = HeldOutWindows(split(range(48)), context=5, batch_size=2, n_windows=3)
    assert [row[0] for b in batches for row in b.target_in.tolist()] == [0, 15, 30]
    assert len(HeldOutWindows(split(range(48)), context=5, batch_size=2, n_windows=9)) == 6  # the rest is a window too


def test_too_short_texts_are_refused():
    with pytest.raises(ValueError) as error:
        TokenWindows(stream=split(range(5)), context=5, batch_size=1)
    assert str(error.value) == (
        "a window takes context + 1 tokens, but context=5 and the text has 5; give more text or make the context shorter"
    )
    with pytest.raises(ValueError, match="batch_size=0"):
        TokenWindows(stream=split(range(5)), context=3, batch_size=0)
    with pytest.raises(ValueError, match="two tokens or more, but it has 1"):
        HeldOutWindows(split([1]), context=5, batch_size=1)


@pytest.mark.parametrize(("vocab_size", "width"), [(1 << 16, 2), ((1 << 16) + 1, 4)])
def test_shards_hold_the_ids_in_the_smallest_type(tmp_path, vocab_size, width):
    ids = np.array([0, 3, vocab_size - 1, 7])
    write_shard(tmp_path / "a", ids, vocab_size=vocab_size, tokenizer=b"t", source="x")
    write_shard(tmp_path / "b", ids[:2], vocab_size=vocab_size, tokenizer=b"t", source="y")
    raw = b"".join(int(i).to_bytes(width, "little") for i in ids)
    assert (tmp_path / "a.bin").read_bytes() == raw
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "dtype": f"uint{8 * width}",
        "count": 4,
        "tokenizer": hashlib.sha256(b"t").hexdigest(),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "source": "x",
    }
    stream = open_shards([tmp_path / "a.bin", tmp_path / "b.bin"], tokenizer=b"t", verify=True)
    assert stream.read(0, 6).tolist() == [*ids.tolist(), 0, 3]
    assert read_header(tmp_path / "b.bin").count == 2
    sums = "".join(hashlib.sha256(part).hexdigest() for part in (raw, raw[: 2 * width]))
    assert stream.fingerprint() == hashlib.sha256(sums.encode()).hexdigest()


def test_invalid_shards_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a shard, but there is none; make shards with transduce data shards"):
        open_shards([], tokenizer=b"t")
    path = tmp_path / "a.bin"
    write_shard(path, np.array([0, 8]), vocab_size=9, tokenizer=b"t", source="x")
    ours, theirs = (hashlib.sha256(name).hexdigest()[:12] for name in (b"t", b"u"))
    with pytest.raises(ValueError) as error:
        open_shards([path], tokenizer=b"u")
    assert str(error.value) == (
        f"shards must be made with the tokenizer they are read with, but {path} has {ours} and the tokenizer is "
        f"{theirs}; make the shards again"
    )
    path.write_bytes(b"\0\0\0\1")
    open_shards([path], tokenizer=b"t")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must have the checksum of its header"):
        open_shards([path], tokenizer=b"t", verify=True)
    stream = open_shards([path], tokenizer=b"t", vocab_size=256)
    assert stream.read(0, 1).tolist() == [0]
    with pytest.raises(ValueError) as error:
        stream.read(0, 2)
    assert str(error.value) == (
        "ids of shards must be below the 256 of their tokenizer, but one is 256; make them again: transduce data shards "
        "replaces damaged ones"
    )
    path.write_bytes(b"\0\0\0")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must have 4 bytes.* but has 3"):
        open_shards([path], tokenizer=b"t")
    path.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match=r"a\.json: .*No such file"):
        open_shards([path], tokenizer=b"t")


def test_bigram_by_hand():
    """Training 0 1 0 1 0 2: pairs 01 twice, 10 twice, 02 once. V = 4, prior 2."""
    unigram = [4 / 10, 3 / 10, 2 / 10, 1 / 10]  # counts 3, 2, 1, 0, each plus one, of 6 + 4
    want = (
        math.log((2 + 2 * unigram[1]) / (3 + 2)),  # 0 -> 1
        math.log((0 + 2 * unigram[3]) / (2 + 2)),  # 1 -> 3, never seen
        math.log((0 + 2 * unigram[0]) / (0 + 2)),  # 3 -> 0, after what was never seen
        math.log((1 + 2 * unigram[2]) / (3 + 2)),  # 0 -> 2
    )
    got = bigram_cross_entropy(split([0, 1, 0, 1, 0, 2], 3), split([0, 1, 3, 0, 2]), 4, prior=2.0)
    assert got == pytest.approx(-sum(want) / 4, abs=1e-12)
    longer = split([0, 1, 0, 1, 0, 2, 2, 2, 2])
    assert bigram_cross_entropy(longer, split([0, 1, 3, 0, 2]), 4, prior=2.0, limit=6) == pytest.approx(got, abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_bigram_equals_a_table_of_counts_for_any_chunk_size(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    train, valid = rng.integers(5, size=120), rng.integers(6, size=60)
    table, unigram = np.zeros((6, 6)), np.ones(6)
    for a, b in pairwise(train):
        table[a, b] += 1
    for a in train:
        unigram[a] += 1
    table = (table + 10 * unigram / unigram.sum()) / (table.sum(axis=1, keepdims=True) + 10)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    want = -np.mean([math.log(table[a, b]) for a, b in pairwise(valid)])
    assert bigram_cross_entropy(split(train, 50), split(valid, 8), 6) == pytest.approx(want, abs=1e-12)


def test_a_bigram_of_one_token_is_refused():
    with pytest.raises(ValueError) as error:
        bigram_cross_entropy(split([1, 2]), split([1]), 4)
    assert str(error.value) == (
        "a bigram needs two validation tokens or more and a positive prior, but there are 1 and prior=10.0"
    )
