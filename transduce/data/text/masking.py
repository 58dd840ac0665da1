"""Masked language modelling: which tokens are to be found again, what stands in their place, and text with gaps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch

from transduce.data.batch import IGNORE, Batch
from transduce.data.text.characters import CharTokenizer
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.data.text.stream import Stream, Windows
from transduce.data.text.tokenizers import Tokenizer


def mask_id(tokenizer: Tokenizer) -> int:
    """The mask symbol, which no text holds: the id behind the tokenizer's last, one more row in the model's table."""
    return tokenizer.vocab_size


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How a text is corrupted: of the chosen tokens, 1 - hidden - random stay as they are.

    Source: Devlin et al. (2019), BERT, section 3.1.
    """

    share: float = 0.15
    """Of a row's tokens, rounded, but one at least. What marks beginnings and ends is never chosen."""
    hidden: float = 0.8
    """Of the chosen: replaced by the mask symbol."""
    random: float = 0.1
    """Of the chosen: replaced by any token of the vocabulary, each as likely, the right one too."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], but share={self.share}")
        if self.hidden < 0 or self.random < 0 or self.hidden + self.random > 1:
            raise ValueError(
                "hidden and random must be shares that sum to 1 at most, "
                f"but hidden={self.hidden} and random={self.random}"
            )

    def batch(self, text: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> Batch:
        """The corrupted target_out of `text` as a source; of the target_out, the chosen tokens.

        target_in stays: an encoder alone does not read it.
        """
        ids = text.target_out.numpy()
        real = ids != IGNORE
        special = [i for i in (tokenizer.bos_id, tokenizer.eos_id, *tokenizer.suppressed) if i is not None]
        ordinary = real & ~np.isin(ids, special)
        order = (rng.random(ids.shape) + ~ordinary + ~real).argsort(axis=1)  # padding comes last, special ids before it
        n_chosen = np.maximum(1, np.rint(self.share * ordinary.sum(axis=1)))
        chosen = order.argsort(axis=1) < n_chosen[:, None]
        luck = rng.random(ids.shape)
        replaced = chosen & (luck >= self.hidden) & (luck < self.hidden + self.random)
        source = np.where(real, ids, 0)
        source[replaced] = rng.integers(tokenizer.vocab_size, size=replaced.sum())
        source[chosen & (luck < self.hidden)] = mask_id(tokenizer)
        return replace(
            text,
            source=torch.from_numpy(source),
            source_lengths=text.target_lengths,
            target_out=torch.from_numpy(np.where(chosen, ids, IGNORE)),
            n_tokens=int(chosen.sum()),
        )


class MaskedBatches(Sequence[Batch]):
    """Batches of text, corrupted; how, is a function of (seed, number of the batch)."""

    def __init__(
        self, texts: Sequence[Batch], masking: MaskingConfig, tokenizer: Tokenizer, *, seed: tuple[int, ...] = (0,)
    ) -> None:
        self.texts, self.masking, self.tokenizer, self.seed = texts, masking, tokenizer, seed

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        rng = np.random.default_rng((*self.seed, i, 1))  # the 1: other numbers than those that drew the windows
        return self.masking.batch(self.texts[i], self.tokenizer, rng)


@dataclass(frozen=True, kw_only=True)
class MaskedWindows:
    """Training data: windows of a text, corrupted anew in every batch of every epoch."""

    windows: Windows
    masking: MaskingConfig
    tokenizer: Tokenizer

    def epoch(self, n: int) -> MaskedBatches:
        """The batches of epoch n."""
        return MaskedBatches(self.windows.epoch(n), self.masking, self.tokenizer, seed=(self.windows.seed, n))


def encode_masked(tokenizer: Tokenizer, line: str, mask_word: str) -> list[int]:
    """Ids of a line in which every mask word is the mask symbol; with the marks of beginning and end, if any.

    A mask word takes the space before it along, as tokens do; characters do not.
    """
    space = "" if isinstance(tokenizer, CharTokenizer) else " ?"
    ids: list[int] = []
    parts = re.split(space + re.escape(mask_word), line)
    for i, (part, row) in enumerate(zip(parts, tokenizer.encode(parts), strict=True)):
        if i:
            ids.append(mask_id(tokenizer))
            # SentencePiece begins every text with a space
            if (
                isinstance(tokenizer, SentencePieceTokenizer)
                and part[:1].strip()
                and tokenizer.tokens(row[:1]) == ["▁"]
            ):
                row = row[1:]
        ids += row
    start, end = tokenizer.bos_id, tokenizer.eos_id
    return ids if start == end else [i for i in (start, *ids, end) if i is not None]


def decode_masked(tokenizer: Tokenizer, ids: Sequence[int], mask_word: str) -> str:
    """Text of ids, with the mask word for every mask symbol: what `encode_masked` takes back, but for marks and blanks."""
    space = "" if isinstance(tokenizer, CharTokenizer) else " "
    text = ""
    for hidden, run in groupby(ids, lambda i: i == mask_id(tokenizer)):
        row = [i for i in run if i not in (tokenizer.bos_id, tokenizer.eos_id)]
        if hidden:
            text += (space + mask_word) * len(row)
        else:
            new_word = isinstance(tokenizer, SentencePieceTokenizer) and "".join(tokenizer.tokens(row[:1])).startswith(
                "▁"
            )
            text += (space if text and new_word else "") + tokenizer.decode([row])[0]
    return text.removeprefix(space)


class Neighbours:
    """The model without attention: a token from the one before it and the one after it, by counting pairs.

    p(x | a, b) is proportional to p(x | a) p(b | x), each p as in data/bigram.py: what follows exactly if the text were
    a Markov chain. Only pairs that occur are kept in memory.

    Args:
        limit: count the first so many training tokens only.
        prior: weight of the single tokens beside the pairs.
    """

    def __init__(self, train: Stream, vocab_size: int, *, prior: float = 10.0, limit: int | None = None) -> None:
        single = np.bincount(train.read(0, 1), minlength=vocab_size)  # the first follows nothing
        found = []
        for chunk in train.chunks(overlap=1, limit=limit):
            single = single + np.bincount(chunk[1:], minlength=vocab_size)
            found.append(np.unique(chunk[:-1] * vocab_size + chunk[1:], return_counts=True))
        keys, places = np.unique(np.concatenate([keys for keys, _ in found]), return_inverse=True)
        self.counts = np.bincount(places, weights=np.concatenate([n for _, n in found]), minlength=len(keys))
        self.first, self.second = np.divmod(keys, vocab_size)
        self.unigram = prior * (single + 1) / (single.sum() + vocab_size)
        self.total = prior + np.bincount(self.first, weights=self.counts, minlength=vocab_size)
        ids = np.arange(vocab_size + 1)
        self.after = np.searchsorted(self.first, ids)
        self.by_second = self.second.argsort(kind="stable")
        self.before = np.searchsorted(self.second[self.by_second], ids)

    def __call__(self, left: int, right: int | None) -> np.ndarray:
        """The probability of every token between these two; `right` is None where the text ends."""
        p = self.unigram.copy()
        pairs = slice(self.after[left], self.after[left + 1])
        p[self.second[pairs]] += self.counts[pairs]
        if right is not None:
            q = np.full(len(p), self.unigram[right])
            places = self.by_second[self.before[right] : self.before[right + 1]]
            q[self.first[places]] += self.counts[places]
            p *= q / self.total
        return p / p.sum()

    def scores(self, batches: MaskedBatches) -> tuple[float, float]:
        """Nats per chosen token, and the share of them that it would find; it is told the true neighbours."""
        nats, right = 0.0, 0
        for text, batch in zip(batches.texts, batches, strict=True):
            for row, t in (batch.target_out != IGNORE).nonzero().tolist():
                whole, wanted = text.target_out[row], int(text.target_out[row, t])
                after = int(whole[t + 1]) if t + 1 < text.target_lengths[row] else None
                p = self(int(text.target_in[row, t]), after)
                nats -= float(np.log(p[wanted]))
                right += int(p.argmax()) == wanted
        n_tokens = sum(batch.n_tokens for batch in batches)
        return nats / n_tokens, right / n_tokens
