"""Joint CTC/attention search, ensembles and fusion: against brute force, formulas, and other batches."""

import math
import re
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.contract import GARBAGE
from tests.decode.ctc_paths import next_log_probs, transcripts
from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, brute_force, plain_beam_search
from tests.decode.test_beam import constrained, greedy, same, starts
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.scorer import ModelScorer, Scorer, combined
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

SUPPRESSED = [PAD, BOS]


@dataclass
class JointLanguage:
    """A Language and CTC frames of every sentence, by the written formula: what the searches in lists search."""

    language: Language
    logits: Tensor
    weight: float
    ours: dict[int, dict[tuple[int, ...], float]] = field(default_factory=dict)

    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        attention = self.language.log_probs(sentence, prefix)
        if sentence not in self.ours:
            self.ours[sentence] = transcripts(self.logits[sentence], PAD)
        ctc = next_log_probs(self.ours[sentence], prefix, vocab_size=5, eos=EOS, blank=PAD)
        return [(1 - self.weight) * a + self.weight * c for a, c in zip(attention, ctc, strict=True)]

    def scorer(self, sentences: list[int]) -> Scorer:
        ctc = CTCPrefixScorer(self.logits[sentences], eos_id=EOS)
        return combined([(1 - self.weight, LanguageScorer(self.language, sentences)), (self.weight, ctc)])


def search(scorer: Scorer, bounds: list[int], **settings) -> list[list[Hypothesis]]:
    constraints = constrained(bounds, suppressed=SUPPRESSED)
    return beam_search(scorer, starts(len(bounds)), constraints, BeamConfig(**settings))


def test_an_exhaustive_beam_equals_brute_force(rng):
    """Seven frames are enough for any four tokens, even equal ones."""
    joint = JointLanguage(Language(seed=3), torch.randn(2, 7, 5, generator=rng, dtype=torch.float64), 0.3)
    for weight in (0.3, 1.0):
        joint.weight = weight
        check_against_brute_force(joint)


def check_against_brute_force(joint: JointLanguage) -> None:
    size, weight = 1 + 2 + 4 + 8 + 16, joint.weight
    got = search(joint.scorer([0, 1]), [4, 4], beam_size=size, n_best=size, alpha=0.0)
    for sentence in (0, 1):
        want = brute_force(joint, sentence, 4, 0.0, SUPPRESSED)
        assert len(want) == size
        same(got[sentence], want)
        for h in got[sentence]:
            attention = [Language(seed=3).log_probs(sentence, tuple(h.tokens[:t])) for t in range(len(h.tokens) + 1)]
            entropy = sum(x[token] for x, token in zip(attention, [*h.tokens, EOS], strict=True))
            whole = (1 - weight) * entropy + weight * math.log(joint.ours[sentence][tuple(h.tokens)])
            assert not h.finished or h.log_prob == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_narrow_beams_equal_plain_python_and_greedy_search(rng, alpha):
    sentences, bounds = list(range(12)), [1 + i % 5 for i in range(12)]
    logits = 2 * torch.randn(12, 5, 5, generator=rng, dtype=torch.float64)
    joint = JointLanguage(Language(seed=4), logits, 0.4)
    for beam_size in (1, 3):
        settings = {"beam_size": beam_size, "n_best": beam_size, "alpha": alpha}
        got = search(joint.scorer(sentences), bounds, **settings)
        for sentence, hypotheses in enumerate(got):
            want = plain_beam_search(joint, sentence, bounds[sentence], beam_size, alpha, SUPPRESSED)
            same(hypotheses, [h for h in want if h.score > -math.inf])
    ours = greedy(joint.scorer(sentences), bounds, suppressed=SUPPRESSED)
    best = [h for (h,) in search(joint.scorer(sentences), bounds, beam_size=1)]
    assert [(h.tokens, h.finished) for h in best] == [(h.tokens, h.finished) for h in ours]
    assert [h.log_prob for h in best] == pytest.approx([h.log_prob for h in ours], rel=1e-12)


def test_outputs_never_have_more_tokens_than_ctc_frames(rng):
    """Two frames: attention never ends, and CTC ends it."""
    logits = torch.randn(20, 2, 5, generator=rng, dtype=torch.float64)
    attention, ctc = LanguageScorer(Language(seed=2), list(range(20))), CTCPrefixScorer(logits, eos_id=EOS)
    scorer = combined([(0.9, attention), (0.1, ctc)])
    for hypotheses in search(scorer, [30] * 20, beam_size=4, n_best=4):
        assert hypotheses
        for h in hypotheses:
            assert h.finished and len(h.tokens) <= 2 and math.isfinite(h.score)
            assert len(h.tokens) < 2 or h.tokens[0] != h.tokens[1]


# Any number of scorers


@dataclass
class Sum:
    """The weighted sum of several languages' log-probabilities, by the written formula."""

    parts: list[tuple[float, Language]]

    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        columns = zip(*(language.log_probs(sentence, prefix) for _, language in self.parts), strict=True)
        return [sum(w * x for (w, _), x in zip(self.parts, column, strict=True)) for column in columns]

    def scorer(self, sentences: list[int]) -> Scorer:
        return combined([(weight, LanguageScorer(language, sentences)) for weight, language in self.parts])


WAYS = {
    "an ensemble of two": Sum([(0.5, Language(seed=1)), (0.5, Language(seed=2))]),
    "fusion with a third": Sum([(0.5, Language(seed=1)), (0.5, Language(seed=2)), (0.3, Language(seed=3))]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_combined_scorers_equal_the_weighted_sum(way, alpha):
    sentences, bounds, size = list(range(12)), [1 + i % 4 for i in range(12)], 1 + 2 + 4 + 8 + 16
    wide = search(WAYS[way].scorer([7, 8]), [4, 4], beam_size=size, n_best=size, alpha=alpha)
    for sentence, hypotheses in zip([7, 8], wide, strict=True):
        same(hypotheses, brute_force(WAYS[way], sentence, 4, alpha, SUPPRESSED))
    narrow = search(WAYS[way].scorer(sentences), bounds, beam_size=3, n_best=3, alpha=alpha)
    for sentence, hypotheses in enumerate(narrow):
        want = plain_beam_search(WAYS[way], sentence, bounds[sentence], 3, alpha, SUPPRESSED)
        same(hypotheses, [h for h in want if h.score > -math.inf])


def test_scorers_of_weight_0_are_not_computed():
    attention, idle = LanguageScorer(Language(seed=1), [0, 1]), LanguageScorer(Language(seed=2), [0, 1])
    assert combined([(0.0, idle), (1.0, attention)]) is attention
    half = combined([(0.0, idle), (0.5, attention)])
    got, want = search(half, [5, 5], alpha=0.0), search(LanguageScorer(Language(seed=1), [0, 1]), [5, 5], alpha=0.0)
    assert [h.tokens for (h,) in got] == [h.tokens for (h,) in want]
    assert [h.log_prob for (h,) in got] == pytest.approx([0.5 * h.log_prob for (h,) in want], rel=1e-12)
    assert idle.n_rows == [] and attention.n_rows


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
        """The four best of these rows; `weight` None: by attention alone. After every source there is garbage."""
        lengths = self.lengths[rows]
        source = torch.full((len(rows), int(lengths.max()) + extra, 5), GARBAGE, dtype=self.source.dtype)
        for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            source[i, :length] = self.source[row, :length]
        with torch.no_grad():
            memory = self.model.encode(source, lengths)
            scorer: Scorer = ModelScorer(self.model, memory)
            if weight is not None:
                ctc = CTCPrefixScorer(self.model.ctc_logits(memory.states), memory.lengths, eos_id=EOS)
                scorer = combined([(1 - weight, scorer), (weight, ctc)])
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
def test_ctc_weight_0_equals_attention_alone(rng, dtype):
    some, rows = example(rng, dtype), torch.arange(16)
    assert some.search(rows, 0.0) == some.search(rows, None) != some.search(rows, 0.3)


def test_batch_size_order_and_padding_change_nothing(rng):
    some = example(rng)
    want = some.search(torch.arange(16), 0.3)
    for size, extra in ((1, 3), (5, 0), (16, 5)):
        order = torch.randperm(16, generator=rng)
        for rows in order.split(size):
            for row, hypotheses in zip(rows.tolist(), some.search(rows, 0.3, extra), strict=True):
                same(hypotheses, want[row])


def test_ensemble_and_fusion_scores_sum_the_forward_passes(rng):
    """The language model begins with a BOS of its own."""
    first, second = example(rng), example(rng).model
    tokens = StackConfig(input=Tokens(vocab_size=11), n_layers=1)
    fusing = Transformer(TransformerConfig(decoder=tokens, d_model=12, n_heads=2, d_ff=17)).double().eval()
    source, lengths, start = first.source[:6, :12], torch.full((6,), 12), torch.full((6, 1), 7)
    with torch.no_grad():
        scorers: list[tuple[float, Scorer]] = [
            (0.5, ModelScorer(model, model.encode(source, lengths))) for model in (first.model, second)
        ]
        ours = search(combined([*scorers, (0.3, ModelScorer(fusing, prompts=start))]), [9] * 6, beam_size=4, n_best=4)
        for row, hypotheses in enumerate(ours):
            for h in hypotheses:
                out = torch.tensor([*h.tokens, *[EOS] * h.finished])
                begun = torch.tensor([[BOS, *out[:-1]]])
                logits = [model(source=source[row : row + 1], target_in=begun) for model in (first.model, second)]
                logits.append(fusing(target_in=torch.cat((start[:1], begun[:, 1:]), dim=1)))
                each = [x[0].log_softmax(-1).gather(1, out[:, None]).sum().item() for x in logits]
                assert h.log_prob == pytest.approx(0.5 * each[0] + 0.5 * each[1] + 0.3 * each[2], rel=1e-10)


# Errors


@pytest.mark.parametrize(
    ("weights", "sizes", "message"),
    [
        ((0.5, -0.1), (2, 2), "weights of scorers must not be negative, and at least one must be positive, but they are "
         "[0.5, -0.1]"),
        ((0.0, 0.0), (2, 2), "weights of scorers must not be negative, and at least one must be positive, but they are "
         "[0.0, 0.0]"),
        ((0.5, 0.5), (2, 3), "scorers must have the same sentences, but they have [2, 3] sentences"),
    ],
)  # fmt: skip
def test_invalid_weights_or_sizes_of_scorers_are_refused(weights, sizes, message):
    scorers = [LanguageScorer(Language(seed=0), list(range(n))) for n in sizes]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        combined(list(zip(weights, scorers, strict=True)))


def test_a_model_without_memory_and_prompt_is_refused(rng):
    message = "a model's scores need its memory, its prompts or both, but memory=None and prompts=None"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ModelScorer(example(rng).model)
