"""Numbers that are copied asynchronously are the same numbers, and the host waits for a GPU only to read them."""

import torch

from transduce.train.host import HostCopy


def test_host_copy_on_a_cpu():
    assert HostCopy(torch.tensor([1.5, -2.0])).tolist() == [1.5, -2.0]


class OnGPU(torch.Tensor):
    """A tensor that says it lies on a GPU, and writes down how it is copied."""

    is_cuda = True
    calls: list[object]

    def to(self, device, *, non_blocking):
        self.calls.append((device, non_blocking))
        return torch.tensor([3.0])


class Event:
    def __init__(self, calls):
        self.calls = calls

    def record_event(self):
        self.calls.append("recorded")
        return self

    def synchronize(self):
        self.calls.append("waited")


def test_gpu_copy_is_asynchronous_and_reading_waits_for_it(monkeypatch):
    numbers, calls = torch.tensor([3.0]).as_subclass(OnGPU), []
    numbers.calls = calls
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: Event(calls))
    late = HostCopy(numbers)
    assert calls == [("cpu", True), "recorded"]
    calls.append("the next update")
    assert late.tolist() == [3.0]
    assert calls[2:] == ["the next update", "waited"]
