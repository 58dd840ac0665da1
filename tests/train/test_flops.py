"""The share of a GPU's peak that a training reaches."""

import pytest
import torch

from tests.train import toy
from transduce.device import full_speed, peak_flops
from transduce.train.log import ProgressBar


def test_progress_bar_shows_mfu_if_the_peak_is_known(tmp_path, monkeypatch, capsys):
    """A device that could do a thousand operations a second, ten of them a token: its full speed is 100 tokens/s."""
    monkeypatch.setattr("transduce.device.peak_flops", lambda device: 1000.0)
    bar = ProgressBar(3, full_speed(torch.device("cpu"), 10.0))
    toy.trainer(tmp_path, config=toy.config(max_updates=3), sinks=[bar]).run()
    shown = bar.shown
    assert float(shown["MFU"].rstrip("%")) == pytest.approx(float(shown["tokens/s"].replace(",", "")), rel=1e-3)
    assert "MFU=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12)]
)
def test_peak_flops_of_known_gpus(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda")) == peak


def test_peak_flops_of_other_devices_are_unknown(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Another GPU")
    assert peak_flops(torch.device("cuda")) is None
    assert peak_flops(torch.device("cpu")) is None
