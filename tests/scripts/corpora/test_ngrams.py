"""scripts/corpora/ngrams.py against Witten and Bell's rule, counted anew for every history."""

import math

import pytest
import torch

from scripts.corpora import ngrams
from transduce.decode.ngram import NGrams, NGramScorer

TEXT = ["a b a b c", "b a", "", "c c a b", "a"]
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "c", "never"]
BOS, EOS = 1, 2


def probability(lines: list[list[str]], history: tuple[str, ...], token: str) -> float:
    """(c + t q) / (n + t) by a search through the text, with q of the history without its first token."""
    n_words = len({word for line in lines for word in line[1:]})
    shorter = probability(lines, history[1:], token) if history else 1 / (n_words + 1)
    after = [
        line[i]
        for line in lines
        for i in range(max(1, len(history)), len(line))
        if tuple(line[i - len(history) : i]) == history
    ]
    t = len(set(after))
    return (after.count(token) + t * shorter) / (len(after) + t) if after else shorter


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_equal_witten_and_bell(tmp_path, capsys, order):
    (tmp_path / "a.tok").write_text("\n".join(TEXT[:3]) + "\n")
    (tmp_path / "b.tok").write_text("\n".join(TEXT[3:]) + "\n")
    twice = [str(tmp_path / name) for name in ("a.tok", "b.tok", "b.tok")]
    assert ngrams.main([str(tmp_path / "lm.arpa"), *twice, "--order", str(order)]) == 0
    assert capsys.readouterr().out.endswith(f"n-grams of up to {order} tokens\n")
    lines = [["<s>", *line.split(), "</s>"] for line in TEXT + TEXT[3:]]
    arpa = (tmp_path / "lm.arpa").read_text().splitlines()
    scorer = NGramScorer(NGrams(arpa, TOKENS, bos_id=BOS, eos_id=EOS, device="cpu"), 1)
    past: list[str] = []
    for token in ("<s>", "b", "a", "b", "c", "a", "a"):
        past.append(token)
        row = scorer.step(torch.tensor([TOKENS.index(token)]))[0].double().exp()
        history = tuple(past[-(order - 1) :]) if order > 1 else ()
        words = ["</s>", "a", "b", "c"]
        want = [probability(lines, history, word) for word in words]
        assert row[[TOKENS.index(word) for word in words]].tolist() == pytest.approx(want, rel=1e-4)
        unknown = row[TOKENS.index("never")].item()
        assert math.fsum(want) + unknown == pytest.approx(1, abs=1e-4)


def test_only_spaces_separate_tokens(tmp_path):
    """As KenLM reads them. SentencePiece has tokens such as the no-break space of French before a colon."""
    (tmp_path / "a.tok").write_text(" a  \xa0 \u3000b \x85\n")
    assert ngrams.main([str(tmp_path / "lm.arpa"), str(tmp_path / "a.tok"), "--order", "1"]) == 0
    lines = (tmp_path / "lm.arpa").read_text().split("\n")
    words = [line.split("\t")[1] for line in lines if "\t" in line]
    assert words == ["<s>", "a", "\xa0", "\u3000b", "\x85", "</s>", "<unk>"]


def test_invalid_texts_orders_and_outputs_are_refused(tmp_path, capsys):
    text = tmp_path / "a.tok"
    text.write_text("a b\n")
    (tmp_path / "blank.tok").write_text("\n\n")
    for arguments, message in (
        (["lm.arpa", "blank.tok"], "n-grams are estimated from lines of tokens, but "),
        (["lm.arpa", "none.tok"], "none.tok does not exist"),
        (["lm.arpa", "a.tok", "--order", "0"], "--order must be at least 1"),
        (["a.tok", "a.tok"], "a.tok"),
        (["none/lm.arpa", "a.tok"], "an output's folder must exist"),
    ):
        files = [str(tmp_path / each) if "." in each else each for each in arguments]
        assert ngrams.main(files) == 2
        assert message in capsys.readouterr().err
    assert text.read_text() == "a b\n" and not (tmp_path / "lm.arpa").exists()
