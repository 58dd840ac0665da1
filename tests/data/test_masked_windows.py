"""What is chosen and what stands in its place, by counting; the loss in loops; text with gaps; the baseline in loops."""

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from recipes.baselines import Neighbours
from tests.contract import random_model
from tests.language_runs import any_tokenizer
from tests.reference import Reference
from transduce.data import language as shards_module
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.batch import IGNORE, batch_of
from transduce.data.config import MaskingConfig
from transduce.data.language import Stream
from transduce.data.sentencepiece_bpe import BOS, EOS, PAD, UNK
from transduce.data.text_batches import (
    HeldOutWindows,
    MaskedBatches,
    MaskedWindows,
    TokenWindows,
    mask_id,
    masked_batch,
    window_batch,
)
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.layers import balance_loss
from transduce.model.transformer import Transformer
from transduce.tasks.fill_mask import decode_masked, encode_masked
from transduce.train.objectives import CrossEntropy

V, ROWS, CONTEXT, N = 23, 31, 47, 60
LETTERS = CharTokenizer.train("".join(chr(ord("a") + i) for i in range(V)))
TEXT = Stream([np.random.default_rng(5).integers(V, size=5000)])


def chi_square_deviation(observed, expected) -> float:
    """Pearson's chi-square, in standard deviations above its mean."""
    observed, expected = np.asarray(observed, dtype=float), np.asarray(expected, dtype=float)
    freedom = len(observed) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def masked_windows(seed: int = 3, **fields) -> MaskedWindows:
    windows = TokenWindows(stream=TEXT, context=CONTEXT, batch_size=ROWS, seed=seed, batches_per_epoch=N)
    return MaskedWindows(windows=windows, masking=MaskingConfig(**fields), tokenizer=LETTERS)


@pytest.mark.parametrize(("share", "hidden", "random"), [(0.15, 0.8, 0.1), (0.4, 0.5, 0.3)])
def test_masking_rates_match_their_probabilities(share, hidden, random):
    epoch = masked_windows(
        mask_probability=share, mask_replace_probability=hidden, random_replace_probability=random
    ).epoch(2)
    places, drawn, fate = np.zeros(CONTEXT), np.zeros(V), Counter()
    for batch, text in zip(epoch, epoch.texts, strict=True):
        chosen = batch.target_out != IGNORE
        assert chosen.sum(dim=1).tolist() == [round(share * CONTEXT)] * ROWS
        assert batch.n_tokens == ROWS * round(share * CONTEXT)
        assert torch.equal(batch.target_out[chosen], text.target_out[chosen])
        assert torch.equal(batch.source[~chosen], text.target_out[~chosen])
        assert torch.equal(batch.source_lengths, text.target_lengths) and batch.source.shape == chosen.shape
        places += chosen.sum(dim=0).numpy()
        for wanted, got in zip(batch.target_out[chosen].tolist(), batch.source[chosen].tolist(), strict=True):
            fate["hidden" if got == V else "kept" if got == wanted else "other"] += 1
            if got not in (wanted, V):
                drawn[got] += 1
    n = N * ROWS * round(share * CONTEXT)
    assert fate.total() == n > 10_000
    by_luck = random / V  # the right one, drawn at random
    shares = {"hidden": hidden, "other": random - by_luck, "kept": 1 - hidden - random + by_luck}
    assert chi_square_deviation([fate[name] for name in shares], [n * share for share in shares.values()]) < 4
    assert chi_square_deviation(places, np.full(CONTEXT, n / CONTEXT)) < 4
    assert chi_square_deviation(drawn, np.full(V, fate["other"] / V)) < 4


def test_padding_bos_and_eos_are_never_masked():
    tokenizer = any_tokenizer("sentencepiece")
    rows = [[*range(260, 260 + n), EOS] for n in (1, 3, 20, 60)]
    batch = batch_of(None, None, [[BOS, *row] for row in rows], bos=PAD)
    counts = []
    for seed in range(40):
        got = masked_batch(batch, MaskingConfig(mask_probability=0.3), tokenizer, np.random.default_rng(seed))
        chosen = got.target_out != IGNORE
        counts.append(chosen.sum(dim=1).tolist())
        assert not {BOS, EOS, PAD, UNK} & set(got.target_out[chosen].tolist())
        for row, length in enumerate(got.source_lengths.tolist()):
            assert length == len(rows[row]) + 1
            assert (got.source[row, 0], got.source[row, length - 1]) == (BOS, EOS)
            assert not got.source[row, length:].any() and not chosen[row, length:].any()
    assert counts == [[1, 1, 6, 18]] * 40  # 30 %, but one at least
    only_marks = batch_of(None, None, [[BOS, EOS]], bos=PAD)
    ours = masked_batch(only_marks, MaskingConfig(), tokenizer, np.random.default_rng(0))
    assert ours.n_tokens == 1  # never none: a mean is taken


def test_masks_depend_on_seed_epoch_and_batch():
    data = masked_windows()
    again = data.epoch(2)[3]
    for name in ("source", "target_out", "target_in"):
        assert torch.equal(getattr(again, name), getattr(masked_windows().epoch(2)[3], name))
    held_out = [HeldOutWindows(TEXT, context=CONTEXT, batch_size=ROWS)[0]] * 2
    fixed = MaskedBatches(held_out, MaskingConfig(), LETTERS)
    assert torch.equal(fixed[1].source, MaskedBatches(held_out, MaskingConfig(), LETTERS)[1].source)
    where = [batch.target_out != IGNORE for batch in (*fixed, again, data.epoch(2)[4], data.epoch(1)[3])]
    where.append(masked_windows(seed=4).epoch(2)[3].target_out != IGNORE)
    assert not any(torch.equal(a, b) for i, a in enumerate(where) for b in where[:i])
    assert len(fixed) == 2 and len(list(fixed)) == 2 and len(data.epoch(0)) == N


STACK = StackConfig(input=Tokens(vocab_size=V + 1), n_layers=2)
ENCODER = TransformerConfig(encoder=STACK, d_model=14, n_heads=2, d_ff=13, dropout=0.0)


def uneven_batch():
    """Two rows of different lengths, seven tokens in ten chosen."""
    text = batch_of(None, None, [TEXT.read(0, 9).tolist(), TEXT.read(20, 25).tolist()], bos=0)
    return masked_batch(text, MaskingConfig(mask_probability=0.7), LETTERS, np.random.default_rng(1))


def test_the_loss_equals_cross_entropy_in_loops(rng):
    model, batch = random_model(ENCODER, rng), uneven_batch()
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    want, n_tokens = 0.0, 0
    for row, length in enumerate((9, 5)):
        logits = Reference(n_heads=2).logits(weights, batch.source[row, :length].numpy(), None)
        for t in range(length):
            wanted = int(batch.target_out[row, t])
            if wanted != IGNORE:
                want -= logits[t, wanted] - math.log(sum(math.exp(x) for x in logits[t]))
                n_tokens += 1
    assert n_tokens == batch.n_tokens == 6 + 4
    with torch.no_grad():
        assert CrossEntropy(model)(batch).total.item() == pytest.approx(want, abs=1e-9)


def test_predictions_see_both_sides_but_no_padding_or_targets(rng):
    model, batch = random_model(ENCODER, rng), uneven_batch()
    got = []
    model.source_input.register_forward_hook(lambda module, inputs, output: got.append(output[0]))
    for t in (0, 4, 8):
        one = replace(batch, target_out=torch.full_like(batch.target_out, IGNORE), n_tokens=1)
        one.target_out[0, t] = 7
        (gradient,) = torch.autograd.grad(CrossEntropy(model)(one).total, got[-1])
        seen = gradient.abs().amax(dim=-1) > 0
        assert seen[0].all() and not seen[1].any()
    whole = CrossEntropy(model)(batch).total
    (gradient,) = torch.autograd.grad(whole, got[-1])
    assert not gradient[1, 5:].any()  # padding
    assert CrossEntropy(model)(replace(batch, target_in=batch.target_in * 0)).total.item() == whole.item()


def test_balance_loss_is_counted_per_masked_token(rng):
    model = Transformer(replace(ENCODER, n_experts=3, balance_weight=0.25))
    batch, got = uneven_batch(), []
    for layer in model.encoder.layers:
        layer.feed_forward.router.register_forward_hook(lambda module, inputs, output: got.append(output))
    with torch.no_grad():
        trained = CrossEntropy(model.train())(batch).total
        want = batch.n_tokens * 0.25 * sum(balance_loss(scores, 2, batch.source_lengths) for scores in got)
        torch.testing.assert_close(trained - CrossEntropy(model.eval())(batch).total, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["characters", "bytes", "sentencepiece"])
@pytest.mark.parametrize("line", ["ROMEO: But _, what light!", "_ me.", "Speak, _ _", "_", "it's _.", "Speak _ speak;"])
def test_masked_text_round_trip(kind, line):
    tokenizer = any_tokenizer(kind)
    ids = encode_masked(tokenizer, line, "_")
    assert ids.count(mask_id(tokenizer)) == line.count("_") and mask_id(tokenizer) == tokenizer.vocab_size
    assert decode_masked(tokenizer, ids, "_") == line
    assert (ids[0], ids[-1]) == (BOS, EOS) or kind != "sentencepiece"
    longer = line.replace("_", "[MASK]")
    assert encode_masked(tokenizer, longer, "[MASK]") == ids and decode_masked(tokenizer, ids, "[MASK]") == longer


@pytest.mark.parametrize("kind", ["characters", "bytes", "sentencepiece"])
@pytest.mark.parametrize("line", ["ROMEO: But soft, what light!", "Speak, speak; it's done."])
def test_masked_lines_keep_the_tokens_around_the_mask(kind, line):
    """Whichever token is hidden: text before and after it keeps its pieces."""
    tokenizer = any_tokenizer(kind)
    whole = encode_masked(tokenizer, line, "_")
    (plain,) = tokenizer.encode([line])
    assert whole == ([BOS, *plain, EOS] if kind == "sentencepiece" else plain)
    words = [i for i, id_ in enumerate(whole) if tokenizer.decode([[id_]])[0].strip() in (",", ";", "!")]
    assert words
    for i in words:
        hidden = [*whole[:i], mask_id(tokenizer), *whole[i + 1 :]]
        assert encode_masked(tokenizer, decode_masked(tokenizer, hidden, "_"), "_") == hidden


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize(
    ("line", "n"),
    [
        *(("Ay_me", 0), ("_me", 0), ("Ay_", 0), ("__", 0), ("Ay_me _", 1), ("Ay _, (_) '_'!", 3), ("_", 1)),
        *(("Ay\t_-_", 2), ("我去_校。", 1), ("ไป_โรงเรียน", 1), ("किता_", 0)),
    ],
)
def test_a_mask_must_be_a_whole_word(kind, line, n):
    tokenizer = any_tokenizer(kind)
    ids = encode_masked(tokenizer, line, "_")
    assert ids.count(mask_id(tokenizer)) == n
    if n == 0:
        (plain,) = tokenizer.encode([line])
        assert ids == ([BOS, *plain, EOS] if kind == "sentencepiece" else plain)
    assert encode_masked(tokenizer, line.replace("_", "<?>"), "<?>").count(mask_id(tokenizer)) >= n


def test_single_characters_can_be_masked_with_a_character_tokenizer():
    tokenizer = any_tokenizer("characters")
    (before, after), gap = tokenizer.encode(["Sp", "ak"]), mask_id(tokenizer)
    assert encode_masked(tokenizer, "Sp_ak__", "_") == [*before, gap, *after, gap, gap]


def test_decoded_lines_are_separated_by_spaces():
    tokenizer = any_tokenizer("sentencepiece")
    ids = [*encode_masked(tokenizer, "Ay _", "_"), *encode_masked(tokenizer, "Speak, _", "_")]
    assert decode_masked(tokenizer, ids, "_") == "Ay _ Speak, _"


@pytest.mark.parametrize("chunk", [3, 1 << 22])
def test_neighbour_baseline_equals_the_formula_in_loops(monkeypatch, chunk):
    """p(x | a, b) = p(x | a) p(b | x) / sum over x, each p(b | a) = (pairs + prior p(b)) / (firsts + prior)."""
    monkeypatch.setattr(shards_module, "CHUNK", chunk)
    size, prior = 6, 2.0
    rng = np.random.default_rng(2)
    train, valid = rng.integers(size - 1, size=80).tolist(), rng.integers(size, size=25).tolist()
    unigram = [(train.count(b) + 1) / (80 + size) for b in range(size)]

    def follows(b, a):
        pairs = sum(x == a and y == b for x, y in pairwise(train))
        return (pairs + prior * unigram[b]) / (train[:-1].count(a) + prior)

    def between(left, right):
        p = [follows(x, left) * (1 if right is None else follows(right, x)) for x in range(size)]
        return [value / sum(p) for value in p]

    model = Neighbours(Stream([np.array(train)]), size, prior=prior)
    for left in range(size):
        for right in (None, *range(size)):
            np.testing.assert_allclose(model(left, right), between(left, right), rtol=1e-12)
    batches = MaskedBatches(
        [window_batch([np.array(valid)])], MaskingConfig(mask_probability=0.5), CharTokenizer.train("abcdef")
    )
    chosen = [t for t, wanted in enumerate(batches[0].target_out[0].tolist()) if wanted != IGNORE]
    predictions = [between(valid[t], valid[t + 2] if t + 2 < 25 else None) for t in chosen]
    nats = -sum(math.log(p[valid[t + 1]]) for p, t in zip(predictions, chosen, strict=True)) / 12
    right = (
        sum(max(range(size), key=p.__getitem__) == valid[t + 1] for p, t in zip(predictions, chosen, strict=True)) / 12
    )
    assert len(chosen) == 12
    assert model.scores(batches) == pytest.approx((nats, right), rel=1e-9)
    first = Neighbours(Stream([np.array(train[:30])]), size)
    limited = Neighbours(Stream([np.array(train)]), size, limit=30)
    np.testing.assert_allclose(first(1, 2), limited(1, 2), rtol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_probability": 0.0}, "must lie in (0, 1], but mask_probability=0.0"),
        (
            {"mask_replace_probability": 0.8, "random_replace_probability": 0.3},
            "must lie in [0, 1], but mask_replace_probability + random_replace_probability=1.1",
        ),
        ({"mask_replace_probability": -0.1}, "must lie in [0, 1], but mask_replace_probability=-0.1"),
        ({"random_replace_probability": -0.2}, "must lie in [0, 1], but random_replace_probability=-0.2"),
    ],
)
def test_invalid_masking_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        MaskingConfig(**fields)
