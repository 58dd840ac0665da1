"""What the host does beside the device: it reads numbers late, and hears of Ctrl-C."""

import signal
import threading
from types import FrameType
from typing import Any

from jaxtyping import Float
from torch import Tensor, cuda


class HostCopy:
    """Asynchronous device-to-host copy: logging never drains the stream.

    On a GPU the numbers go into pinned memory, with an event behind them in the stream; `tolist` waits for that event
    alone. A plain `Tensor.tolist` would wait for all work that was queued by the time of its call.
    """

    def __init__(self, numbers: Float[Tensor, " n"]) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        self.arrived = cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def tolist(self) -> list[float]:
        """The numbers, once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


class StopRequest:
    """While open, the first SIGINT or SIGTERM sets `requested`; a second one acts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # the only one that may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
