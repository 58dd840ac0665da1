"""A vocabulary for every batch: the tokens that translations of its source tokens may need, and no others."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decode.scorer import Decoder, ModelScorer


class Shortlist:
    """Which target tokens may translate a source token.

    Source: Jean et al. (2015), On using very large target vocabulary for neural machine translation, section 3.3.

    Args:
        table: the likeliest target tokens of every source token.
        always: what any sentence may need.
    """

    def __init__(self, table: Int[Tensor, "V K"], always: Int[Tensor, " F"]) -> None:
        self.table, self.always = table, always

    def choose(
        self, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"]
    ) -> tuple[Int[Tensor, " U"], Bool[Tensor, "B U"]]:
        """What a batch may need, in ascending order, and which of it each sentence may: its neighbours change nothing."""
        real = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        tokens = self.table[source].masked_fill(~real[:, :, None], int(self.always[0])).flatten(1)
        ids = torch.cat((tokens.flatten(), self.always)).unique()
        allowed = torch.zeros(len(source), len(ids), dtype=torch.bool, device=source.device)
        allowed.scatter_(1, torch.searchsorted(ids, tokens), True)
        allowed[:, torch.searchsorted(ids, self.always)] = True
        return ids, allowed


class ShortlistScorer(ModelScorer):
    """The scorer of one model over a batch's own vocabulary: token i of the search is ids[i].

    What a sentence may not use scores -inf, so that its scores are those of a vocabulary of its own.

    Args:
        ids: in ascending order.
        project: a decoder's states to logits of these tokens.
    """

    def __init__(
        self,
        model: Decoder,
        memory: object,
        ids: Int[Tensor, " U"],
        allowed: Bool[Tensor, "B U"],
        project: Callable[[Float[Tensor, "N D"]], Float[Tensor, "N U"]],
    ) -> None:
        super().__init__(model, memory)
        self.ids, self.forbidden, self.project = ids, ~allowed, project

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N U"]:
        logits = self.project(self.states(self.ids[tokens]))
        by_sentence = logits.view(self.n_sentences, -1, len(self.ids))
        by_sentence.masked_fill_(self.forbidden[:, None], -torch.inf)
        return logits

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        super().keep(sentences)
        self.forbidden = self.forbidden[sentences]
