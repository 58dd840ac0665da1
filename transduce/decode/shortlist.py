"""A vocabulary for every batch: the tokens that its translations may need."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save as serialize
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lexicon import likeliest_translations
from transduce.decode.scorer import Decoder, ModelScorer, Places, Tokens
from transduce.errors import InputError
from transduce.files import read_weights, write_file

FILE = "shortlist.safetensors"


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
    table, always = (tensors.get(name, torch.empty(0)) for name in ("table", "always"))
    n_source, n_target = source_tokenizer.vocab_size, target_tokenizer.vocab_size
    ends = {*target_tokenizer.required("bos_id", "eos_id")}
    fits = (
        table.dtype == always.dtype == torch.int32
        and table.dim() == 2 and always.dim() == 1 and len(table) == n_source and table.size(1) > 0
        and ends <= {*always.tolist()}
        and all(int(ids.min()) >= 0 and int(ids.max()) < n_target for ids in (table, always))
    )  # fmt: skip
    if not fits:
        raise InputError(
            f"a shortlist must have int32 target ids for {n_source} source tokens, but {path} has "
            "others; make it again "
            f"(transduce shortlist {directory} SOURCE TARGET), or remove it"
        )
    return Shortlist(table.long(), always.long())
