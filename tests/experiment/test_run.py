"""What recipes share: a command line, the operations of a model."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import transduce as td
from transduce.experiment.command import main
from transduce.experiment.config import Experiment
from transduce.experiment.run import Processor, _sinks, new_model
from transduce.files import save_weights, weights_of
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.meta import flops_per_token
from transduce.model.transformer import Transformer
from transduce.run import load_run, save_run
from transduce.train.config import LoRAConfig
from transduce.train.distributed import World
from transduce.train.trainer import TrainingConfig

DECODER = TransformerConfig(
    decoder=StackConfig(input=Tokens(vocab_size=311), n_layers=3),
    d_model=96,
    n_heads=4,
    d_ff=352,
    max_positions=64,
    positions="learned",
    dropout=0.0,
)


def test_a_model_too_large_for_memory_is_refused_before_allocation(tmp_path):
    """Three numbers beside each weight: its gradient and Adam's moments."""
    config = replace(DECODER, d_model=10**6, d_ff=10**9)
    with pytest.raises(ValueError) as caught:
        made(tmp_path, config)
    layer = 4 * 10**12 + 4 * 10**6 + 2 * 10**15 + 10**9 + 10**6 + 4 * 10**6
    n = 3 * layer + (311 + 64) * 10**6
    assert str(caught.value).startswith(
        f"a model must fit into memory, but this one has {n:,} parameters and training takes "
        f"{16 * n / 2**30:,.1f} GiB, where cpu has "
    )


def test_sharding_allows_a_model_too_large_for_one_process(tmp_path, monkeypatch):
    """Whole weights for a validation, and of two moments and a gradient a third: 8 bytes a parameter instead of 16."""
    n = sum(p.numel() for p in Transformer(DECODER).parameters())
    monkeypatch.setattr("transduce.model.meta.memory", lambda device: 9 * n)
    monkeypatch.setattr("transduce.experiment.run.world", lambda: World(size=3))
    assert made(tmp_path, DECODER, training=TrainingConfig(shard=True, accumulate=3))
    with pytest.raises(ValueError, match=r"a model must fit into memory, .* training takes"):
        made(tmp_path, DECODER)


@pytest.mark.parametrize(
    ("training", "value"),
    [
        ({"freeze": ("decodr",)}, "'decodr' has no weights"),
        ({"freeze": ("decoder", "target_input", "output")}, "leaves none"),
        ({"lora": LoRAConfig(rank=2, maps=("vv",))}, "'vv' is none"),
        ({"lora": LoRAConfig(rank=99)}, "rank=99"),
    ],
)
def test_parts_that_a_model_lacks_are_refused_before_the_run_begins(tmp_path, training, value):
    """Otherwise config.json would stay, and refuse the corrected command."""
    with pytest.raises(ValueError, match=value):
        made(tmp_path, DECODER, training=TrainingConfig(**training))


@pytest.mark.parametrize("training", [{"freeze": ("decoder",)}, {"lora": LoRAConfig(rank=2)}], ids=["frozen", "LoRA"])
def test_a_model_of_which_little_is_trained_needs_room_for_its_weights_only(tmp_path, monkeypatch, training):
    n = sum(p.numel() for p in Transformer(DECODER).parameters())
    monkeypatch.setattr("transduce.model.meta.memory", lambda device: 5 * n)
    assert made(tmp_path, DECODER, training=TrainingConfig(**training))
    monkeypatch.setattr("transduce.model.meta.memory", lambda device: 3 * n)
    with pytest.raises(ValueError, match=r"a model must fit into memory, .* its weights take"):
        made(tmp_path, DECODER, training=TrainingConfig(**training))


def test_mfu_in_several_processes_is_the_share_of_all_their_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.device.peak_flops", lambda device: 1e12)
    monkeypatch.setattr("transduce.experiment.run.world", lambda: World(size=3))
    model = Transformer(DECODER)
    bar, *_ = _sinks(Experiment(run=tmp_path, model=DECODER), model)
    assert bar.full_speed == pytest.approx(3 * 1e12 / flops_per_token(model))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": "linear"},
        {"tie": "none"},
        {"positions": "sinusoidal"},
        {"gated": True},
        {"n_experts": 4, "experts_per_token": 2},
    ],
    ids=str,
)
def test_flops_per_token_agree_with_torch(changes, monkeypatch):
    """Both count matrix products alone; biases and norms, which are in N, are 1 % of these sizes.

    Chunks are a way to compute linear attention that takes more operations than its formula, one position at a time.
    """
    monkeypatch.setattr("transduce.model.linear_attention.CHUNK", 1)
    monkeypatch.setattr("transduce.products._onednn_is_faster", lambda: False)  # its products are not counted
    torch.manual_seed(0)
    model = Transformer(replace(DECODER, **changes))
    ids = torch.randint(311, (5, 64))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the CPU's kernel is not counted
        model(target_in=ids).sum().backward()
    assert flops_per_token(model) == pytest.approx(counter.get_total_flops() / ids.numel(), rel=0.02)


def test_flops_per_token_need_a_decoder_alone():
    with pytest.raises(ValueError, match="takes a decoder alone, but the model is"):
        flops_per_token(Transformer(replace(DECODER, encoder=DECODER.decoder)))


@pytest.mark.parametrize(("device", "code", "calls"), [("cpu", 0, 1), ("abacus", 2, 0)])
def test_an_unknown_device_is_refused_before_any_work(monkeypatch, capsys, device, code, calls):
    called, nothing = [], Experiment(run=Path("runs/nothing"), model=DECODER)
    monkeypatch.setattr(sys, "argv", ["recipe", "--device", device])
    assert main(called.append, {"nothing": ("Nothing.", nothing)}, default="nothing", description=None) == code
    assert len(called) == calls
    err = capsys.readouterr().err
    assert err.startswith("transduce: device must be one that this machine has, but 'abacus': ") if code else not err


TRAINING = TrainingConfig()


def made(run, config, start_from=None, source=None, target=None, training=TRAINING):
    """A new model of an experiment that has nothing else."""
    x = Experiment(run=run, model=config, start_from=start_from, training=training, device="cpu")
    return new_model(x, Processor(source=source, target=target))


def test_start_from_copies_matching_weights_and_lists_the_others(translator, tmp_path, capsys):
    """A longer model with another vocabulary: the first layers, norms and the source's table, which was shared, fit."""
    source = translator
    config = td.load_model(source).config
    wider = replace(config.decoder, input=Tokens(vocab_size=331), n_layers=config.decoder.n_layers + 1)
    model = made(tmp_path / "run", replace(config, decoder=wider, tie="output"), source)
    old, new = td.load_model(source).state_dict(), weights_of(model)
    fit = {name for name in old if name in new and old[name].shape == new[name].shape}
    assert "source_input.weight" in fit and all(torch.equal(old[name], new[name]) for name in fit)
    out = capsys.readouterr().out
    assert f"starts from {source}: {len(fit)} of " in out and "new: output (331, 128), " in out
    assert "not taken from" in out


@pytest.mark.parametrize("n", [8, 40])
def test_learned_positions_are_copied_up_to_the_shorter_length(translator, tmp_path, capsys, n):
    source = shutil.copytree(translator, tmp_path / "source")
    config = replace(td.load_model(source).config, positions="learned", max_positions=20)
    run, old = load_run(source), Transformer(config)
    save_run(source, replace(run, model=config))
    save_weights(source / "model.safetensors", old)
    model, kept = made(tmp_path / "run", replace(config, max_positions=n), source), min(n, 20)
    out = capsys.readouterr().out
    for stack in ("encoder", "decoder"):
        now, was = (each.get_parameter(f"{stack}.positions.learned") for each in (model, old))
        assert len(now) == n and torch.equal(now[:kept], was[:kept]) and now.std() > 0
        assert f"{stack}.positions.learned: {kept} of {n} positions keep their vectors\n" in out


def test_a_begun_run_ignores_start_from(translator, tmp_path, capsys):
    source = translator
    (tmp_path / "run" / "checkpoints" / "00000010").mkdir(parents=True)
    made(tmp_path / "run", td.load_model(source).config, source)
    assert "starts from" not in capsys.readouterr().out


def test_start_from_without_matching_weights_is_refused(translator, tmp_path):
    source = translator
    with pytest.raises(ValueError, match=r"^a model that starts from a run must have weights of the same names and sh"):
        made(tmp_path / "run", replace(DECODER, d_model=64, n_heads=2, d_ff=48), source)
    with pytest.raises(ValueError, match=r"^a run directory holds config\.json, but .* does not exist"):
        made(tmp_path / "run", DECODER, tmp_path / "nothing")
