"""A vocabulary for every batch: the tokens that its translations may need."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from safetensors.torch import save as serialize
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.decode.scorer import Decoder, ModelScorer, Places, Tokens
from transduce.errors import InputError
from transduce.files import read_weights, write_file

FILE = "shortlist.safetensors"

Ids = NDArray[np.int64]
AT_ONCE = 1 << 24
"""Pairs of a source and a target token in memory: about 0.5 GB."""


class Shortlist:
    """The target tokens that may translate a source token.

    Source: Jean et al. (2015), On using very large target vocabulary for neural machine
    translation, section 3.3.

    Args:
        table: the likeliest target tokens of every source token.
        always: the tokens that any sentence may need.
    """

    def __init__(self, table: Int[Tensor, "V K"], always: Int[Tensor, " F"]) -> None:
        self.table = table
        self.always = always

    def choose(
        self, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"]
    ) -> tuple[Int[Tensor, " U"], Bool[Tensor, "B U"]]:
        """The tokens of a batch in ascending order, and which of them each sentence may use."""
        real = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        tokens = self.table[source].masked_fill(~real[:, :, None], int(self.always[0])).flatten(1)
        ids = torch.cat((tokens.flatten(), self.always)).unique()
        allowed = torch.zeros(len(source), len(ids), dtype=torch.bool, device=source.device)
        allowed.scatter_(1, torch.searchsorted(ids, tokens), True)
        allowed[:, torch.searchsorted(ids, self.always)] = True
        return ids, allowed


class ShortlistScorer(ModelScorer):
    """The scorer of one model over a batch's own vocabulary: token i of the search is ids[i].

    Tokens that a sentence may not use score -inf, so that its scores are those of a vocabulary of
    its own.

    Args:
        ids: in ascending order.
    """

    def __init__(
        self, model: Decoder, memory: object, ids: Int[Tensor, " U"], allowed: Bool[Tensor, "B U"]
    ) -> None:
        super().__init__(model, memory)
        self.ids = ids
        self.forbidden = ~allowed
        self.project = model.projection(ids)

    def step(self, tokens: Tokens) -> Float[Tensor, "N U"]:
        logits = self.project(self.states(self.ids[tokens]))
        by_sentence = logits.view(self.n_sentences, -1, len(self.ids))
        by_sentence.masked_fill_(self.forbidden[:, None], -torch.inf)
        return logits

    def keep(self, sentences: Places) -> None:
        super().keep(sentences)
        self.forbidden = self.forbidden[sentences]


def learn_shortlist(
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    source: Sequence[str],
    target: Sequence[str],
    *,
    n: int = 20,
    frequent: int = 200,
) -> Shortlist:
    """A table from parallel text: n translations of every source token, and frequent tokens.

    The beginning and the end of a text are always allowed.
    """
    source_ids = source_tokenizer.with_eos(source_tokenizer.encode(source))
    target_ids = target_tokenizer.with_eos(target_tokenizer.encode(target))
    table = likeliest_translations(
        source_ids,
        target_ids,
        source_size=source_tokenizer.vocab_size,
        target_size=target_tokenizer.vocab_size,
        n=n,
    )
    often = [token for token, _ in Counter(chain.from_iterable(target_ids)).most_common(frequent)]
    always = {*often, *target_tokenizer.required("bos_id", "eos_id")}
    return Shortlist(torch.from_numpy(table), torch.tensor(sorted(always)))


def save_shortlist(directory: Path, shortlist: Shortlist) -> None:
    """Write it into a run directory, whole or not at all."""
    tensors = {"table": shortlist.table.int(), "always": shortlist.always.int()}
    write_file(directory / FILE, serialize(tensors))


def load_shortlist(
    directory: Path, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> Shortlist | None:
    """The shortlist of a run directory, if it has one.

    Raises:
        InputError: it does not fit the run's tokenizers.
    """
    path = directory / FILE
    if not path.exists():
        return None
    tensors = read_weights(path)
    table, always = (tensors.get(name, torch.empty(1)) for name in ("table", "always"))
    n_source, n_target = source_tokenizer.vocab_size, target_tokenizer.vocab_size
    ends = {*target_tokenizer.required("bos_id", "eos_id")}
    fits = (
        table.dtype == always.dtype == torch.int32 and table.dim() == 2 and len(table) == n_source
    )
    ids = torch.cat((table.flatten(), always.flatten()))
    if not (
        fits and ends <= {*always.tolist()} and 0 <= int(ids.min()) <= int(ids.max()) < n_target
    ):
        raise InputError(
            f"a shortlist must have int32 target ids for {n_source} source tokens, but {path} has "
            "others; make it again "
            f"(transduce shortlist {directory} SOURCE TARGET), or remove it"
        )
    return Shortlist(table.long(), always.long())


def pairs_of_tokens(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> tuple[Ids, Ids, Ids]:
    """Every source token of a sentence beside every target token: both ids, and the place of the
    target in the text."""
    sentences = list(zip(source, target, strict=True))
    source_ids = np.concatenate([np.tile(np.asarray(s, np.int64), len(t)) for s, t in sentences])
    target_ids = np.concatenate([np.repeat(np.asarray(t, np.int64), len(s)) for s, t in sentences])
    sizes = [len(s) for s, t in sentences for _ in t]
    return source_ids, target_ids, np.repeat(np.arange(len(sizes)), sizes)


def likeliest_translations(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    source_size: int,
    target_size: int,
    n: int,
    iterations: int = 5,
) -> Ids:
    """The n most probable target tokens of every source token by IBM model 1, of shape
    (source_size, n).

    Where there are fewer, the most probable is repeated; a token that never occurs has itself, or 0
    where there is no such target token. Of long texts as many sentences are read, evenly chosen, as
    fit into memory.

    Source: Brown et al. (1993), The mathematics of statistical machine translation, section 4.1, by
    expectation maximization from equal probabilities.
    """
    cells = sum(len(s) * len(t) for s, t in zip(source, target, strict=True))
    step = max(1, -(-cells // AT_ONCE))
    chosen = [i for i in range(0, len(source), step) if source[i] and target[i]]
    itself = np.arange(source_size)
    itself[itself >= target_size] = 0
    table = np.repeat(itself[:, None], n, axis=1)
    if not chosen:
        return table
    s, t, place = pairs_of_tokens([source[i] for i in chosen], [target[i] for i in chosen])
    keys, cell = np.unique(s * target_size + t, return_inverse=True)
    of_source = keys // target_size
    probability = np.full(len(keys), 1.0)
    for _ in range(iterations):
        weight = probability[cell]
        weight /= np.bincount(place, weight)[place]
        counts = np.bincount(cell, weight, len(keys))
        probability = counts / np.bincount(of_source, counts, source_size)[of_source]
    order = np.lexsort((-probability, of_source))
    sources, starts, sizes = np.unique(of_source[order], return_index=True, return_counts=True)
    ranks = np.arange(n)
    best = order[starts[:, None] + np.where(ranks < sizes[:, None], ranks, 0)]
    table[sources] = keys[best] % target_size
    return table
