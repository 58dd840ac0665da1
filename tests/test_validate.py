"""What a training looks at, computed another way."""

import math

import pytest
import sacrebleu
import torch
import torch.nn.functional as F

import transduce as td
from tests.runs import ENGLISH, GERMAN, random_run
from transduce.data.corpus import ParallelText
from transduce.data.pairs import TextPairs
from transduce.data.tokenizer import BOS, EOS
from transduce.decoding import GREEDY
from transduce.validate import TranslationValidation, held_out_loss


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return td.load(random_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def pairs(translator):
    text = ParallelText(ENGLISH[:6], GERMAN[:6])
    return TextPairs.encode(text, translator.source_tokenizer, translator.tokenizer, tokens_per_batch=60)


def test_held_out_loss_is_the_mean_over_tokens_each_sentence_alone(translator, pairs):
    total, n_tokens = 0.0, 0
    with torch.no_grad():
        for source, target in zip(ENGLISH[:6], GERMAN[:6], strict=True):
            (s,), (t,) = translator.source_tokenizer.encode([source]), translator.tokenizer.encode([target])
            logits = translator.model(source=torch.tensor([[*s, EOS]]), target_in=torch.tensor([[BOS, *t]]))
            total += F.cross_entropy(logits[0], torch.tensor([*t, EOS]), reduction="sum").item()
            n_tokens += len(t) + 1
    assert held_out_loss(translator.model, pairs.epoch(0)) == pytest.approx(total / n_tokens, rel=1e-5)


def test_validation_is_loss_and_the_bleu_of_what_greedy_search_says(translator, pairs):
    validation = TranslationValidation(translator, ENGLISH[:6], GERMAN[:6], pairs.epoch(0), n_samples=2)
    first, again = validation(translator.model), validation(translator.model)
    outputs = translator(ENGLISH[:6], GREEDY)
    bleu = sacrebleu.corpus_bleu(outputs, [GERMAN[:6]]).score
    loss = held_out_loss(translator.model, pairs.epoch(0))
    assert first.metrics == {"loss": loss, "perplexity": math.exp(loss), "bleu": bleu}
    assert first.score == bleu
    assert first.samples == again.samples == [(ENGLISH[i], GERMAN[i], outputs[i]) for i in (0, 3)]
