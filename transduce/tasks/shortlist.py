"""The table of a run that says which target tokens may translate a source token; see decode/shortlist.py."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save as serialize

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lexicon import likeliest_translations
from transduce.decode.shortlist import Shortlist
from transduce.errors import InputError
from transduce.files import read_weights, write_file
from transduce.run import SHORTLIST as FILE, Run


def learn_shortlist(
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    source: Sequence[str],
    target: Sequence[str],
    *,
    n: int = 20,
    frequent: int = 200,
) -> Shortlist:
    """A table from parallel text: the n likeliest translations of every source token, and the most frequent tokens.

    What the target writes bytes, beginnings and ends with is always there.
    """
    each = [t.with_eos(t.encode(side)) for t, side in ((source_tokenizer, source), (target_tokenizer, target))]
    n_source, n_target = source_tokenizer.vocab_size, target_tokenizer.vocab_size
    table = likeliest_translations(each[0], each[1], source_size=n_source, target_size=n_target, n=n)
    often = [token for token, _ in Counter(chain.from_iterable(each[1])).most_common(frequent)]
    always = {*often, *target_tokenizer.required("bos_id", "eos_id")}
    return Shortlist(torch.from_numpy(table), torch.tensor(sorted(always)))


def save_shortlist(directory: Path, shortlist: Shortlist) -> None:
    """Write it into a run directory, whole or not at all."""
    tensors = {"table": shortlist.table.int(), "always": shortlist.always.int()}
    write_file(directory / FILE, serialize(tensors))


def load_shortlist(directory: Path, run: Run) -> Shortlist | None:
    """What a run directory has, if it has one.

    Raises:
        InputError: it does not fit the run's tokenizers.
    """
    path = directory / FILE
    if not path.exists():
        return None
    found = read_weights(path)
    assert run.source_tokenizer is not None and run.target_tokenizer is not None
    table, always = found.get("table"), found.get("always")
    n_source, n_target = run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size
    ends = {*run.target_tokenizer.required("bos_id", "eos_id")}
    right = (
        table is not None and always is not None
        and table.dtype == always.dtype == torch.int32
        and table.dim() == 2 and always.dim() == 1 and len(table) == n_source and table.size(1) > 0
        and ends <= {*always.tolist()}
        and all(int(x.min()) >= 0 and int(x.max()) < n_target for x in (table, always))
    )  # fmt: skip
    if not right:
        raise InputError(
            f"a shortlist must have int32 target ids for {n_source} source tokens, but {path} has others; make it again "
            f"(transduce shortlist {directory} SOURCE TARGET), or remove it"
        )
    assert table is not None and always is not None
    return Shortlist(table.long(), always.long())
