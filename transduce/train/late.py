"""Numbers that a device computed, read when it is done with them and not with what it was told since."""

from jaxtyping import Float
from torch import Tensor, cuda


class Late:
    """Takes numbers to the host without waiting for them; `tolist` does the waiting.

    On a GPU that is a copy into pinned memory and an event behind it in the stream. A plain `Tensor.tolist` would wait
    for all that was queued by the time of its call, and the GPU for what is queued after it.
    """

    def __init__(self, numbers: Float[Tensor, " n"]) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        self.arrived = cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def tolist(self) -> list[float]:
        """The numbers."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()
