"""CTC prefix probabilities against the sum over all labellings, and against torch's ctc_loss."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.contract import GARBAGE
from tests.decode.ctc_paths import next_log_probs, transcripts
from tests.decode.language import BOS, EOS, PAD
from tests.decode.test_beam import constrained, greedy, starts
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.scorer import Scorer


def prefix_scores(scorer: CTCPrefixScorer, tokens: list[list[int]]) -> torch.Tensor:
    """Scores after BOS and after every token, (B, T + 1, V); all rows have equally many."""
    columns = [scorer.step(torch.full((len(tokens),), BOS))]
    columns += [scorer.step(torch.tensor(column)) for column in zip(*tokens, strict=True)]
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize(("eos", "blank"), [(2, 0), (0, 2)])
def test_scores_are_sums_over_all_labellings(rng, eos, blank):
    length, vocab_size = 5, 4
    logits = 2 * torch.randn(1, length, vocab_size, generator=rng, dtype=torch.float64)
    ours = transcripts(logits[0], blank)
    assert math.fsum(ours.values()) == pytest.approx(1, rel=1e-12)
    seen = set()
    for tokens in itertools.product([1, 3], repeat=length):
        got = prefix_scores(CTCPrefixScorer(logits, eos_id=eos, blank_id=blank), [[*tokens]])
        for t in range(length + 1):
            prefix = tokens[:t]
            assert not got[0, t].isnan().any()
            if any(transcript[:t] == prefix for transcript in ours):
                want = next_log_probs(ours, prefix, vocab_size=vocab_size, eos=eos, blank=blank)
                assert got[0, t].tolist() == pytest.approx(want, rel=1e-10, abs=1e-10)
                seen.add(prefix)
            else:
                assert got[0, t].max() == -math.inf
    assert (1, 1, 3) in seen and (1, 3, 1, 3, 1) in seen and (1, 1, 1, 1) not in seen


def test_next_token_probabilities_sum_to_one(rng):
    """Some token follows, or none. (EOS must not label a frame: its score means that no token follows.)"""
    logits = torch.randn(3, 17, 7, generator=rng, dtype=torch.float64)
    logits[:, :, EOS] = -1e3
    tokens = torch.randint(3, 7, (3, 5), generator=rng).tolist()
    total = prefix_scores(CTCPrefixScorer(logits, eos_id=EOS), tokens).logsumexp(-1)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-10)


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_complete_transcripts_score_like_ctc_loss(rng, dtype, tolerance, in_bf16):
    """Also with 300 frames and confident predictions, where exp(-loss) is far below the smallest float32.

    A validation in bf16 searches under autocast.
    """
    for n_frames, sharpness in ((29, 1.0), (300, 5.0)):
        lengths = torch.tensor([n_frames, n_frames - 12, n_frames - 5])
        logits = sharpness * torch.randn(3, n_frames, 11, generator=rng, dtype=dtype)
        tokens = torch.randint(3, 11, (3, 7), generator=rng)
        tokens[0, 4] = tokens[0, 3]
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            steps = prefix_scores(CTCPrefixScorer(logits, lengths, eos_id=EOS), tokens.tolist())
        got = steps.gather(2, F.pad(tokens, (0, 1), value=EOS)[:, :, None]).sum(dim=(1, 2))
        want = -F.ctc_loss(
            logits.double().log_softmax(-1).transpose(0, 1), tokens, lengths, torch.full((3,), 7), reduction="none"
        )
        assert steps.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_scores_do_not_depend_on_padding_and_batch(rng):
    lengths = torch.tensor([13, 1, 8])
    logits = torch.randn(3, 13, 7, generator=rng, dtype=torch.float64)
    tokens = torch.randint(3, 7, (3, 4), generator=rng).tolist()
    padded = GARBAGE * torch.randn(3, 18, 7, generator=rng, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        padded[row, :length] = logits[row, :length]
    together = prefix_scores(CTCPrefixScorer(padded, lengths, eos_id=EOS), tokens)
    for row, length in enumerate(lengths.tolist()):
        alone = prefix_scores(CTCPrefixScorer(logits[row : row + 1, :length], eos_id=EOS), tokens[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-10)


def test_scores_after_reorder_and_keep(rng):
    """Whatever a search does with its rows, each is scored as if its sentence and prefix were alone."""
    lengths, beams = torch.tensor([11, 7, 9]), 5
    logits = torch.randn(3, 11, 7, generator=rng, dtype=torch.float64)
    scorer, prefixes = CTCPrefixScorer(logits, lengths, eos_id=EOS), [[], [], []]
    assert isinstance(scorer, Scorer)
    scorer.step(torch.full((3,), BOS))
    sentences = [0, 1, 2]
    for keep in ([0, 1, 2], [0, 1, 2], [0, 2], [1]):
        width = len(prefixes) // len(sentences)
        rows = [
            sentence * width + int(torch.randint(width, (), generator=rng)) for sentence in keep for _ in range(beams)
        ]
        scorer.reorder(torch.tensor(rows))
        scorer.keep(torch.tensor(keep))
        sentences = [sentences[i] for i in keep]
        assert scorer.n_sentences == len(sentences)
        tokens = torch.randint(3, 7, (len(rows),), generator=rng)
        prefixes = [[*prefixes[row], token] for row, token in zip(rows, tokens.tolist(), strict=True)]
        got = scorer.step(tokens)
        for row, prefix in enumerate(prefixes):
            s = sentences[row // beams]
            alone = prefix_scores(CTCPrefixScorer(logits[s : s + 1, : int(lengths[s])], eos_id=EOS), [prefix])
            torch.testing.assert_close(got[row], alone[0, -1], rtol=0, atol=1e-10)


def test_ctc_search_returns_the_most_probable_transcript(rng):
    """The most probable transcript, not the most probable labelling: Graves et al. (2006), figure 2."""
    logits = torch.tensor([[[0.6, 0.0, 0.0, 0.4], [0.6, 0.0, 0.0, 0.4]]]).log().clamp_min(-1e3)
    constraints = constrained([5], suppressed=[PAD, BOS])
    ((best,),) = beam_search(CTCPrefixScorer(logits, eos_id=EOS), starts(1), constraints, BeamConfig(alpha=0.0))
    assert (best.tokens, best.finished) == ([3], True)
    assert best.log_prob == pytest.approx(math.log(1 - 0.6**2), rel=1e-6)
    (got,) = greedy(CTCPrefixScorer(logits, eos_id=EOS), [5], suppressed=[PAD, BOS])
    assert got.tokens == [3] and got.log_prob == pytest.approx(best.log_prob, rel=1e-6)

    logits = torch.randn(1, 6, 5, generator=rng, dtype=torch.float64)
    got = {labels: p for labels, p in transcripts(logits[0], PAD).items() if not {BOS, EOS} & set(labels)}
    want = max(got, key=lambda transcript: got[transcript])
    constraints = constrained([9], suppressed=[PAD, BOS])
    ((best,),) = beam_search(
        CTCPrefixScorer(logits, eos_id=EOS), starts(1), constraints, BeamConfig(alpha=0.0, beam_size=40)
    )
    assert tuple(best.tokens) == want and best.log_prob == pytest.approx(math.log(got[want]), rel=1e-10)
