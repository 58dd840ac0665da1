"""Recordings of tones that stand for words, and what makes frames of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runs import FEATURES, record, sentences
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import FeatureCache, FeatureExtractor
from transduce.data.frame_reader import FrameReader
from transduce.data.manifest import Recording
from transduce.data.speech_batches import SpeechPairs, SpeechPairsConfig

TEXTS = sentences(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def recordings(folder) -> list[Recording]:
    return record(folder, TEXTS)


@pytest.fixture(scope="module")
def reader(folder) -> FrameReader:
    return FrameReader(FeatureExtractor(FEATURES), FeatureCache(folder / "cache"))


def speech_pairs(
    recordings: Sequence[Recording],
    reader: FrameReader,
    tokenizer: Tokenizer,
    out_lengths: Callable = lambda n_frames: n_frames,
    **settings: Any,
) -> SpeechPairs:
    """SpeechPairs with these fields of their configuration."""
    return SpeechPairs(recordings, reader, tokenizer, SpeechPairsConfig(**settings), out_lengths)
