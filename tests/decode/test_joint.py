"""Joint CTC/attention search against brute force, against attention alone and against itself in other batches."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.contract import GARBAGE
from tests.decode.ctc_paths import next_log_probs, transcripts
from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, brute_force, plain_beam_search
from tests.decode.test_beam import same
from transduce.decode.beam import beam_search
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.greedy import greedy_search
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.joint import JointScorer
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

FORBIDDEN = [PAD, BOS]


@dataclass
class JointLanguage:
    """A Language and CTC frames of every sentence, by the written formula: what the searches in lists search."""

    language: Language
    logits: Tensor
    weight: float
    found: dict[int, dict[tuple[int, ...], float]] = field(default_factory=dict)

    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        attention = self.language.log_probs(sentence, prefix)
        if sentence not in self.found:
            self.found[sentence] = transcripts(self.logits[sentence], PAD)
        ctc = next_log_probs(self.found[sentence], prefix, vocab_size=5, eos=EOS, blank=PAD)
        return [(1 - self.weight) * a + self.weight * c for a, c in zip(attention, ctc, strict=True)]

    def scorer(self, sentences: list[int]) -> JointScorer:
        ctc = CTCPrefixScorer(self.logits[sentences], eos_id=EOS)
        return JointScorer(LanguageScorer(self.language, sentences), ctc, weight=self.weight)


def search(scorer: Scorer, bounds: list[int], **settings) -> list[list[Hypothesis]]:
    bound = torch.tensor(bounds)
    return beam_search(scorer, bos_id=BOS, eos_id=EOS, max_lengths=bound, suppressed=FORBIDDEN, **settings)


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_a_beam_as_wide_as_the_space_finds_what_brute_force_finds(rng, weight):
    """Seven frames have room for four tokens, all the same."""
    logits = torch.randn(2, 7, 5, generator=rng, dtype=torch.float64)
    joint, size = JointLanguage(Language(seed=3), logits, weight), 1 + 2 + 4 + 8 + 16
    got = search(joint.scorer([0, 1]), [4, 4], beam_size=size, n_best=size, alpha=0.0)
    for sentence in (0, 1):
        want = brute_force(joint, sentence, 4, 0.0, FORBIDDEN)
        assert len(want) == size
        same(got[sentence], want)
        for h in got[sentence]:
            attention = [Language(seed=3).log_probs(sentence, tuple(h.tokens[:t])) for t in range(len(h.tokens) + 1)]
            entropy = sum(x[token] for x, token in zip(attention, [*h.tokens, EOS], strict=True))
            whole = (1 - weight) * entropy + weight * math.log(joint.found[sentence][tuple(h.tokens)])
            assert not h.finished or h.log_prob == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_narrow_beam_is_the_search_in_lists_and_a_beam_of_one_is_greedy(rng, alpha):
    sentences, bounds = list(range(12)), [1 + i % 5 for i in range(12)]
    logits = 2 * torch.randn(12, 6, 5, generator=rng, dtype=torch.float64)
    joint = JointLanguage(Language(seed=4), logits, 0.4)
    for beam_size in (1, 3):
        settings = {"beam_size": beam_size, "n_best": beam_size, "alpha": alpha}
        got = search(joint.scorer(sentences), bounds, **settings)
        for sentence, hypotheses in enumerate(got):
            want = plain_beam_search(joint, sentence, bounds[sentence], beam_size, alpha, FORBIDDEN)
            same(hypotheses, [h for h in want if h.score > -math.inf])
    found = greedy_search(
        joint.scorer(sentences),
        bos_id=BOS, eos_id=EOS, max_lengths=torch.tensor(bounds), suppressed=FORBIDDEN, scores=True,
    )  # fmt: skip
    best = [h for (h,) in search(joint.scorer(sentences), bounds, beam_size=1)]
    assert [(h.tokens, h.finished) for h in best] == [(h.tokens, h.finished) for h in found]
    assert [h.log_prob for h in best] == pytest.approx([h.log_prob for h in found], rel=1e-12)


def test_more_tokens_than_frames_can_hold_never_come(rng):
    """Two frames: attention never ends, and CTC ends it."""
    logits = torch.randn(20, 2, 5, generator=rng, dtype=torch.float64)
    scorer = JointScorer(
        LanguageScorer(Language(seed=2), list(range(20))), CTCPrefixScorer(logits, eos_id=EOS), weight=0.1
    )
    for hypotheses in search(scorer, [30] * 20, beam_size=4, n_best=4):
        assert hypotheses
        for h in hypotheses:
            assert h.finished and len(h.tokens) <= 2 and math.isfinite(h.score)
            assert len(h.tokens) < 2 or h.tokens[0] != h.tokens[1]


# A real Transformer

CONFIG = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=5, stack=2), n_layers=1),
    decoder=StackConfig(input=Tokens(vocab_size=11), n_layers=1),
    d_model=12,
    n_heads=2,
    d_ff=17,
    tie="none",
    ctc=True,
)


@dataclass(frozen=True)
class Example:
    model: Transformer
    source: Tensor
    lengths: Tensor

    def search(self, rows: Tensor, weight: float | None, extra: int = 0) -> list[list[Hypothesis]]:
        """The four best of these rows; `weight` None: without a JointScorer. Behind every source lies garbage."""
        lengths = self.lengths[rows]
        source = torch.full((len(rows), int(lengths.max()) + extra, 5), GARBAGE, dtype=self.source.dtype)
        for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            source[i, :length] = self.source[row, :length]
        with torch.no_grad():
            memory = self.model.encode(source, lengths)
            scorer: Scorer = ModelScorer(self.model, memory)
            if weight is not None:
                ctc = CTCPrefixScorer(self.model.ctc_logits(memory.states), memory.lengths, eos_id=EOS)
                scorer = JointScorer(scorer, ctc, weight=weight)
        return search(scorer, (2 * lengths + 3).tolist(), beam_size=4, n_best=4)


def example(rng: torch.Generator, dtype: torch.dtype = torch.float64) -> Example:
    model = Transformer(CONFIG).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=rng, dtype=dtype))
    lengths = torch.randint(6, 20, (16,), generator=rng)
    return Example(model, torch.randn(16, 19, 5, generator=rng, dtype=dtype), lengths)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_weight_the_hypotheses_are_those_of_attention(rng, dtype):
    some, rows = example(rng, dtype), torch.arange(16)
    assert some.search(rows, 0.0) == some.search(rows, None) != some.search(rows, 0.3)


def test_batch_size_order_and_padding_change_nothing(rng):
    some = example(rng)
    want = some.search(torch.arange(16), 0.3)
    for size, extra in ((1, 0), (1, 3), (5, 0), (16, 5)):
        order = torch.randperm(16, generator=rng)
        for rows in order.split(size):
            for row, hypotheses in zip(rows.tolist(), some.search(rows, 0.3, extra), strict=True):
                same(hypotheses, want[row])


# Errors


def scorers(n: int, m: int) -> Callable[[float], JointScorer]:
    attention, ctc = LanguageScorer(Language(seed=0), list(range(n))), CTCPrefixScorer(torch.zeros(m, 3, 5), eos_id=EOS)
    return lambda weight: JointScorer(attention, ctc, weight=weight)


@pytest.mark.parametrize(
    ("make", "weight", "message"),
    [
        (scorers(2, 2), -0.1, "weight must lie in [0, 1], but weight=-0.1"),
        (scorers(2, 2), 1.1, "weight must lie in [0, 1], but weight=1.1"),
        (scorers(2, 3), 0.5, "two scorers must have the same sentences, but one has 2 and the other 3"),
    ],
)
def test_what_cannot_be_joined_is_refused(make, weight, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(weight)
