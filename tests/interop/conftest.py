"""What the tests against transformers share: the library, imported before the time of a test is counted, and its tokenizers."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

from tests.interop.rivals import sentencepiece_model
from tests.runs import ENGLISH, GERMAN


@pytest.fixture(scope="session")
def transformers() -> None:
    """Import transformers, which takes seconds, and silence it."""
    from transformers import GenerationMixin, PreTrainedModel  # noqa: F401
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(scope="session")
def spm() -> list[bytes]:
    """SentencePiece models of the source and of the target."""
    return [sentencepiece_model(ENGLISH, vocab_size=90), sentencepiece_model(GERMAN, vocab_size=90, kind="bpe")]
