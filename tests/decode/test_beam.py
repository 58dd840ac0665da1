"""Search against brute force, against a plain beam search in lists, and against itself under changes of the batch."""

import math
import random
from copy import deepcopy
from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, brute_force, plain_beam_search
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Memory, Transformer

# A language of random numbers


def starts(n: int) -> Tensor:
    """The prompts of a search: BOS in every row."""
    return torch.full((n, 1), BOS)


AT_MAX_LENGTH = {True: "finished_first", False: "by_score"}

RULES = {each.name for each in fields(RulesConfig)}


def constrained(bounds: list[int], *, eos_id: int | None = EOS, suppressed=(), **rules) -> Constraints:
    """Constraints of texts that begin with BOS; `rules` are fields of RulesConfig."""
    config, max_lengths = RulesConfig(**rules), torch.tensor(bounds, dtype=torch.long)
    return Constraints(max_lengths, eos_id=eos_id, suppressed=suppressed, config=config, prompts=starts(len(bounds)))


def search(
    language: Language, sentences: list[int], bounds: list[int], *, suppressed=(), **settings
) -> list[list[Hypothesis]]:
    rules = {name: settings.pop(name) for name in RULES & settings.keys()}
    constraints = constrained(bounds, suppressed=suppressed, **rules)
    scorer = LanguageScorer(language, sentences)
    return beam_search(scorer, starts(len(bounds)), constraints, BeamConfig(**settings))


def greedy(scorer: Scorer, bounds: list[int], *, alpha: float | None = 0.6, **rules) -> list[Hypothesis]:
    """Sampling at temperature 0, which takes the most probable token each time."""
    score = None if alpha is None else BeamConfig(alpha=alpha)
    return [
        h
        for (h,) in Sampler(
            scorer, starts(len(bounds)), constrained(bounds, **rules), sampling=GREEDY, score=score
        ).run()
    ]


def same(got: list[Hypothesis], want: list[Hypothesis]) -> None:
    assert [(h.tokens, h.finished) for h in got] == [(h.tokens, h.finished) for h in want]
    assert [h.log_prob for h in got] == pytest.approx([h.log_prob for h in want], rel=1e-12)
    assert [h.score for h in got] == pytest.approx([h.score for h in want], rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("suppressed", "size"), [([], 1 + 4 + 16 + 64 + 256), ([PAD, BOS], 1 + 2 + 4 + 8 + 16)])
def test_an_exhaustive_beam_equals_brute_force(suppressed, size, alpha):
    language = Language(seed=3)
    got = search(language, [7, 8], [4, 4], beam_size=size, n_best=size, alpha=alpha, suppressed=suppressed)
    for sentence, hypotheses in zip([7, 8], got, strict=True):
        want = brute_force(language, sentence, 4, alpha, suppressed)
        assert len(want) == size
        same(hypotheses, want)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_beam_search_equals_plain_python(beam_size, first, alpha):
    bounds = [1 + i % 11 for i in range(22)]
    for vocab_size, suppressed in ((5, [PAD, BOS]), (7, [PAD]), (3, [])):
        language = Language(seed=beam_size, vocab_size=vocab_size)
        how = {"beam_size": beam_size, "n_best": beam_size, "alpha": alpha, "at_max_length": AT_MAX_LENGTH[first]}
        got = search(language, list(range(22)), bounds, suppressed=suppressed, **how)
        for sentence, (bound, hypotheses) in enumerate(zip(bounds, got, strict=True)):
            same(hypotheses, plain_beam_search(language, sentence, bound, beam_size, alpha, suppressed, first))
        assert {h.finished for hypotheses in got for h in hypotheses} == {True, False}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beam_of_one_equals_greedy_search(alpha):
    sentences, bounds = list(range(200)), [1 + i % 13 for i in range(200)]
    language = Language(seed=5)
    beam = search(language, sentences, bounds, beam_size=1, alpha=alpha, suppressed=[PAD])
    scored = greedy(LanguageScorer(language, sentences), bounds, suppressed=[PAD], alpha=alpha)
    unscored = greedy(LanguageScorer(language, sentences), bounds, suppressed=[PAD], alpha=None)
    for (best,), hypothesis, quick in zip(beam, scored, unscored, strict=True):
        assert (
            (best.tokens, best.finished) == (hypothesis.tokens, hypothesis.finished) == (quick.tokens, quick.finished)
        )
        assert best.log_prob == pytest.approx(hypothesis.log_prob, rel=1e-12)
        assert best.score == pytest.approx(hypothesis.score, rel=1e-12)
        assert math.isnan(quick.log_prob) and math.isnan(quick.score)


def test_hypotheses_are_sorted_distinct_and_within_max_length():
    bounds = [1 + i % 7 for i in range(70)]
    got = search(Language(seed=1), list(range(70)), bounds, beam_size=5, n_best=5, alpha=0.6)
    for hypotheses, bound in zip(got, bounds, strict=True):
        assert len(hypotheses) == len({tuple(h.tokens) + (EOS,) * h.finished for h in hypotheses}) == 5
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)
        for h in hypotheses:
            assert EOS not in h.tokens
            assert len(h.tokens) + 1 <= bound if h.finished else len(h.tokens) == bound


def test_n_best_is_a_prefix_of_the_beam():
    whole = search(Language(seed=2), list(range(30)), [9] * 30, beam_size=4, n_best=4)
    assert search(Language(seed=2), list(range(30)), [9] * 30, beam_size=4, n_best=2) == [h[:2] for h in whole]


def test_hypotheses_do_not_depend_on_the_batch():
    language, bounds = Language(seed=4), [1 + 5 * i % 13 for i in range(40)]
    together = search(language, list(range(40)), bounds, beam_size=3, n_best=3)
    for sentence, bound in enumerate(bounds):
        (alone,) = search(language, [sentence], [bound], beam_size=3, n_best=3)
        assert alone == together[sentence]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_first_step_is_unexpanded_and_finished_sentences_leave_the_batch(beam_size):
    scorer = LanguageScorer(Language(seed=6), [0, 1, 2, 3])
    if beam_size == 1:
        greedy(scorer, [2, 5, 3, 5], suppressed=[EOS])
    else:
        beam_search(scorer, starts(4), constrained([2, 5, 3, 5], suppressed=[EOS]), BeamConfig(beam_size=beam_size))
    assert scorer.n_rows == [4, 4 * beam_size, 3 * beam_size, 2 * beam_size, 2 * beam_size]
    assert scorer.n_sentences == 0


def test_a_vocabulary_smaller_than_the_beam_and_an_empty_batch():
    assert search(Language(seed=0), [], [], beam_size=3) == []
    (hypotheses,) = search(
        Language(seed=0, vocab_size=3), [1], [4], beam_size=9, n_best=9, alpha=0.0, suppressed=[PAD, BOS]
    )
    assert [(h.tokens, h.finished) for h in hypotheses] == [([], True)]  # only EOS may follow, so one sequence exists


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_all_sequences_are_returned_from_small_vocabularies(first):
    """Random vocabularies smaller than twice the beam, bounds and rules; every sequence that exists is counted."""
    for seed in range(first, first + 10):
        print(seed)
        check_all_sequences_are_returned(seed)


def check_all_sequences_are_returned(seed: int) -> None:
    rng = random.Random(seed)
    vocab_size, bound, ngram, least = rng.randint(3, 6), rng.randint(1, 4), rng.randint(0, 2), rng.randint(0, 2)
    language = Language(seed, vocab_size)
    suppressed = [PAD, BOS][: rng.randint(0, 2)]

    def allowed(h: Hypothesis) -> bool:
        grams = [tuple(h.tokens[i : i + ngram]) for i in range(len(h.tokens) - ngram + 1)] if ngram else []
        left = vocab_size - 1 - len(suppressed)  # if no token is left, it may end despite all rules
        stuck = left == 0 or (ngram == 1 and len(set(h.tokens)) == left)
        return len(grams) == len(set(grams)) and (not h.finished or len(h.tokens) >= least or stuck)

    exist = [h for h in brute_force(language, 0, bound, 0.6, suppressed) if allowed(h)]
    for beam_size in {max(1, vocab_size // 2), vocab_size, 3 * vocab_size, len(exist), len(exist) + 3}:
        rules = {"suppressed": suppressed, "no_repeat_ngram": ngram, "min_length": least}
        for first in (True, False):
            how = {"beam_size": beam_size, "n_best": beam_size, "at_max_length": AT_MAX_LENGTH[first]}
            (got,) = search(language, [0], [bound], **rules, **how)
            assert len(got) == len({(*h.tokens, h.finished) for h in got}) == min(beam_size, len(exist))
            assert {(*h.tokens, h.finished) for h in got} <= {(*h.tokens, h.finished) for h in exist}


# A real Transformer

CONFIG = TransformerConfig(
    encoder=StackConfig(input=Tokens(vocab_size=13), n_layers=2),
    decoder=StackConfig(input=Tokens(vocab_size=11), n_layers=2),
    d_model=12,
    n_heads=2,
    d_ff=17,
    tie="none",
)


class UncachedScorer:
    """A Scorer without a cache: it decodes the whole prefix of every row, and repeats the memory for every beam."""

    additive = False

    def __init__(self, model: Transformer, memory: Memory) -> None:
        self.model, self.memory, self.n_sentences = model, memory, len(memory.states)
        self.prefixes = torch.empty(self.n_sentences, 0, dtype=torch.long)

    def step(self, tokens: Tensor) -> Tensor:
        self.prefixes = torch.cat((self.prefixes, tokens[:, None]), dim=1)
        beams = len(tokens) // len(self.memory.states)
        memory = Memory(*(part.repeat_interleave(beams, dim=0) for part in self.memory))
        return self.model.decode(self.prefixes, memory=memory)[:, -1]

    def reorder(self, rows: Tensor) -> None:
        self.prefixes = self.prefixes[rows]

    def keep(self, sentences: Tensor) -> None:
        self.memory = Memory(*(part[sentences] for part in self.memory))
        self.n_sentences = len(sentences)


@dataclass(frozen=True)
class Example:
    model: Transformer
    source: Tensor
    lengths: Tensor
    bounds: Tensor

    def search(self, rows: Tensor, scorer: type = ModelScorer, extra: int = 0) -> list[list[Hypothesis]]:
        """The four best of these rows, their sources padded with `extra` more random ids."""
        lengths = self.lengths[rows]
        garbage = torch.randint(13, (len(rows), extra), generator=torch.Generator().manual_seed(0))
        source = torch.cat((self.source[rows, : int(lengths.max())], garbage), dim=1)
        with torch.no_grad():
            scored = scorer(self.model, self.model.encode(source, lengths))
        constraints = Constraints(self.bounds[rows], eos_id=EOS, suppressed=[PAD, BOS])
        return beam_search(scored, starts(len(rows)), constraints, BeamConfig(beam_size=4, n_best=4))


@pytest.fixture(scope="module")
def example() -> Example:
    """24 sentences of 1 to 9 tokens, and a model whose outputs end after various numbers of steps (few seeds make one)."""
    rng = torch.Generator().manual_seed(7)
    model = Transformer(CONFIG).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=rng, dtype=torch.float64))
    lengths = torch.randint(1, 10, (24,), generator=rng)
    source = torch.randint(13, (24, 9), generator=rng)
    return Example(model, source, lengths, 2 * lengths + 3)


def test_cached_search_equals_uncached_search(example):
    rows = torch.arange(24)
    got = example.search(rows)
    assert len({len(h.tokens) for hypotheses in got for h in hypotheses if h.finished}) > 5
    for cached, uncached in zip(got, example.search(rows, UncachedScorer), strict=True):
        same(cached, uncached)


def test_log_prob_equals_that_of_the_forward_pass(example):
    with torch.no_grad():
        for row, hypotheses in enumerate(example.search(torch.arange(24))):
            for h in hypotheses:
                target = torch.tensor([[BOS, *h.tokens, *[EOS] * h.finished]])
                logits = example.model(
                    source=example.source[row : row + 1, : int(example.lengths[row])], target_in=target[:, :-1]
                )
                want = logits[0].log_softmax(-1).gather(1, target[0, 1:, None]).sum().item()
                assert h.log_prob == pytest.approx(want, rel=1e-10)


def test_batch_size_order_and_padding_change_nothing(example, rng):
    want = example.search(torch.arange(24))
    for size, extra in ((1, 3), (7, 0), (24, 5)):
        order = torch.randperm(24, generator=rng)
        for rows in order.split(size):
            for row, hypotheses in zip(rows.tolist(), example.search(rows, extra=extra), strict=True):
                same(hypotheses, want[row])


def test_half_precision_logits_are_summed_in_float32(example):
    with torch.no_grad():
        model = deepcopy(example.model).bfloat16()
        memory = model.encode(example.source, example.lengths)
    constraints = Constraints(example.bounds, eos_id=EOS)
    got = [best for (best,) in beam_search(ModelScorer(model, memory), starts(24), constraints, BeamConfig())]
    got += greedy(ModelScorer(model, memory), example.bounds.tolist())
    log_prob = torch.tensor([hypothesis.log_prob for hypothesis in got])
    assert (log_prob.bfloat16().float() != log_prob).all()


# Errors


@pytest.mark.parametrize(("n_best", "beam_size"), [(0, 3), (4, 3), (1, 0)])
def test_n_best_must_fit_into_the_beam(n_best, beam_size):
    message = f"n_best must lie between 1 and beam_size={beam_size}, which may be raised, but n_best={n_best}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        search(Language(seed=0), [0], [3], beam_size=beam_size, n_best=n_best)


def test_max_lengths_must_be_at_least_one():
    with pytest.raises(ValueError) as caught:
        search(Language(seed=0), [0, 1], [3, 0])
    assert str(caught.value) == (
        "max_lengths must be at least 1, but the least is 0; leave empty sentences out of the batch"
    )


class WholeNumbers(LanguageScorer):
    """A Scorer whose scores are whole numbers, so that many hypotheses are equally probable."""

    additive = True

    def step(self, tokens: Tensor) -> Tensor:
        return super().step(tokens).div(4).round().float()


@pytest.mark.parametrize("beam_size", [3, 4])
def test_ties_do_not_depend_on_the_batch(beam_size):
    ties = 0
    for seed in range(10):
        language, sentences = Language(seed, vocab_size=6), list(range(9))

        def got(some: list[int], language: Language = language) -> list[list[tuple[list[int], float]]]:
            scorer, constraints = WholeNumbers(language, some), constrained([7] * len(some))
            config = BeamConfig(beam_size=beam_size, n_best=beam_size, alpha=0.0)
            outputs = beam_search(scorer, starts(len(some)), constraints, config)
            return [[(h.tokens, h.score) for h in each] for each in outputs]

        together = got(sentences)
        ties += sum(len({score for _, score in each}) < beam_size for each in together)
        assert [got([i])[0] for i in sentences] == together
    assert ties > 10
