"""An imported Marian model against transformers, the library that wrote it: logits, beam search and greedy search."""

import json
import os
import random
import re
from pathlib import Path

import pytest
import torch
from bench.marian import Marian, import_marian
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.scorer import ModelScorer
from transduce.interop.weights import residual_order
from transduce.model.inputs import sinusoidal

SENTENCES, LONGEST, BOUND = 50, 17, 23


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def rival(directory: Path, **settings) -> MarianMTModel:
    """A MarianMTModel with random weights, saved."""
    torch.manual_seed(0)
    defaults = {
        "vocab_size": 29, "decoder_vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 23, "decoder_ffn_dim": 23,
        "activation_function": "relu", "scale_embedding": True, "max_position_embeddings": 37, "init_std": 0.3,
        "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": None,
    }  # fmt: skip
    model = MarianMTModel(MarianConfig(**(defaults | settings))).eval()
    model.save_pretrained(directory)
    return model


def sources(rng: torch.Generator, rows: int = SENTENCES) -> tuple[Tensor, Tensor, Tensor]:
    """Ids with random ones in the padding, their lengths, and 1 where they are real."""
    lengths = torch.randint(1, LONGEST + 1, (rows,), generator=rng)
    lengths[0] = LONGEST
    source = torch.randint(2, 29, (rows, LONGEST), generator=rng)
    return source, lengths, (torch.arange(LONGEST) < lengths[:, None]).long()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_embedding": False, "activation_function": "gelu"},
        {"activation_function": "gelu_new", "encoder_layers": 1},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    ],
    ids=lambda settings: ",".join(settings) or "defaults",
)
def test_logits_equal_those_of_transformers(tmp_path, rng, settings):
    theirs = rival(tmp_path, **settings)
    ours = import_marian(tmp_path)
    source, lengths, visible = sources(rng, rows=5)
    target = torch.randint(2, 29, (5, 7), generator=rng)
    with torch.no_grad():
        want = theirs(input_ids=source, attention_mask=visible, decoder_input_ids=target).logits
        got = ours.model(source=source, source_lengths=lengths, target_in=target)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (1, 0, 1)
    assert not ours.model.training


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[MarianMTModel, Marian, Tensor, Tensor, Tensor]:
    """Both models and sources. A moment's training to copy makes EOS come at all sorts of steps."""
    directory, rng = tmp_path_factory.mktemp("marian"), torch.Generator().manual_seed(0)
    theirs, (source, lengths, visible) = rival(directory, dropout=0.0), sources(rng)
    target = torch.nn.functional.pad(source.where(visible == 1, -100), (0, 1), value=-100)
    target = target.scatter(1, lengths[:, None], theirs.config.eos_token_id)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        theirs(input_ids=source, attention_mask=visible, labels=target).loss.backward()
        optimizer.step()
    theirs.save_pretrained(directory)
    return theirs, import_marian(directory), source, lengths, visible


def search(ours: Marian, source: Tensor, lengths: Tensor, beam_size: int | None) -> list[Hypothesis]:
    with torch.no_grad():
        scorer = ModelScorer(ours.model, ours.model.encode(source, lengths))
    starts = torch.full_like(source[:, :1], ours.bos_id)
    constraints = Constraints(torch.full_like(lengths, BOUND), eos_id=ours.eos_id, suppressed=[ours.pad_id])
    if beam_size is None:
        return [h for (h,) in Sampler(scorer, starts, constraints, sampling=GREEDY).run()]
    return [best for best, *_ in beam_search(scorer, starts, constraints, BeamConfig(beam_size=beam_size, alpha=0.0))]


@pytest.mark.parametrize(
    ("seed", "n"),
    [(0, 8), pytest.param(1, 100, marks=pytest.mark.long), pytest.param(1, 300, marks=pytest.mark.nightly)],
)
def test_beam_search_by_score_with_rules_equals_generate(pair, seed, n):
    """Random sources, beams, bounds and rules; with `finished_first`, some outputs are others."""
    theirs, ours, source, lengths, visible = pair
    rng, differ = random.Random(seed), 0
    for _ in range(n):
        rows = torch.tensor(rng.sample(range(SENTENCES), 3))
        beam_size, bound = rng.randint(2, 6), rng.randint(1, 12)
        n_best, ngram = rng.randint(1, beam_size), rng.choice([0, 0, 2, 3])
        least, banned = rng.randrange(bound), tuple(rng.sample(range(2, 29), rng.choice([0, 3])))
        alpha, early = rng.choice([0.0, 1.0, 0.7]), rng.random() < 0.3
        output = theirs.generate(
            input_ids=source[rows], attention_mask=visible[rows], num_beams=beam_size, do_sample=False,
            length_penalty=alpha, early_stopping=early, max_new_tokens=bound, num_return_sequences=n_best,
            min_new_tokens=least or None, no_repeat_ngram_size=ngram, suppress_tokens=[ours.pad_id, *banned],
        )  # fmt: skip
        want = [[token for token in row[1:] if token != ours.pad_id] for row in output.tolist()]
        starts, got = torch.full((3, 1), ours.bos_id), {}
        for at_max_length in ("by_score", "finished_first"):
            with torch.no_grad():
                scorer = ModelScorer(ours.model, ours.model.encode(source[rows], lengths[rows]))
            rules = RulesConfig(min_length=least, no_repeat_ngram=ngram, suppress=banned)
            constraints = Constraints(
                torch.full((3,), bound), eos_id=ours.eos_id, suppressed=[ours.pad_id], config=rules
            )
            how = {"beam_size": beam_size, "n_best": n_best, "at_max_length": at_max_length}
            how |= {"alpha": alpha, "length_offset": 0.0, "early_stopping": early}
            hypotheses = [h for each in beam_search(scorer, starts, constraints, BeamConfig(**how)) for h in each]
            got[at_max_length] = [h.tokens + [ours.eos_id] * h.finished for h in hypotheses]
        assert got["by_score"] == want, (beam_size, bound, n_best, ngram, least, banned, alpha, early)
        differ += got["finished_first"] != want
    assert n < 100 or differ


@pytest.mark.parametrize("beam_size", [None, 4, 5])
def test_search_equals_generate(pair, beam_size):
    theirs, ours, source, lengths, visible = pair
    output = theirs.generate(
        input_ids=source, attention_mask=visible, num_beams=beam_size or 1, do_sample=False, length_penalty=0.0,
        early_stopping=False, max_new_tokens=BOUND, bad_words_ids=[[ours.pad_id]],
    )  # fmt: skip
    want = [[token for token in row[1:] if token != ours.pad_id] for row in output.tolist()]
    got = search(ours, source, lengths, beam_size)
    assert [h.tokens + [ours.eos_id] * h.finished for h in got] == want
    assert len({len(h.tokens) for h in got if h.finished}) > 5, sorted(len(h.tokens) for h in got if h.finished)


def test_residual_order_maps_their_positions_to_ours(pair):
    theirs, *_ = pair
    table = theirs.model.encoder.embed_positions.weight
    torch.testing.assert_close(table[:, residual_order(16)], sinusoidal(0, 37, 16), rtol=0, atol=1e-6)


# What is refused


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_type", "bart", "model_type must be 'marian', but in {} it is 'bart'"),
        (
            "activation_function",
            "tanh",
            "activation_function must be 'gelu_new' or 'gelu_pytorch_tanh' or 'gelu' or 'relu' or 'silu' or 'swish', "
            "but in {} it is 'tanh'",
        ),
        (
            "decoder_attention_heads",
            4,
            "encoder_attention_heads must equal decoder_attention_heads, but in {} they are 2 and 4",
        ),
        ("decoder_ffn_dim", 19, "encoder_ffn_dim must equal decoder_ffn_dim, but in {} they are 23 and 19"),
        (
            "decoder_layers",
            4,
            "weights must fit the configuration, but in {} model.decoder.layers.3.self_attn.q_proj.weight is missing; "
            "model.decoder.layers.3.self_attn.k_proj.weight is missing; "
            "model.decoder.layers.3.self_attn.v_proj.weight is missing; "
            "model.decoder.layers.3.self_attn.q_proj.bias is missing; "
            "model.decoder.layers.3.self_attn.k_proj.bias is missing",
        ),
        (
            "vocab_size",
            30,
            "weights must fit the configuration, but in {} lm_head.weight is (29, 16) instead of (30, 16); "
            "model.encoder.embed_tokens.weight is (29, 16) instead of (30, 16); "
            "model.decoder.embed_tokens.weight is (29, 16) instead of (30, 16)",
        ),
    ],
)
def test_unsupported_configs_are_refused(tmp_path, name, value, message):
    rival(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | {name: value}), encoding="utf-8")
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(tmp_path))}$"):
        import_marian(tmp_path)


def test_an_invalid_pytorch_bin_is_refused(tmp_path):
    rival(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    message = (
        f"{tmp_path}/pytorch_model.bin must be a complete file with nothing but tensors, but torch.load with weights_only=True refuses "
        "it: IndexError; take another copy, or model.safetensors"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        import_marian(tmp_path)
