"""The loop: it learns, accumulates, clips, follows the schedule, averages and validates."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.train import toy
from transduce.data.batch import IGNORE, Batch
from transduce.files import read_json_lines
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig
from transduce.train.state import Validation
from transduce.train.trainer import TrainingConfig


def held_out(model) -> float:
    batches = list(toy.Backwards(n=100, letters=6).epoch(0))
    objective = CrossEntropy(model)
    with torch.no_grad():
        return sum(objective(b).total.item() for b in batches) / sum(b.n_tokens for b in batches)


@pytest.mark.train
def test_model_learns_to_reverse_sequences(tmp_path):
    """Lengths 3 to 5: a guess of (letter, END) without a look at the source costs at least ln 8 per letter."""
    lengths = [3, 4, 5]
    blind = sum(n * math.log(toy.LETTERS) for n in lengths) / sum(n + 1 for n in lengths)
    training = toy.trainer(
        tmp_path,
        objective=CrossEntropy(toy.model(d_model=32)),
        config=toy.config(max_updates=250, validate_every=250),
    )
    before = held_out(training.model)
    training.run()
    assert before > blind > 1.6
    assert held_out(training.model) < 0.6 * blind


def test_frozen_weights_do_not_change(tmp_path):
    """The table is shared, so it is frozen under all its names."""
    training = toy.trainer(tmp_path, config=toy.config(max_updates=3, freeze=("encoder.layers.0", "source_input")))
    before = toy.weights(training.model)
    training.run()
    after = toy.weights(training.model)
    frozen = {name for name in before if name.startswith("encoder.layers.0.")} | {"output"}
    assert frozen < before.keys()
    assert {name for name in before if torch.equal(before[name], after[name])} == frozen


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            ("encodr",),
            "freeze must name parts of the model, but 'encodr' has no weights; it has output, source_input, encoder, "
            "target_input, decoder",
        ),
        (
            ("encoder", "decoder", "source_input"),
            "a training needs weights to train, but freeze=encoder, decoder, source_input, or LoRA of no maps, "
            "leaves none",
        ),
    ],
)
def test_freezing_unknown_or_all_parts_is_refused(tmp_path, parts, message):
    with pytest.raises(ValueError) as caught:
        toy.trainer(tmp_path, config=toy.config(freeze=parts))
    assert str(caught.value) == message


def test_two_half_batches_are_one_whole_batch(tmp_path):
    """Uneven halves: gradients are weighted by tokens, not by batches."""

    class Whole:
        def epoch(self, n: int) -> list[Batch]:
            return [toy.Backwards(tokens_per_batch=100_000).epoch(0)[0]]

    class Halves:
        def epoch(self, n: int) -> list[Batch]:
            (whole,) = Whole().epoch(n)
            return [part(whole, slice(0, 40)), part(whole, slice(40, None))]

    results = []
    for name, data, accumulate in (("whole", Whole(), 1), ("halves", Halves(), 2)):
        config = toy.config(max_updates=3, accumulate=accumulate)
        training = toy.trainer(tmp_path / name, objective=CrossEntropy(toy.model().double()), data=data, config=config)
        assert len(data.epoch(0)) == accumulate
        assert training.run().update == 3
        results.append(toy.weights(training.model))
    assert not toy.same(results[0], toy.weights(toy.model().double()))
    for name in results[0]:
        torch.testing.assert_close(results[1][name], results[0][name], rtol=0, atol=1e-6)


def part(batch: Batch, rows: slice) -> Batch:
    assert batch.source is not None and batch.source_lengths is not None
    return Batch(
        source=batch.source[rows],
        source_lengths=batch.source_lengths[rows],
        target_in=batch.target_in[rows],
        target_out=batch.target_out[rows],
        target_lengths=batch.target_lengths[rows],
        n_tokens=int((batch.target_out[rows] != IGNORE).sum()),
    )


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_gradients_are_clipped_to_clip_norm(tmp_path, clip):
    training = toy.trainer(tmp_path, config=toy.config(optim=OptimConfig(clip_norm=clip), max_updates=3))
    norms, step = [], training.optimizer.step

    def look_and_step():
        norms.append(math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in training.model.parameters())))
        step()

    training.optimizer.step = look_and_step
    training.run()
    if clip:
        assert norms == pytest.approx([clip] * 3, rel=1e-3)
    else:
        assert min(norms) > 0.1


def test_every_step_uses_the_scheduled_rate(tmp_path):
    training = toy.trainer(
        tmp_path, config=toy.config(optim=OptimConfig(peak_rate=8e-3, warmup_steps=4), max_updates=9)
    )
    rates, step = [], training.optimizer.step
    training.optimizer.step = lambda: (rates.append([g["lr"] for g in training.optimizer.param_groups]), step())
    training.run()
    want = [8e-3 * min(u / 4, math.sqrt(4 / u)) for u in range(1, 10)]
    assert [rate for rate, _ in rates] == pytest.approx(want) and all(a == b for a, b in rates)


def test_parts_of_a_hybrid_loss_are_logged(tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.train.log.EVERY", 5)
    lines = {}
    for name, share in (("plain", 0.0), ("hybrid", 0.25)):
        torch.manual_seed(0)
        model = Transformer(replace(toy.model().config, ctc=True))
        config = toy.config(max_updates=5, accumulate=2)
        objective = CrossEntropy(model, LossConfig(label_smoothing=0.1, ctc_weight=share))
        toy.trainer(tmp_path / name, objective=objective, config=config).run()
        (lines[name],) = (x for x in read_json_lines(tmp_path / name / "metrics.jsonl") if x["kind"] == "train")
    assert lines["hybrid"].keys() - lines["plain"].keys() == {"cross_entropy", "ctc"}
    loss, entropy, ctc = (lines["hybrid"][name] for name in ("loss", "cross_entropy", "ctc"))
    assert loss == pytest.approx(0.75 * entropy + 0.25 * ctc, rel=1e-6) and abs(entropy - ctc) > 0.1
    assert entropy == pytest.approx(lines["plain"]["loss"], rel=0.05)  # nats per token, too


def test_validation_runs_in_eval_mode_and_training_in_train_mode(tmp_path):
    modes, objective = [], CrossEntropy(toy.model())
    objective.register_forward_pre_hook(lambda *_: modes.append(objective.model.training))

    def validate(model):
        assert not model.training and not torch.is_grad_enabled()
        return Validation({"loss": 1.0}, 1.0)

    toy.trainer(
        tmp_path, objective=objective, validate=validate, config=toy.config(max_updates=4, validate_every=2)
    ).run()
    assert modes == [True] * 4


@pytest.mark.parametrize(
    ("precision", "hardware"), [("fp32", True), ("bf16", False), ("fp16", True), ("auto", True), ("auto", False)]
)
def test_validation_uses_the_precision_of_training(tmp_path, monkeypatch, precision, hardware):
    """auto is bf16 where the hardware computes in it."""
    monkeypatch.setattr("transduce.device.computes_bf16", lambda device: hardware)
    objective, types = CrossEntropy(toy.model()), {True: set(), False: set()}
    feed_forward = objective.model.decoder.layers[0].feed_forward
    feed_forward.register_forward_hook(lambda module, _, output: types[module.training].add(output.dtype))

    def validate(model):
        return Validation({"loss": 0.0}, -objective(toy.Backwards().epoch(0)[0]).total.item())

    config = toy.config(max_updates=2, precision=precision)
    toy.trainer(tmp_path, objective=objective, validate=validate, config=config).run()
    numbers = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    want = {numbers.get(precision, torch.bfloat16 if hardware else torch.float32)}
    assert types == {True: want, False: want}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_cudnn_attention_is_used_only_for_static_shapes(tmp_path, monkeypatch, static, before):
    """It makes a new plan for each shape. Afterwards, the process's own setting is restored."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    seen, attend = {True: set(), False: set()}, F.scaled_dot_product_attention
    training = toy.trainer(tmp_path, config=toy.config(max_updates=2, static_shapes=static))

    def watched(*args, **kwargs):
        seen[training.model.training].add(enabled())
        return attend(*args, **kwargs)

    def validate(model):
        batch = toy.Backwards(length=(18, 20)).epoch(0)[0]  # long enough for the kernel
        model(source=batch.source, target_in=batch.target_in)
        return Validation({"loss": 1.0}, 1.0)

    training.validate = validate
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    was = enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(before)
        training.run()
        assert enabled() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)
    assert seen == {True: {static and before}, False: {False}}


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ("max_updates accumulate validate_every keep_last keep_best max_skipped patience", (1,), (0, -1)),
        ("max_minutes save_every_minutes", (1e-9,), (0.0, -1.5)),
        ("label_smoothing", (0.0, 0.99), (-0.1, 1.0)),
    ],
)
def test_numbers_out_of_range_are_refused(names, good, bad):
    for name in names.split():
        for value in good:
            assert getattr(TrainingConfig(**{name: value}), name) == value
        for value in bad:
            with pytest.raises(ValueError, match=f"{name}={value}"):
                TrainingConfig(**{name: value})
