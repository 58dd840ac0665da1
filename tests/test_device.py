"""The switch for cuDNN's attention, which threads share, and what the hardware computes in."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from transduce.device import computes_bf16, torch_device, without_cudnn_attention

enabled = torch.backends.cuda.cudnn_sdp_enabled


@pytest.mark.parametrize("before", [True, False])
def test_overlapping_contexts_restore_the_setting_after_the_last(before):
    """As two threads may: the first to enter leaves first."""
    was = enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(before)
        first, second = ExitStack(), ExitStack()
        first.enter_context(without_cudnn_attention)
        second.enter_context(without_cudnn_attention)
        assert not enabled()
        first.close()
        assert not enabled()
        second.close()
        assert enabled() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="needs Linux")
def test_bf16_support_is_read_from_the_cpu_flags():
    flags = Path("/proc/cpuinfo").read_text().split()
    assert computes_bf16(torch.device("cpu")) == ("avx512_bf16" in flags or "amx_tile" in flags)


def test_the_meta_device_is_refused():
    with pytest.raises(ValueError) as caught:
        torch_device("meta")
    assert re.fullmatch(
        r"device must be one that this machine has, but 'meta': .*; try --device cpu", str(caught.value)
    )
