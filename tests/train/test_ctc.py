"""CTC against the sum over all alignments and against torch's loss; the hybrid objective against its two losses."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contract import GARBAGE, random_model
from transduce.data.batch import IGNORE, Batch, pad
from transduce.data.sentencepiece_bpe import BOS, EOS, PAD
from transduce.model.cache import Taps
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.losses import ctc_loss
from transduce.train.objectives import CrossEntropy

V = 11


def collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    """Graves et al. (2006), section 3.1: merge repeated labels, then remove blanks."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("tokens", [[], [1], [1, 3], [1, 1], [3, 1, 3], [3, 3, 1]])
def test_the_loss_is_the_sum_over_all_alignments(rng, tokens, blank):
    length, n_symbols, eos = 5, 4, 3
    logits = torch.randn(1, length, n_symbols, generator=rng, dtype=torch.float64)
    norms = [math.log(sum(math.exp(x) for x in frame)) for frame in logits[0].tolist()]
    total = 0.0
    for path in itertools.product(range(n_symbols), repeat=length):
        if collapsed(path, blank) == tokens:
            total += math.exp(sum(logits[0, t, label].item() - norms[t] for t, label in enumerate(path)))
    target, lengths = torch.tensor([[*tokens, eos]]), torch.tensor([len(tokens) + 1])
    assert ctc_loss(logits, None, target, lengths, blank_id=blank).item() == pytest.approx(-math.log(total), rel=1e-12)


def problem(rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of 5 rows and their targets; padding is random or IGNORE. Without repeats, every target fits."""
    rows = [[*(torch.randperm(V - 4, generator=rng) + 4)[:n].tolist(), EOS] for n in (5, 0, 7, 3, 1)]
    target, target_lengths = pad(rows, IGNORE)
    logits = torch.randn(5, 13, V, generator=rng, dtype=torch.float64).requires_grad_()
    return logits, torch.tensor([13, 2, 7, 12, 1]), target, target_lengths


def test_batch_loss_is_the_sum_of_single_rows(rng):
    logits, lengths, target, target_lengths = problem(rng)
    want = sum(
        F.ctc_loss(
            logits[row, :s].log_softmax(-1), target[row, : t - 1], torch.tensor(s), torch.tensor(t - 1), reduction="sum"
        )
        for row, (s, t) in enumerate(zip(lengths.tolist(), target_lengths.tolist(), strict=True))
    )
    got = ctc_loss(logits, lengths, target, target_lengths)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    (gradient,), (theirs,) = torch.autograd.grad(got, logits), torch.autograd.grad(want, logits)
    torch.testing.assert_close(gradient, theirs, rtol=1e-10, atol=1e-12)


def test_gradcheck(rng):
    logits, lengths, target, target_lengths = problem(rng)
    assert torch.autograd.gradcheck(lambda x: ctc_loss(x, lengths, target, target_lengths), logits)


def test_padding_does_not_change_loss_or_gradients(rng):
    logits, lengths, target, target_lengths = problem(rng)
    want = ctc_loss(logits, lengths, target, target_lengths)
    with torch.no_grad():
        beyond = (torch.arange(13) >= lengths[:, None])[:, :, None]
        garbage = F.pad(logits.masked_fill(beyond, GARBAGE), (0, 0, 0, 3), value=GARBAGE)
    target = F.pad(target, (0, 2), value=7)
    torch.testing.assert_close(ctc_loss(garbage, lengths, target, target_lengths), want, rtol=0, atol=0)
    garbage.requires_grad_()
    (gradient,) = torch.autograd.grad(ctc_loss(garbage, lengths, target, target_lengths), garbage)
    for row, length in enumerate(lengths.tolist()):
        assert gradient[row, length:].count_nonzero() == 0


def test_half_precision_logits_are_summed_in_float32(rng):
    logits, lengths, target, target_lengths = problem(rng)
    half = logits.detach().bfloat16()
    want = ctc_loss(half.float(), lengths, target, target_lengths)
    with torch.autocast("cpu", torch.bfloat16):
        got = ctc_loss(half, lengths, target, target_lengths)
    assert got.dtype == torch.float32 and got == want


def test_a_source_too_short_for_its_target_contributes_nothing(rng):
    rows = [[4, 5, 6, EOS], [4, 4, 5, EOS], [EOS], [7, 7, 7, EOS], [9, EOS]]
    target, target_lengths = pad(rows, IGNORE)

    def fits(row: list[int], n: int) -> bool:
        paths = itertools.product([PAD, *set(row[:-1])], repeat=n)
        return any(collapsed(path, PAD) == row[:-1] for path in paths)

    needed = torch.tensor([next(n for n in range(9) if fits(row, n)) for row in rows])
    assert needed.tolist() == [3, 4, 0, 5, 1]  # by hand: one a token, and a blank between equal ones
    logits = torch.randn(5, 6, V, generator=rng, dtype=torch.float64).requires_grad_()
    short = needed - torch.tensor([1, 1, 0, 1, 0])
    got = ctc_loss(logits, short, target, target_lengths)
    whole = ctc_loss(logits[[2, 4]], short[[2, 4]], target[[2, 4]], target_lengths[[2, 4]])
    assert got.item() == pytest.approx(whole.item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(got, logits)
    assert gradient[[0, 1, 3]].count_nonzero() == 0 and gradient[4].count_nonzero() > 0


# The hybrid objective

CONFIG = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=5, stack=2), n_layers=1),
    decoder=StackConfig(input=Tokens(vocab_size=V), n_layers=1),
    d_model=12,
    n_heads=2,
    d_ff=17,
    dropout=0.0,
    ctc=True,
)


def batch(rng: torch.Generator, dtype: torch.dtype = torch.float64) -> Batch:
    rows = [[4, 5, 5, 6, EOS], [7, EOS], [8, 9, 10, EOS]]
    target_out, target_lengths = pad(rows, IGNORE)
    target_in, _ = pad([[BOS, *row[:-1]] for row in rows], PAD)
    return Batch(
        source=torch.randn(3, 21, 5, generator=rng, dtype=dtype),
        source_lengths=torch.tensor([21, 7, 14]),
        target_in=target_in,
        target_out=target_out,
        target_lengths=target_lengths,
        n_tokens=int(target_lengths.sum()),
    )


@pytest.mark.parametrize("weight", [0.3, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_equal_torchs_two_losses(rng, weight, smoothing):
    model, examples = random_model(CONFIG, rng), batch(rng)
    logits = model(source=examples.source, source_lengths=examples.source_lengths, target_in=examples.target_in)
    entropy = F.cross_entropy(
        logits.flatten(0, 1), examples.target_out.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    states = model.encode(examples.source, examples.source_lengths).states
    ctc = F.ctc_loss(
        F.linear(states, model.ctc.weight, model.ctc.bias).log_softmax(-1).transpose(0, 1),
        torch.tensor([4, 5, 5, 6, 7, 8, 9, 10]),
        torch.tensor([11, 4, 7]),  # frames are stacked in twos
        torch.tensor([4, 1, 3]),
        reduction="sum",
    )
    want = (1 - weight) * entropy + weight * ctc
    got, parts = CrossEntropy(model, LossConfig(label_smoothing=smoothing, ctc_weight=weight))(examples)
    assert parts.keys() == {"cross_entropy", "ctc"} and not any(part.requires_grad for part in parts.values())
    torch.testing.assert_close(parts["cross_entropy"], entropy.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(parts["ctc"], ctc.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    parameters = list(model.parameters())
    for ours, theirs in zip(torch.autograd.grad(got, parameters), torch.autograd.grad(want, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_ctc_uses_its_own_targets_if_present(rng):
    model, examples = random_model(CONFIG, rng), batch(rng)
    labels, lengths = pad([[9, 9, EOS], [4, 6, EOS], [5, EOS]], 0)
    states = model.encode(examples.source, examples.source_lengths).states
    want = F.ctc_loss(
        F.linear(states, model.ctc.weight, model.ctc.bias).log_softmax(-1).transpose(0, 1),
        torch.tensor([9, 9, 4, 6, 5]),
        torch.tensor([11, 4, 7]),
        torch.tensor([2, 2, 1]),
        reduction="sum",
    )
    plain = CrossEntropy(model, LossConfig(ctc_weight=0.3))(examples)
    both = replace(examples, ctc_targets=labels, ctc_target_lengths=lengths).to(torch.device("cpu"))
    got = CrossEntropy(model, LossConfig(ctc_weight=0.3))(both)
    torch.testing.assert_close(got.parts["ctc"], want.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got.parts["cross_entropy"], plain.parts["cross_entropy"], rtol=1e-12, atol=0)


def test_the_source_is_encoded_once(rng):
    model, calls = random_model(CONFIG, rng), []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    CrossEntropy(model, LossConfig(ctc_weight=0.3))(batch(rng))
    assert len(calls) == 1


@pytest.mark.parametrize("conditioning", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_intermediate_ctc_loss_is_the_formula_written_out(rng, conditioning, share):
    """(1 - w) * CTC of the last layer + w * the mean CTC of inner layers (Lee and Watanabe 2021)."""
    stack = replace(CONFIG.encoder, n_layers=4)
    config = replace(CONFIG, encoder=stack, ctc_layers=(1, 3), ctc_conditioning=conditioning, norm_position="pre")
    model, examples = random_model(config, rng), batch(rng)

    def ctc(logits: Tensor) -> Tensor:
        return F.ctc_loss(
            logits.log_softmax(-1).transpose(0, 1),
            torch.tensor([4, 5, 5, 6, 7, 8, 9, 10]),
            torch.tensor([11, 4, 7]),
            torch.tensor([4, 1, 3]),
            reduction="sum",
        )

    taps = Taps(ctc_logits=[])
    memory = model.encode(examples.source, examples.source_lengths, taps=taps)
    logits = model.decode(examples.target_in, memory=memory).flatten(0, 1)
    entropy = F.cross_entropy(logits, examples.target_out.flatten(), reduction="sum")
    last = ctc(F.linear(memory.states, model.ctc.weight, model.ctc.bias))
    inside = (ctc(taps.ctc_logits[0]) + ctc(taps.ctc_logits[1])) / 2
    want = 0.6 * entropy + 0.4 * ((1 - share) * last + share * inside)
    got, parts = CrossEntropy(model, LossConfig(ctc_weight=0.4, interctc_weight=share))(examples)
    assert parts.keys() == {"cross_entropy", "ctc", "interctc"}
    torch.testing.assert_close(parts["ctc"], last.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(parts["interctc"], inside.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    parameters = list(model.parameters())
    for ours, theirs in zip(torch.autograd.grad(got, parameters), torch.autograd.grad(want, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_under_autocast_ctc_stays_in_float32(rng):
    torch.manual_seed(0)
    model, examples = Transformer(CONFIG), batch(rng, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = CrossEntropy(model, LossConfig(ctc_weight=1.0))(examples).total
        memory = model.encode(examples.source, examples.source_lengths)
    logits = F.linear(memory.states.float(), model.ctc.weight, model.ctc.bias)
    want = ctc_loss(logits, memory.lengths, examples.target_out, examples.target_lengths)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_ctc_learns_an_alignment(rng):
    """After some steps the most probable path spells the targets."""
    torch.manual_seed(0)
    model, examples = Transformer(CONFIG), batch(rng, torch.float32)
    objective = CrossEntropy(model, LossConfig(ctc_weight=0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        objective(examples).total.backward()
        optimizer.step()
    memory = model.encode(examples.source, examples.source_lengths)
    paths = model.ctc_logits(memory.states).argmax(-1).tolist()
    spelt = [collapsed(tuple(path[:n]), PAD) for path, n in zip(paths, memory.lengths.tolist(), strict=True)]
    assert spelt == [[4, 5, 5, 6], [7], [8, 9, 10]]


# Errors


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("ctc_weight", (0.0, 1.0), (-0.1, 1.5)), ("interctc_weight", (0.0, 1.0), (-0.1, 1.1))],
)
def test_weights_outside_0_to_1_are_refused(rng, name, good, bad):
    model = random_model(CONFIG, rng)
    for value in good:
        CrossEntropy(model, LossConfig(**{"ctc_weight": 0.3, name: value}))
    for value in bad:
        with pytest.raises(ValueError, match=f"{name}={value}"):
            CrossEntropy(model, LossConfig(**{"ctc_weight": 0.3, name: value}))


def test_model_without_a_ctc_head_is_refused(rng):
    objective = CrossEntropy(random_model(replace(CONFIG, ctc=False), rng), LossConfig(ctc_weight=0.3))
    with pytest.raises(ValueError) as caught:
        objective(batch(rng))
    assert str(caught.value) == "ctc_logits() needs a CTC head, but this model was built with ctc=False"
