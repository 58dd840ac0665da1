"""What a model tells of outputs that are given: each one alone, by its forward pass, without a batch and without padding."""

import math

import numpy as np
import pytest
import torch

import transduce as td
from tests.language_runs import language_model, language_run
from tests.runs import ENGLISH, FEATURES, GERMAN, LITTLE, RATE, sentences, sound
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.features import FeatureExtractor
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.data.text_batches import mask_id
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.tasks.perplexity import measure_perplexity

SOURCES, TARGETS = [*ENGLISH[:3], "a", ""], [*GERMAN[:3], "", "b c"]
FEW = td.SearchConfig(batch_tokens=40)


@pytest.fixture(scope="module")
def translator(two_vocabularies):
    """With small batches, so that lengths differ within one and there are several."""
    got = td.load(two_vocabularies, dtype=torch.float64)
    got.decoding = FEW
    return got


@pytest.fixture(scope="module")
def model(two_vocabularies):
    """The same weights, loaded apart and computed by layers."""
    return td.load_model(two_vocabularies).double().eval()


def rows(translator: td.Translator) -> list[tuple[list[int], list[int]]]:
    sources, targets = translator.source_tokenizer.encode(SOURCES), translator.tokenizer.encode(TARGETS)
    return [([*s, EOS], [*t, EOS]) for s, t in zip(sources, targets, strict=True)]


@torch.no_grad()
def test_encoder_states_equal_those_of_single_lines(translator, model):
    got = translator.encode(SOURCES)
    assert [states.shape for states in got] == [(len(s), LITTLE.d_model) for s, _ in rows(translator)]
    for states, (source, _) in zip(got, rows(translator), strict=True):
        torch.testing.assert_close(states, model.encode(torch.tensor([source])).states[0], rtol=0, atol=1e-10)


def test_encoding_computes_as_much_at_once_as_the_call_says(translator, monkeypatch):
    """Else it might not fit into memory."""
    encode, n_rows = translator.engine.encode, []
    monkeypatch.setattr(
        translator.engine, "encode", lambda source, lengths: (n_rows.append(len(source)), encode(source, lengths))[1]
    )
    translator.encode(SOURCES, batch_tokens=1)
    assert n_rows == [1] * len(SOURCES)


@torch.no_grad()
def test_forced_scores_are_the_chain_rule_written_out(translator, model):
    ours = translator.score(SOURCES, TARGETS)
    for got, (source, target) in zip(ours, rows(translator), strict=True):
        for t, token in enumerate(target):
            before = torch.tensor([[BOS, *target[:t]]])
            logits = model(source=torch.tensor([source]), target_in=before)[0, -1].tolist()
            want = logits[token] - math.log(sum(math.exp(x) for x in logits))
            assert got.log_probs[t].item() == pytest.approx(want, abs=1e-10)
        assert len(got.log_probs) == len(got.tokens) == len(target)
        assert got.log_prob == pytest.approx(sum(got.log_probs.tolist()))
    assert "".join(ours[0].tokens[:-1]).replace("▁", " ").strip() == TARGETS[0] and ours[0].tokens[-1] == "</s>"


@torch.no_grad()
def test_alignments_equal_the_attention_weights_of_single_pairs(translator, model):
    """By hand for every layer and head: the softmax of scaled products of queries and keys."""
    ours = translator.align(SOURCES, TARGETS)
    for got, (source, target) in zip(ours, rows(translator), strict=True):
        memory = model.encode(torch.tensor([source]))
        seen: list[tuple] = []
        hooks = [
            layer.cross.register_forward_hook(lambda m, inputs, _, seen=seen: seen.append((m, *inputs[:2])))
            for layer in model.decoder.layers
        ]
        model.decode(torch.tensor([[BOS, *target[:-1]]]), memory=memory)
        for hook in hooks:
            hook.remove()
        want = []
        for cross, x, context in seen:
            key = cross.project(context.memory).key
            query = cross.q(x)[0].unflatten(-1, (key.size(1), -1)).transpose(0, 1)
            products = torch.einsum("hte,hse->hts", query, key[0]) / math.sqrt(query.size(-1))
            want.append(products.exp() / products.exp().sum(-1, keepdim=True))
        torch.testing.assert_close(got.weights, torch.stack(want), rtol=0, atol=1e-10)
        assert (len(got.source), len(got.target), got.seconds) == (len(source), len(target), None)
    assert ours[0].source[-1] == ours[0].target[-1] == "</s>"


def test_attention_map_without_words_shows_the_penultimate_layer(monkeypatch):
    drawn = []
    monkeypatch.setattr("transduce.tasks.seq2seq.attention_map", lambda *parts: drawn.append(parts))
    weights = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(5), size=(3, 2, 4))).float()
    for layers, of in ((weights, 1), (weights[:1], 0)):
        td.Alignment([], list("wxyz"), layers, 0.04).draw("a.png")
        shown, *rest, title, _ = drawn.pop()
        torch.testing.assert_close(shown, (layers[of, 0] + layers[of, 1]) / 2)
        assert rest == [list("wxyz"), 0.04] and title == f"layer {of + 1} of {len(layers)}, mean over heads"


@torch.no_grad()
def test_states_scores_and_alignments_of_audio(speech_run, tmp_path):
    transcriber, model = td.load(speech_run), td.load_model(speech_run).eval()
    texts = sentences(4, seed=5)
    sounds = [(sound(text, seed=i).astype(np.float32), RATE) for i, text in enumerate(texts)]
    states, scores = transcriber.encode(sounds), transcriber.score(sounds, texts)
    alignments = transcriber.align(sounds, texts)
    extractor = FeatureExtractor(FEATURES)
    for i, (samples, _) in enumerate(sounds):
        frames, (ids,) = extractor(torch.from_numpy(samples))[None], transcriber.tokenizer.encode([texts[i]])
        torch.testing.assert_close(states[i], model.encode(frames).states[0], rtol=1e-4, atol=1e-4)
        logits = model(source=frames, target_in=torch.tensor([[BOS, *ids]]))[0]
        want = -torch.nn.functional.cross_entropy(logits, torch.tensor([*ids, EOS]), reduction="none")
        torch.testing.assert_close(scores[i].log_probs, want, rtol=1e-4, atol=1e-4)
        assert alignments[i].weights.shape == (2, 2, len(ids) + 1, len(states[i]))
        assert alignments[i].seconds == pytest.approx(2 * FEATURES.hop)
        assert len(states[i]) * alignments[i].seconds == pytest.approx(len(samples) / RATE, abs=0.05)
    with pytest.raises(ValueError) as error:
        transcriber.encode([*sounds, (np.zeros(RATE), RATE)])
    assert str(error.value) == "a sound must have samples other than 0, but sound 5 is silent; leave it out"
    with pytest.raises(ValueError, match=r"none\.wav cannot be read: No such file or directory; check the path"):
        transcriber.encode([tmp_path / "none.wav"])


@pytest.mark.parametrize("kind", ["characters", "bytes", "sentencepiece"])
def test_token_scores_add_up_to_the_perplexity(tmp_path, kind):
    generator = td.load(language_run(tmp_path / "run", kind))
    texts = ["All: Speak", "ROMEO:\nit's", "light!"]
    for text, got in zip(texts, generator.score(texts), strict=True):
        want = measure_perplexity(generator.model, generator.tokenizer, text)
        assert (-got.log_prob, len(got.tokens)) == (pytest.approx(want.nats, rel=1e-5), want.n_tokens)


@torch.no_grad()
def test_each_token_of_a_text_is_predicted_from_those_before_it(letters_run):
    generator = td.load(letters_run)
    got, short = generator.score(["All: Speak", "A"])
    (ids,) = generator.tokenizer.encode(["All: Speak"])
    model = language_model(generator.tokenizer.vocab_size)
    for t in range(1, len(ids)):
        want = model(target_in=torch.tensor([ids[:t]]))[0, -1].double().softmax(-1)[ids[t]].log().item()
        assert got.log_probs[t - 1].item() == pytest.approx(want, abs=1e-5)
    assert "".join(got.tokens) == "ll: Speak" and (short.tokens, short.log_prob) == ([], 0.0)


@torch.no_grad()
def test_encoder_states_of_a_masked_language_model(rng):
    tokenizer = CharTokenizer.train(["abcdefgh"])
    stack = StackConfig(input=Tokens(vocab_size=mask_id(tokenizer) + 1), n_layers=1)
    model = Transformer(TransformerConfig(encoder=stack, d_model=8, n_heads=2, d_ff=11)).eval()
    lines = ["abc", "hgfedcba", "a"]
    got = td.FillMask(model, tokenizer).encode(lines, batch_tokens=16)
    for states, ids in zip(got, tokenizer.encode(lines), strict=True):
        torch.testing.assert_close(states, model.encode(torch.tensor([ids])).states[0], rtol=0, atol=1e-5)
    with pytest.raises(ValueError) as error:
        td.FillMask(model, tokenizer).encode(["a", ""])
    assert str(error.value) == "a line must have a token to encode, but line 2 has none; leave it out"


def test_invalid_inputs_are_refused(translator, tmp_path):
    for call, message in (
        (lambda: translator.score(["a", "b"], ["c"]), "every input has one given text, but there are 2 inputs and 1 texts"),
        (lambda: translator.score(["a", "b"], ["c", None]),
         "given outputs are a list of texts, but element 1 is None, which UTF-8 cannot hold; make text of it"),
        (lambda: td.load(language_run(tmp_path / "run", positions="learned")).score(["A", "A" * 42]),
         "text 2 must fit into the model's learned positions, which end at 40, but it takes 41; split it"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == message
    for call, name in ((lambda: translator.score(["a"], "c"), "c"), (lambda: translator.encode("a"), "a")):
        with pytest.raises(ValueError, match=rf"list of .*one string; use \['{name}'\]$"):
            call()
    assert translator.encode([]) == translator.score([], []) == translator.align([], []) == []
