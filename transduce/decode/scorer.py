"""What search knows of a model: scores of the next token for every live row, and nothing else."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Scorer(Protocol):
    """Scores continuations of N = B * beams rows, sentence by sentence: rows b*beams ... (b+1)*beams-1 are b's.

    Search begins with one row per sentence, N = B, and widens to beams with its first `reorder`.
    """

    @property
    def n_sentences(self) -> int:
        """B, the sentences still being searched."""
        ...

    @property
    def additive(self) -> bool:
        """True: a hypothesis scores the sum of what `step` returned. False: those are logits, and search normalizes."""
        ...

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Append one token to every row; return the scores of the next. Search may overwrite what it gets."""
        ...

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m go on from the past of row rows[m]; rows may repeat and be left out."""
        ...

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Go on with these sentences only. Their rows were already chosen by `reorder`."""
        ...


def log_probs(scorer: Scorer, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """Append one token to every row; what each next one adds to a hypothesis, in float32 or wider."""
    scores = scorer.step(tokens)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if scorer.additive else scores.log_softmax(-1)


@runtime_checkable
class Past(Protocol):
    """What a decoder remembers between steps; transduce.model.cache.Cache is one."""

    def reorder(self, rows: Int[Tensor, " M"]) -> None: ...

    def keep(self, sentences: Int[Tensor, " M"]) -> None: ...


@runtime_checkable
class States(Protocol):
    """The encoder's output; transduce.model.transformer.Memory is one."""

    @property
    def states(self) -> Float[Tensor, "B S D"]: ...


@runtime_checkable
class Decoder(Protocol):
    """A model that continues rows; transduce.model.transformer.Transformer is one."""

    def new_cache(self) -> Any: ...

    def decode(self, target_in: Int[Tensor, "N T"], *, memory: Any, cache: Any) -> Float[Tensor, "N T V"]: ...


@runtime_checkable
class LanguageModel(Protocol):
    """A decoder alone; transduce.model.transformer.Transformer without an encoder is one."""

    def new_cache(self) -> Any: ...

    def decoder_states(self, target_in: Int[Tensor, "N T"], *, cache: Any) -> Float[Tensor, "N T D"]: ...

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]: ...


class ModelScorer:
    """The Scorer of one encoder-decoder model and the memory of B sentences; a step costs one position."""

    additive = False

    def __init__(self, model: Decoder, memory: States) -> None:
        self.model = model
        self.memory: States | None = memory
        self.cache: Past = model.new_cache()
        self.n_sentences = memory.states.size(0)

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Logits after `tokens`. The first step projects the memory into the cache and lets go of it."""
        logits = self.model.decode(tokens[:, None], memory=self.memory, cache=self.cache)
        self.memory = None
        return logits[:, -1]

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        self.cache.reorder(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        self.cache.keep(sentences)
        self.n_sentences = len(sentences)


class PromptScorer:
    """The Scorer of a decoder alone that goes on from B prompts of one length.

    The first step reads the prompts, whatever tokens it is given: they stand where other searches begin with BOS.
    """

    additive = False

    def __init__(self, model: LanguageModel, prompts: Int[Tensor, "B P"]) -> None:
        self.model = model
        self.prompts: Tensor | None = prompts
        self.cache: Past = model.new_cache()
        self.n_sentences = len(prompts)

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Logits of what follows; only the last position is projected to the vocabulary."""
        new, self.prompts = tokens[:, None] if self.prompts is None else self.prompts, None
        return self.model.project(self.model.decoder_states(new, cache=self.cache)[:, -1])

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        self.cache.reorder(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        self.cache.keep(sentences)
        self.n_sentences = len(sentences)
