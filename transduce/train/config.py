"""The configuration of a training and of its losses; it is read without torch."""

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
    """AdamW for all weights, or Muon: the linear maps of attention and feed-forward step along
    their momentum made orthogonal (Jordan et al. 2024), at AdamW's rate (Liu et al. 2025), and
    AdamW steps for the rest."""
    peak_rate: Common[float] = 7e-4
    """Learning rate at the end of the warm-up; the paper's own is (d_model * warmup_steps)^-0.5."""
    warmup_steps: int = 4000
    """Updates over which the rate rises from 0 to peak_rate."""
    schedule: Literal["inverse_sqrt", "cosine", "polynomial", "constant"] = "inverse_sqrt"
    """How the rate falls after the warm-up: with 1 / sqrt(update), or, down to final_rate at the
    end of the training, along half a cosine or with (1 - progress)^power, or not at all."""
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
    """Decoupled (AdamW), on matrices only."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 = no clipping."""
    layer_decay: float = 1.0
    """Layer-wise rates for a run that starts from another one: each layer's rate is that of the
    layer above it times this (0.385 in the paper). The output is on top, and the embeddings are
    below the first layer; encoder and decoder count each by themselves. Source: Howard and Ruder
    (2018), ULMFiT, section 3.2, "discriminative fine-tuning"."""

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
        # the update at which the training would be as far
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
    """alpha / rank is the factor of the change."""
    maps: tuple[str, ...] = ("q", "v")
    """Which linear maps: q, k, v and output of attention, wide and narrow of feed-forwards, ctc; or
    by more of their name, such as decoder.*.q or cross.v."""
    train: tuple[str, ...] = ()
    """Parts of the model that are trained as they are beside it, such as target_input or ctc."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank")
        within("(0, inf)", self, "alpha")
        if self.train and not self.rank:
            raise InputError(
                f"lora.train names parts beside low-rank changes, but lora.rank=0 and lora.train="
                f"{', '.join(self.train)}; give a rank, or leave it out"
            )


def refuse_both(consistency: float, n_teachers: int) -> None:
    """Raise InputError where a batch would pass twice, and teachers predict it."""
    if consistency and n_teachers:
        raise InputError(
            f"a batch passes twice, or teachers predict it, but consistency={consistency} and "
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
    """Models with the same input and output, whose predictions are learned beside the targets."""
    distillation: float = 0.5
    """Share of the teachers' predictions, in (0, 1], where there are any."""
    ctc_weight: float = 0.0
    """Share of CTC; 0: none."""
    blank_id: int = 0
    """CTC's blank: an id that no target contains, such as that of the padding."""
    interctc_weight: float = 0.5
    """Share of the model's ctc_layers in CTC, where it has any."""
    ctc_consistency: float = 0.0
    """Weight of the divergence between what the CTC head gives in two passes of each batch."""

    def __post_init__(self) -> None:
        at_least(0, self, "consistency", "ctc_consistency")
        within("(0, 1]", self, "distillation")
        within("[0, 1]", self, "ctc_weight", "interctc_weight")
        refuse_both(self.consistency, len(self.teachers))

    @property
    def two_views(self) -> bool:
        """Whether batches pass twice in training."""
        return max(self.consistency, self.ctc_consistency) > 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long to train, how to step, when to validate and what to keep."""

    optim: Common[OptimConfig] = field(default_factory=OptimConfig)
    max_updates: Common[int] = 100_000
    """Number of updates of the training, at most; schedules end there. Raising it on a finished run
    resumes from the newest checkpoint, at the rate that a schedule of the new length has there. For
    a schedule of its own, begin another run that starts from it: --start-from RUN --run NEW."""
    max_minutes: Common[float | None] = None
    """Minutes of wall time at most, summed over all parts of a resumed training, with those of
    data, validations and checkpoints. The schedule ends by then (OptimConfig.rate), and a
    validation that would not end by then waits until the training is over. This is the only field
    that makes a result depend on the machine's speed, and only where minutes / max_minutes comes to
    exceed update / max_updates."""
    data_workers: int = 0
    """Processes that make batches, augmented recordings for example; 0: a thread of this one. The
    batches are the same."""
    accumulate: int = 1
    """Batches per update, of all processes together."""
    label_smoothing: float = 0.1
    """Share of the target's probability that is spread over all tokens (paper, section 5.4)."""
    consistency: float = 0.0
    """Weight of the divergence between two passes of each batch with different dropout, whose
    predictions should agree (R-Drop, Liang et al. 2021; 2.5 is their 5). It takes twice the time
    and memory of a batch; 0: one pass."""
    teachers: tuple[Path, ...] = ()
    """Runs that read and write the same as this one: beside the targets, it learns what they
    predict in the mean, token by token (Hinton et al. 2015; Kim and Rush 2016). A teacher takes
    about a third of its own training's time."""
    distillation: float = 0.5
    """Share of what teachers predict in the loss, where there are any; the rest is that of the
    targets."""
    freeze: tuple[str, ...] = ()
    """Parts of the model that keep their weights, such as encoder or decoder.layers.0."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    """Low-rank changes of linear maps are trained instead of all weights, and merged into what is
    saved."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of updates and validations. bf16: autocast; weights and optimizer stay in float32.
    fp16: the same for GPUs without bf16, with a loss scale that halves where a gradient overflows,
    which skips the update, and doubles after 2,000 good ones; such a skip counts for max_skipped
    where the scale is below 1. auto: bf16 where the hardware has instructions for it, fp32
    elsewhere."""
    compile: bool = False
    """torch.compile; needs a C++ compiler on a CPU."""
    shard: bool = False
    """Each process of torchrun holds a part of the weights, gradients and moments, and not all of
    them (FSDP): for models that do not fit one device otherwise. Validations need room for the
    weights alone, whole."""
    static_shapes: bool = False
    """Every batch has the same shape: compiled code is compiled for this shape alone, and on a GPU
    cuDNN may compute the attention."""
    validate_every: int = 1000
    """Updates between validations; each makes a checkpoint."""
    save_every_minutes: float | None = None
    """A checkpoint also after so many minutes without one, where validations are far apart: a crash
    costs no more."""
    patience: int | None = None
    """Stop after this many validations without a better score."""
    keep_last: int = 5
    """The newest checkpoints that are kept; the one before the newest is in any case. Their mean
    may become the finished model, as may that of the best ones."""
    keep_best: int = 5
    """The best checkpoints that are kept."""
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
                "shard goes with AdamW over all weights, neither compiled nor in fp16, but "
                f"shard=True, optim.optimizer={optimizer}, lora.rank={rank}, "
                f"compile={self.compile} and precision={self.precision}; leave shard or what does "
                "not go with it away"
            )

    def check_processes(self, n: int) -> None:
        """Raise InputError where so many processes cannot share such a training."""
        if self.accumulate < n:
            raise InputError(
                f"an update must have a batch for every process, but accumulate={self.accumulate} "
                f"and there are {n} processes; give --training.accumulate {n}, by which an update "
                f"has {n / self.accumulate:g} x as many tokens; make batches smaller by as much, "
                "or raise the rate"
            )
        if self.shard and n == 1:
            raise InputError(
                "weights are sharded among several processes, but shard=True and there is 1 "
                "process; start the same command with torchrun --nproc-per-node 2 --, or leave "
                "--training.shard away"
            )
