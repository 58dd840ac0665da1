"""Llama, Qwen2 and Qwen3 in and out against transformers: logits, search, tokenizers."""

import json
import random
import re

import pytest
import torch
from tokenizers import Tokenizer as Pieces, processors

import transduce as td
from tests.interop.rivals import drawn
from tests.interop.test_gpt2 import NASTY, PROMPTS, TEXT, changed
from tests.language_runs import byte_bpe, language_model, untokenized
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.interop import read_model
from transduce.interop.language_models import export_language_model
from transduce.interop.pretrained import Parts
from transduce.model.meta import n_parameters
from transduce.tasks.generate import GenerationConfig, Generator

pytestmark = pytest.mark.usefixtures("transformers")

KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
LIKE_LLAMA = {"gemma": "Gemma", "phi3": "Phi3", "olmo": "Olmo"}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def rival(directory, kind: str, *, seed: int = 0, shard: str = "1GB", **settings):
    """A model with random weights, saved."""
    import transformers

    torch.manual_seed(seed)
    configuration, architecture = (
        getattr(transformers, f"{(KINDS | LIKE_LLAMA)[kind]}{part}") for part in ("Config", "ForCausalLM")
    )
    defaults = {
        "vocab_size": 53, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 64, "head_dim": 6,
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if kind in ("phi3", "olmo"):  # whose heads have no width of their own
        del defaults["head_dim"]
    model = architecture(configuration(**(defaults | settings))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory, max_shard_size=shard)
    return model


def compare(directory, rng, kind: str, **settings) -> None:
    """Our logits are theirs, and what is exported again has theirs to the last bit."""
    import transformers

    theirs = rival(directory / "theirs", kind, **settings)
    ours = read_model(directory / "theirs")
    ids = torch.randint(theirs.config.vocab_size, (3, 40), generator=rng)
    with torch.no_grad():
        want = theirs(ids).logits
        torch.testing.assert_close(ours(target_in=ids), want, rtol=1e-4, atol=1e-4)
    n = sum(parameter.numel() for parameter in theirs.parameters())
    assert sum(parameter.numel() for parameter in ours.parameters()) == n == n_parameters(ours.config)
    export_language_model(untokenized(ours), directory / "again", "llama")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(directory / "again", output_loading_info=True)
    assert type(again) is type(theirs) and not any(info.values())
    with torch.no_grad():
        assert torch.equal(again.eval()(ids).logits, want)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"num_key_value_heads": None, "head_dim": None, "shard": "10KB"}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, **BANDS}}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}, "head_dim": 10}),
        ("qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
        ("qwen3", {"head_dim": 12, "num_key_value_heads": 1}),
        ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("llama", {"hidden_act": "gelu", "num_key_value_heads": 1}),
        ("mistral", {"sliding_window": 5, "head_dim": 10}),
    ],
)
def test_logits_equal_transformers_and_survive_a_round_trip(tmp_path, rng, kind, settings):
    compare(tmp_path, rng, kind, **settings)


@pytest.mark.parametrize("seed", drawn(200, default=(), long=range(0, 200, 20)))
def test_logits_of_random_shapes_equal_those_of_transformers(tmp_path, rng, seed):
    draw = random.Random(seed)
    kv_heads, groups = draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    rope = {"rope_type": "default", "rope_theta": draw.choice([1e2, 1e4, 1e6])}
    kinds = [
        rope,
        rope | {"rope_type": "linear", "factor": 2.5},
        rope | {"rope_type": "llama3", "factor": 8.0, **BANDS},
    ]
    biased = draw.random() < 0.5
    compare(
        tmp_path, rng, kind := draw.choice([*KINDS]), seed=seed, vocab_size=draw.randint(5, 90),
        hidden_size=kv_heads * groups * (width := draw.choice([2, 4, 6])), intermediate_size=draw.randint(1, 60),
        num_hidden_layers=draw.randint(1, 4), num_attention_heads=kv_heads * groups, num_key_value_heads=kv_heads,
        head_dim=width if kind == "qwen2" else draw.choice([width, 8, 14]), rope_parameters=draw.choice(kinds),
        tie_word_embeddings=draw.random() < 0.5, rms_norm_eps=draw.choice([1e-6, 1e-3]),
        **({"attention_bias": biased, "mlp_bias": biased} if kind == "llama" else {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings", "again"),
    [
        ("mistral", {"sliding_window": None}, "llama"),
        ("mistral", {"sliding_window": None, "hidden_size": 26}, "mistral"),
        ("gemma", {"hidden_size": 26}, "mistral"),
        ("gemma", {"num_key_value_heads": 1, "head_dim": 10}, "llama"),
        ("gemma", {"tie_word_embeddings": False, "hidden_act": "gelu"}, "llama"),
        ("phi3", {"rms_norm_eps": 1e-3}, "llama"),
        ("phi3", {"sliding_window": 7, "num_key_value_heads": 4}, "mistral"),
        ("olmo", {}, None),
        ("olmo", {"tie_word_embeddings": True, "num_key_value_heads": 4}, None),
    ],
)
def test_llama_like_models_are_imported_and_exported(tmp_path, rng, kind, settings, again):
    import transformers

    theirs = rival(tmp_path / "theirs", kind, **settings)
    ours, ids = read_model(tmp_path / "theirs"), torch.randint(53, (3, 40), generator=rng)
    with torch.no_grad():
        want = theirs(ids).logits
        torch.testing.assert_close(ours(target_in=ids), want, rtol=1e-4, atol=1e-4)
        if again is None:
            with pytest.raises(ValueError, match="norm: rms -> layer"):
                export_language_model(untokenized(ours), tmp_path / "again", "llama")
            return
        export_language_model(untokenized(ours), tmp_path / "again", "llama")
        written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
        assert written.config.model_type == again
        torch.testing.assert_close(written(ids).logits, want, rtol=1e-4, atol=1e-4)


def test_older_file_formats_are_read(tmp_path, rng):
    """With rope_theta beside rope_scaling, whose kind is its "type"; and without what is as ever."""
    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    theirs = rival(tmp_path, "llama", rope_parameters=rope, num_key_value_heads=4)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("rope_parameters", "attention_bias", "mlp_bias", "head_dim", "num_key_value_heads"):
        del config[name]
    config |= {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = torch.randint(53, (2, 9), generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(read_model(tmp_path)(target_in=ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_rope_scaling_overrides_rope_parameters(tmp_path, rng):
    """As whoever adds rope_scaling to what a newer transformers saved finds out."""
    import transformers

    rival(tmp_path, "qwen3")
    changed(tmp_path, rope_scaling={"rope_type": "linear", "factor": 4.0})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(53, (2, 9), generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(read_model(tmp_path)(target_in=ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    changed(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(ValueError, match="rope_type must be 'default', 'linear' or 'llama3'"):
        read_model(tmp_path)


def chat_tokenizer(directory, *, begins: bool) -> None:
    """Byte-level BPE with more special tokens than a model uses; texts may begin with <|begin_of_text|>."""
    import transformers

    library = Pieces.from_str(byte_bpe(TEXT, size=290).model.decode())
    library.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>", "<|python|>"])
    if begins:
        library.post_processor = processors.TemplateProcessing(
            single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 290)]
        )
    transformers.PreTrainedTokenizerFast(tokenizer_object=library).save_pretrained(directory)


@pytest.mark.parametrize(
    ("kind", "begins", "end"),
    [
        ("qwen3", False, [292, 291]),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("llama", True, 291), ("qwen2", False, 0), ("llama", True, 292))
        ),
    ],
)
def test_continuations_equal_generate_and_the_tokenizer_is_exported(tmp_path, capsys, kind, begins, end):
    import transformers

    theirs = rival(tmp_path / "theirs", kind, vocab_size=294, eos_token_id=end, bos_token_id=None)
    chat_tokenizer(tmp_path / "theirs", begins=begins)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "theirs")
    run, first = tmp_path / "run", end[0] if isinstance(end, list) else end
    assert main(["import", str(tmp_path / "theirs"), str(run)]) == 0
    generator = td.load_generator(run)
    assert generator.tokenizer.encode(NASTY[:14]) == [
        tokenizer(t, add_special_tokens=False)["input_ids"] for t in NASTY[:14]
    ]
    assert generator.tokenizer.eos_id == first
    for beam_size in (1, 4):
        config = GenerationConfig(max_length=10, beam_size=beam_size, alpha=0.0, temperature=float(beam_size > 1))
        banned = [i for i in generator.suppressed if i != first]
        ours = generator.generate(PROMPTS[:3], config)
        for prompt, (got,) in zip(PROMPTS, ours, strict=False):
            ids = torch.tensor([generator.encode(prompt)])
            assert ids.tolist() == [tokenizer(prompt)["input_ids"]]
            output = theirs.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beam_size, do_sample=False, eos_token_id=first,
                length_penalty=0.0, early_stopping=False, max_new_tokens=10, pad_token_id=first, suppress_tokens=banned or None,
            )  # fmt: skip
            assert got.tokens + [first] * got.finished == output[0, ids.size(1) :].tolist(), prompt
    assert main(["export", str(run), str(tmp_path / "again"), "--to", "llama"]) == 0
    capsys.readouterr()
    again = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")
    assert again.eos_token_id == first and again(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]


def test_generation_rules_and_bos_are_exported(tmp_path, caplog):
    """Greedy with rules of its own; and a tokenizer to which we add what begins texts."""
    import transformers

    rival(tmp_path / "theirs", "llama", vocab_size=294, eos_token_id=291, bos_token_id=290)
    chat_tokenizer(tmp_path / "theirs", begins=True)
    rules = {"do_sample": False, "repetition_penalty": 1.8, "suppress_tokens": [5, 6, 7], "max_new_tokens": 12}
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps({"eos_token_id": 291, **rules}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "again"), "--to", "llama"]) == 0
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    generator = td.load_generator(tmp_path / "run")
    for prompt in PROMPTS[:3]:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        ((output,),) = generator.generate([prompt])
        want = again.generate(input_ids=ids, attention_mask=torch.ones_like(ids))[0, ids.size(1) :].tolist()
        assert output.tokens + [291] * output.finished == want
    library = Pieces.from_str(byte_bpe(TEXT, size=290).model.decode())
    library.add_special_tokens(["<s>", "</s>"])
    ours = JSONTokenizer(library.to_str().encode())
    assert ours.bos_id == 290
    like_llama = {"norm": "rms", "gated": True, "activation": "silu", "positions": "rotary", "bias": False}
    model = language_model(294, scale_embeddings=False, **like_llama)  # the last two rows are no tokens
    decoding = to_dict(GenerationConfig(no_repeat_ngram=3))
    assert export_language_model(Parts(model, None, ours, decoding), tmp_path / "own", "llama")
    assert caplog.messages == ["generation_config.json cannot store no_repeat_ngram=3; transformers will ignore it"]
    settings = json.loads((tmp_path / "own" / "generation_config.json").read_text())
    assert "no_repeat_ngram_size" not in settings and settings["suppress_tokens"] == [290, 292, 293]
    written = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "own")
    assert written(PROMPTS[:3])["input_ids"] == [Generator(model, ours).encode(prompt) for prompt in PROMPTS[:3]]


def test_scaled_embeddings_and_padded_tables_are_exported(tmp_path, rng):
    """A run of ours: its one table has to become two, as only one of its uses is multiplied by sqrt(d_model)."""
    import transformers

    ours = language_model(
        31, norm="rms", gated=True, activation="silu", positions="rotary", qk_norm=True, bias=False, n_kv_heads=1, head_width=4,
        rotary_factor=2.0, norm_eps=1e-3,
    )  # fmt: skip
    export_language_model(untokenized(ours), tmp_path, "llama")
    theirs, ids = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(),
        torch.randint(31, (3, 20), generator=rng),
    )
    assert isinstance(theirs, transformers.Qwen3ForCausalLM) and ours.config.scale_embeddings
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(target_in=ids), rtol=1e-4, atol=1e-4)


def test_missing_biases_are_exported_as_zeros(tmp_path, rng):
    import transformers

    ours = language_model(
        31, norm="rms", gated=True, activation="silu", positions="rotary", scale_embeddings=False, qkv_bias=False
    )
    export_language_model(untokenized(ours), tmp_path, "llama")
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    ids = torch.randint(31, (3, 20), generator=rng)
    assert not any(loading.values())
    with torch.no_grad():
        want = ours(target_in=ids)
        torch.testing.assert_close(theirs.eval()(ids).logits, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(read_model(tmp_path)(target_in=ids), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("llama", {"hidden_act": "tanh"}, "or 'swish', but in {} it is 'tanh'"),
        ("mistral", {"num_hidden_layers": 0}, "n_layers must lie in [1, 1000], but n_layers=0"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be None or False"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv must be None, but in {} it is 8.0"),
        ("phi3", {"embd_pdrop": 0.1}, "embd_pdrop must equal resid_pdrop, but in {} they are 0.1 and 0.0"),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.75}}, "and rotate whole heads, but in {} it is"),
        ("llama", {"attention_bias": True}, "attention_bias must equal mlp_bias, but in {} they are True and False"),
        ("qwen3", {"attention_bias": True}, "attention_bias must be False, but in {} it is True"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "but in {} it is {{'rope_type': 'yarn', 'factor': 2.0}}",
        ),
        (
            "phi3",
            {"rope_parameters": None, "partial_rotary_factor": 0.5},
            "partial_rotary_factor must be 1.0, but in {}",
        ),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types must be None, but in {} it is"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window must be False, but in {} it is True"),
    ],
)
def test_unsupported_configurations_are_refused(tmp_path, kind, values, message):
    rival(tmp_path, kind)
    changed(tmp_path, **values)
    with pytest.raises(ValueError, match=re.escape(message.format(tmp_path))):
        read_model(tmp_path)


def test_models_unlike_llama_are_not_exported(tmp_path):
    differences = "gated: True -> False; norm: rms -> layer; positions: rotary -> sinusoidal"
    with pytest.raises(ValueError, match=f"{re.escape(differences)}$"):
        export_language_model(untokenized(language_model(31)), tmp_path / "out", "llama")
    like_qwen = {"norm": "rms", "gated": True, "activation": "silu", "positions": "rotary", "scale_embeddings": False}
    for changes, message in (
        ({"qk_norm": True, "bias": False, "qkv_bias": True}, r"qk_norm: False -> True$"),
        # transformers takes heads of such a width from a Mistral alone, which has no biases
        ({"d_model": 15, "head_width": 8}, r"a mistral has .*: bias: False -> True$"),
    ):
        with pytest.raises(ValueError, match=message):
            export_language_model(untokenized(language_model(31, **like_qwen, **changes)), tmp_path / "out", "llama")
    assert not (tmp_path / "out").exists()


def test_tokenizer_larger_than_its_model_is_refused(tmp_path, capsys):
    rival(tmp_path / "theirs", "llama", vocab_size=97, eos_token_id=91)
    chat_tokenizer(tmp_path / "theirs", begins=True)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert "at most as many tokens as its model" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_other_ends_of_texts_give_a_warning(tmp_path, caplog):
    """Texts go on after them, which transformers ends there."""
    rival(theirs := tmp_path / "theirs", "qwen2", vocab_size=296, eos_token_id=[292, 291, 295])
    chat_tokenizer(theirs, begins=False)
    assert main(["import", str(theirs), str(tmp_path / "run")]) == 0
    assert caplog.messages == [
        "only <|im_end|> ends texts here, but in transformers each of <|im_end|>, <|end_of_text|>, 295 does (eos_token_id)"
    ]
    for path in (theirs / "config.json", theirs / "generation_config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 292}))
    caplog.clear()
    assert main(["import", str(theirs), str(tmp_path / "alone")]) == 0 and not caplog.messages


def test_eos_may_have_any_name_but_must_be_configured(tmp_path, capsys):
    rival(tmp_path / "theirs", "llama", vocab_size=294, eos_token_id=293)
    chat_tokenizer(tmp_path / "theirs", begins=False)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    assert td.load_generator(tmp_path / "run").tokenizer.eos_id == 293
    assert JSONTokenizer.load(tmp_path / "theirs").eos_id == 291
    library = Pieces.from_file(str(tmp_path / "theirs" / "tokenizer.json"))
    begins = [("<|begin_of_text|>", 290), ("<|im_end|>", 292)]
    library.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> <|im_end|> $A", special_tokens=begins
    )
    library.save(str(tmp_path / "theirs" / "tokenizer.json"))
    capsys.readouterr()
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err == (
        "transduce: texts must begin with one token at most and end with one, but in "
        f"{tmp_path / 'theirs'} they begin with [290, 292] and end with [293]; name what ends them in config.json (eos_token_id)\n"
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "Qwen2Tokenizer"}])
def test_vocabulary_of_qwen_is_refused_without_its_splitting(tmp_path, capsys, settings):
    """Its digits are tokens of their own, and its texts are NFC: vocab.json and merges.txt have neither."""
    rival(theirs := tmp_path / "theirs", "qwen2" if not settings else "llama", vocab_size=294, eos_token_id=0)
    model = json.loads(byte_bpe(TEXT, size=290).model)["model"]
    (theirs / "vocab.json").write_text(json.dumps(model["vocab"]))
    (theirs / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["import", str(theirs), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        f"transduce: a tokenizer of {settings.get('tokenizer_class', 'qwen2')} must be tokenizer.json, as it splits texts in "
        f"another way than GPT-2's, but {theirs} has none; write it with transformers: "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)\n"
    )
