"""OPT and XGLM against transformers: logits, prompts and what follows them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library, pre_tokenizers

import transduce as td
from tests.interop.test_gpt2 import PROMPTS, changed, pieces
from tests.language_runs import byte_bpe
from transduce.cli.main import main
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.interop import read_model, read_run
from transduce.interop.pretrained import read_settings
from transduce.tasks.generate import GenerationConfig

pytestmark = pytest.mark.usefixtures("transformers")

SIZE = 302
SIZES: dict[str, dict[str, Any]] = {
    "OPT": {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2},
    "XGLM": {"d_model": 24, "attention_heads": 4, "num_layers": 2},
}


def rival(directory: Path, kind: str, **settings: Any) -> Any:
    """A model with random weights, saved, and a tokenizer as vocab.json and merges.txt, with </s> before every text."""
    import transformers

    pieces(directory, size=SIZE - 2)
    vocabulary = json.loads((directory / "vocab.json").read_text())
    vocabulary |= {"</s>": len(vocabulary)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "added_tokens.json").write_text(json.dumps({"<pad>": len(vocabulary)}))
    marks = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(marks))
    marks |= {"add_bos_token": True, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(marks))
    torch.manual_seed(0)
    end = vocabulary["</s>"]
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": 1}
    configuration, architecture = (getattr(transformers, f"{kind}{part}") for part in ("Config", "ForCausalLM"))
    sizes = SIZES[kind] | {"vocab_size": SIZE + 3, "ffn_dim": 41, "max_position_embeddings": 64, "init_std": 0.3}
    model = architecture(configuration(**(sizes | special | settings))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("OPT", {}),
        ("OPT", {"activation_function": "gelu", "tie_word_embeddings": False}),
        ("XGLM", {}),
        ("XGLM", {"scale_embedding": False, "tie_word_embeddings": False, "d_model": 28}),
    ],
)
def test_logits_equal_those_of_transformers(tmp_path, rng, kind, settings):
    theirs = rival(tmp_path, kind, **settings)
    ids = torch.randint(SIZE, (3, 40), generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(read_model(tmp_path)(target_in=ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_add_prefix_space_is_read(tmp_path):
    """As GPT2Tokenizer with add_prefix_space is saved without a tokenizer.json."""
    import transformers

    pieces(tmp_path, size=SIZE)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    texts = ["Speak to me", " Speak", "", "a\nb"]
    assert JSONTokenizer.load(tmp_path).encode(texts) == theirs(texts)["input_ids"]


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "RobertaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("space", [True, False])
def test_add_prefix_space_of_the_configuration_replaces_that_of_tokenizer_json(tmp_path, kind, space):
    """In the classes with a name; the one for any tokenizer.json ignores it."""
    import transformers

    library = Library.from_str(byte_bpe(PROMPTS, size=SIZE).model.decode())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not space)
    library.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": kind, "add_prefix_space": space}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = ["Speak to me", " Speak", "a\nb"]
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)(texts, add_special_tokens=False)
    assert JSONTokenizer.load(tmp_path).encode(texts) == theirs["input_ids"]


@pytest.mark.parametrize("kind", SIZES)
def test_prompts_begin_with_eos_and_outputs_equal_generate(tmp_path, kind):
    import transformers

    theirs = rival(tmp_path, kind)
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    assert main(["import", str(tmp_path), str(tmp_path / "run")]) == 0
    generator = td.load_generator(tmp_path / "run")
    for prompt in PROMPTS[:3]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert [*generator.encode(prompt)] == ids[0].tolist() and ids[0, 0] == tokenizer.eos_token_id
        output = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        ((got,),) = generator.generate([prompt], GenerationConfig(temperature=0.0, max_length=8))
        assert got.tokens + [generator.tokenizer.eos_id] * got.finished == output[0, ids.size(1) :].tolist()
    (likely,) = generator.score([PROMPTS[1]])
    ids = tokenizer(PROMPTS[1], return_tensors="pt").input_ids
    with torch.no_grad():
        want = theirs(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None]).sum()
    assert float(likely.log_prob) == pytest.approx(float(want), abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("OPT", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm must be False, but in {} it is True"),
        ("OPT", {"word_embed_proj_dim": 10}, "word_embed_proj_dim must be None or 24, but in {} it is 10"),
        ("OPT", {"do_layer_norm_before": False}, "do_layer_norm_before must be True, but in {} it is False"),
        ("OPT", {"enable_bias": False}, "enable_bias must be True, but in {} it is False"),
        ("OPT", {"activation_function": "tanh"}, "but in {} it is 'tanh'"),
        ("OPT", {"hidden_size": "24"}, "it must be a whole number, but it is '24' @ $.hidden_size"),
        ("XGLM", {"pad_token_id": 5}, "pad_token_id must be 0 or 1, but in {} it is 5"),
    ],
)
def test_unsupported_configurations_are_refused(tmp_path, kind, values, message):
    rival(tmp_path, kind)
    changed(tmp_path, **values)
    with pytest.raises(ValueError, match=re.escape(message.format(tmp_path))):
        read_run(read_settings(tmp_path))


def test_added_tokens_must_follow_the_vocabulary(tmp_path):
    rival(tmp_path, "OPT")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 7}))
    with pytest.raises(ValueError) as error:
        read_run(read_settings(tmp_path))
    assert str(error.value) == (
        f"added_tokens.json must number its tokens after those of vocab.json, but in {tmp_path} '<pad>' has 7"
    )
