"""Marian models of transformers, for the decoding benchmarks."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.errors import InputError
from transduce.interop import read_model
from transduce.interop.pretrained import read_settings
from transduce.interop.settings import MarianSettings
from transduce.model.transformer import Transformer


class Marian(NamedTuple):
    """A model in evaluation mode, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """The model of a directory, whose first id of target_in is the padding id."""
    settings = read_settings(directory)
    if not isinstance(settings, MarianSettings):
        raise InputError(
            f"model_type must be 'marian', but in {directory} it is {settings.model_type!r}"
        )
    assert settings.decoder_start_token_id is not None
    return Marian(
        read_model(directory),
        settings.decoder_start_token_id,
        settings.eos_token_id[0],
        settings.pad_token_id,
    )


def search(
    marian: Marian, scorer: ModelScorer, n_tokens: Tensor, beam_size: int
) -> list[list[Hypothesis]]:
    """Hypotheses of every sentence, of exactly n_tokens (B,) tokens; greedy for beam_size 1."""
    starts = torch.full((len(n_tokens), 1), marian.bos_id, device=n_tokens.device)
    constraints = Constraints(n_tokens, eos_id=marian.eos_id, suppressed=[marian.eos_id])
    if beam_size == 1:
        return Sampler(scorer, starts, constraints, sampling=GREEDY).run()
    return beam_search(scorer, starts, constraints, BeamConfig(beam_size=beam_size, alpha=0.0))
