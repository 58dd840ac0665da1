"""Batches: every example once, within the budget, in an order that can be made again."""

import gc
import re
import weakref
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from transduce.data.batch import IGNORE, Batch, Epoch, bucket, pad, padding_share, pair_batch, pair_epoch
from transduce.data.corpus import Folder, corpus_folder
from transduce.data.parallel_text import ParallelText, fingerprint
from transduce.data.sentencepiece_bpe import BOS, EOS, PAD, train_tokenizer_pair
from transduce.data.text_batches import TextPairs


def pairs_of_ids(n: int, seed: int, longest: int = 30) -> tuple[list[list[int]], list[list[int]]]:
    """Pairs whose target begins with their own number, so that a row can be told from another."""
    rng = np.random.default_rng(seed)
    source = [rng.integers(4, 99, size=rng.integers(1, longest)).tolist() for _ in range(n)]
    target = [[1000 + i, *rng.integers(4, 99, size=rng.integers(0, longest)).tolist(), EOS] for i in range(n)]
    return source, target


def an_epoch(n: int = 400, *, budget: int = 128, seed: int = 1, epoch: int = 0) -> Epoch:
    source, target = pairs_of_ids(n, seed=11)
    return pair_epoch(source, target, tokens_per_batch=budget, seed=seed, epoch=epoch, bos=BOS)


def numbers(batch: Batch) -> list[int]:
    return (batch.target_out[:, 0] - 1000).tolist()


@pytest.mark.parametrize("sides", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 17, 64, 10_000])
def test_buckets_hold_every_example_once_within_the_budget(sides, budget):
    lengths = np.random.default_rng(budget).integers(1, 40, size=(307, sides))
    batches = bucket(lengths, budget)
    assert Counter(i for batch in batches for i in batch.tolist()) == Counter(range(307))
    for batch in batches:
        for side in range(sides):
            longest = max(lengths[i, side] for i in batch)
            assert len(batch) == 1 or len(batch) * longest <= budget


@pytest.mark.parametrize("budget", [1, 17, 64, 10_000])
def test_buckets_end_where_the_next_example_would_break_the_budget(budget):
    lengths = np.random.default_rng(budget).integers(1, 40, size=(307, 2))
    batches = [[int(max(lengths[i])) for i in batch] for batch in bucket(lengths, budget)]
    longest = list(chain.from_iterable(batches))
    assert longest == sorted(longest)
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * after[0] > budget
    assert bucket(lengths[:0], budget) == []


def test_an_epoch_is_freed_with_its_last_reference():
    """Python's collector looks for circles rarely, and an epoch may hold a large part of a corpus."""
    gc.disable()
    try:
        epoch = an_epoch()
        gone = weakref.ref(epoch)
        del epoch
        assert gone() is None
    finally:
        gc.enable()


def test_an_example_longer_than_the_budget_is_its_own_batch():
    lengths = np.array([[3, 3], [50, 2], [2, 3], [3, 60], [2, 2]])
    got = sorted(sorted(batch.tolist()) for batch in bucket(lengths, 12))
    assert got == [[0, 2, 4], [1], [3]]


def test_buckets_are_as_full_as_the_budget_allows():
    """Equal lengths: floor(budget / length) rows in all but the last."""
    assert [len(batch) for batch in bucket(np.full((23, 2), 7), 40)] == [5, 5, 5, 5, 3]


def test_memory_for_buckets_does_not_grow_with_the_budget():
    (batch,) = bucket(np.full((23, 2), 7), 10**17)
    assert batch.tolist() == list(range(23))


def test_padding_is_on_the_right():
    ids, lengths = pad([[5, 6, 7], [8], [9, 9]], -1)
    assert ids.tolist() == [[5, 6, 7], [8, -1, -1], [9, 9, -1]]
    assert lengths.tolist() == [3, 1, 2] and ids.dtype == lengths.dtype == torch.int64


def test_target_in_is_target_out_shifted_by_one():
    batch = pair_batch([[7, 8, EOS], [9, EOS]], [[5, EOS], [4, 5, 6, EOS]], bos=BOS)
    assert batch.source is not None and batch.source_lengths is not None
    assert batch.source.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_in.tolist() == [[BOS, 5, PAD, PAD], [BOS, 4, 5, 6]]
    assert batch.target_out.tolist() == [[5, EOS, IGNORE, IGNORE], [4, 5, 6, EOS]]
    assert batch.target_lengths.tolist() == [2, 4]
    assert batch.n_tokens == 6
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORE


def test_moving_a_batch_moves_tensors_and_keeps_host_lengths():
    batch = pair_batch([[7, 8, EOS]], [[5, EOS]], bos=BOS).to(torch.device("meta"))
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5 and {t.device.type for t in tensors} == {"meta"}
    assert batch.n_tokens == 2
    for moved in (batch, batch.to(torch.device("meta"))):
        assert [lengths.tolist() for lengths in moved.host_lengths] == [[3], [2]]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cuda:1", True), ("cpu", False)])
def test_memory_is_pinned_only_for_gpus(monkeypatch, device, pinned):
    """Only out of pinned memory does a copy to a GPU not wait."""
    batch, calls = pair_batch([[7, EOS]], [[5, EOS]], bos=BOS), []

    def pin_memory(tensor):
        copy = tensor.clone()
        calls.append(("pin", id(copy)))
        return copy

    def to(tensor, where, *, non_blocking=False):
        calls.append((str(where), non_blocking, id(tensor)))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    moved = batch.to(torch.device(device))
    kept = [id(value) for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    copies = [call for call in calls if call[0] != "pin"]
    assert copies == [(device, pinned, i) for i in kept] and len(kept) == 5
    assert [call[1] for call in calls if call[0] == "pin"] == (kept if pinned else [])


def test_an_epoch_holds_every_pair_once_with_its_own_source():
    source, target = pairs_of_ids(400, seed=11)
    epoch = an_epoch()
    seen: list[int] = []
    for batch in epoch:
        assert batch.source is not None and batch.source_lengths is not None
        seen += numbers(batch)
        for row, i in enumerate(numbers(batch)):
            n_source, n_target = int(batch.source_lengths[row]), int(batch.target_lengths[row])
            assert batch.source[row, :n_source].tolist() == source[i]
            assert batch.target_out[row, :n_target].tolist() == target[i]
            assert batch.target_in[row, :n_target].tolist() == [BOS, *target[i][:-1]]
        assert batch.source.numel() <= 128 and batch.target_in.numel() <= 128
        assert batch.n_tokens == int((batch.target_out != IGNORE).sum())
    assert sorted(seen) == list(range(400))
    assert sum(batch.n_tokens for batch in epoch) == sum(map(len, target))


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[list[int]]:
        torch.rand(3), np.random.rand(3)  # generators that others use do not matter
        return [numbers(batch) for batch in an_epoch(seed=seed, epoch=epoch)]

    assert order(1, 0) == order(1, 0)
    orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert one != other


def test_pairs_of_equal_length_are_batched_anew_each_epoch():
    """Not only the batches are shuffled, but also who shares one."""
    target = [[1000 + i, 7, EOS] for i in range(200)]
    one, other = (pair_epoch(target, target, tokens_per_batch=30, seed=1, epoch=n, bos=BOS) for n in (0, 1))
    together = {frozenset(numbers(batch)) for batch in one} & {frozenset(numbers(batch)) for batch in other}
    assert len(one) == 20 and len(together) == 0


def test_long_and_short_batches_are_mixed():
    """Sorted by length, the first half of an epoch would be all short."""
    widths = [batch.target_in.size(1) for batch in an_epoch(1000)]
    half = len(widths) // 2
    first, second = np.mean(widths[:half]), np.mean(widths[half:])
    assert abs(first - second) < 0.25 * np.mean(widths)


def test_any_batch_of_an_epoch_can_be_indexed():
    """What resuming in the middle of an epoch needs."""
    epoch = an_epoch()
    assert len(epoch) == len(list(epoch)) > 10
    for i, batch in enumerate(epoch):
        assert torch.equal(batch.target_out, epoch[i].target_out)


def test_padding_share_equals_a_count():
    epoch = an_epoch()
    real = positions = 0
    for batch in epoch:
        for ids, lengths in ((batch.source, batch.source_lengths), (batch.target_in, batch.target_lengths)):
            positions += ids.numel()
            real += sum(lengths.tolist())
    assert epoch.padding_share == pytest.approx(1 - real / positions, abs=1e-12)
    assert 0 < epoch.padding_share < 0.5
    by_hand = padding_share(np.array([[2, 3], [4, 1], [5, 5]]), [np.array([0, 1]), np.array([2])])
    assert by_hand == pytest.approx(4 / 24)  # (2 . .) and (4): 8 places, 6 used; 3 and (1 . .): 6 places, 4 used; 10


TEXT = ParallelText([f"a {'b ' * (i % 9)}c{i}" for i in range(90)], [f"d{i} {'e ' * (i % 7)}f" for i in range(90)], 3)


def text_pairs(**settings) -> TextPairs:
    return TextPairs(TEXT, *train_tokenizer_pair(TEXT.source, TEXT.target, vocab_size=300, joint=True), **settings)


def test_too_long_pairs_are_left_out_and_counted():
    everything = text_pairs(tokens_per_batch=64)
    source, target = everything.ids(0)
    assert (len(source), everything.n_long) == (90, 0)
    limit = 9
    fits = [max(len(s), len(t)) <= limit for s, t in zip(source, target, strict=True)]
    some = text_pairs(tokens_per_batch=64, max_length=limit)
    assert 0 < some.n_long == 90 - sum(fits) < 90
    for side, whole in zip(some.ids(0), (source, target), strict=True):
        assert [ids.tolist() for ids in side] == [ids.tolist() for ids, fit in zip(whole, fits, strict=True) if fit]
    assert re.findall(r"\d+", str(some))[-2:] == ["3", str(some.n_long)]
    shortest = min(max(len(s), len(t)) for s, t in zip(source, target, strict=True))
    with pytest.raises(ValueError) as caught:
        text_pairs(tokens_per_batch=64, max_length=1)
    assert str(caught.value) == (
        "max_length must leave a training and a validation pair, but max_length=1 and the shortest of 90 pairs has "
        f"{shortest} tokens"
    )


def test_usual_length_is_about_the_99th_percentile():
    pairs = text_pairs(tokens_per_batch=64)
    lengths = sorted(len(ids) - 1 for ids in pairs.ids(0)[0])
    n_longer = sum(length > pairs.usual_length for length in lengths)
    assert n_longer <= 0.02 * len(lengths) and pairs.usual_length >= lengths[int(0.97 * len(lengths))]


def test_fingerprints_distinguish_texts():
    texts = [
        ParallelText(["a", "b"], ["c", "d"]),
        ParallelText(["a", "b"], ["d", "c"]),
        ParallelText(["c", "d"], ["a", "b"]),
        ParallelText(["ab", ""], ["c", "d"]),
        ParallelText(["a"], ["c"]),
    ]
    assert len({fingerprint(text) for text in texts}) == len(texts)
    assert fingerprint(texts[0]) == fingerprint(ParallelText(["a", "b"], ["c", "d"], n_blank=7))


@pytest.mark.data
def test_multi30k_at_4096_tokens_is_at_most_a_tenth_padding():
    folder = corpus_folder("multi30k")
    if folder is None or not folder.is_dir():
        pytest.skip("needs multi30k inside the folder that TRANSDUCE_DATA names")
    text = Folder(data=folder).read("train")
    assert len(text) + text.n_blank == 29_000  # Elliott et al. (2016), table 1
    source, target = train_tokenizer_pair(text.source, text.target, vocab_size=8000, joint=True)
    epoch = TextPairs(text, source, target, tokens_per_batch=4096).epoch(0)
    real = sum(int(b.source_lengths.sum() + b.target_lengths.sum()) for b in epoch)
    assert 1 - real / sum(b.source.numel() + b.target_in.numel() for b in epoch) <= 0.10
