"""The training loop: accumulate, clip, step, validate, log, save, resume.

It depends on batches and objectives, not on tasks. With several processes, each computes some
batches of an update, and one exchange sums their gradients. All processes make the same decisions,
from numbers that all of them have.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from transduce.device import DTYPES, trains_in, without_cudnn_attention
from transduce.errors import InputError
from transduce.process import allow_user_without_name
from transduce.train.config import TrainingConfig
from transduce.train.data_parallel import DataParallel, ShardedDataParallel
from transduce.train.distributed import COLLECTIVE, world
from transduce.train.host import Batch, Data, HostCopy, StopRequest, load_batches, prefetch
from transduce.train.log import Log, Sink
from transduce.train.objectives import Objective
from transduce.train.optim import add_lora, freeze, optimizer, scale_of, set_scale, step
from transduce.train.state import Progress, Store, Validation, local


def seed_of_batch(seed: int, update: int, index: int) -> None:
    """Seed torch for one batch of an update: its dropout is the same in any process.

    On a CPU only the lower 32 bits of a seed count, so the batches of an update differ in them.
    """
    torch.manual_seed((seed * 1_000_003 + update + index * 2_654_435_761) % 2**63)


class Trainer:
    """Trains an objective's model in a run's directory, from the newest checkpoint there if any.

    Args:
        objective: the model, on its device, and its loss (train/objectives.py); with
            config.compile it is compiled in place.
        validate: called with the model; returns metrics, the score that decides which checkpoints
            are best (higher is better), and sample outputs.
        pretrained: whether the initial weights are those of another run; if so, they are validated
            first, and may remain the best.
        sinks: receive what the first process reports, such as `standard_sinks` (train/log.py).

    Randomness is a function of (seed, update) and the order of (seed, epoch), so a resumed run
    needs no generator's state and ends, on a CPU, with the same bits.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        data: Data,
        validate: Callable[[Any], Validation],
        config: TrainingConfig,
        directory: Path,
        pretrained: bool = False,
        sinks: Sequence[Sink] = (),
    ) -> None:
        allow_user_without_name()
        self.objective = objective
        self.model: nn.Module = objective.model
        self.data = data
        self.validate = validate
        self.config = config
        self.pretrained = pretrained
        self.world = world()
        config.check_processes(self.world.size)
        if config.compile:
            objective.compile(dynamic=not config.static_shapes)
        self.device = next(self.model.parameters()).device
        if config.lora.rank:
            add_lora(self.model, config.lora, seed=config.seed)
        freeze(self.model, config.freeze)
        self.dtype = DTYPES[trains_in(config.precision, self.device)]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.started = time.monotonic()  # moved back by the time already spent, if resumed
        kind = ShardedDataParallel if config.shard else DataParallel
        self.parallel = kind(objective, self.world)
        self.optimizer = optimizer(self.model, config.optim)
        self.store = Store(
            directory,
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            writes=self.world.first,
        )
        self.progress = Progress()
        # of the last update: time, rate, names of losses, and numbers being copied from the device
        self.unread: tuple[float, float, list[str], HostCopy] | None = None
        self.stop = StopRequest()
        self.stopping = False  # whether one of several processes is asked to stop, the same in all
        self.validation_seconds = 0.0  # duration of the last one
        self.saved_at = 0.0  # progress.seconds of the last checkpoint
        self.log = Log(sinks if self.world.first else [])

    def run(self) -> Progress:
        """Train to the end; on Ctrl-C, SIGTERM or SIGHUP save, then raise KeyboardInterrupt.

        Raises:
            FloatingPointError: max_skipped updates in a row had no finite loss or gradient, or the
                weights or the validation of a checkpoint to be written are not finite. The
                checkpoints before stay as they are.
        """
        now = time.monotonic()
        self.progress = self.store.resume(self.model, self.optimizer) or Progress()
        self.unread = None
        set_scale(self.scaler, self.progress.loss_scale)
        self.started = now - self.progress.seconds
        self.saved_at = self.progress.seconds
        if self.world.broadcast(self.progress.update) != self.progress.update:
            raise InputError(
                f"every process must see the same run directory, but {self.store.directory} has "
                f"update {self.progress.update} for process {self.world.rank} and another one for "
                "the first"
            )
        self._print_rise()
        with ExitStack() as stack:
            stack.enter_context(self.world.exchanging(COLLECTIVE))
            if not self.config.static_shapes:
                stack.enter_context(without_cudnn_attention)
            self.stop = stack.enter_context(StopRequest())
            self.log.open(self.progress)
            stack.callback(self.log.close)
            if self.pretrained and not self.progress.update and not self.progress.validated:
                self._validate()
            while not self._finished():
                self._epoch()
            if not self.progress.validated:
                self._validate()
            if self._stops():
                raise KeyboardInterrupt
        return self.progress

    def _epoch(self) -> None:
        """Train on the rest of an epoch, or until the training ends."""
        batches = self.data.epoch(self.progress.epoch)
        if len(batches) < self.world.size:
            raise InputError(
                f"every process must have a batch, but there are {self.world.size} processes and "
                f"the data has {len(batches)} batches; start fewer processes or make batches "
                "smaller"
            )
        size = self.config.accumulate
        starts = range(self.progress.batch, len(batches), size)
        groups = [range(start, min(start + size, len(batches))) for start in starts]
        order = [i for group in groups for i in self.parallel.share(group)]
        loaded = load_batches(self.config.data_workers, batches, order)
        queue = prefetch(batch.to(self.device) for batch in loaded)
        for group in groups:
            n_batches = len(self.parallel.share(group))
            idle = n_batches - len(self.world.share(group))
            self._update(list(islice(queue, n_batches)), idle=idle)
            self.progress.batch += len(group)
            self._validate_or_save()
            if self._finished():
                return
        self._read()
        self.progress.epoch += 1
        self.progress.batch = 0

    def _validate_or_save(self) -> None:
        """Validate or save a checkpoint if it is time; raise KeyboardInterrupt if asked to stop."""
        due = self.progress.update % self.config.validate_every == 0
        if due and self._time_used(self.validation_seconds) < 1:
            self._validate()
        stops = self._stops()
        unsaved = self.progress.seconds - self.saved_at
        if stops or unsaved >= 60 * (self.config.save_every_minutes or math.inf):
            self._read()
            if not self.progress.validated:  # a validation has saved it
                self._check_weights()
                self._save()
        if stops:
            raise KeyboardInterrupt

    def _stops(self) -> bool:
        return self.stopping if self.world.size > 1 else self.stop.requested

    def _update(self, group: Sequence[Batch], *, idle: int = 0) -> None:
        """Take one step over batches as if they were one; skip it if anything is not finite.

        The numbers of the update before are read after this one is queued, so that a GPU has work
        while the host waits for it.

        Args:
            idle: number of batches at the end of `group` whose loss counts zero; they only keep
                processes in step.
        """
        update = self.progress.update + 1
        self.model.train()
        counted = len(group) - idle
        n_tokens = sum(batch.n_tokens for batch in group[:counted])
        divisor = self.parallel.divisor(n_tokens)
        scale = self.scaler.scale(torch.ones(1, device=self.device))
        losses = []
        for i, batch in enumerate(group):
            seed_of_batch(self.config.seed, update, self.world.rank + i * self.world.size)
            with self._precision():
                loss = self.objective(batch)
            if i >= counted:
                loss = loss.times(0.0)
            self.scaler.scale(loss.total / divisor).backward()
            losses.append({"loss": loss.total.detach(), **loss.parts})
        names = list(losses[0]) if losses else []
        sums = [torch.stack([each[name] for each in losses]).sum() for name in names]
        numbers = torch.stack([torch.full((), float(n_tokens), device=self.device), *sums])
        seconds = time.monotonic() - self.started if self.world.first else 0.0
        more = [float(self.stop.requested), seconds]
        names, numbers = self.parallel.exchange(names, numbers, more)
        self.scaler.unscale_(self.optimizer)
        norm = self.parallel.clip(self.config.optim.clip_norm)
        numbers = torch.cat([norm[None], scale, numbers])
        rate = self.progress.rate = self._rate(update)
        step(self.optimizer, rate=rate, finite=numbers.isfinite().all())
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        copy = HostCopy(numbers)
        self._read()
        self.progress.update = update
        self.unread = time.monotonic(), rate, names, copy

    def _rate(self, update: int) -> float:
        return self.config.optim.rate(update, self.config.max_updates, done=self._time_used())

    def _print_rise(self) -> None:
        """Print how the rate rises if a training is resumed with a longer schedule."""
        update, before, config = self.progress.update, self.progress.rate, self.config
        now = self._rate(update + 1)
        warm = update >= config.optim.warmup_steps
        if before is not None and now > before and warm and not self._finished():
            minutes = f" or {config.max_minutes:g} minutes" if config.max_minutes else ""
            print(
                f"resumes after update {update}, in a schedule of {config.max_updates} updates"
                f"{minutes}: the rate was {before:.3g} and is now {now:.3g}; for a new schedule: "
                f"--start-from {self.store.directory.parent} --run NEW"
            )

    def _read(self) -> None:
        """Read the numbers of the last update and log them, unless that is done already."""
        if self.unread is None:
            return
        at, rate, names, copy = self.unread
        self.unread = None
        norm, scale, n_tokens, *sums = copy.tolist()
        if self.world.size > 1:
            *sums, n_stopping, self.progress.seconds = sums
            self.stopping = n_stopping > 0
        losses = {name: value / n_tokens for name, value in zip(names, sums, strict=True)}
        if math.isfinite(losses["loss"]) and math.isfinite(norm):
            self.progress.skipped_in_a_row = 0
        else:
            self._count_skipped(losses["loss"], norm, scale)
        n = round(n_tokens)
        self.log.update(self.progress, losses, norm=norm, rate=rate, n_tokens=n, at=at)

    def _count_skipped(self, loss: float, norm: float, scale: float) -> None:
        """Count an update that was skipped; raise FloatingPointError if there are too many."""
        progress, limit = self.progress, self.config.max_skipped
        scaled = self.scaler.is_enabled()
        progress.skipped += 1
        if not (scaled and math.isfinite(loss) and scale >= 1):  # else a smaller scale helps
            progress.skipped_in_a_row += 1
        at = f" at loss scale {scale:g}" if scaled else ""
        self.log.message(
            f"update {progress.update} skipped: loss {loss}, gradient norm {norm}{at} "
            f"({progress.skipped} so far)"
        )
        if progress.skipped_in_a_row >= limit:
            raise self._diverged(
                f"loss and gradient must be finite, but {limit} updates in a row had loss {loss} "
                f"or gradient norm {norm}"
            )

    def _diverged(self, message: str) -> FloatingPointError:
        optim, good = self.config.optim, "there is no good checkpoint yet"
        if validated := self.progress.last(1):
            good = f"the last good checkpoint is {self.store.path(*validated)}"
        return FloatingPointError(
            f"{message}; begin another run with less than peak_rate={optim.peak_rate} or more than "
            f"warmup_steps={optim.warmup_steps}; {good}"
        )

    def _check_weights(self) -> None:
        """Raise FloatingPointError unless all weights are finite: they become a checkpoint."""
        finite = [local(p).isfinite().all() for p in self.model.parameters()]
        if self.world.all_reduce_sum(float(~torch.stack(finite).all()))[0]:
            raise self._diverged(
                f"weights must be finite, but after update {self.progress.update} some are not"
            )

    def _validate(self) -> None:
        """Validate, log, and make a checkpoint."""
        self._read()
        before = self._clock()
        self._check_weights()
        validation = self.validation()
        progress, loss = self.progress, validation.metrics.get("loss", 0.0)
        if not (math.isfinite(validation.score) and math.isfinite(loss)):
            raise self._diverged(
                f"a validation must be finite, but after update {progress.update} the loss is "
                f"{loss} and the score ({validation.by}) {abs(validation.score)}"
            )
        self._clock()
        progress.validations.append((progress.update, validation.score))
        progress.losses.append(loss)
        progress.by = validation.by
        self.log.validation(progress, validation)  # repeated if a crash comes before the save
        self._save()
        self.validation_seconds = self._clock() - before

    def validation(self) -> Validation:
        """Validate the weights as they are; nothing is logged or saved."""
        self.model.eval()
        # parametrize.cached: LoRA's sums are computed once
        with self.parallel.unsharded(), torch.no_grad(), self._precision(), parametrize.cached():
            return self.validate(self.model)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _save(self) -> None:
        self.saved_at = self.progress.seconds
        self.progress.loss_scale = scale_of(self.scaler)
        if self.world.first or self.config.shard:
            self.store.save(self.model, self.optimizer, self.progress)

    def _clock(self) -> float:
        """Count the time until now, by the first process's clock."""
        self.progress.seconds = self.world.broadcast(time.monotonic() - self.started)
        return self.progress.seconds

    def _time_used(self, more_seconds: float = 0.0) -> float:
        """Return the share of max_minutes that is used, now or so many seconds later."""
        if self.world.size == 1:  # several processes agree on the time of the last exchange
            self._clock()
        seconds = self.progress.seconds + more_seconds
        return seconds / (60 * (self.config.max_minutes or math.inf))

    def _finished(self) -> bool:
        progress, config = self.progress, self.config
        return (
            progress.update >= config.max_updates
            or self._time_used() >= 1
            or progress.validations_since_best >= (config.patience or math.inf)
        )
