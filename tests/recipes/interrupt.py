"""A training that is told to stop in the middle, as by Ctrl-C."""

import signal
from itertools import count

from transduce.experiment import run as experiment


def interrupt(monkeypatch, batch: int) -> list[int]:
    """From now on, the batch of this number, counted from 1, sends SIGINT.

    Returns:
        The numbers of the batches so far; it grows.
    """
    loss_of, numbers, seen = experiment.loss_of, count(1), []

    def interrupting(*settings):
        loss = loss_of(*settings)

        def call(model, item):
            seen.append(next(numbers))
            if seen[-1] == batch:
                signal.raise_signal(signal.SIGINT)
            return loss(model, item)

        return call

    monkeypatch.setattr(experiment, "loss_of", interrupting)
    return seen
