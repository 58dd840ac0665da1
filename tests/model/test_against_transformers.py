"""Configurations for five models of `transformers`: random weights copied over, the same logits."""

import pytest
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from transduce.model.cache import Taps
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

SIZES = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "attn_implementation": "eager",
}

LLAMA = TransformerConfig(
    decoder=StackConfig(input=Tokens(vocab_size=47), n_layers=3),
    d_model=24,
    d_ff=37,
    n_heads=6,
    n_kv_heads=2,
    positions="rotary",
    norm="rms",
    norm_position="pre",
    gated=True,
    activation="silu",
    bias=False,
    scale_embeddings=False,
    tie="none",
    dropout=0.0,
)


def randomised(theirs: transformers.PreTrainedModel, rng: torch.Generator) -> transformers.PreTrainedModel:
    """Random weights of any size, also in norms and biases."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return theirs.double().eval()


def llama_weights(theirs: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights by our names; maps that are fused here are stacked."""
    given = theirs.state_dict()
    ours = {
        "target_input.weight": given["model.embed_tokens.weight"],
        "decoder.norm.weight": given["model.norm.weight"],
        "output": given["lm_head.weight"],
    }
    for i in range(theirs.config.num_hidden_layers):
        from_, to = f"model.layers.{i}", f"decoder.layers.{i}"
        ours[f"{to}.attention.qkv.weight"] = torch.cat([given[f"{from_}.self_attn.{x}_proj.weight"] for x in "qkv"])
        ours[f"{to}.attention.output.weight"] = given[f"{from_}.self_attn.o_proj.weight"]
        ours[f"{to}.attention_sublayer.norm.weight"] = given[f"{from_}.input_layernorm.weight"]
        ours[f"{to}.feed_forward_sublayer.norm.weight"] = given[f"{from_}.post_attention_layernorm.weight"]
        if f"{from_}.self_attn.q_norm.weight" in given:
            ours[f"{to}.attention.norm.query.weight"] = given[f"{from_}.self_attn.q_norm.weight"]
            ours[f"{to}.attention.norm.key.weight"] = given[f"{from_}.self_attn.k_norm.weight"]
        if f"{from_}.mlp.gate.weight" in given:  # Mixtral: all experts in one tensor
            ours[f"{to}.feed_forward.router.weight"] = given[f"{from_}.mlp.gate.weight"]
            for e, (wide, narrow) in enumerate(
                zip(given[f"{from_}.mlp.experts.gate_up_proj"], given[f"{from_}.mlp.experts.down_proj"], strict=True)
            ):
                ours[f"{to}.feed_forward.experts.{e}.wide.weight"] = wide
                ours[f"{to}.feed_forward.experts.{e}.narrow.weight"] = narrow
        else:
            both = [given[f"{from_}.mlp.{x}_proj.weight"] for x in ("gate", "up")]
            ours[f"{to}.feed_forward.wide.weight"] = torch.cat(both)
            ours[f"{to}.feed_forward.narrow.weight"] = given[f"{from_}.mlp.down_proj.weight"]
    return ours


def with_fields(**fields) -> TransformerConfig:
    return TransformerConfig(**(vars(LLAMA) | fields))


CASES = {
    "llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)), LLAMA),
    "llama-multi-query": (
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SIZES | {"num_key_value_heads": 1}))),
        with_fields(n_kv_heads=1),
    ),
    "qwen3": (
        lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=10)),
        with_fields(qk_norm=True, head_width=10),
    ),
    "mistral": (
        lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, head_dim=4, sliding_window=5)),
        with_fields(window=5),
    ),
    "mixtral": (
        lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(
                **SIZES, head_dim=4, num_local_experts=5, num_experts_per_tok=2, experts_implementation="eager"
            )
        ),
        with_fields(n_experts=5, experts_per_token=2, balance_weight=1.0),
    ),
}


def both(name: str, rng: torch.Generator) -> tuple[transformers.PreTrainedModel, Transformer]:
    """The same weights; their base frequency is read off the model, as its default differs between releases."""
    make, config = CASES[name]
    theirs = randomised(make(), rng)
    theta = float(theirs.model.rotary_emb.inv_freq[1]) ** (-config.d_head / 2)
    ours = Transformer(TransformerConfig(**(vars(config) | {"rotary_theta": theta}))).double().eval()
    ours.load_state_dict(llama_weights(theirs))
    return theirs, ours


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits_equal_those_of_transformers(name, rng):
    """Whole, and one token at a time with a cache. Their norms and angles are computed in single precision."""
    theirs, ours = both(name, rng)
    ids = torch.randint(47, (2, 19), generator=rng)
    want = theirs(ids).logits
    torch.testing.assert_close(ours(target_in=ids), want, rtol=0, atol=1e-5)
    cache = ours.new_cache()
    steps = torch.cat([ours.decode(ids[:, t : t + 1], cache=cache) for t in range(19)], dim=1)
    torch.testing.assert_close(steps, want, rtol=0, atol=1e-5)
    kept = cache.layers[0].buffers
    assert kept is not None and kept[0].size(1) == ours.config.n_kv_heads, (
        "the cache holds the heads of keys, not those of queries"
    )


@torch.no_grad()
def test_balance_loss_equals_that_of_mixtral(rng):
    """Padding left out. Theirs pools the layers where Switch Transformers adds them up: so one layer at a time."""
    theirs, ours = both("mixtral", rng)
    ids, lengths = torch.randint(47, (2, 19), generator=rng), torch.tensor([19, 11])
    real = (torch.arange(19) < lengths[:, None]).long()
    taps = Taps(balance_losses=[])
    ours.decoder_states(ids, lengths=lengths, taps=taps)
    balance = taps.balance_losses
    routers = theirs(ids, attention_mask=real, output_router_logits=True).router_logits
    assert len(balance) == len(routers) == 3
    for got, scores in zip(balance, routers, strict=True):
        want = load_balancing_loss_func((scores,), 5, 2, real)
        torch.testing.assert_close(got, want.double(), rtol=0, atol=1e-6)


@torch.no_grad()
def test_gpt2_logits_equal_those_of_transformers(rng):
    """transformers' GPT2LMHeadModel; its linear maps keep their matrices transposed."""
    shape = transformers.GPT2Config(
        vocab_size=47, n_positions=32, n_embd=24, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    theirs = randomised(transformers.GPT2LMHeadModel(shape), rng)
    given = {name: w.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else w
             for name, w in theirs.transformer.state_dict().items()}  # fmt: skip
    ours = Transformer(
        TransformerConfig(
            decoder=StackConfig(input=Tokens(vocab_size=47), n_layers=3),
            d_model=24,
            n_heads=4,
            d_ff=96,
            activation="gelu_tanh",
            norm_position="pre",
            positions="learned",
            max_positions=32,
            scale_embeddings=False,
            init="gpt2",
        )
    )
    names = {
        "attention_sublayer.norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feed_forward_sublayer.norm": "ln_2",
        "feed_forward.wide": "mlp.c_fc",
        "feed_forward.narrow": "mlp.c_proj",
    }
    weights = {"target_input.weight": given["wte.weight"], "output": given["wte.weight"]}
    weights["decoder.positions.learned"] = given["wpe.weight"]
    for kind in ("weight", "bias"):
        weights[f"decoder.norm.{kind}"] = given[f"ln_f.{kind}"]
        for i in range(3):
            weights |= {
                f"decoder.layers.{i}.{our}.{kind}": given[f"h.{i}.{their}.{kind}"] for our, their in names.items()
            }
    ours.load_state_dict(weights)
    ids = torch.randint(47, (2, 19), generator=rng)
    got = ours.double().eval()(target_in=ids)
    torch.testing.assert_close(got, theirs(ids).logits, rtol=0, atol=1e-10)
