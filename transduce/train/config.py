"""The configuration of a training and of its losses; this module does not import torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transduce.config import Common, at_least, within
from transduce.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam with the paper's betas and epsilon, and its inverse-square-root schedule.

    Source: Vaswani et al. (2017), section 5.3.
    """

    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all weights, or Muon: it orthogonalizes the momentum of the linear maps of
    attention and feed-forward (Jordan et al. 2024), at AdamW's learning rate (Liu et al. 2025), and
    uses AdamW for all other weights."""
    peak_rate: Common[float] = 7e-4
    """Learning rate at the end of the warm-up; the paper's own is (d_model * warmup_steps)^-0.5."""
    warmup_steps: int = 4000
    """Updates over which the rate rises from 0 to peak_rate."""
    schedule: Literal["inverse_sqrt", "cosine", "polynomial", "constant"] = "inverse_sqrt"
    """How the rate falls after the warm-up: as 1 / sqrt(update); to final_rate at the end of the
    training, along half a cosine or as (1 - progress)^power; or not at all."""
    final_rate: float = 0.0
    """Learning rate at which cosine and polynomial end."""
    power: float = 1.0
    """Exponent of the polynomial; 1 is a straight line (Devlin et al. 2019, BERT)."""
    cooldown: float = 0.0
    """Share of the training, at its end, over which the rate falls in a straight line to 0,
    whatever the schedule."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Adam's decay rates of the gradient's mean and of its square."""
    eps: float = 1e-9
    """Adam's epsilon, added to the root of the square."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW), on matrices only."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 = no clipping."""
    layer_decay: float = 1.0
    """Layer-wise rates for a run that starts from another one: each layer's rate is that of the
    layer above it times this factor (0.385 in the paper). The output is at the top, and the
    embeddings are below the first layer; encoder and decoder are counted separately. Source: Howard
    and Ruder (2018), ULMFiT, section 3.2, "discriminative fine-tuning"."""

    def __post_init__(self) -> None:
        within("(0, inf)", self, "peak_rate", "eps", "power")
        within(f"[0, {self.peak_rate}]", self, "final_rate")
        within("[0, 1]", self, "cooldown")
        within("(0, 1]", self, "layer_decay")
        within("[0, 1)", beta_1=self.betas[0], beta_2=self.betas[1])
        at_least(0, self, "warmup_steps", "clip_norm", "weight_decay")

    def rate(self, update: int, max_updates: int, *, done: float = 0.0) -> float:
        """Learning rate of this update; the first is 1, the last max_updates.

        Cosine, polynomial and cooldown follow the progress of the training, which is the larger of
        update / max_updates and `done`: so a training that another limit ends before max_updates
        has cooled down by then, too. The warm-up and inverse_sqrt follow the update.

        Args:
            done: the share of that other limit that is used up, such as minutes / max_minutes; 1 is
                the end.

        Source: the cosine is Loshchilov and Hutter (2017), equation 5, without restarts; the
        cooldown, Zhai et al. (2022), Scaling vision transformers.
        """
        # the update that corresponds to this progress
        at = max(float(update), min(done, 1.0) * max_updates)
        warmup, rate = max(1, self.warmup_steps), self.peak_rate
        if self.schedule == "inverse_sqrt":
            rate *= math.sqrt(warmup / max(update, warmup))
        elif self.schedule in ("cosine", "polynomial") and max_updates > warmup:
            share = min(1.0, max(0.0, (at - warmup) / (max_updates - warmup)))
            cosine = (1 + math.cos(math.pi * share)) / 2
            fall = cosine if self.schedule == "cosine" else (1 - share) ** self.power
            rate = self.final_rate + (self.peak_rate - self.final_rate) * fall
        if update < warmup:
            rate = min(rate, self.peak_rate * update / warmup)
        left, cooldown = max_updates - at, self.cooldown * max_updates
        return rate * max(0, left) / cooldown if cooldown and left < cooldown else rate


@dataclass(frozen=True, kw_only=True)
class LoRAConfig:
    """Low-rank adaptation: W + alpha / rank * B A, with thin matrices A and B; W is frozen.

    Source: Hu et al. (2021), LoRA: Low-rank adaptation of large language models.
    """

    rank: int = 0
    """Rows of A and columns of B; 0: no LoRA, all weights are trained."""
    alpha: float = 16.0
    """The low-rank change B A is multiplied by alpha / rank."""
    maps: tuple[str, ...] = ("q", "v")
    """Linear maps to adapt: q, k, v and output of attention, wide and narrow (the first and second
    map of feed-forwards), ctc; or longer parts of their names, such as decoder.*.q or cross.v."""
    train: tuple[str, ...] = ()
    """Parts of the model that are trained without LoRA, such as target_input or ctc."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank")
        within("(0, inf)", self, "alpha")
        if self.train and not self.rank:
            raise InputError(
                f"lora.train needs low-rank changes, but lora.rank=0 and lora.train="
                f"{', '.join(self.train)}; give a rank, or leave lora.train out"
            )


def refuse_both(consistency: float, n_teachers: int) -> None:
    """Raise InputError if both consistency and teachers are used."""
    if consistency and n_teachers:
        raise InputError(
            f"consistency and teachers exclude each other, but consistency={consistency} and "
            f"there are {n_teachers} teachers; leave one of them out"
        )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The losses of an objective (train/objectives.py), and their weights."""

    label_smoothing: float = 0.0
    """Share of the target's probability that is spread evenly over the vocabulary."""
    consistency: float = 0.0
    """Weight of the divergence between the predictions of two passes of each batch; 0: one pass."""
    teachers: tuple[Any, ...] = ()
    """Models with the same input and output; the loss also compares with their predictions."""
    distillation: float = 0.5
    """Share of the teachers' predictions in the loss, in (0, 1], if there are teachers."""
    ctc_weight: float = 0.0
    """Share of CTC in the loss; 0: no CTC."""
    blank_id: int = 0
    """CTC's blank: an id that no target contains, such as that of the padding."""
    interctc_weight: float = 0.5
    """Share of the model's ctc_layers in the CTC loss, if it has any."""
    ctc_consistency: float = 0.0
    """Weight of the divergence between the CTC predictions in two passes of each batch."""

    def __post_init__(self) -> None:
        at_least(0, self, "consistency", "ctc_consistency")
        within("(0, 1]", self, "distillation")
        within("[0, 1]", self, "ctc_weight", "interctc_weight")
        refuse_both(self.consistency, len(self.teachers))

    @property
    def two_views(self) -> bool:
        """Whether each batch passes through the model twice in training."""
        return max(self.consistency, self.ctc_consistency) > 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long to train, how to step, when to validate and what to keep."""

    optim: Common[OptimConfig] = field(default_factory=OptimConfig)
    max_updates: Common[int] = 100_000
    """Maximum number of updates; schedules end there. Raising it on a finished run resumes from the
    newest checkpoint, at the rate that a schedule of the new length has there. To begin a new
    schedule instead, start another run from this one: --start-from RUN --run NEW."""
    max_minutes: Common[float | None] = None
    """Maximum wall time in minutes, summed over all parts of a resumed training, including data,
    validations and checkpoints. The schedule ends by then (OptimConfig.rate), and a validation that
    would not end by then is postponed to the end of the training. This is the only field that makes
    a result depend on the machine's speed, and only if minutes / max_minutes exceeds update /
    max_updates. Raising it on a finished run is like raising max_updates."""
    data_workers: int = 0
    """Processes that make batches, for example by augmenting recordings; 0: a thread of this
    process. The batches are the same."""
    accumulate: int = 1
    """Batches per update, of all processes together."""
    label_smoothing: float = 0.1
    """Share of the target's probability that is spread over all tokens (paper, section 5.4)."""
    consistency: float = 0.0
    """Weight of the divergence between the predictions in two passes of each batch with different
    dropout (R-Drop, Liang et al. 2021; 2.5 is their 5). It takes twice the time and memory of a
    batch; 0: one pass."""
    teachers: tuple[Path, ...] = ()
    """Runs with the same input and output as this one: it learns the mean of their predictions,
    token by token, in addition to the targets (Hinton et al. 2015; Kim and Rush 2016). A teacher
    takes about a third of its own training's time."""
    distillation: float = 0.5
    """Share of the teachers' predictions in the loss, if there are teachers; the rest is that of
    the targets."""
    freeze: tuple[str, ...] = ()
    """Parts of the model that keep their weights, such as encoder or decoder.layers.0."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    """Low-rank changes of linear maps, which are trained instead of all weights and merged into the
    saved weights."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of updates and validations. bf16: autocast; weights and optimizer stay in float32.
    fp16: the same for GPUs without bf16, with a loss scale. If a gradient overflows, the scale is
    halved and the update skipped, which counts for max_skipped if the scale is below 1; the scale
    doubles after 2,000 good updates. auto: bf16 if the hardware has instructions for it, else
    fp32."""
    compile: bool = False
    """torch.compile; needs a C++ compiler on a CPU."""
    shard: bool = False
    """Each process of torchrun holds only a part of the weights, gradients and moments (FSDP), for
    models that do not fit on one device. Validations need room for all weights, but not for
    gradients and moments."""
    static_shapes: bool = False
    """Every batch has the same shape: torch.compile compiles for this shape only, and on a GPU
    cuDNN may compute the attention."""
    validate_every: int = 1000
    """Updates between validations; each makes a checkpoint."""
    save_every_minutes: float | None = None
    """Also save a checkpoint after so many minutes without one, so that a crash between distant
    validations loses no more than that."""
    patience: int | None = None
    """Stop after this many validations without a better score. With more, a run that has stopped
    goes on."""
    keep_last: int = 5
    """Number of newest checkpoints to keep; the one before the newest is always kept. Their mean
    may become the finished model, and so may the mean of the best ones."""
    keep_best: int = 5
    """Number of best checkpoints to keep."""
    max_skipped: int = 20
    """Stop after this many updates in a row with a loss or gradient that is not finite."""
    seed: int = 1
    """Seed of initial weights, order and dropout."""

    def __post_init__(self) -> None:
        at_least(1, self, "max_updates", "accumulate", "validate_every", "patience")
        at_least(1, self, "keep_last", "keep_best", "max_skipped")
        at_least(0, self, "seed", "consistency")
        within("[0, 1000]", self, "data_workers")
        within("(0, inf)", self, "max_minutes", "save_every_minutes")
        within("[0, 1)", self, "label_smoothing")
        within("(0, 1]", self, "distillation")
        refuse_both(self.consistency, len(self.teachers))
        optimizer, rank = self.optim.optimizer, self.lora.rank
        other = optimizer != "adamw" or rank or self.compile or self.precision == "fp16"
        if self.shard and other:
            raise InputError(
                "shard needs AdamW over all weights, without compile and fp16, but "
                f"shard=True, optim.optimizer={optimizer}, lora.rank={rank}, "
                f"compile={self.compile} and precision={self.precision}; leave out shard or what "
                "excludes it"
            )

    def check_processes(self, n: int) -> None:
        """Raise InputError if so many processes cannot share this training."""
        if self.accumulate < n:
            raise InputError(
                f"an update must have a batch for every process, but accumulate={self.accumulate} "
                f"and there are {n} processes; give --training.accumulate {n}, with which an "
                f"update has {n / self.accumulate:g} x as many tokens; make batches smaller by as "
                "much, or raise the rate"
            )
        if self.shard and n == 1:
            raise InputError(
                "weights are sharded among several processes, but shard=True and there is 1 "
                "process; start the same command with torchrun --nproc-per-node 2 --, or leave out "
                "--training.shard"
            )
