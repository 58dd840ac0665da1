"""What training hears: one augmentation at a time, compared with its formula and the draws written out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.conftest import TEXTS, speech_pairs
from tests.runs import RATE
from transduce.data.audio import read_audio
from transduce.data.config import Augmentation
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.frame_reader import PLAIN, generator
from transduce.data.sentencepiece_bpe import UNK, SentencePieceTokenizer


def test_masks_do_not_change_the_cache(recordings, reader):
    path = recordings[0].audio
    plain = reader(path)
    rng = torch.Generator().manual_seed(1)
    masked = reader(path, Augmentation(n_time_masks=3, time_mask_proportion=0.5), rng)
    assert masked.shape == plain.shape and not torch.equal(masked, plain)
    assert torch.equal(reader(path), plain)


def spans_by_hand(size: int, n: int, widest: int, rng: torch.Generator) -> list[slice]:
    """Width, then start, all as likely."""
    got = []
    for _ in range(n):
        width = int(torch.randint(0, widest + 1, (), generator=rng))
        start = int(torch.randint(0, size - width + 1, (), generator=rng))
        got.append(slice(start, start + width))
    return got


def warped_by_hand(log_mel: np.ndarray, factor: float, config: FeatureConfig) -> np.ndarray:
    """What the bands' centres, in hertz, would have had at 1 / factor of them; HTK mels."""
    mels = np.linspace(*(2595 * np.log10(1 + hertz / 700) for hertz in (config.low, config.highest)), config.n_mels + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    there = 2595 * np.log10(1 + hertz[1:-1] / factor / 700)
    return np.array([np.interp(there, mels[1:-1], row) for row in log_mel])


def frames_by_hand(
    feature_extractor: FeatureExtractor, path: Path, a: Augmentation, rng: torch.Generator
) -> np.ndarray:
    """Warp, bands, DCT and normalization, time."""
    log_mel = feature_extractor.log_mel(read_audio(path, RATE)).double().numpy()
    if a.vtlp:
        factor = 1 - a.vtlp + 2 * a.vtlp * float(torch.rand((), generator=rng))
        log_mel = warped_by_hand(log_mel, factor, feature_extractor.config)
    for bands in spans_by_hand(feature_extractor.config.n_mels, a.n_frequency_masks, a.frequency_mask_width, rng):
        log_mel[:, bands] = log_mel[:, bands].mean(axis=0)
    frames = feature_extractor.mfcc(torch.from_numpy(log_mel).float()).numpy()
    mean, most = (
        frames.mean(axis=0),
        min(round(a.time_mask_width / feature_extractor.config.hop), int(a.time_mask_proportion * len(frames))),
    )
    for places in spans_by_hand(len(frames), a.n_time_masks, most, rng):
        frames[places] = mean
    return frames


@pytest.mark.parametrize(
    "switched_on",
    [
        {"n_time_masks": 2, "time_mask_width": 0.12, "time_mask_proportion": 1.0},
        {"n_time_masks": 3, "time_mask_width": 9.0, "time_mask_proportion": 0.3},
        {"n_frequency_masks": 2, "frequency_mask_width": 7},
        {"vtlp": 0.3},
        {"token_dropout": 0.5},
        {"n_time_masks": 1, "n_frequency_masks": 1, "vtlp": 0.2, "token_dropout": 0.3},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_each_augmentation_equals_its_formula(recordings, reader, switched_on):
    """Drawn from (seed + 1, epoch, recording) and, for tokens, (seed + 2, epoch, recording)."""
    tokenizer = SentencePieceTokenizer.train(TEXTS, vocab_size=290)
    plain, augmented = (
        speech_pairs(recordings, reader, tokenizer, frames_per_batch=200, augmentation=a, seed=5)
        for a in (PLAIN, replace(PLAIN, **switched_on))
    )
    a, epoch = augmented.config.augmentation, augmented.epoch(3)
    other_frames = other_tokens = 0
    for batch, before, chosen in zip(epoch, plain.epoch(3), epoch.batches, strict=True):
        rows = chosen.tolist()
        for i, length, source, plainly in zip(rows, batch.source_lengths, batch.source, before.source, strict=True):
            want = frames_by_hand(reader.feature_extractor, recordings[i].audio, a, generator(5 + 1, 3, i))
            np.testing.assert_allclose(source[:length].numpy(), want, rtol=0, atol=1e-3)
            other_frames += int((source - plainly).abs().max() > 0.1)
        for i, length, got, plainly in zip(rows, batch.target_lengths, batch.target_in, before.target_in, strict=True):
            hidden = torch.rand(int(length), generator=generator(5 + 2, 3, i)) < a.token_dropout
            want_in = plainly.tolist()
            for t in range(1, int(length)):
                want_in[t] = UNK if hidden[t] else want_in[t]
            assert got.tolist() == want_in
        assert torch.equal(batch.target_out, before.target_out)
        other_tokens += int((batch.target_in != before.target_in).sum())
    n = len(TEXTS) // 2
    assert other_frames == 0 if set(switched_on) == {"token_dropout"} else other_frames > n
    assert other_tokens > n if "token_dropout" in switched_on else other_tokens == 0


def test_augmentation_does_not_depend_on_the_batch(recordings, reader):
    """Frames and hidden tokens of every utterance are the same in batches of any size."""
    tokenizer = SentencePieceTokenizer.train(TEXTS, vocab_size=290)

    def utterances(frames_per_batch: int) -> tuple[int, dict[int, tuple[list[int], torch.Tensor]]]:
        pairs = speech_pairs(
            recordings,
            reader,
            tokenizer,
            frames_per_batch=frames_per_batch,
            augmentation=Augmentation(token_dropout=0.4),
            seed=5,
        )
        epoch, got = pairs.epoch(2), {}
        for batch, chosen in zip(epoch, epoch.batches, strict=True):
            for row, i in enumerate(chosen.tolist()):
                ids = batch.target_in[row, : batch.target_lengths[row]].tolist()
                got[i] = (ids, batch.source[row, : batch.source_lengths[row]])
        return len(epoch), got

    (few, large), (many, small) = utterances(1000), utterances(100)
    assert many > few and large.keys() == small.keys()
    assert sum(ids.count(UNK) for ids, _ in large.values()) > 10
    for i, (ids, frames) in large.items():
        assert ids == small[i][0] and torch.equal(frames, small[i][1])
