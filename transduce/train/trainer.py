"""The training loop: accumulate, clip, step, validate, log, save, resume. It knows batches and objectives, not tasks.

With several processes each computes some batches of an update, and one exchange makes their gradients one. All else they
decide alike, from numbers that all of them have.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transduce.device import dtype_of, trains_in, without_cudnn_attention
from transduce.errors import InputError
from transduce.threads import allow_user_without_name
from transduce.train.adapt import add_lora, freeze
from transduce.train.config import TrainingConfig
from transduce.train.distributed import COLLECTIVE, world
from transduce.train.flops import peak_flops
from transduce.train.host import HostCopy, StopRequest
from transduce.train.log import Log, ProgressBar, RunFiles, Sink, TensorBoard
from transduce.train.objectives import Loss, Objective
from transduce.train.optim import optimizer, scale_of, set_scale, step
from transduce.train.parallel import DataParallel
from transduce.train.prefetch import load_batches, prefetch
from transduce.train.shard import ShardedDataParallel, local
from transduce.train.state import Progress, Store, Validation


@runtime_checkable
class Batch(Protocol):
    """What the trainer reads of a batch."""

    @property
    def n_tokens(self) -> int: ...

    def to(self, device: torch.device) -> "Batch": ...


@runtime_checkable
class Data(Protocol):
    """Training data: epoch(n) gives the batches of epoch n, the same ones in every call."""

    def epoch(self, n: int) -> Sequence[Batch]: ...


def seed_of_batch(seed: int, update: int, index: int) -> None:
    """Seed torch for one batch of an update: its dropout is the same in whichever process it is computed.

    On a CPU only the lower 32 bits of a seed count, so the batches of an update must differ in them.
    """
    torch.manual_seed((seed * 1_000_003 + update + index * 2_654_435_761) % 2**63)


class Trainer:
    """Trains an objective's model on `data`, in `directory`, from the newest checkpoint there if there is one.

    Args:
        objective: the model, on its device, and its loss (train/objectives.py); with config.compile it is compiled
            in place.
        validate: called with the model, gives metrics, the score that decides (higher is better) and sample outputs.
        flops_per_token: floating-point operations that training on one of n_tokens takes; where they are given
            and the GPU's peak is known, the progress bar shows which share of it is used (MFU).
        pretrained: whether the initial weights are those of another run; they are validated then, and may stay the best.
        sinks: receive what the first process reports, after the bar and the files (train/log.py).

    Randomness is a function of (seed, update) and the order of (seed, epoch), so a resumed run needs no generator's
    state and ends, on a CPU, with the same bits.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        data: Data,
        validate: Callable[[Any], Validation],
        config: TrainingConfig,
        directory: Path,
        flops_per_token: float | None = None,
        pretrained: bool = False,
        sinks: Sequence[Sink] = (),
    ) -> None:
        allow_user_without_name()
        self.objective, self.data, self.validate, self.config = objective, data, validate, config
        self.world = world()
        self.world.check(config)
        self.model: nn.Module = objective.model
        if config.compile or config.compile_layers:
            (objective.compile_layers if config.compile_layers else objective.compile)(dynamic=not config.static_shapes)
        self.device = next(self.model.parameters()).device
        if config.lora.rank:
            add_lora(self.model, config.lora, seed=config.seed)
        freeze(self.model, config.freeze)
        self.dtype = dtype_of(trains_in(config.precision, self.device))
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.started = time.monotonic()  # or earlier, by the time of the parts before a break
        kind = ShardedDataParallel if config.shard else DataParallel
        self.parallel = kind(objective, self.world, lambda: time.monotonic() - self.started)
        self.optimizer = optimizer(self.model, config.optim)
        self.ema = {n: p.detach().clone() for n, p in self._trained() if config.ema}
        self.store = Store(directory, keep_last=config.keep_last, keep_best=config.keep_best, writes=self.world.first)
        self.progress = Progress()
        self.unread: tuple[float, list[str], HostCopy] | None = None  # of the last update: rate, losses, numbers
        self.stopping = False  # as all processes know
        self.pretrained = pretrained
        self.validation_seconds = 0.0  # how long the last one took
        self.saved_at = 0.0  # progress.seconds of the last checkpoint
        peak = peak_flops(self.device)
        full = peak / flops_per_token if peak and flops_per_token else None
        bar = ProgressBar(config.max_updates, full_speed=full)
        standard = (bar, RunFiles(directory), TensorBoard(directory))
        self.log = Log([*standard, *sinks] if self.world.first else [])

    def run(self) -> Progress:
        """Train to the end; on Ctrl-C or SIGTERM save, then raise KeyboardInterrupt.

        Raises:
            FloatingPointError: max_skipped updates in a row had no finite loss or gradient, or what is to become a
                checkpoint has weights or a validation that are not finite; the checkpoints before stay as they are.
        """
        now = time.monotonic()
        self.progress, self.unread = self.store.resume(self.model, self.optimizer, self.ema) or Progress(), None
        set_scale(self.scaler, self.progress.loss_scale)
        self.started, self.saved_at = now - self.progress.seconds, self.progress.seconds
        if self.world.broadcast(self.progress.update) != self.progress.update:
            raise InputError(
                f"every process must see the same run directory, but {self.store.directory} has update "
                f"{self.progress.update} for process {self.world.rank} and another one for the first"
            )
        with ExitStack() as stack:
            stack.enter_context(self.world.exchanging(COLLECTIVE))
            if not self.config.static_shapes:
                stack.enter_context(without_cudnn_attention)
            stop = stack.enter_context(StopRequest())
            self.log.open(self.progress)
            stack.callback(self.log.close)
            if self.pretrained and not self.progress.update and not self.progress.validated:
                self._validate()
            while not self._finished():
                self._epoch(stop)
            if not self.progress.validated:  # the last updates are validated too
                self._validate()
            if self._stops(stop):
                raise KeyboardInterrupt
        return self.progress

    def _epoch(self, stop: StopRequest) -> None:
        batches, size = self.data.epoch(self.progress.epoch), self.config.accumulate
        if len(batches) < self.world.size:
            raise InputError(
                f"every process must have a batch, but there are {self.world.size} processes and the data has "
                f"{len(batches)} batches; start fewer processes or make batches smaller"
            )
        groups = [range(i, min(i + size, len(batches))) for i in range(self.progress.batch, len(batches), size)]
        own = [i for group in groups for i in self.parallel.share(group)]
        made = load_batches(self.config.data_workers, batches, own)
        queue = prefetch(lambda _: next(made).to(self.device), own)
        for group in groups:
            idle = len(self.parallel.share(group)) - len(self.world.share(group))
            self._update(list(islice(queue, len(self.parallel.share(group)))), stop.requested, idle=idle)
            self.progress.batch += len(group)
            due = self.progress.update % self.config.validate_every == 0 and not self.progress.validated
            if due and self._minutes_done(self.validation_seconds) < 1:
                self._validate()
            stops = self._stops(stop)
            if stops or self.progress.seconds - self.saved_at >= 60 * (self.config.save_every_minutes or math.inf):
                self._save_between()
            if stops:
                raise KeyboardInterrupt
            if self._finished():
                return
        self._read()
        self.progress.epoch += 1
        self.progress.batch = 0

    def _stops(self, stop: StopRequest) -> bool:
        return self.stopping if self.world.size > 1 else stop.requested

    def _update(self, group: Sequence[Batch], stop: bool = False, *, idle: int = 0) -> None:
        """One step over the accumulated batches, as if they were one; skipped where anything is not finite.

        The last `idle` of them count zero and keep the processes in step. The numbers of the update before are read
        when this one is queued, so that a GPU has work while it is waited for.
        """
        update = self.progress.update + 1
        self.model.train()
        counted = len(group) - idle
        n_tokens = sum(batch.n_tokens for batch in group[:counted])
        divisor = self.parallel.n_tokens(n_tokens)
        scale = self.scaler.scale(torch.ones(1, device=self.device))
        sums: dict[str, list[Tensor]] = {}
        for i, batch in enumerate(group):
            seed_of_batch(self.config.seed, update, self.world.rank + i * self.world.size)
            with self._precision():
                loss: Loss = self.objective(batch)
            if i >= counted:
                loss = loss.times(0.0)
            self.scaler.scale(loss.total / divisor).backward()
            for name, value in {"loss": loss.total.detach(), **loss.parts}.items():
                sums.setdefault(name, []).append(value)
        numbers = torch.stack(
            [torch.full((), float(n_tokens), device=self.device), *(torch.stack(v).sum() for v in sums.values())]
        )
        names, numbers = self.parallel.exchange(list(sums), numbers, stop)
        self.scaler.unscale_(self.optimizer)
        gradient = self.parallel.clip(self.config.optim.clip_norm)
        numbers = torch.cat([gradient[None], scale, numbers])
        rate = self.config.optim.rate(update, self.config.max_updates, done=self._minutes_done())
        step(self.optimizer, rate=rate, finite=numbers.isfinite().all())
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._average(update)
        late = HostCopy(numbers)
        self._read()
        self.progress.update, self.unread = update, (rate, names, late)

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def _average(self, update: int) -> None:
        """Move the average of the weights towards them."""
        if self.ema:
            decay = min(self.config.ema, (1 + update) / (10 + update))
            torch._foreach_lerp_(list(self.ema.values()), [p.detach() for _, p in self._trained()], 1 - decay)

    def take_average(self) -> bool:
        """Make the average of the weights the model's weights; False where none is kept."""
        with torch.no_grad():
            for name, average in self.ema.items():
                self.model.get_parameter(name).copy_(average)
        return bool(self.ema)

    def _read(self) -> None:
        """Read the numbers of the last update and log them, unless that is done already."""
        if self.unread is None:
            return
        (rate, names, late), self.unread = self.unread, None
        norm, scale, n_tokens, *sums = late.tolist()
        if self.world.size > 1:
            *sums, n_stopping, self.progress.seconds = sums
            self.stopping = n_stopping > 0
        losses = {name: value / n_tokens for name, value in zip(names, sums, strict=True)}
        update, loss = self.progress.update, losses["loss"]
        if math.isfinite(loss) and math.isfinite(norm):
            self.progress.skipped_in_a_row = 0
        else:
            self._skip(update, loss, norm, scale)
        self.log.update(self.progress, losses, norm=norm, rate=rate, n_tokens=round(n_tokens))

    def _skip(self, update: int, loss: float, norm: float, scale: float) -> None:
        scaled = self.scaler.is_enabled()
        at = f" at loss scale {scale:g}" if scaled else ""
        self.progress.skipped += 1
        if not (scaled and math.isfinite(loss) and scale >= 1):  # else a smaller scale will do
            self.progress.skipped_in_a_row += 1
        self.log.message(
            f"update {update} skipped: loss {loss}, gradient norm {norm}{at} ({self.progress.skipped} so far)"
        )
        if self.progress.skipped_in_a_row >= self.config.max_skipped:
            raise self._diverged(
                f"loss and gradient must be finite, but {self.config.max_skipped} updates in a row had loss {loss} or "
                f"gradient norm {norm}"
            )

    def _diverged(self, told: str) -> FloatingPointError:
        optim, kept = self.config.optim, self.store.newest_good(self.progress)
        return FloatingPointError(
            f"{told}; begin another run with less than peak_rate={optim.peak_rate} or more than "
            f"warmup_steps={optim.warmup_steps}; "
            + (f"the last good checkpoint is {kept}" if kept else "there is no good checkpoint yet")
        )

    def _check_weights(self) -> None:
        """Raise FloatingPointError unless all weights are finite: others may not become a checkpoint."""
        wrong = torch.stack([~local(parameter).isfinite().all() for parameter in self.model.parameters()]).any()
        if self.world.all_reduce_sum(float(wrong))[0]:
            raise self._diverged(f"weights must be finite, but after update {self.progress.update} some are not")

    def _validate(self) -> None:
        self._read()
        before = self._clock()
        self._check_weights()
        validation = self.validation()
        loss = validation.metrics.get("loss", 0.0)
        if not (math.isfinite(validation.score) and math.isfinite(loss)):
            raise self._diverged(
                f"a validation must be finite, but after update {self.progress.update} the loss is {loss} and the "
                f"{validation.by} that decides {abs(validation.score)}"
            )
        self._clock()
        self.progress.validations.append((self.progress.update, validation.score))
        self.progress.by = validation.by
        self.progress.losses.append(loss)
        self.log.validation(self.progress, validation)  # before the checkpoint: a resumed run takes it back otherwise
        self._save()
        self.validation_seconds = self._clock() - before

    def validation(self) -> Validation:
        """A validation of the weights as they are; nothing is logged and nothing kept."""
        self.model.eval()
        with self.parallel.whole(), torch.no_grad(), self._precision(), parametrize.cached():  # LoRA's sums once
            return self.validate(self.model)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _save_between(self) -> None:
        """Make a checkpoint between validations, unless this very update is validated, and so saved, already."""
        self._read()
        if not self.progress.validated:
            self._check_weights()
            self._save()

    def _save(self) -> None:
        self.saved_at, self.progress.loss_scale = self.progress.seconds, scale_of(self.scaler)
        if self.world.first or self.config.shard:
            self.store.save(self.model, self.optimizer, self.progress, self.ema)

    def _clock(self) -> float:
        """Count the time until now, by the first process's clock."""
        self.progress.seconds = self.world.broadcast(time.monotonic() - self.started)
        return self.progress.seconds

    def _minutes_done(self, more_seconds: float = 0.0) -> float:
        """The share of max_minutes that is used up, now or so many seconds later; 1 is the end."""
        if self.world.size == 1:  # else the time of the last exchange, on which they agree
            self._clock()
        seconds, limit = self.progress.seconds + more_seconds, self.config.max_minutes
        return seconds / (60 * limit) if limit else 0.0

    def _finished(self) -> bool:
        progress, config = self.progress, self.config
        tired = config.patience is not None and progress.validations_since_best >= config.patience
        return progress.update >= config.max_updates or tired or self._minutes_done() >= 1
