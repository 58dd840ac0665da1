"""Parallel text that memory need not hold: every pair once in a pass, with its own translation, in a known order."""

import gzip
import math
import os
import re
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from transduce.data import parallel_text as parallel, text_batches
from transduce.data.batch import permuted
from transduce.data.corpus import Files
from transduce.data.parallel_text import LargeText, ParallelText, fingerprint
from transduce.data.sentencepiece_bpe import train_tokenizer_pair
from transduce.data.text_batches import TextPairs
from transduce.score.wer import normalized

N = 205  # with text on both sides
SOURCE = [f"{'a b ' * (i % 5)}number {i}" for i in range(N)]
TARGET = [f"{'c ' * (i % 7)}Nummer {i}" for i in range(N)]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    """Four pools, blocks that do not divide the text, and a sample of a third."""
    for module, name, value in (
        *(
            (module, name, value)
            for module in (parallel, text_batches)
            for name, value in (("POOL", 60), ("BLOCK", 64))
        ),
        (parallel, "SAMPLE", 70),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def files(tmp_path) -> Files:
    """Two files, one of them packed, with two pairs that are half blank."""
    (tmp_path / "a").write_text("\n".join([*SOURCE[:9], "", "x", *SOURCE[9:]]) + "\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress("\n".join([*TARGET[:9], "y", " ", *TARGET[9:]]).encode()))
    return Files(
        train_source=tmp_path / "a", train_target=tmp_path / "b.gz",
        valid_source=tmp_path / "a", valid_target=tmp_path / "b.gz",
    )  # fmt: skip


BOTH = train_tokenizer_pair(SOURCE, TARGET, vocab_size=330, joint=False)


def stored(files: Files, cache, **settings) -> TextPairs:
    text = files.splits(0, cache)[0]
    assert isinstance(text, LargeText)
    return TextPairs(text, *BOTH, **{"tokens_per_batch": 120, **settings})


def decoded(batch) -> list[tuple[str, str]]:
    sides = []
    ids = (batch.source, batch.source_lengths), (batch.target_out, batch.target_lengths)
    for tokenizer, (rows, lengths) in zip(BOTH, ids, strict=True):
        cut = [row[: n - 1].tolist() for row, n in zip(rows, lengths.tolist(), strict=True)]
        sides.append(tokenizer.decode(cut))
    return list(zip(*sides, strict=True))


def test_a_large_text_from_a_pipe_is_refused(files, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes((tmp_path / "a").read_bytes()))
    writer.start()
    with pytest.raises(
        ValueError, match=rf"several times, but {pipe} is not a regular file and can be read only once; write it to"
    ):
        replace(files, train_source=pipe).splits(0, tmp_path / "cache")
    writer.join()


def test_a_pass_over_the_pools_has_every_pair_once(files, tmp_path):
    pairs = stored(files, tmp_path / "cache")
    assert pairs.n_pools == 4
    passes = []
    for n_pass in range(2):
        pools = [pairs.epoch(n_pass * pairs.n_pools + i) for i in range(pairs.n_pools)]
        passes.append([[pair for batch in pool for pair in decoded(batch)] for pool in pools])
        assert Counter(pair for pool in passes[-1] for pair in pool) == Counter(zip(SOURCE, TARGET, strict=True))
        assert all(b.source.numel() <= 120 and b.target_in.numel() <= 120 for pool in pools for b in pool)
    assert max(map(len, passes[0])) - min(map(len, passes[0])) <= 1
    for one, other in zip(*passes, strict=True):
        assert set(one) != set(other)  # other pools in another pass


def test_batches_are_a_function_of_seed_and_epoch(files, tmp_path):
    """Whoever begins in the middle gets what one who began at the start gets, from the same files."""
    first, late = (stored(files, tmp_path / "cache", seed=1) for _ in range(2))
    walked = [[batch.target_out.tolist() for batch in first.epoch(n)] for n in range(6)]
    assert [batch.target_out.tolist() for batch in late.epoch(5)] == walked[5]
    assert [batch.target_out.tolist() for batch in late.epoch(2)] == walked[2]  # back again
    other = stored(files, tmp_path / "cache", seed=2)
    assert [batch.target_out.tolist() for batch in other.epoch(5)] != walked[5]


def test_the_same_pairs_are_left_out_as_in_memory(files, tmp_path):
    large = stored(files, tmp_path / "cache", max_length=8)
    whole = TextPairs(ParallelText(SOURCE, TARGET, 2), *BOTH, tokens_per_batch=120, max_length=8)
    assert 0 < large.n_long == whole.n_long
    in_memory = whole.ids(0)
    assert large.text.n_blank == 2 and large.n_target == sum(map(len, in_memory[1]))
    assert abs(large.usual_length - whole.usual_length) <= 1
    rows = [(s.tolist(), t.tolist()) for n in range(large.n_pools) for s, t in zip(*large.ids(n), strict=True)]
    assert sorted(rows) == sorted((s.tolist(), t.tolist()) for s, t in zip(*in_memory, strict=True))
    n_short = N - whole.n_long
    assert large.n_pools == math.ceil(n_short / 60) > 1
    assert str(large) == (
        f"{n_short} pairs, {large.n_target:,} target tokens, in {large.n_pools} pools, each of which is an epoch; "
        f"left out: 2 blank, {whole.n_long} too long"
    )
    shortest = min(
        max(len(s), len(t))
        for s, t in zip(*(b.encode(x) for b, x in zip(BOTH, (SOURCE, TARGET), strict=True)), strict=True)
    )
    with pytest.raises(ValueError, match=f"max_length=1 and the shortest of {N} pairs has {shortest + 1} tokens"):
        stored(files, tmp_path / "cache", max_length=1)


@pytest.mark.parametrize(("n", "kind"), [(60, ParallelText), (61, LargeText)])
def test_a_text_of_one_pool_stays_in_memory(tmp_path, n, kind):
    (tmp_path / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(SOURCE[:n], TARGET[:n], strict=True)))
    text, valid, _ = Files(train_tsv=tmp_path / "a.tsv", valid_tsv=tmp_path / "a.tsv").splits(0, tmp_path / "cache")
    assert type(text) is kind and type(valid) is ParallelText


def test_the_cache_is_reused_until_the_text_changes(files, tmp_path, monkeypatch):
    """Neither is the text read nor encoded, unless it changes."""
    calls = []
    encode = text_batches._encode
    monkeypatch.setattr(text_batches, "_encode", lambda block, *rest: calls.append(len(block)) or encode(block, *rest))
    cache = tmp_path / "cache"
    stored(files, cache)
    assert calls == [64, 64, 64, N - 3 * 64]
    stored(files, cache)
    assert sum(calls) == N
    monkeypatch.setattr(parallel, "_survey", lambda *_: pytest.fail("the text was read again"))
    stored(files, cache)
    assert sum(calls) == N
    files.train_source.write_text(files.train_source.read_text() + "\n")
    with pytest.raises(pytest.fail.Exception):
        stored(files, cache)


def test_an_interrupted_preparation_is_not_reused(files, tmp_path, monkeypatch):
    encode, calls = text_batches._encode, []

    def interrupted(block, *rest):
        calls.append(len(block))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(block, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(text_batches, "_encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stored(files, tmp_path / "cut")
    (folder,) = (tmp_path / "cut").iterdir()
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".jsonl", ".lock"}
    again, straight = (stored(files, tmp_path / name) for name in ("cut", "straight"))
    assert [batch.source.tolist() for batch in again.epoch(0)] == [batch.source.tolist() for batch in straight.epoch(0)]


def test_what_a_killed_preparation_leaves_is_removed(files, tmp_path):
    """Half a file of ids may have gigabytes."""
    folder = files.splits(0, tmp_path / "cache")[0].folder
    for ending in ("ids", "offsets"):
        (folder / f".0123456789abcdef.{ending}.0123456789abcdef.tmp").write_bytes(b"half")
    assert len([*folder.glob(".*.tmp")]) == 2
    stored(files, tmp_path / "cache")
    assert not [*folder.glob(".*.tmp")]


def test_files_of_a_large_text_hold_its_ids(files, tmp_path):
    stored(files, tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*/*.ids")
    rows = [[*tokenizer.encode([text])[0], tokenizer.eos_id] for pair in zip(SOURCE, TARGET, strict=True)
            for tokenizer, text in zip(BOTH, pair, strict=True)]  # fmt: skip
    assert np.fromfile(path, "<u2").tolist() == [i for row in rows for i in row]
    offsets = np.fromfile(path.with_suffix(".offsets"), "<i8")
    assert offsets.tolist() == [0, *np.cumsum([len(row) for row in rows]).tolist()]


def test_validation_can_be_held_out_of_a_large_text(files, tmp_path, caplog):
    """By the seed; pairs equal to one that is held out, and they alone, leave training and the tokenizers' sample."""
    files.train_source.write_text("\n".join([*SOURCE, *SOURCE[:50]]) + "\n")
    files.train_target.write_bytes(gzip.compress("\n".join([*TARGET, *TARGET[:50]]).encode()))
    files = Files(train_source=files.train_source, train_target=files.train_target, hold_out=40)
    text, valid, _ = files.splits(7, tmp_path / "cache")
    held = set(zip(valid.source, valid.target, strict=True))
    assert len(valid) == 40 and held < set(zip(SOURCE, TARGET, strict=True))
    everything = [*zip(SOURCE, TARGET, strict=True), *zip(SOURCE[:50], TARGET[:50], strict=True)]
    assert list(text) == [pair for pair in everything if pair not in held]
    assert 0 < len(text.sample()[0]) <= 30 and not held & set(zip(*text.sample(), strict=True))
    (said,) = (r.getMessage() for r in caplog.records)
    assert re.findall(r"\d+", said) == ["40"]
    again, other = (files.splits(seed, tmp_path / "cache") for seed in (7, 8))
    assert again[:2] == (text, valid) and other[1] != valid
    folders = {stored(files, tmp_path / "cache").text.folder for _ in range(2)}
    assert len(folders) == 1  # the text is surveyed once, whatever the seed
    large = Files(train_source=files.train_source, train_target=files.train_target, hold_out=70)
    with pytest.raises(ValueError, match=r"hold_out=70 takes all of the 70 "):
        large.splits(7, tmp_path / "cache")


def test_a_large_text_whose_pairs_are_all_held_out_is_refused(tmp_path):
    (tmp_path / "same.tsv").write_text("one\teins\n" * 100)
    with pytest.raises(ValueError, match=r"hold_out=1 takes all of the 70 "):
        Files(train_tsv=tmp_path / "same.tsv", hold_out=1).splits(7, tmp_path / "cache")


def test_the_sample_is_drawn_from_the_whole_text(files, tmp_path):
    """Each third of the text gives about a third of it; source and target stay together."""
    text = files.splits(0, tmp_path / "cache")[0]
    source, target = text.sample()
    assert len(source) == 70 == len(set(source))
    numbers = [int(s.split()[-1]) for s in source]
    assert numbers == [int(t.split()[-1]) for t in target]
    assert all(10 < count < 40 for count in np.histogram(numbers, bins=3, range=(0, N))[0])


def test_copies_of_sources_follow_their_originals(files, tmp_path):
    """In memory and from files alike; a source that the copy would equal has none, nor one without words."""
    text = files.splits(0, tmp_path / "cache")[0]
    want = [pair for s, t in zip(SOURCE, TARGET, strict=True) for pair in ((s, t), (s.upper(), t))]
    copied = text.with_copies(str.upper)
    assert [*copied] == want == [*ParallelText(SOURCE, TARGET).with_copies(str.upper)]
    plain, large = stored(files, tmp_path / "cache"), TextPairs(copied, *BOTH, tokens_per_batch=120)
    assert [plain.n_pairs, large.n_pairs] == [N, 2 * N]
    pools = [large.epoch(i) for i in range(large.n_pools)]
    assert Counter(pair for pool in pools for batch in pool for pair in decoded(batch)) == Counter(
        (" ".join(s.split()), t) for s, t in want
    )
    assert fingerprint(copied) != fingerprint(text)
    sample = [*zip(*copied.sample(), strict=True)]
    assert sample[::2] == [*zip(*text.sample(), strict=True)] and sample[1] == (sample[0][0].upper(), sample[0][1])


def test_normalized_copies_of_sources():
    sources = ["Don't stop, Ann!", "stop", "...", "<2pt-BR> Good day.", "<2de> ..."]
    text = ParallelText(sources, ["1", "2", "3", "4", "5"], n_blank=7).with_copies(normalized)
    assert [*text] == [
        ("Don't stop, Ann!", "1"), ("don't stop ann", "1"), ("stop", "2"), ("...", "3"),
        ("<2pt-BR> Good day.", "4"), ("<2pt-BR> good day", "4"), ("<2de> ...", "5"),
    ]  # fmt: skip
    assert text.n_blank == 7


def test_the_fingerprint_depends_on_the_text_alone(files, tmp_path):
    def of(cache: str, **changed) -> str:
        return fingerprint(Files(**{**vars(files), **changed}).splits(0, tmp_path / cache)[0])

    (tmp_path / "moved").write_bytes(files.train_source.read_bytes())
    other = tmp_path / "other"
    other.write_text(files.train_source.read_text().replace("number 200", "number 300"))
    assert of("one") == of("two") == of("one", train_source=tmp_path / "moved") != of("one", train_source=other)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 256, 1000])
def test_permuted_indices_are_a_permutation(n):
    whole = permuted(np.arange(n), n, (3, 1))
    assert sorted(whole.tolist()) == list(range(n))
    assert permuted(np.arange(n // 2, n), n, (3, 1)).tolist() == whole[n // 2 :].tolist()
    if n > 100:
        assert whole.tolist() != permuted(np.arange(n), n, (3, 2)).tolist()
        # of a random permutation, correlation of index and place has deviation 1 / sqrt(n - 1)
        assert abs(np.corrcoef(whole, np.arange(n))[0, 1]) < 4 / np.sqrt(n - 1)
        assert abs(np.corrcoef(whole[1:], whole[:-1])[0, 1]) < 4 / np.sqrt(n - 2)
