"""The switch for cuDNN's attention, which threads share, and what the hardware computes in."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from transduce.device import computes_bf16, torch_device, without_cudnn_attention

enabled = torch.backends.cuda.cudnn_sdp_enabled


@pytest.mark.parametrize("before", [True, False])
def test_of_two_that_overlap_the_last_to_leave_brings_the_choice_of_the_process_back(before):
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
def test_the_cpu_says_itself_whether_it_computes_in_bf16():
    flags = Path("/proc/cpuinfo").read_text().split()
    assert computes_bf16(torch.device("cpu")) == ("avx512_bf16" in flags or "amx_tile" in flags)


def test_a_device_that_computes_nothing_is_refused():
    with pytest.raises(ValueError) as caught:
        torch_device("meta")
    assert re.fullmatch(
        r"device must be one that this machine has, but 'meta': .*; try --device cpu", str(caught.value)
    )
