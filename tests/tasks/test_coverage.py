"""The coverage penalty against its equation, written out over the attention of a whole forward pass."""

import itertools
import math

import pytest
import torch

import transduce as td
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.rules import Constraints
from transduce.decode.scorer import CoverageScorer
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer, cross_attention

BOS, EOS = 1, 2
BETA, ALPHA = 0.7, 0.6
BOUNDS = (3, 2, 3)
ALL = 500
"""More than there are."""


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(4)
    stack = StackConfig(input=Tokens(vocab_size=6), n_layers=3)
    found = Transformer(TransformerConfig(encoder=stack, decoder=stack, d_model=8, n_heads=2, d_ff=12)).double().eval()
    with torch.no_grad():
        for weight in found.parameters():
            if weight.dim() > 1:
                weight.mul_(3.0)
    return found


def written_out(model: Transformer, source: list[int], tokens: list[int], log_prob: float) -> float:
    """log P / lp + beta * sum_i log(min(sum_j p_ij, 1)), p by the middle one of three layers."""
    with torch.no_grad():
        memory = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
        weights = cross_attention(model, memory, torch.tensor([[BOS, *tokens[:-1]]]))[1, 0].mean(dim=0).tolist()
    covered = [math.log(min(1.0, sum(row[i] for row in weights))) for i in range(len(source))]
    return log_prob / ((5 + len(tokens)) / 6) ** ALPHA + BETA * sum(covered)


@pytest.mark.parametrize(("beam_size", "groups"), [(3, 1), (ALL, 1), (6, 3)])
def test_scores_are_the_equation_and_a_wide_beam_finds_the_best(model, rng, beam_size, groups):
    sources = [torch.randint(6, (n,), generator=rng).tolist() for n in (5, 2, 7)]
    lengths = torch.tensor([len(source) for source in sources])
    padded = torch.tensor([source + [3] * (7 - len(source)) for source in sources])
    found = {}
    for beta in (0.0, BETA):
        with torch.no_grad():
            scorer = CoverageScorer(model, model.encode(padded, lengths), layer=1)
        constraints = Constraints(torch.tensor(BOUNDS), eos_id=EOS, suppressed=[0, 1])
        how = {
            "beam_size": beam_size,
            "n_best": beam_size,
            "alpha": ALPHA,
            "beam_groups": groups,
            "coverage_penalty": BETA,
        }
        config = BeamConfig(**how)
        found[beta] = beam_search(
            scorer, torch.full((3, 1), BOS), constraints, config, coverage=scorer.coverage if beta else None
        )
    for source, bound, plain, covered in zip(sources, BOUNDS, found[0.0], found[BETA], strict=True):
        assert [h.score for h in covered] == sorted((h.score for h in covered), reverse=True)
        for h in covered:
            ids = h.tokens + [EOS] * h.finished
            assert h.score == pytest.approx(written_out(model, source, ids, h.log_prob), rel=1e-5)
        if beam_size == ALL:  # of three tokens and an end
            everything = [list(row) for n in range(bound + 1) for row in itertools.product((3, 4, 5), repeat=n)]
            assert sorted(h.tokens for h in covered) == sorted(h.tokens for h in plain) == sorted(everything)
    assert [[h.tokens for h in each] for each in found[0.0]] != [[h.tokens for h in each] for each in found[BETA]]


def test_it_is_a_setting_that_no_batch_changes(text_run):
    translator = td.load(text_run, dtype=torch.float64)
    lines = ["Print it.", "Open the old letter.", "Close the green folder, please."]
    how = {"length_ratio": 0.0, "length_extra": 9, "n_best": 3}
    found = translator.translate(lines, coverage_penalty=2.0, **how)
    scores = [[output.score for output in outputs] for outputs in found]
    assert scores != [[output.score for output in outputs] for outputs in translator.translate(lines, **how)]
    for line, own in zip(lines, scores, strict=True):
        ((*alone,),) = translator.translate([line], coverage_penalty=2.0, **how)
        assert [output.score for output in alone] == pytest.approx(own, rel=1e-5)
