"""A table padded to a round number of rows gives the same model, loss, gradients and export."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.language_runs import untokenized
from transduce.config import from_dict, to_dict
from transduce.data.batch import IGNORE, pair_batch
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.data.text_batches import window_batch
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig
from transduce.decode.rules import Constraints
from transduce.decode.scorer import ModelScorer
from transduce.interop import read_model
from transduce.interop.language_models import export_language_model
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.presets import gpt2
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.losses import cross_entropy, projected_loss
from transduce.train.objectives import CrossEntropy

V, ROWS = 13, 16
STACK = StackConfig(input=Tokens(vocab_size=V), n_layers=1)
SMALL = {"d_model": 8, "n_heads": 2, "d_ff": 12, "dropout": 0.0}
TRANSLATION = TransformerConfig(encoder=STACK, decoder=STACK, tie="all", **SMALL)
SPEECH = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=4), n_layers=1), decoder=STACK, ctc=True, **SMALL
)
LANGUAGE = replace(gpt2(V), decoder=STACK, max_positions=16, attention_dropout=0.0, **SMALL)
CONFIGS = {
    "translation": TRANSLATION,
    "speech": SPEECH,
    "language": LANGUAGE,
    "untied": replace(LANGUAGE, tie="none"),
    "masked": TransformerConfig(encoder=STACK, **SMALL),
}


def with_padded_tables(config: TransformerConfig) -> TransformerConfig:
    """The same configuration with tables of ROWS rows."""
    halves = {
        name: replace(stack, input=replace(stack.input, multiple=8))
        for name in ("encoder", "decoder")
        if (stack := getattr(config, name)) is not None and isinstance(stack.input, Tokens)
    }
    return replace(config, **halves)


def pair(name: str) -> tuple[Transformer, Transformer]:
    """The model, and the same with padded tables: rows of the same seed, then rows of garbage."""
    models = []
    for config in (CONFIGS[name], with_padded_tables(CONFIGS[name])):
        torch.manual_seed(5)
        models.append(Transformer(config).double())
    plain, padded = models
    own = dict(padded.named_parameters())
    tables = [key for key, p in plain.named_parameters() if p.shape != own[key].shape]
    assert tables and all(own[key].shape == (ROWS, 8) for key in tables)
    with torch.no_grad():
        for key in tables:
            assert own[key][V:].count_nonzero() == 0
            own[key][V:] = 50.0  # as a softmax over all rows would notice
    return plain, padded


def batch_for(model: Transformer):
    batch = pair_batch([[5, 6, 7, 8, 9, EOS], [7, 8, 9, EOS]], [[8, EOS], [9, 10, EOS]], bos=BOS)
    if model.config.decoder is None:
        chosen = torch.where(batch.source > 6, batch.source, IGNORE)
        return replace(batch, target_in=batch.source, target_out=chosen, n_tokens=6)
    if model.config.encoder is None:
        return window_batch([torch.arange(9).numpy(), torch.arange(3, 12).numpy()])
    if isinstance(model.config.encoder.input, Frames):
        rng = torch.Generator().manual_seed(2)
        return replace(batch, source=torch.randn(2, 6, 4, generator=rng, dtype=torch.float64))
    return batch


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_equal_and_zero_in_padded_rows(name, smoothing):
    gradients, losses = [], []
    for model in pair(name):
        speech = name == "speech"
        config = LossConfig(label_smoothing=smoothing, ctc_weight=0.3 if speech else 0.0)
        objective = CrossEntropy(model, config)
        losses.append(objective(batch_for(model)).total)
        losses[-1].backward()
        gradients.append({key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-14, atol=0)
    for key, want in gradients[0].items():
        got = gradients[1][key]
        torch.testing.assert_close(got[: len(want)], want, rtol=1e-11, atol=1e-13)
        assert got[len(want) :].count_nonzero() == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_bitwise_equal(name):
    plain, padded = pair(name)
    batch = batch_for(plain)
    inputs = {"source": batch.source, "source_lengths": batch.source_lengths} if plain.encoder is not None else {}
    if plain.decoder is not None:
        inputs["target_in"] = batch.target_in
    want = plain(**inputs)
    assert want.size(-1) == V and torch.equal(padded(**inputs), want)
    if plain.ctc is not None:
        memory = plain.encode(batch.source).states
        assert torch.equal(padded.ctc_logits(memory), plain.ctc_logits(memory))


def test_loss_equals_torch_over_the_real_classes(rng):
    states = torch.randn(9, 8, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(ROWS, 8, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(V, (9,), generator=rng)
    (got,) = projected_loss(partial(cross_entropy, smoothing=0.2), states, weight, targets, n_classes=V)
    want = F.cross_entropy(states @ weight[:V].T, targets, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(got, (states, weight)), torch.autograd.grad(want, (states, weight)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_beam_search_is_the_same_with_padded_tables():
    got = []
    for model in pair("translation"):
        source = torch.randint(3, V, (3, 5), generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            scorer = ModelScorer(model.eval(), model.encode(source))
            constraints = Constraints(torch.tensor([6, 6, 6]), eos_id=EOS)
            beams = beam_search(scorer, torch.full((3, 1), BOS), constraints, BeamConfig(beam_size=4, n_best=4))
        got.append([[(h.tokens, h.log_prob) for h in hypotheses] for hypotheses in beams])
    assert got[0] == got[1]


@pytest.mark.parametrize("name", ["language", "untied"])
def test_gpt2_export_drops_padded_rows(tmp_path, name):
    plain, padded = pair(name)
    export_language_model(untokenized(plain.float()), tmp_path / "plain", "gpt2")
    export_language_model(untokenized(padded.float()), tmp_path / "padded", "gpt2")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "padded" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    assert load_file(tmp_path / "padded" / "model.safetensors")["transformer.wte.weight"].shape == (V, 8)
    again = read_model(tmp_path / "padded")
    assert again.config.decoder.input == Tokens(vocab_size=V)
    ids = torch.arange(9)[None]
    assert torch.equal(again(target_in=ids), padded.eval()(target_in=ids))


def test_padded_size_is_the_next_multiple():
    assert [Tokens(vocab_size=n, multiple=128).padded_size for n in (1, 127, 128, 129, 50257)] == [
        128,
        128,
        128,
        256,
        50304,
    ]
    assert Tokens(vocab_size=50257).padded_size == 50257


def test_old_configurations_have_no_padded_tables():
    plain = to_dict(TRANSLATION)
    for half in ("encoder", "decoder"):
        del plain[half]["input"]["multiple"]
    assert from_dict(TransformerConfig, plain, "config.json") == TRANSLATION


def test_tied_tables_must_have_one_size():
    other = replace(STACK, input=Tokens(vocab_size=V, multiple=8))
    message = (
        "tie='all' needs one vocabulary on both sides, but encoder.input=Tokens(vocab_size=13, multiple=1) and "
        "decoder.input=Tokens(vocab_size=13, multiple=8); use tie='output'"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(TRANSLATION, decoder=other)
