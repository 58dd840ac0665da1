"""Runs that several modules read, made once; whoever changes one takes a copy, or makes one of its own."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.language_runs import language_run
from tests.runs import LITTLE, random_run, random_speech_run, record, sentences
from transduce.data.manifest import Recording


@pytest.fixture(scope="session")
def text_run(once) -> Path:
    """What translates."""
    return once("text", lambda folder: random_run(folder, model=LITTLE))


@pytest.fixture(scope="session")
def two_vocabularies(once) -> Path:
    """What translates, each language with tokens of its own."""
    return once("two vocabularies", lambda folder: random_run(folder, joint=False, model=LITTLE))


@pytest.fixture(scope="session")
def speech_run(once) -> Path:
    """What transcribes."""
    return once("speech", random_speech_run)


@pytest.fixture(scope="session")
def letters_run(once) -> Path:
    """What goes on from a prompt, letter by letter."""
    return once("letters", language_run)


@pytest.fixture(scope="session")
def transcriber(speech_run) -> td.Transcriber:
    """In float64, so that no batch moves a near tie."""
    return td.load_transcriber(speech_run, dtype=torch.float64)


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> Sequence[Recording]:
    """Eight, in files."""
    return record(tmp_path_factory.mktemp("sound"), sentences(8))
