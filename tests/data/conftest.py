"""Recordings of tones that stand for words, and what makes frames of them."""

from pathlib import Path

import pytest

from tests.runs import FEATURES, record, sentences
from transduce.data.speech.feature_cache import FeatureCache
from transduce.data.speech.features import FeatureExtractor
from transduce.data.speech.manifest import Recording
from transduce.data.speech.pairs import FrameReader

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
