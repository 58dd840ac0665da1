"""Which engine computes: the layers themselves, or C++ on a CPU."""

import os

import torch

from transduce.engine.cpu import CPUEngine
from transduce.errors import InputError, logger
from transduce.kernels import library, origin
from transduce.model.transformer import Transformer

Engine = Transformer | CPUEngine
"""An object that computes a model; a Transformer itself is the engine named "layers"."""


def engine_for(model: Transformer, *, int8: bool = False) -> Engine:
    """The fastest engine that supports this model; a log line says which, or why it is not C++.

    Raises:
        InputError: int8 is requested, but the model cannot be computed in C++ here.
    """
    reasons = [
        f"the model is on {model.device}" * (model.device.type != "cpu"),
        f"its weights are {model.dtype}" * (model.dtype != torch.float32),
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
