"""What a run begins with that was made before: the tokenizers of a run or of files, and the weights of another run."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.tokenizer_files import load_tokenizer
from transduce.errors import InputError
from transduce.files import weights_of
from transduce.model.config import StackConfig, Tokens
from transduce.model.transformer import Transformer
from transduce.run import CONFIG, load_model, load_run

TABLES = {
    "source_input.weight": "source",
    "target_input.weight": "target",
    "output": "target",
    "output_bias": "target",
    "ctc.weight": "target",
    "ctc.bias": "target",
    "ctc_condition.weight": "target",
}
"""The weights with a row per token, and whose vocabulary that is."""

COLUMNS = ("ctc_condition.weight",)
"""Those of them with a column per token instead."""


def saved_tokenizers(
    directory: Path,
    start_from: Path | None = None,
    named: Path | str | Sequence[Path] = (),
    symbols: str = "",
    *,
    needs: Sequence[str] = (),
    lowercase: bool = False,
) -> tuple[Tokenizer, Tokenizer] | None:
    """Source and target tokenizer of the run that was begun in this directory; or else of files; or of another run.

    Args:
        start_from: the run whose weights are taken.
        named: a tokenizer file for both sides, or one for each; a word such as "byte_bpe" names no file.
        symbols: words, separated by spaces, that become one token each in what is taken from files or another run.
        needs: the special ids that the recipe cannot do without, such as "bos_id" and "eos_id".
        lowercase: it must fold case as well.

    Returns:
        None where there is none of them; one tokenizer twice where both sides share it, or one side has none.

    Raises:
        InputError: a config.json is not ours, or of another format, start_from is no run, a file no tokenizer, or a
            tokenizer lacks what is needed.
    """
    files = [named] if isinstance(named, Path) else [] if isinstance(named, str) else list(named)
    if len(files) > 2:
        raise InputError(f"tokenizer is one file for both sides, or one for each, but there are {len(files)}")
    found: list[Tokenizer | None] = []
    begun = (directory / CONFIG).exists()
    if begun or (start_from is not None and not files):
        run = load_run(directory if begun or start_from is None else start_from)
        found = [run.source_tokenizer, run.target_tokenizer]
    elif files:
        found = [load_tokenizer(path) for path in files]
    there = [tokenizer for tokenizer in found if tokenizer is not None]
    if not there:
        return None
    if symbols and not begun:
        there = [tokenizer.with_symbols(symbols.split()) for tokenizer in dict.fromkeys(there)]
    paths: list[Path | None] = [directory] * 2 if begun else [*files] or [start_from] * 2
    for path, tokenizer in zip(paths, there, strict=False):
        try:
            tokenizer.required(*needs)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if lowercase and tokenizer.decode(tokenizer.encode(["A"])) != ["a"]:
            raise InputError(
                f"lowercase wants a tokenizer without capitals, but {path} keeps them; leave out --lowercase, or train a "
                "tokenizer with it"
            )
    return there[0], there[-1]


class Vocabularies(NamedTuple):
    """Of one side, before and now."""

    old: Tokenizer
    old_size: int
    new: Tokenizer
    new_size: int

    @property
    def changed(self) -> bool:
        """Whether the tokenizer is another one."""
        return self.old.model != self.new.model

    def rows(self) -> tuple[list[int], list[int]]:
        """Where the tokens that both have stand now, and where they stood; so too what a model has behind its tokens.

        Tokens are the same if they are written the same; what stands behind them is the mask symbol.
        """
        before = {token: i for i, token in enumerate(self.old.tokens(range(self.old.vocab_size)))}
        tokens = self.new.tokens(range(self.new.vocab_size))
        pairs = [(i, before[token]) for i, token in enumerate(tokens) if token in before]
        more = min(self.new_size - len(tokens), self.old_size - self.old.vocab_size)
        pairs += [(len(tokens) + i, self.old.vocab_size + i) for i in range(more)]
        return [now for now, _ in pairs], [was for _, was in pairs]


def take_weights(
    model: Transformer,
    directory: Path,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
) -> None:
    """Give a model the weights of a run where names and shapes agree, and say what it did not get.

    Where a tokenizer is not the run's, tables get the rows of the tokens that both have, and keep their own for others.

    Raises:
        InputError: the directory is no run with weights, or none of them fits.
    """
    other, own = load_model(directory), weights_of(model)
    weights: dict[str, Tensor] = other.state_dict()  # what is shared, under each of its names
    sides = _vocabularies(model, other, directory, (source_tokenizer, target_tokenizer))
    taken, said = set(), {}
    with torch.no_grad():
        for name, tensor in own.items():
            weight, side = weights.get(name), sides.get(TABLES.get(name, ""))
            if name in COLUMNS and weight is not None:
                tensor, weight = tensor.T, weight.T  # views
            if weight is None or tensor.shape[1:] != weight.shape[1:]:
                continue
            if side is not None and (side.changed or tensor.shape != weight.shape):
                now, was = side.rows()
                tensor[now] = weight[was].to(tensor.device)
                kept, n = sum(i < side.new.vocab_size for i in now), side.new.vocab_size
                said[TABLES[name]] = f"{TABLES[name]}: {kept:,} of {n:,} pieces keep their vectors"
            elif tensor.shape == weight.shape:
                tensor.copy_(weight)
            elif name.endswith("positions.learned"):  # the first ones mean the same in both
                n = min(len(tensor), len(weight))
                tensor[:n] = weight[:n]
                said[name] = f"{name}: {n:,} of {len(tensor):,} positions keep their vectors"
            else:
                continue
            taken.add(name)
    new = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in own.items() if name not in taken)
    if not taken:
        raise InputError(
            f"a model that starts from a run must have weights of the same names and shapes, but {directory} has none "
            f"that fit; new are {new}"
        )
    print(
        f"starts from {directory}: {len(taken)} of {len(own)} tensors; new: {new or 'none'}", *said.values(), sep="\n"
    )
    if unused := [name for name in weights_of(other) if name not in taken]:
        print(f"not taken from {directory}: {', '.join(unused)}")


def _vocabularies(
    model: Transformer, other: Transformer, directory: Path, tokenizers: tuple[Tokenizer | None, Tokenizer | None]
) -> dict[str, Vocabularies]:
    """The sides of which both tokenizers are known."""
    run, found = load_run(directory), {}
    olds = (run.source_tokenizer, run.target_tokenizer)
    for side, old, new in zip(("source", "target"), olds, tokenizers, strict=True):
        if old is not None and new is not None:
            was, now = (
                m.config.encoder if side == "source" else m.config.decoder or m.config.encoder for m in (other, model)
            )
            found[side] = Vocabularies(old, _size(was, old), new, _size(now, new))
    return found


def _size(stack: StackConfig | None, tokenizer: Tokenizer) -> int:
    """How many ids a stack knows, padding rows not among them."""
    known = stack.input if stack is not None else None
    return known.vocab_size if isinstance(known, Tokens) else tokenizer.vocab_size
