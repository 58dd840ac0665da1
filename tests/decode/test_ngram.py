"""N-gram models: against the rule of backoff written out over a dictionary, row by row."""

import math
import random
import re

import pytest
import torch

from tests.decode.language import BOS, EOS
from transduce.decode.ngram import NGrams, NGramScorer

TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "a", "▁b", "c"]

ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.3
-0.7\t</s>
-0.4\ta\t-0.2
-0.9\t▁b\t-0.6

\\2-grams:
-0.1\t<s> a\t-0.05
-0.8\ta ▁b\t0.1
-0.35\t▁b a
-0.2\ta </s>

\\3-grams:
-0.15\t<s> a ▁b
-0.6\ta ▁b a

\\end\\
"""


def model(text: str, tokens: list[str] = TOKENS) -> NGrams:
    return NGrams(text.splitlines(), tokens, bos_id=BOS, eos_id=EOS, device="cpu")


def plain(text: str) -> dict[tuple[str, ...], tuple[float, float]]:
    """Log 10 of probability and backoff by n-gram."""
    got = {}
    for line in text.splitlines():
        if "\t" in line:
            log_prob, gram, backoff = [*line.split("\t"), "0"][:3]
            got[tuple(gram.split())] = float(log_prob), float(backoff)
    return got


def by_rule(grams: dict, past: tuple[str, ...], word: str) -> float:
    """log 10 p(word | history): that of the n-gram, or the history's backoff plus that of a shorter history."""
    if (*past, word) in grams:
        return grams[(*past, word)][0]
    return by_rule(grams, past[1:], word) + grams.get(past, (0, 0))[1] if past else grams.get(("<unk>",), (-100, 0))[0]


def random_arpa(seed: int) -> str:
    """An ARPA file with n-grams up to n = 4 of four of the words, and all their prefixes."""
    rng, known = random.Random(seed), ["<s>", "</s>", "a", "c"]
    levels: list[list[str]] = [known + ["<unk>"] * (seed % 2)]
    for _ in range(3):
        longer = [f"{gram} {word}" for gram in levels[-1] for word in known[1:] if not gram.endswith("</s>")]
        levels.append(rng.sample(longer, len(longer) // 2))
    lines = []
    for n, level in enumerate(levels, start=1):
        lines += [f"\\{n}-grams:", *(f"{rng.uniform(-3, 0):.4f}\t{gram}\t{rng.uniform(-1, 0.2):.4f}" for gram in level)]
    return "\\data\\\n" + "\n".join(lines) + "\n\\end\\\n"


@pytest.mark.parametrize("text", [ARPA, *map(random_arpa, range(4))], ids=["by hand", *"0123"])
def test_next_token_probabilities_equal_the_backoff_rule(text):
    ngrams = model(text)
    rng, scorer, grams = random.Random(1), NGramScorer(ngrams, 3), plain(text)
    known = {word for gram in grams for word in gram}
    pasts = [("<s>",)] * 3
    got = scorer.step(torch.tensor([5, 5, 5]))
    for step in range(6):
        for row, past in enumerate(pasts):
            words = [word if word in known else "<unk>" for word in past[-(3 if len(text) > 600 else 2) :]]
            want = [by_rule(grams, tuple(words), token) for token in TOKENS]
            assert got[row].tolist() == pytest.approx([x * math.log(10) for x in want], rel=1e-5)
        rows = [rng.randrange(len(pasts)) for _ in range(3 if step < 3 else 1)]
        scorer.reorder(torch.tensor(rows))
        if len(rows) < len(pasts):
            scorer.keep(torch.tensor([1]))
        new = [rng.choice([0, 3, 4, 5, 6, 4, 5]) for _ in rows]
        pasts = [(*pasts[row], TOKENS[token]) for row, token in zip(rows, new, strict=True)]
        got = scorer.step(torch.tensor(new))
    assert scorer.n_sentences == 1


def test_one_token_may_be_both_bos_and_eos():
    """As in GPT-2's tokenizers, and in imported decoders that begin with EOS."""
    tokens = ["<|endoftext|>", "a", "▁b", "c"]
    scorer = NGramScorer(NGrams(ARPA.splitlines(), tokens, bos_id=0, eos_id=0, device="cpu"), 1)
    grams = plain(ARPA)
    for new, past in ((0, ("<s>",)), (1, ("<s>", "a")), (2, ("a", "▁b")), (0, ("▁b", "</s>"))):
        want = [by_rule(grams, past, word) * math.log(10) for word in ("</s>", *tokens[1:])]
        assert scorer.step(torch.tensor([new]))[0].tolist() == pytest.approx(want, rel=1e-5)


def test_the_unknown_word_in_capitals_is_the_same_one():
    """Some tools write it so, and KenLM reads both."""
    got, want = (model(text).log_probs(torch.tensor([[BOS]])) for text in (ARPA.replace("<unk>", "<UNK>"), ARPA))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_model_without_the_unknown_word_gives_a_warning(caplog):
    model(ARPA)
    assert not caplog.text
    row = model(ARPA.replace("-1.5\t<unk>\n", "")).log_probs(torch.tensor([[BOS]]))[0]
    assert row[TOKENS.index("c")] < -200
    assert (
        "has no <unk>, so the 5 tokens that it lacks are practically forbidden; make it with <unk>, as" in caplog.text
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "an n-gram model is an ARPA file whose 1-grams are the run's tokens, but 0 of its 0 1-grams are; make its "
         "text with transduce tokenize RUN"),
        ("\\1-grams:\n-1\t</s>\n-1\ta\n-1\tb\n-1\tword\n-1\tof\n\\end\\\n", "an n-gram model is an ARPA file whose 1-grams are "
         "the run's tokens, but 1 of its 4 1-grams are; make its text with transduce tokenize RUN"),
        ("mmap lm http://kheafield.com/code format version 5\n\0", "n-grams are read from an ARPA file, but this is a binary of "
         "KenLM; name the ARPA file that it was made from"),
        ("\\1-grams:\n-1\t<s>\n-1\ta\n-1\tc\n\\end\\\n", "an n-gram model must have the end of a sentence, </s>, but this one lacks "
         "it; make it anew"),
        ("\\1-grams:\n-1\ta\n", "an ARPA file ends with \\end\\, but this one ends in its 1-grams; fetch or make it again"),
        ("\\1-grams:\n-x\ta\n", "a line of 1-grams must have a number, 1 words and a number, but it is '-x\\ta'"),
        ("\\1-grams:\n-1\ta\n\\2-grams:\n-2\ta\n\\end\\\n", "a line of 2-grams must have a number, 2 words and a number, "
         "but it is '-2\\ta'"),
        ("\\1-grams:\n-1\ta\n-1\tc\n\\2-grams:\n-1\ta c\n\\3-grams:\n-1\tc a a\n\\end\\", "the 3-grams of an ARPA file must begin with "
         "2-grams that it has, but one does not; make it anew"),
    ],
)  # fmt: skip
def test_invalid_arpa_files_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        model(text)
