"""Which engine computes: the layers themselves, or C++ on a CPU."""

import logging
import os
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from transduce.engine.cpu import CPUEngine
from transduce.errors import InputError
from transduce.kernels import library, origin
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Memory, Transformer

logger = logging.getLogger("transduce")


@runtime_checkable
class Engine(Protocol):
    """Computes what a Transformer computes. A Transformer is the engine whose name is "layers"."""

    config: TransformerConfig
    vocab_size: int

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def encode(
        self,
        source: Shaped[Tensor, "B S *F"] | None,
        source_lengths: Int[Tensor, " B"] | None = None,
    ) -> Memory: ...

    def new_cache(self) -> Any: ...

    def decoder_states(
        self,
        target_in: Int[Tensor, "N T"],
        *,
        memory: Memory | None = None,
        cache: Any = None,
    ) -> Float[Tensor, "N T D"]: ...

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]: ...

    def ctc_logits(self, memory_states: Float[Tensor, "B S D"]) -> Float[Tensor, "B S V"]: ...


def engine_for(model: Transformer, *, int8: bool = False) -> Transformer | CPUEngine:
    """The fastest engine that supports this model; a line of the log says why C++ does not compute
    it.

    Raises:
        InputError: int8 is wanted where C++ does not compute.
    """
    dtype = next(model.parameters()).dtype
    reasons = [
        f"the model is on {model.device}" * (model.device.type != "cpu"),
        f"its weights are {dtype}" * (dtype != torch.float32),
        "TRANSDUCE_KERNELS=0" * (os.environ.get("TRANSDUCE_KERNELS") == "0"),
    ]
    reason = next(filter(None, reasons), "")
    if not reason and library() is None:
        reason = f"there are no C++ kernels: {origin()}"
    if reason and int8:
        raise InputError(
            f"int8 computes in C++ on CPUs, with float32 weights, but {reason}; use fp32 or bf16"
        )
    if reason:
        logger.info("decoding by PyTorch's layers: %s", reason)
        return model
    engine = CPUEngine(model, int8=int8)
    logger.info("decoding by %s", engine.name)
    return engine
