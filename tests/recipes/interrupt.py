"""A training that is told to stop in the middle, as by Ctrl-C."""

import signal
from itertools import count

from transduce.train.trainer import Trainer


def interrupt(monkeypatch, batch: int) -> list[int]:
    """From now on, the batch of this number, counted from 1, sends SIGINT.

    Returns:
        The numbers of the batches so far; it grows.
    """
    run, numbers, seen = Trainer.run, count(1), []

    def before_a_batch(*_):
        seen.append(next(numbers))
        if seen[-1] == batch:
            signal.raise_signal(signal.SIGINT)

    def interrupted(trainer):
        trainer.objective.register_forward_pre_hook(before_a_batch)
        return run(trainer)

    monkeypatch.setattr(Trainer, "run", interrupted)
    return seen
