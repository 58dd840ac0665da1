"""Recordings as training data: each once an epoch with its own text, and what cannot be used ends nothing."""

import logging
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch

from tests.data.conftest import TEXTS, speech_pairs
from tests.runs import FEATURES, RATE, record, sound
from transduce.data.audio import change_speed, read_audio
from transduce.data.config import Augmentation
from transduce.data.features import FeatureCache, FeatureExtractor, VectorConfig, VectorReader
from transduce.data.frame_reader import (
    PLAIN,
    FrameReader,
    make_feature_extractor,
    perturb_vocal_tract,
)
from transduce.data.manifest import Recording, read_manifest
from transduce.data.sentencepiece_bpe import BOS, EOS, SentencePieceTokenizer
from transduce.data.speech_batches import SpeechPairs, positions_needed
from transduce.model.config import Frames

SPEEDS = Augmentation(speeds=(0.9, 1.1), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(TEXTS, vocab_size=290)


def messages(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "transduce"]


def rows(pairs: SpeechPairs, epoch: int) -> list[tuple[torch.Tensor, list[int], list[int]]]:
    """Frames, target_in and target_out of every example, padding cut off."""
    got = []
    for batch in pairs.epoch(epoch):
        for i, (s, t) in enumerate(zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)):
            assert torch.all(batch.source[i, s:] == 0)
            got.append((batch.source[i, :s], batch.target_in[i, :t].tolist(), batch.target_out[i, :t].tolist()))
    return got


@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_every_recording_is_batched_once_with_its_text(recordings, reader, tokenizer, epoch):
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=200)
    want = {}
    for r in recordings:
        frames = reader.feature_extractor(read_audio(r.audio, RATE))
        want[frames.numpy().tobytes()] = tokenizer.encode([r.text])[0]
    assert len(want) == len(TEXTS)
    for frames, target_in, target_out in rows(pairs, epoch):
        ids = want.pop(frames.numpy().tobytes())
        assert target_in == [BOS, *ids] and target_out == [*ids, EOS]
    assert want == {}


@pytest.mark.parametrize(("share", "per_epoch"), [(0.5, 6), (0.25, 2), (0.75, 18), (0.01, 1)])
def test_an_epoch_has_all_new_and_a_share_of_replayed_recordings(recordings, reader, tokenizer, share, per_epoch):
    """Of 6 new ones and 9 old ones: after 9 epochs, every old one was there equally often."""
    some = [*recordings[:6], *(replace(r, replay=share) for r in recordings[6:15])]
    pairs = speech_pairs(some, reader, tokenizer, frames_per_batch=300)
    names = {reader.feature_extractor(read_audio(r.audio, RATE)).numpy().tobytes(): r.id for r in some}
    new, old = ({r.id for r in part} for part in (some[:6], some[6:]))
    seen = Counter[str]()
    for epoch in range(9):
        got = [names[frames.numpy().tobytes()] for frames, *_ in rows(pairs, epoch)]
        assert sorted(name for name in got if name in new) == sorted(new) and len(got) == 6 + per_epoch
        seen.update(name for name in got if name in old)
    assert seen == Counter(dict.fromkeys(old, per_epoch))
    with pytest.raises(ValueError, match="training, validation and canary need recordings, but of 9 none is left"):
        speech_pairs(some[6:], reader, tokenizer, frames_per_batch=300)


def test_ctc_targets_of_another_column_alone_must_fit_the_audio(recordings, reader, tokenizer):
    """Both rows of a recording go together; a target of any length goes with a short text that is heard."""
    long = [replace(r, text=100 * "grün ", columns={"said": r.text}) for r in recordings[:2]]
    both = [*long, *(replace(r, text=f"{r.text} {r.text}", columns={"said": r.text}) for r in recordings[2:])]
    pairs = speech_pairs(both, reader, tokenizer, frames_per_batch=200, ctc_column="said")
    want = Counter((r.text, r.columns["said"]) for r in both)
    got = Counter[tuple[str, str]]()
    for made in pairs.epoch(1):
        got.update(
            (tokenizer.decode([target[: n - 1]])[0].strip(), tokenizer.decode([ctc_target[: m - 1]])[0].strip())
            for target, n, ctc_target, m in zip(
                made.target_out.tolist(),
                made.target_lengths.tolist(),
                made.ctc_targets.tolist(),
                made.ctc_target_lengths.tolist(),
                strict=True,
            )
        )
    assert got == Counter({(text.strip(), said): n for (text, said), n in want.items()})
    with pytest.raises(ValueError, match="another column of the manifests, but it is 'spoken', and there are said"):
        speech_pairs(both, reader, tokenizer, frames_per_batch=200, ctc_column="spoken")


def test_batches_are_a_function_of_seed_and_epoch(recordings, reader, tokenizer):
    def batches(seed: int, epoch: int) -> list[torch.Tensor]:
        some = {"frames_per_batch": 200, "augmentation": Augmentation(), "seed": seed}
        pairs = speech_pairs(recordings[:10], reader, tokenizer, **some)
        return [batch.source for batch in pairs.epoch(epoch)]

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return len(one) == len(other) and all(map(torch.equal, one, other))

    first = batches(1, 3)
    assert same(first, batches(1, 3))
    assert not same(first, batches(1, 4)) and not same(first, batches(2, 3))


def test_two_views_differ_only_in_their_masks(recordings, reader, tokenizer):
    """The frames are those of one view; the second has the same speed and silence, at other masks."""
    masked = Augmentation(
        speeds=(0.9, 1.1),
        n_frequency_masks=0,
        n_time_masks=1,
        time_mask_width=0.1,
        silence=0.1,
        vtlp=0.0,
    )
    some = {"frames_per_batch": 400, "augmentation": masked}
    one, two = (speech_pairs(recordings, reader, tokenizer, **some, two_views=on) for on in (False, True))
    other = shared = n_frames = 0
    for plain, both in zip(one.epoch(3), two.epoch(3), strict=True):
        assert plain.second_source is None and torch.equal(plain.source, both.source)
        assert plain.source.shape == both.second_source.shape
        for first, second, n in zip(both.source, both.second_source, both.source_lengths.tolist(), strict=True):
            differ = (first[:n] != second[:n]).any(dim=1)
            assert not second[n:].any() and differ.sum() <= 2 * 10  # at most ten frames are masked in either
            other, shared, n_frames = other + int(differ.any()), shared + int((~differ).sum()), n_frames + n
    assert other > 15 and shared > 0.5 * n_frames  # of 20 recordings; the mask may have no width
    again = speech_pairs(recordings, reader, tokenizer, **some, two_views=True)
    assert all(torch.equal(a.second_source, b.second_source) for a, b in zip(two.epoch(3), again.epoch(3), strict=True))
    assert not all(
        torch.equal(a.second_source, b.second_source) for a, b in zip(two.epoch(3), two.epoch(4), strict=False)
    )


def test_two_views_differ_in_frequency_masks_and_are_equal_without(recordings, reader, tokenizer):
    for masks, alike in ((2, False), (0, True)):
        augmentation = Augmentation(n_time_masks=0, n_frequency_masks=masks, vtlp=0.0)
        some = {"frames_per_batch": 400, "augmentation": augmentation}
        pairs = speech_pairs(recordings, reader, tokenizer, **some, two_views=True)
        assert all(torch.equal(b.source, b.second_source) == alike for b in pairs.epoch(1))


def test_two_views_have_different_vtlp_factors(recordings, folder, tokenizer):
    """Each view is the recording's log-mels stretched by a factor of its own, and no frame of it moves."""
    config = replace(FEATURES, n_coefficients=0, normalize="none")
    reader = FrameReader(FeatureExtractor(config), FeatureCache(folder / "plain"))
    some = {"augmentation": Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.2)}
    pairs = speech_pairs(recordings[:8], reader, tokenizer, frames_per_batch=400, two_views=True, **some)
    epoch = pairs.epoch(1)
    factors = []
    for rows, batch in zip(epoch.batches, epoch, strict=True):
        for i, first, second in zip(rows, batch.source, batch.second_source, strict=True):
            plain = reader(pairs.recordings[i].audio)
            grid = np.linspace(0.8, 1.2, 401)
            stretched = torch.stack([perturb_vocal_tract(plain, f, config) for f in grid])
            apart = [(stretched - view[: len(plain)]).abs().mean(dim=(1, 2)) for view in (first, second)]
            assert all(each.min() < 0.01 < 0.05 < each.max() for each in apart)
            factors.append([grid[int(each.argmin())] for each in apart])
    ones, others = np.transpose(factors)
    assert np.mean(np.abs(ones - others) > 0.02) > 0.7 and min(np.std(ones), np.std(others)) > 0.08


@pytest.mark.parametrize("how", [{"gain": 20.0}, {"lowest_snr": 0.0}])
def test_two_views_have_different_gain_and_noise(recordings, folder, tokenizer, how):
    """Each view is the recording at a level of its own, the same in all frames and bands, or with noise of its own."""
    config = replace(FEATURES, n_coefficients=0, normalize="none")
    reader = FrameReader(FeatureExtractor(config), FeatureCache(folder / "plain"))
    augmentation = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0, **how)
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=400, augmentation=augmentation, two_views=True)
    epoch, apart = pairs.epoch(1), []
    for rows, batch in zip(epoch.batches, epoch, strict=True):
        for i, first, second in zip(rows, batch.source, batch.second_source, strict=True):
            plain = reader(pairs.recordings[i].audio)
            changes = [view[: len(plain)] - plain for view in (first, second)]
            if "gain" in how:
                assert all(torch.allclose(each, each.mean(), atol=1e-4) for each in changes)
            else:
                assert all(each.median() > 0 for each in changes)  # noise adds energy
            apart.append(float((changes[0] - changes[1]).abs().mean()))
    assert np.median(apart) > 0.5


def test_only_the_first_epoch_is_sorted_by_length(recordings, reader, tokenizer):
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=200, augmentation=SPEEDS)
    longest = [[int(batch.source_lengths.max()) for batch in pairs.epoch(n)] for n in range(4)]
    assert all(len(batches) > 4 for batches in longest)
    assert [all(a <= b for a, b in pairwise(batches)) for batches in longest] == [True, False, False, False]


def test_batches_keep_the_frame_budget_and_predicted_lengths(recordings, reader, tokenizer):
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=200, augmentation=SPEEDS)
    for n in range(2):
        epoch = pairs.epoch(n)
        for batch, chosen in zip(epoch, epoch.batches, strict=True):
            assert batch.source.numel() // 10 <= 200
            for length, i in zip(batch.source_lengths.tolist(), chosen, strict=True):
                assert length in {int(lengths[i]) for lengths in pairs.n_frames.values()}
    for speed, lengths in pairs.n_frames.items():
        for r, length in zip(recordings, lengths, strict=True):
            assert length == len(reader.feature_extractor(change_speed(read_audio(r.audio, RATE), speed)))


def test_added_silence_counts_in_the_frame_budget(recordings, reader, tokenizer):
    augmentation = replace(PLAIN, silence=0.25)
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=400, augmentation=augmentation)
    (n_frames,) = pairs.n_frames.values()
    added = set()
    for n in range(10):
        epoch = pairs.epoch(n)
        for batch, chosen in zip(epoch, epoch.batches, strict=True):
            assert batch.source.numel() // 10 <= 400
            added |= {
                length - int(n_frames[i]) for length, i in zip(batch.source_lengths.tolist(), chosen, strict=True)
            }
    assert min(added) <= 3 and max(added) >= 45 and max(added) <= 50  # twice 0 ... 25 frames


@pytest.mark.parametrize("kind", ["kaldi", "whisper"])
def test_augmentations_for_natural_log_mels_are_refused_for_others(recordings, reader, tokenizer, kind):
    other = replace(reader, feature_extractor=FeatureExtractor(replace(FEATURES, log_mel=kind)))
    for fields, reason in (
        ({"vtlp": 0.1}, "vtlp=0.1"),
        ({"tilt": 3.0}, "tilt=3.0"),
        ({"silence": 0.2, "lowest_snr": 9.0}, "silence=0.2, lowest_snr=9.0"),
    ):
        with pytest.raises(ValueError, match=f"natural log-mels, but {reason} and log_mel='{kind}'"):
            speech_pairs(recordings[:2], other, tokenizer, frames_per_batch=200, augmentation=replace(PLAIN, **fields))
    usual = replace(Augmentation(), vtlp=0.0)
    assert speech_pairs(recordings[:2], other, tokenizer, frames_per_batch=200, augmentation=usual).recordings


@pytest.mark.parametrize(("speeds", "share"), [((0.9, 1.1), 1 / 2), ((0.9, 1.1, 1.1, 1.1, 1.1, 1.1), 5 / 6)])
def test_speeds_are_drawn_by_their_share_anew_each_epoch(recordings, reader, tokenizer, speeds, share):
    """One that is named more often is drawn more often."""
    augmentation = replace(SPEEDS, speeds=speeds)
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=200, augmentation=augmentation)
    made = {s: {len(reader(r.audio, speed=s)): i for i, r in enumerate(recordings)} for s in (0.9, 1.1)}
    lengths = [Counter(len(frames) for frames, _, _ in rows(pairs, n)) for n in range(3)]
    assert len({tuple(sorted(each.items())) for each in lengths}) == 3
    fast = sum(n for length, n in (lengths[0] + lengths[1] + lengths[2]).items() if length in made[1.1])
    assert abs(fast - 60 * share) < 4 * math.sqrt(60 * share * (1 - share))


@pytest.mark.parametrize(("ending", "kind"), [("wav", {}), ("opus", {"format": "OGG", "subtype": "OPUS"}), ("mp3", {})])
def test_truncated_recordings_are_left_out(tmp_path, reader, tokenizer, caplog, ending, kind):
    good = record(tmp_path, TEXTS[:2])
    path, text = tmp_path / f"cut.{ending}", " ".join(["red", "green", "blue"] * 12)
    waveform = sound(text)
    soundfile.write(path, waveform, RATE, **kind)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    there = len(read_audio(path, RATE)) / RATE
    promised = len(waveform) / RATE
    assert 0.3 * promised < there < 0.55 * promised
    caplog.clear()
    cut = Recording("cut", path, promised, "A", text)
    pairs = speech_pairs([*good, cut], reader, tokenizer, frames_per_batch=900)
    assert pairs.recordings == good and pairs.skipped["shorter than its manifest says"] == 1
    assert sum(pairs.skipped.values()) == 1
    frames = FEATURES.n_frames(round(there * RATE))
    covered = (FEATURES.frame_samples + (frames - 1) * FEATURES.hop_samples) / RATE
    assert messages(caplog)[-1].startswith(f"{path} lasts {covered:.2f} s, but its manifest says {promised:g}; ")
    assert len(messages(caplog)) == (1 if ending == "opus" else 2)  # the header of the others tells as well
    with pytest.raises(ValueError) as error:
        speech_pairs([cut], reader, tokenizer, frames_per_batch=900)
    assert str(error.value).endswith(messages(caplog)[-1])
    for seconds in (there, 0.0):  # 0: unknown
        shorter = replace(cut, seconds=seconds)
        assert speech_pairs([shorter], reader, tokenizer, frames_per_batch=900).recordings == [shorter]


@pytest.mark.parametrize(
    ("seconds", "n_vectors", "fits"),
    [
        (10.0, 1000, True), (10.0, 920, True), (10.0, 880, False), (1.0, 92, True), (1.0, 88, False),
        (0.4, 32, True), (0.4, 28, False), (0.4, 48, True), (0.4, 90, False), (0.15, 10, True),
    ],
)  # fmt: skip
def test_durations_may_differ_by_a_tenth_from_the_manifest(tmp_path, tokenizer, seconds, n_vectors, fits):
    np.save(tmp_path / "a.npy", np.ones((n_vectors, 3)))
    np.save(tmp_path / "b.npy", np.ones((20, 3)))
    reader = FrameReader(VectorReader(VectorConfig(n_features=3)), FeatureCache(tmp_path / "cache"))
    both = [
        Recording("a", tmp_path / "a.npy", seconds, "A", "red"),
        Recording("b", tmp_path / "b.npy", 0.2, "A", "red"),
    ]
    pairs = speech_pairs(both, reader, tokenizer, frames_per_batch=900)
    assert pairs.recordings == (both if fits else both[1:])


def test_unusable_recordings_are_left_out_counted_and_named(tmp_path, reader, tokenizer, caplog):
    good = record(tmp_path, TEXTS[:3])
    long = tmp_path / "long.wav"
    soundfile.write(long, np.tile(sound("red"), 30), RATE)
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "empty.wav").touch()
    soundfile.write(tmp_path / "short.wav", np.zeros(100), RATE)
    soundfile.write(tmp_path / "quick.wav", sound("red"), RATE)
    bad = [
        Recording("blank", good[0].audio, 1.0, "A", " "),
        Recording("long", long, 7.0, "A", "red"),
        Recording("liar", long, 1.0, "A", "red"),
        Recording("quick", tmp_path / "quick.wav", 0.2, "A", " ".join(["red blue"] * 15)),
        *(Recording(name, tmp_path / f"{name}.wav", 1.0, "A", "red") for name in ("text", "empty", "none", "short")),
    ]
    with caplog.at_level(logging.WARNING):
        pairs = speech_pairs(
            [*bad[:3], *good, *bad[3:]],
            reader,
            tokenizer,
            frames_per_batch=300,
            max_seconds=3.0,
            out_lengths=Frames(n_features=10, stack=2).out_lengths,
        )
    assert pairs.recordings == good
    assert pairs.skipped == {
        "blank text": 1, "longer than 3 s": 2, "shorter than its manifest says": 0, "longer than its manifest says": 0,
        "unusable sound": 4, "fewer positions than tokens": 1,
    }  # fmt: skip
    assert len(rows(pairs, 0)) == 3
    warnings = messages(caplog)
    assert len(warnings) == 5
    for name in ("text", "empty", "none", "short"):
        assert sum(line.startswith(f"{tmp_path / name}.wav cannot be ") for line in warnings) == 1
    assert warnings[-1].startswith(f"{long} lasts 7.") and "its manifest says 1; " in warnings[-1]
    assert str(pairs).startswith("3 recordings, 0.00 hours, 2 speakers, ")
    assert all(f"{n} {why}" in str(pairs) for why, n in pairs.skipped.items() if n)


@pytest.mark.parametrize("hop", [0.04, 0.005])
def test_durations_of_vectors_come_from_the_hop(tmp_path, tokenizer, hop):
    lengths = (30, 50)
    for n in lengths:
        np.save(tmp_path / f"{n}.npy", np.ones((n, 3)))
    (tmp_path / "m.tsv").write_text("audio\ttext\n30.npy\tred\n50.npy\tblue\n")
    config = VectorConfig(n_features=3, hop=hop)
    reader = FrameReader(VectorReader(config), FeatureCache(tmp_path / "cache"))
    recordings = read_manifest(tmp_path / "m.tsv")
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=900, max_seconds=2.0)
    assert [r.seconds for r in pairs.recordings] == pytest.approx([n * hop for n in lengths])
    pairs = speech_pairs(recordings, reader, tokenizer, frames_per_batch=900, max_seconds=40 * hop)
    assert [r.text for r in pairs.recordings] == ["red"]
    wrong = [replace(r, seconds=9.0) for r in recordings]
    with pytest.raises(ValueError, match=r"give --features\.hop or correct the manifest"):
        speech_pairs(wrong, reader, tokenizer, frames_per_batch=900)


def test_manifest_durations_may_be_rounded_down_to_seconds(tmp_path, reader, tokenizer):
    (first,) = record(tmp_path, TEXTS[:1])
    soundfile.write(first.audio, np.resize(soundfile.read(first.audio)[0], int(1.7 * RATE)), RATE)

    def kept(seconds):
        return speech_pairs([replace(first, seconds=seconds)], reader, tokenizer, frames_per_batch=900).recordings

    assert kept(1.0)
    with pytest.raises(ValueError, match="longer than its manifest says"):
        kept(1.1)


def test_recordings_without_a_ctc_text_are_left_out(tmp_path, reader, tokenizer):
    texts = zip(record(tmp_path, TEXTS[:3]), ("a", "b", " "), strict=True)
    good = [replace(recording, columns={"text": text}) for recording, text in texts]
    pairs = speech_pairs(good, reader, tokenizer, frames_per_batch=900, ctc_column="text")
    assert pairs.recordings == good[:2] and pairs.skipped["blank text"] == 0
    assert pairs.skipped["blank column text"] == 1


def test_no_usable_recordings_is_an_error_with_reasons(tmp_path, reader, tokenizer):
    bad = [Recording(str(i), tmp_path / "none.wav", 1.0, "A", "red") for i in range(2)]
    with pytest.raises(ValueError) as error:
        speech_pairs(bad, reader, tokenizer, frames_per_batch=300)
    assert str(error.value) == (
        "training, validation and canary need recordings, but of 2 none is left: 0 blank text, 0 longer than 30 s, 0 shorter than its "
        "manifest says, 0 longer than its manifest says, 2 unusable sound, "
        f"0 fewer positions than tokens; {tmp_path / 'none.wav'} cannot be read: No such file or directory; "
        "check the path"
    )
    with pytest.raises(ValueError) as error:
        speech_pairs([], reader, tokenizer, frames_per_batch=300)
    assert str(error.value).endswith("; look at the manifest")


def alignable(ids: list[int], n_positions: int) -> bool:
    """Does torch find an alignment?"""
    log_probs = torch.zeros(n_positions, 1, 9).log_softmax(-1)
    loss = torch.nn.functional.ctc_loss(
        log_probs, torch.tensor([ids]), torch.tensor([n_positions]), torch.tensor([len(ids)]), reduction="sum"
    )
    return bool(loss.isfinite())


@pytest.mark.parametrize("ids", [[4, 5], [4, 5, 4], [4, 4], [4, 4, 4, 5, 5], [5, 4, 4, 6]])
def test_positions_needed_are_the_fewest_that_ctc_can_align(ids):
    needed = positions_needed(ids)
    assert alignable(ids, needed) and not alignable(ids, needed - 1)


def test_padded_features_pass_the_duration_checks(tmp_path, recordings, tokenizer):
    """As a Whisper pads all sound to 30 seconds; what is longer is still left out, and so are global statistics."""
    config = replace(
        FEATURES, pad_to=30.0, log_mel="whisper", normalize="none", n_coefficients=0, frame=0.025, hop=0.01
    )
    padded, cache = FeatureExtractor(config), FeatureCache(tmp_path / "cache")
    soundfile.write(tmp_path / "long.wav", np.random.default_rng(1).normal(size=40 * RATE) * 0.3, RATE)
    some = [*recordings[:3], Recording("long", tmp_path / "long.wav", 1.0, "A", "red")]
    for speeds in ((1.0,), (0.9, 1.0)):
        pairs = speech_pairs(
            some,
            FrameReader(padded, cache),
            tokenizer,
            frames_per_batch=6000,
            max_seconds=20.0,
            augmentation=replace(PLAIN, speeds=speeds),
        )
        assert [r.id for r in pairs.recordings] == [r.id for r in recordings[:3]]
    made = make_feature_extractor(replace(config, normalize="global"), some, cache, workers=0, max_seconds=20.0)
    assert isinstance(made, FeatureExtractor) and made.mean is not None and made.mean.isfinite().all()


def test_global_statistics_are_those_of_all_training_frames(recordings, folder, caplog):
    config = replace(FEATURES, normalize="global")
    bad = Recording("none", folder / "none.wav", 1.0, "A", "red")
    feature_extractor = make_feature_extractor(config, [*recordings, bad], FeatureCache(folder / "cache"), workers=0)
    plain = FeatureExtractor(replace(FEATURES, normalize="none"))
    frames = np.concatenate([plain(read_audio(r.audio, RATE)).double().numpy() for r in recordings])
    np.testing.assert_allclose(feature_extractor.mean.numpy(), frames.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(feature_extractor.std.numpy(), frames.std(axis=0), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError) as error:
        make_feature_extractor(config, [bad], FeatureCache(folder / "cache"), workers=0)
    assert f"{bad.audio} cannot be read: No such file or directory" in str(error.value)


def test_global_statistics_leave_out_too_long_recordings(tmp_path, recordings):
    """A long recording of noise, whether its manifest says how long or not."""
    config, cache = replace(FEATURES, normalize="global"), FeatureCache(tmp_path / "cache")
    noise = np.random.default_rng(1).normal(size=40 * RATE) * 0.3
    soundfile.write(tmp_path / "long.wav", noise, RATE)
    long = [Recording(str(s), tmp_path / "long.wav", s, "A", "red") for s in (40.0, 1.0)]
    want, loud = (
        make_feature_extractor(config, recordings, cache, 0),
        make_feature_extractor(config, [*recordings, long[0]], cache, 0),
    )
    assert (loud.mean - want.mean).abs().max() > 1
    for more in ([long[0]], [long[1]], long):
        got = make_feature_extractor(config, [*more, *recordings], cache, 0, max_seconds=3.0)
        torch.testing.assert_close(got.mean, want.mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(got.std, want.std, rtol=0, atol=1e-5)
    for none, reason in (([long[0]], "of 1 recordings none lasts 3 s or less"), ([], "there are none")):
        with pytest.raises(ValueError) as error:
            make_feature_extractor(config, none, cache, 0, max_seconds=3.0)
        assert str(error.value) == f"normalize=global needs training data that can be used, but none can: {reason}"


def test_precomputed_vectors_are_batched_unchanged(tmp_path, tokenizer, caplog):
    rng = np.random.default_rng(1)
    recordings = []
    for i, text in enumerate(TEXTS[:5]):
        np.save(tmp_path / f"{i}.npy", rng.normal(size=(20 + i, 3)))
        recordings.append(Recording(str(i), tmp_path / f"{i}.npy", 0.2, "A", text))
    np.save(tmp_path / "wide.npy", np.zeros((20, 4)))
    wide = Recording("wide", tmp_path / "wide.npy", 0.2, "A", "red")
    config, cache = VectorConfig(n_features=3, normalize="none"), FeatureCache(tmp_path / "cache")
    reader = FrameReader(make_feature_extractor(config, recordings, cache, 0), cache)
    assert isinstance(reader.feature_extractor, VectorReader) and reader.n_features == 3
    with caplog.at_level(logging.WARNING):
        pairs = speech_pairs(
            [*recordings, wide], reader, tokenizer, frames_per_batch=60, augmentation=SPEEDS, max_seconds=0.23
        )
    unusable, long = messages(caplog)
    assert unusable.startswith(f"{wide.audio} cannot be used: ") and "(20, 4)" in unusable
    assert long.startswith(f"{recordings[4].audio} lasts 0.24 s, but its manifest says 0.2; ")
    assert pairs.recordings == recordings[:4] and list(pairs.n_frames) == [1.0]  # vectors have no speed
    got = {len(frames): frames.numpy() for frames, _, _ in rows(pairs, 1)}
    for i in range(4):
        assert np.array_equal(got[20 + i], np.load(tmp_path / f"{i}.npy").astype(np.float32))
    assert not cache.directory.exists()
