"""The host beside the device: it copies numbers asynchronously, and handles Ctrl-C."""

import signal
import threading
from types import FrameType
from typing import Any

from jaxtyping import Float
from torch import Tensor, cuda


class HostCopy:
    """Asynchronous device-to-host copy: logging never drains the stream.

    On a GPU the numbers go into pinned memory, with an event behind them in the stream; `tolist`
    waits for that event alone. `Tensor.tolist` would wait for everything queued before its call.
    """

    def __init__(self, numbers: Float[Tensor, " n"]) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        stream = cuda.current_stream(numbers.device) if numbers.is_cuda else None
        self.arrived = None if stream is None else stream.record_event()

    def tolist(self) -> list[float]:
        """Return the numbers, once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


class StopRequest:
    """While open, the first SIGINT or SIGTERM sets `requested`; a second one acts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
