"""The benchmark gives transformers, and from there CTranslate2, the run's own model."""

import importlib.util

import pytest
import torch

import transduce as td
from scripts.bench_translation import as_marian, engine
from tests.runs import ENGLISH, random_run


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return td.load_translator(random_run(tmp_path_factory.mktemp("run")))


@torch.inference_mode()
def test_transformers_gives_the_same_logits(translator):
    bos, eos = translator.tokenizer.required("bos_id", "eos_id")
    theirs = as_marian(translator.model, bos, eos)
    source, target = torch.tensor([translator.sources(ENGLISH)[1]]), torch.tensor([[bos, 7, 300, 12, 9]])
    want = theirs(input_ids=source, attention_mask=torch.ones_like(source), decoder_input_ids=target).logits
    got = translator.model(source=source, source_lengths=torch.tensor([source.size(1)]), target_in=target)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="needs the extra bench")
def test_ctranslate2_gives_the_same_translations(translator, tmp_path):
    lines = sorted({*ENGLISH})
    theirs = engine(translator, tmp_path, "float32", threads=1, beam_size=1, batch=4)(lines)
    ours = translator(lines, beam_size=1, max_length=200, length_ratio=0, length_extra=200)
    assert [text[:60] for text in theirs] == [text[:60] for text in ours]
