"""The words that an output may be made of, in any tokens; a run has a file of them."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lines import read_lines
from transduce.decode.rules import Rule, ids_tensor
from transduce.decode.vocabulary import Trie, Vocabulary, phrase_bytes, vocabulary
from transduce.errors import InputError
from transduce.files import write_file

FILE = "lexicon.txt"


class Lexicon:
    """Outputs are made of these words, with spaces between them.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural
    networks, section 4, for a search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """

    def __init__(self, vocabulary: Vocabulary, words: Sequence[bytes]) -> None:
        self.vocabulary = vocabulary
        self.words = words
        self.trie = Trie(words, b" ")
        self.trie.next[[0, *self.trie.ends], self.trie.column[ord(" ")]] = 0
        self._ruled_out_behind = lru_cache(maxsize=4096)(self._ruled_out)

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, those behind which it could not go on to known words."""
        return torch.stack(
            [self._ruled_out_behind(self.vocabulary.text(row).rpartition(b" ")[2]) for row in rows]
        )

    def rule(self, free: Collection[int] = ()) -> Rule:
        """The rule for all sentences but those with the numbers `free`."""
        return partial(self._apply, free)

    def _ruled_out(self, begun: bytes) -> Bool[Tensor, " V"]:
        """The same behind the beginning of a word."""
        states, _ = self.trie.walk(self.trie.state(begun), self.vocabulary)
        return torch.from_numpy(states == self.trie.nowhere)

    def _apply(
        self, free: Collection[int], scores: Tensor, tokens: Tensor, sentences: Sequence[int]
    ) -> Tensor:
        n_rows = len(tokens) // max(1, len(sentences))
        rows = [row for row in range(len(tokens)) if sentences[row // n_rows] not in free]
        if rows:
            index = ids_tensor(rows, scores.device)
            ruled_out = self.ruled_out(tokens[index].tolist()).to(scores.device)
            scores[index] = scores[index].masked_fill(ruled_out, -torch.inf)
        return scores


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> Lexicon:
    """The words as the tokenizer normalizes them.

    Raises:
        InputError: none of them has tokens.
    """
    known = set[bytes]()
    for word in words:
        try:
            known |= {*phrase_bytes(tokenizer, word).split()}
        except InputError:  # a word without tokens cannot come out
            continue
    if not known:
        raise InputError(
            f"known words must be such as the run's tokenizer can spell, but of {len(words)} it "
            "can spell none; "
            f"write others into the run's {FILE}, or say words=any"
        )
    return Lexicon(vocabulary(tokenizer), sorted(known))


def save_lexicon(directory: Path, words: Iterable[str]) -> None:
    """Write the words into a run directory, one in each line, unless it has a lexicon."""
    if words and not (directory / FILE).exists():
        write_file(directory / FILE, "".join(f"{word}\n" for word in words))


def load_lexicon(directory: Path) -> tuple[str, ...]:
    """The words of a run directory; none if it has no such file."""
    path = directory / FILE
    return (
        tuple(word for line in read_lines(path) for word in line.split()) if path.exists() else ()
    )
