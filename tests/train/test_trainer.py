"""The loop: it learns, counts, clips, skips, stops and keeps what it says."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train import toy
from transduce.data.batch import IGNORE, Batch
from transduce.data.text.characters import CharTokenizer
from transduce.data.text.masking import MaskedWindows, MaskingConfig
from transduce.data.text.stream import Stream, Windows
from transduce.files import read_json_lines, read_weights, set_weights
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.flops import peak_flops
from transduce.train.host import HostCopy
from transduce.train.objectives import CrossEntropy, HybridCTC
from transduce.train.optim import OptimConfig
from transduce.train.state import Progress, Validation
from transduce.train.trainer import Data, Trainer, TrainingConfig


def held_out(model) -> float:
    batches = list(toy.Backwards(n=100, letters=6).epoch(0))
    objective = CrossEntropy(model)
    with torch.no_grad():
        return sum(objective(b).total.item() for b in batches) / sum(b.n_tokens for b in batches)


def test_it_learns_to_read_backwards(tmp_path):
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


def test_what_is_frozen_keeps_its_weights(tmp_path):
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
            "a training needs weights to train, but freeze=encoder, decoder, source_input leaves none",
        ),
    ],
)
def test_freezing_nothing_or_everything_is_refused(tmp_path, parts, message):
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
        config = toy.config(max_updates=5, accumulate=accumulate)
        training = toy.trainer(tmp_path / name, objective=CrossEntropy(toy.model().double()), data=data, config=config)
        assert len(data.epoch(0)) == accumulate
        assert training.run().update == 5
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
def test_the_gradient_is_clipped_to_the_norm_asked_for(tmp_path, clip):
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


def test_the_learning_rate_of_every_step_is_the_schedules(tmp_path):
    training = toy.trainer(
        tmp_path, config=toy.config(optim=OptimConfig(peak_rate=8e-3, warmup_steps=4), max_updates=9)
    )
    rates, step = [], training.optimizer.step
    training.optimizer.step = lambda: (rates.append([g["lr"] for g in training.optimizer.param_groups]), step())
    training.run()
    want = [8e-3 * min(u / 4, math.sqrt(4 / u)) for u in range(1, 10)]
    assert [rate for rate, _ in rates] == pytest.approx(want) and all(a == b for a, b in rates)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_skipped_and_counted(tmp_path, value):
    seen = {}

    def after(n):
        """Weights and Adam's moments after n updates, the n-th of them faulty or not."""
        training = toy.trainer(
            tmp_path / f"{n}", config=toy.config(max_updates=n), objective=toy.Faulty(frozenset({7}), value=value)
        )
        seen[n] = training.run()
        moments = [state["exp_avg"].clone() for state in training.optimizer.state.values()]
        return toy.weights(training.model), moments

    (before, moments), (skipped, unmoved), (later, _) = after(6), after(7), after(8)
    assert toy.same(before, skipped) and not toy.same(skipped, later)
    assert all(torch.equal(a, b) for a, b in zip(moments, unmoved, strict=True))
    assert all(tensor.isfinite().all() for tensor in later.values())
    assert [(p.update, p.skipped, p.skipped_in_a_row) for _, p in sorted(seen.items())] == [
        (6, 0, 0), (7, 1, 1), (8, 1, 0),
    ]  # fmt: skip


def test_a_bad_half_spoils_the_whole_update(tmp_path):
    config = toy.config(max_updates=4, accumulate=2)
    progress = toy.trainer(tmp_path, config=config, objective=toy.Faulty(frozenset({3, 6}))).run()
    assert (progress.update, progress.skipped) == (4, 2)


def test_too_many_in_a_row_end_the_training_and_keep_the_checkpoint(tmp_path):
    config = toy.config(max_skipped=3, optim=OptimConfig(peak_rate=0.5, warmup_steps=20))
    # two in a row and one alone are forgiven, three are not
    training = toy.trainer(tmp_path, config=config, objective=toy.Faulty(frozenset({3, 4, 6, 15, 16, 17})))
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    assert str(caught.value) == (
        "loss and gradient must be finite, but 3 updates in a row had loss nan or gradient norm nan; "
        "begin another run with less than peak_rate=0.5 or more than warmup_steps=20; "
        f"the last good checkpoint is {tmp_path / 'checkpoints' / '00000010'}"
    )
    again = toy.trainer(tmp_path, config=config)
    progress = again.run()
    assert progress.update == 30
    assert progress.skipped == 3  # those before the checkpoint
    assert all(tensor.isfinite().all() for tensor in toy.weights(again.model).values())


def test_without_a_checkpoint_the_error_says_so(tmp_path):
    training = toy.trainer(tmp_path, config=toy.config(max_skipped=2), objective=toy.Faulty(frozenset({1, 2})))
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    assert str(caught.value) == (
        "loss and gradient must be finite, but 2 updates in a row had loss nan or gradient norm nan; "
        "begin another run with less than peak_rate=0.01 or more than warmup_steps=20; there is no good checkpoint yet"
    )


def loss_of(model) -> Validation:
    loss = held_out(model)
    return Validation({"loss": loss}, -loss, by="loss")


@pytest.mark.parametrize("rate", [1e30, 1e38], ids=["weights that overflow later", "weights that overflow now"])
@pytest.mark.parametrize("max_updates", [4, 15])
def test_a_training_that_is_no_longer_finite_ends_with_its_last_good_checkpoint(tmp_path, rate, max_updates):
    """It begins healthy and goes on with an absurd rate; too few updates are left for max_skipped to end it."""
    toy.trainer(tmp_path, validate=loss_of, config=toy.config(max_updates=3, validate_every=3)).run()
    good = tmp_path / "checkpoints" / "00000003"
    before = {path.name: path.read_bytes() for path in good.iterdir()}
    optim = OptimConfig(peak_rate=rate, warmup_steps=1, clip_norm=1.0)
    config = toy.config(max_updates=max_updates, validate_every=5, keep_last=1, keep_best=1, optim=optim)
    training = toy.trainer(tmp_path, validate=loss_of, config=config)
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    at = min(max_updates, 5)
    assert training.progress.update == at
    nan = f"a validation must be finite, but after update {at} the loss is nan and the loss that decides nan"
    assert str(caught.value).startswith((nan, f"weights must be finite, but after update {at} some are not"))
    assert str(caught.value).endswith(
        f"; begin another run with less than peak_rate={rate} or more than warmup_steps=1; the last good checkpoint is "
        f"{good}"
    )
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000003"]
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before
    assert training.progress.validations == [(3, pytest.approx(-held_out(read(good)), rel=1e-6))]


def read(checkpoint) -> Transformer:
    model = toy.model()
    set_weights(model, read_weights(checkpoint / "model.safetensors"), "")
    return model.eval()


@pytest.mark.parametrize("wrong", ["weight", "loss", "score"])
def test_what_is_not_finite_becomes_no_checkpoint(tmp_path, wrong):
    def validate(model) -> Validation:
        bad = math.nan if len(training.progress.validations) == 2 else 1.0
        return Validation({"loss": bad if wrong == "loss" else 1.0}, bad if wrong == "score" else 1.0, by="bleu")

    def step_and_spoil():
        step()
        if wrong == "weight" and training.progress.update == 12:
            next(training.model.parameters()).data.view(-1)[0] = math.inf

    training = toy.trainer(tmp_path, validate=validate, config=toy.config(validate_every=5))
    step, training.optimizer.step = training.optimizer.step, step_and_spoil
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    told = {
        "weight": "weights must be finite, but after update 15 some are not",
        "loss": "a validation must be finite, but after update 15 the loss is nan and the bleu that decides 1.0",
        "score": "a validation must be finite, but after update 15 the loss is 1.0 and the bleu that decides nan",
    }
    assert str(caught.value).startswith(told[wrong])
    assert str(caught.value).endswith(f"the last good checkpoint is {tmp_path / 'checkpoints' / '00000010'}")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000005", "00000010"]


def test_metrics_stay_json_when_an_update_is_skipped(tmp_path):
    """NaN is no JSON: other readers stop at it."""

    def refuse(constant):
        raise AssertionError(f"{constant} in metrics.jsonl")

    toy.trainer(tmp_path, config=toy.config(max_updates=50), objective=toy.Faulty(frozenset({20, 50}))).run()
    lines = [json.loads(x, parse_constant=refuse) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (train,) = (line for line in lines if line["kind"] == "train")
    assert train["skipped"] == 2 and 0 < train["loss"] < 5


def test_the_parts_of_a_loss_are_written_beside_it_where_there_is_more_than_one(tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.train.log.EVERY", 5)
    lines = {}
    for name, objective in (("plain", CrossEntropy), ("hybrid", partial(HybridCTC, ctc_weight=0.25))):
        torch.manual_seed(0)
        model = Transformer(replace(toy.model().config, ctc=True))
        config = toy.config(max_updates=5, accumulate=2)
        toy.trainer(tmp_path / name, objective=objective(model, label_smoothing=0.1), config=config).run()
        (lines[name],) = (x for x in read_json_lines(tmp_path / name / "metrics.jsonl") if x["kind"] == "train")
    assert lines["hybrid"].keys() - lines["plain"].keys() == {"cross_entropy", "ctc"}
    loss, entropy, ctc = (lines["hybrid"][name] for name in ("loss", "cross_entropy", "ctc"))
    assert loss == pytest.approx(0.75 * entropy + 0.25 * ctc, rel=1e-6) and abs(entropy - ctc) > 0.1
    assert entropy == pytest.approx(lines["plain"]["loss"], rel=0.05)  # nats per token, too


def test_a_compiled_objective_keeps_the_names_of_the_models_weights(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **how: compiled.append(how) or call)
    model = toy.model()
    toy.trainer(tmp_path, objective=CrossEntropy(model), config=toy.config(max_updates=1, compile=True)).run()
    assert compiled == [{"dynamic": True}]
    assert (
        load_file(tmp_path / "checkpoints" / "00000001" / "model.safetensors").keys()
        == dict(model.named_parameters()).keys()
    )


def test_layers_are_compiled_for_updates_alone(tmp_path, monkeypatch):
    """And not the whole objective, if both are asked for."""
    modes, how = [], []

    def compile(call, **given):
        how.append(given)
        return lambda *args, **kwargs: (modes.append(call.__self__.training), call(*args, **kwargs))[1]

    monkeypatch.setattr(torch, "compile", compile)
    objective = CrossEntropy(toy.model())
    config = toy.config(max_updates=2, compile=True, compile_layers=True)
    toy.trainer(tmp_path, objective=objective, config=config, validate=loss_of).run()
    assert how == [{"dynamic": True}] * 2  # a layer on each side
    assert modes == [True] * 4


def test_numbers_are_read_when_the_next_update_is_under_way_and_before_every_look(tmp_path, monkeypatch):
    """Of a toy with six batches an epoch; so a GPU has work while it is waited for."""
    events = []
    data = toy.Backwards(n=14, tokens_per_batch=12)
    assert len(data.epoch(0)) == 6

    def read(late):
        events.append("read")
        return late.numbers.tolist()

    def validate(model):
        events.append("look")
        return Validation({"loss": 1.0}, 1.0)

    monkeypatch.setattr(HostCopy, "tolist", read)
    training = toy.trainer(tmp_path, data=data, validate=validate, config=toy.config(max_updates=8, validate_every=4))
    own = training.optimizer.step
    training.optimizer.step = lambda: (events.append("step"), own())
    training.run()
    four = ["step", *["step", "read"] * 3, "read"]
    rest = ["step", "step", "read", "read"]  # the end of an epoch, and two more
    assert events == [*four, "look", *rest, *rest, "look"]


def windows() -> Windows:
    return Windows(stream=Stream([np.arange(400).astype(np.uint16) % 12]), context=16, batch_size=2)


def settings(name: str) -> tuple[CrossEntropy, Data]:
    """Model, loss and data of a language model, a masked language model, translation, or translation with CTC."""
    torch.manual_seed(0)
    config = TransformerConfig(decoder=StackConfig(input=Tokens(vocab_size=13), n_layers=1), d_model=16, n_heads=2)
    if name == "language":
        return CrossEntropy(Transformer(config)), windows()
    if name == "masked":
        config = replace(config, encoder=config.decoder, decoder=None)
        letters = CharTokenizer.train("abcdefghijkl")
        masked = MaskedWindows(windows=windows(), masking=MaskingConfig(), tokenizer=letters)
        return CrossEntropy(Transformer(config), label_smoothing=0.1), masked
    if name == "ctc":
        return HybridCTC(Transformer(replace(toy.model().config, ctc=True)), ctc_weight=0.3), toy.Backwards()
    return CrossEntropy(toy.model(), label_smoothing=0.1), toy.Backwards()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["language", "masked", "translation", "ctc"])
def test_no_operation_of_an_update_asks_for_a_number(tmp_path, name, precision):
    """Padded or not. On a GPU such a question waits until all that is queued is done."""
    asked = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            asked.append(operation.name().split("::")[1])
            return operation(*args, **(kwargs or {}))

    objective, data = settings(name)
    batches = data.epoch(0)
    assert any(batch.n_tokens < batch.target_out.numel() for batch in batches) == (name != "language")
    training = toy.trainer(tmp_path, objective=objective, data=data, config=toy.config(precision=precision))
    training.log.open(training.progress)
    for batch in batches[0], batches[1]:
        with Watch():
            training._update([batch])
    training.log.close()
    assert "_fused_adamw_" in asked
    assert not {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal"} & set(asked)


@pytest.mark.parametrize("name", ["language", "masked", "translation", "ctc"])
def test_a_loss_asks_a_gpu_for_no_number(name, monkeypatch):
    """Shown with PyTorch's fake tensors, which have devices and no numbers. CTC gets its lengths where it reads them."""
    lengths: list[torch.Tensor] = []

    def ctc_loss(log_probabilities, targets, *both, **_):
        lengths.extend(both)
        return log_probabilities.sum()

    monkeypatch.setattr(F, "ctc_loss", ctc_loss)
    batch, gpu = settings(name)[1].epoch(0)[0], torch.device("cuda:0")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # without a GPU there is no such memory
    with FakeTensorMode(allow_non_fake_inputs=True):
        with gpu:
            objective, _ = settings(name)
        moved = batch.to(gpu)
        assert moved.target_out.device == moved.target_lengths.device == objective.model.device == gpu
        assert objective(moved).total.device == gpu
    assert [n.device.type for n in lengths] == (["cpu", "cpu"] if name == "ctc" else [])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_cudnn_attends_only_to_batches_of_one_shape(tmp_path, monkeypatch, static, before):
    """It plans anew for every other shape. Where it may attend, the process decides, and its choice comes back."""
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


class Clock:
    """A time that the test dictates."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("transduce.train.trainer.time", self)

    def monotonic(self) -> float:
        return self.now

    def passing(self, call, seconds: float):
        """The same call, but so many seconds long."""

        def slow(*args, **kwargs):
            self.now += seconds
            return call(*args, **kwargs)

        return slow


def rates_of(training) -> list[float]:
    """The learning rates of its steps; the list grows."""
    rates, own = [], training.optimizer.step
    training.optimizer.step = lambda: (rates.append(training.optimizer.param_groups[0]["lr"]), own())
    return rates


@pytest.mark.parametrize("how", [{"schedule": "cosine"}, {"schedule": "constant", "cooldown": 0.5}])
def test_a_training_that_stops_by_the_clock_has_cooled_down(tmp_path, monkeypatch, how):
    """An update takes a second, so two minutes make 120 of a thousand updates."""
    clock, objective = Clock(monkeypatch), CrossEntropy(toy.model())
    objective.forward = clock.passing(objective.forward, 1.0)
    optim = OptimConfig(peak_rate=1e-2, warmup_steps=5, **how)
    config = toy.config(optim=optim, max_updates=1000, validate_every=1000, max_minutes=2.0)
    training = toy.trainer(tmp_path, objective=objective, config=config)
    rates = rates_of(training)
    progress = training.run()
    assert progress.update == 120 and progress.seconds == pytest.approx(120)
    assert max(rates) == pytest.approx(1e-2, rel=5e-3) and rates[-1] < 0.02 * 1e-2
    assert rates[5:] == sorted(rates[5:], reverse=True)
    middle = 1.0 if "cooldown" in how else (1 + math.cos(math.pi * (500 - 5) / (1000 - 5))) / 2
    assert rates[59] == pytest.approx(1e-2 * middle, rel=1e-6)


def test_all_time_of_a_training_counts(tmp_path, monkeypatch):
    """Waiting for data, validating and saving, also before an interruption."""
    clock, data = Clock(monkeypatch), toy.Backwards(n=14, tokens_per_batch=12)
    assert len(data.epoch(0)) == 6
    monkeypatch.setattr(toy.Backwards, "epoch", clock.passing(toy.Backwards.epoch, 10.0))
    config = toy.config(max_updates=9, validate_every=5)
    training = toy.trainer(tmp_path, data=data, config=config, validate=clock.passing(toy.Scores(), 100.0))
    training.store.save = clock.passing(training.store.save, 1000.0)
    monkeypatch.setattr("transduce.train.log.EVERY", 1)
    assert training.run().seconds == 2 * (10 + 100 + 1000)
    lines = [line["seconds"] for line in read_json_lines(tmp_path / "metrics.jsonl") if line["kind"] == "train"]
    assert lines == [10] * 5 + [10 + 1100] + [10 + 1100 + 10] * 3  # nine updates in two epochs, one validation amid


def test_a_checkpoint_is_made_after_so_many_minutes_without_one(tmp_path, monkeypatch):
    """A second an update: six seconds after the last save, validations included; also of a training that goes on."""
    clock, saved = Clock(monkeypatch), []
    for updates in (13, 30):
        objective = CrossEntropy(toy.model())
        objective.forward = clock.passing(objective.forward, 1.0)
        config = toy.config(max_updates=updates, save_every_minutes=0.1)
        training = toy.trainer(tmp_path, objective=objective, config=config)
        save = training.store.save
        training.store.save = lambda *parts, save=save: (saved.append(parts[2].update), save(*parts))
        training.run()
    assert saved == [6, 10, 13, 19, 20, 26, 30]


def test_a_validation_that_would_end_too_late_waits_for_the_end(tmp_path, monkeypatch):
    """A second an update, twenty a validation: at update 70, of 108 seconds 18 are left."""
    clock, objective = Clock(monkeypatch), CrossEntropy(toy.model())
    objective.forward = clock.passing(objective.forward, 1.0)
    config = toy.config(max_updates=1000, validate_every=35, max_minutes=1.8)
    validate = clock.passing(toy.Scores(), 20.0)
    progress = toy.trainer(tmp_path, objective=objective, config=config, validate=validate).run()
    assert [update for update, _ in progress.validations] == [35, 108 - 20]


def test_minutes_that_never_lead_change_nothing(tmp_path, monkeypatch):
    rates = []
    for minutes in (None, 1000.0):
        config = toy.config(optim=OptimConfig(schedule="cosine", warmup_steps=3, cooldown=0.3), max_minutes=minutes)
        training = toy.trainer(tmp_path / str(minutes), config=config)
        rates.append(rates_of(training))
        training.run()
    assert len(rates[0]) == 30 and rates[0] == rates[1]


def test_patience_ends_the_training_after_so_many_looks_without_a_better_score(tmp_path):
    scores = toy.Scores([1.0, 3.0, 2.0, 3.0, 2.9, 9.0])  # an equal score is no better one
    config = toy.config(max_updates=100, validate_every=5, patience=3)
    progress = toy.trainer(tmp_path, config=config, validate=scores).run()
    assert progress.update == 25
    assert progress.validations == [(5, 1.0), (10, 3.0), (15, 2.0), (20, 3.0), (25, 2.9)]


def test_the_average_of_the_weights_is_the_recursion_written_out(tmp_path, monkeypatch):
    """Of all weights after every update, from the initial ones on; the checkpoint keeps it."""
    seen = []
    average = Trainer._average

    def record(self, update):
        average(self, update)
        seen.append({name: p.detach().double() for name, p in self.model.named_parameters()})

    monkeypatch.setattr(Trainer, "_average", record)
    trainer = toy.trainer(tmp_path, config=toy.config(ema=0.8))
    want = {name: p.detach().double() for name, p in trainer.model.named_parameters()}
    trainer.run()
    for update, weights in enumerate(seen, start=1):
        decay = min(0.8, (1 + update) / (10 + update))
        want = {name: decay * want[name] + (1 - decay) * weights[name] for name in want}
    kept = load_file(tmp_path / "checkpoints" / "00000030" / "ema.safetensors")
    assert kept.keys() == want.keys() and len(seen) == 30
    for name, value in kept.items():
        torch.testing.assert_close(value.double(), want[name], rtol=1e-5, atol=1e-6)
        assert (value - trainer.model.get_parameter(name)).abs().max() > 1e-4


def test_weights_of_another_run_are_looked_at_before_the_first_update(tmp_path):
    """They may be better than all that follows; the same command again does not look twice."""
    for _ in range(2):
        scores = toy.Scores([9.0, 1.0, 2.0, 3.0])
        progress = toy.trainer(tmp_path, validate=scores, pretrained=True).run()
        assert progress.validations == [(0, 9.0), (10, 1.0), (20, 2.0), (30, 3.0)]
    assert progress.candidates(1, 1) == {"best checkpoint": [0]}
    assert (tmp_path / "checkpoints" / "00000000" / "model.safetensors").is_file()


def test_the_last_updates_are_looked_at_too(tmp_path):
    progress = toy.trainer(tmp_path, config=toy.config(max_updates=13)).run()
    assert [update for update, _ in progress.validations] == [10, 13]


def test_what_is_kept_is_the_last_and_the_best_and_nothing_else(tmp_path):
    scores = toy.Scores([1.0, 9.0, 8.0, 2.0, 7.0, 3.0, 4.0])
    config = toy.config(max_updates=35, validate_every=5, keep_last=2, keep_best=3)
    progress = toy.trainer(tmp_path, config=config, validate=scores).run()
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [int(path.name) for path in kept] == [10, 15, 25, 30, 35]  # 9, 8 and 7 are the best; 30 and 35 the last
    for path in kept:
        files = {"model.safetensors", "state.json", "manifest.json"}
        files |= {"optimizer.safetensors"} if path in kept[-2:] else set()
        assert {file.name for file in path.iterdir()} == files
    assert progress.best(3) == [10, 15, 25] and progress.last(2) == [30, 35]


def test_what_is_chosen():
    progress = Progress(update=40, validations=[(10, 1.0), (20, 5.0), (30, 5.0), (40, 2.0)])
    assert progress.best(1) == [20]  # the earlier of two equals
    assert progress.best(3) == [20, 30, 40] and progress.last(3) == [20, 30, 40]
    best, last = {"best checkpoint": [20]}, {"mean of the 2 last": [30, 40]}
    assert progress.candidates(2, 3) == {**best, "mean of the 3 best": [20, 30, 40], **last}
    assert progress.candidates(9, 1) == {**best, **last}  # in the first half of a training weights are no good
    assert progress.candidates(1, 1) == best
    assert progress.validations_since_best == 2 and progress.validated
    assert not replace(progress, update=41).validated
    assert Progress().validations_since_best == 0 and not Progress().validated


def test_validation_sees_evaluation_mode_and_training_goes_on_in_training_mode(tmp_path):
    modes, objective = [], CrossEntropy(toy.model())
    objective.register_forward_pre_hook(lambda *_: modes.append(objective.model.training))

    def validate(model):
        assert not model.training and not torch.is_grad_enabled()
        return Validation({"loss": 1.0}, 1.0)

    toy.trainer(tmp_path, objective=objective, validate=validate).run()
    assert modes == [True] * 30


@pytest.mark.parametrize(
    ("precision", "hardware"), [("fp32", True), ("bf16", False), ("fp16", True), ("auto", True), ("auto", False)]
)
def test_validation_computes_in_the_numbers_of_the_training(tmp_path, monkeypatch, precision, hardware):
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


@pytest.mark.parametrize(
    "name", ["max_updates", "accumulate", "validate_every", "keep_last", "keep_best", "max_skipped"]
)
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError) as caught:
        TrainingConfig(**{name: 0})
    assert str(caught.value) == f"{name} must be at least 1, but {name}=0"


@pytest.mark.parametrize("patience", [0, -1])
def test_a_patience_that_ends_the_training_before_it_begins_is_refused(patience):
    with pytest.raises(ValueError) as caught:
        TrainingConfig(patience=patience)
    assert str(caught.value) == f"patience must be at least 1, but patience={patience}"


@pytest.mark.parametrize("name", ["max_minutes", "save_every_minutes"])
@pytest.mark.parametrize("minutes", [0.0, -1.5])
def test_no_time_at_all_is_refused(name, minutes):
    with pytest.raises(ValueError) as caught:
        TrainingConfig(**{name: minutes})
    assert str(caught.value) == f"{name} must lie in (0, inf), but {name}={minutes}"


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(ValueError) as caught:
        TrainingConfig(label_smoothing=smoothing)
    assert str(caught.value) == f"label_smoothing must lie in [0, 1), but label_smoothing={smoothing}"


def test_the_share_of_the_device_is_shown_where_it_is_known(tmp_path, monkeypatch, capsys):
    """A device that could do a thousand operations a second, ten of them a token: its full speed is 100 tokens/s."""
    monkeypatch.setattr("transduce.train.trainer.peak_flops", lambda device: 1000.0)
    training = toy.trainer(tmp_path, config=toy.config(max_updates=3), flops_per_token=10.0)
    training.run()
    shown = training.log.shown
    assert float(shown["MFU"].rstrip("%")) == pytest.approx(float(shown["tokens/s"].replace(",", "")), rel=1e-3)
    assert "MFU=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12)]
)
def test_the_peak_of_a_gpu_is_its_data_sheets(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda")) == peak


def test_the_peak_of_others_is_unknown(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Another GPU")
    assert peak_flops(torch.device("cuda")) is None
    assert peak_flops(torch.device("cpu")) is None
