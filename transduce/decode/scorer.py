"""The scores of the next token for every active hypothesis: all that a search knows of a model."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import InputError

Tokens = Int[Tensor, " N"]
"""One token of every row."""
Scores = Float[Tensor, "N V"]
"""Of every next token of every row."""
Places = Int[Tensor, " M"]
"""Numbers of rows, sentences or tokens."""


@runtime_checkable
class Scorer(Protocol):
    """Scores continuations of N = B * beams rows, of which neighbours are one sentence's.

    Search begins with one row per sentence, N = B, and widens to beams with its first `reorder`.
    """

    n_sentences: int
    """B, the sentences still being searched."""
    additive: bool
    """True: a hypothesis scores the sum of what `step` returned. False: those are logits, and
    search normalizes."""

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row; scores of the next, which search may overwrite."""

    def reorder(self, rows: Places) -> None:
        """Let row m go on from the past of row rows[m]; rows may repeat and be left out."""

    def keep(self, sentences: Places) -> None:
        """Go on with these sentences only. Their rows were already chosen by `reorder`."""


def at_least_float32(scores: Scores) -> Scores:
    """The same scores in float32 or wider."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def log_probs(scorer: Scorer, tokens: Tokens) -> Scores:
    """Append one token to every row; the log-probabilities of the next, in float32 or wider."""
    scores = at_least_float32(scorer.step(tokens))
    return scores if scorer.additive else scores.log_softmax(-1)


@runtime_checkable
class Decoder(Protocol):
    """A model that continues rows of tokens; transduce.model.transformer.Transformer is one."""

    def new_cache(self) -> Any: ...

    def decoder_states(
        self, target_in: Int[Tensor, "N T"], *, memory: Any, cache: Any, taps: Any
    ) -> Float[Tensor, "N T D"]: ...

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]: ...

    def projection(self, ids: Int[Tensor, " U"]) -> Any: ...


class ModelScorer:
    """The scorer of one model; a step costs one position.

    Args:
        memory: the encoder's output for B sentences, for a model with an encoder. The first step
            projects it into the cache and lets go of it.
        prompts: B rows of one length. The first step reads them, whatever tokens it is given;
            without them, it reads the first tokens of the search. A language model beside a
            translation model gets its own BOS so.

    Raises:
        InputError: there is neither a memory nor a prompt.
    """

    additive = False

    def __init__(
        self, model: Decoder, memory: Any = None, *, prompts: Int[Tensor, "B P"] | None = None
    ) -> None:
        if memory is None and prompts is None:
            raise InputError(
                "a model's scores need its memory, its prompts or both, but memory=None and "
                "prompts=None"
            )
        self.model = model
        self.memory = memory
        self.prompts = prompts
        self.cache = model.new_cache()
        self.taps: Any = None
        """Taps of the next step."""
        self.n_sentences = len(memory.states if prompts is None else prompts)

    def step(self, tokens: Tokens) -> Scores:
        """Logits of the next token; only the last position is projected to the vocabulary."""
        return self.model.project(self.states(tokens))

    def states(self, tokens: Tokens) -> Float[Tensor, "N D"]:
        """Append one token to every row; the last states of the decoder."""
        new = tokens[:, None] if self.prompts is None else self.prompts
        states = self.model.decoder_states(
            new, memory=self.memory, cache=self.cache, taps=self.taps
        )
        self.memory = self.prompts = None
        return states[:, -1]

    def reorder(self, rows: Places) -> None:
        self.cache.reorder(rows)

    def keep(self, sentences: Places) -> None:
        self.cache.keep(sentences)
        self.n_sentences = len(sentences)
