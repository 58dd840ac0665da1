"""What generation_config.json says, against transformers: represented, or refused by its name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce as td
from tests.interop import test_fairseq, test_llama, test_marian
from tests.interop.rivals import LINES, compare, translated
from tests.interop.test_gpt2 import PROMPTS
from tests.interop.test_marian import changed
from tests.language_runs import language_model
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.interop import read_run
from transduce.interop.generation import (
    NEUTRAL,
    NEUTRAL_IN_SAMPLING,
    Generation,
    read_generation,
    read_sampling,
    sampling_settings,
)
from transduce.interop.pretrained import read_settings
from transduce.interop.settings import LlamaSettings

pytestmark = pytest.mark.usefixtures("transformers")

WITHOUT_EFFECT = {
    "transformers_version",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "max_cache_len",
    "use_cache",
    "prefill_chunk_size",
    "low_memory",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "remove_invalid_values",
    "use_mtp",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "return_dict_in_generate",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "is_assistant",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "prompt_lookup_num_tokens",
    "speculation_type",
    "target_lookbehind",
}
"""Settings that say how outputs are computed, not what they are. A new one of transformers is to be put here, or is refused."""

KNOWN = {*vars(Generation()), *NEUTRAL, *NEUTRAL_IN_SAMPLING, *WITHOUT_EFFECT}
ODD = {"condition_on_prev_tokens": True, "return_timestamps": True, "token_healing": True}
"""Values that say something, of settings of which the number 3 does not."""


SIZES = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), 8)
SETTINGS = LlamaSettings(model_type="llama", **SIZES)
CONFIG = {"eos_token_id": 2, "num_beams": 7, "min_length": None, "hidden_size": 8}


def read(directory: Path, **settings: object) -> Generation:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return read_generation(replace(SETTINGS, directory=directory))


def test_every_setting_of_transformers_is_known(tmp_path):
    from transformers import GenerationConfig

    names = {*vars(GenerationConfig())}
    assert {name for name in names if not name.startswith("_")} <= KNOWN
    nothing = Generation(eos_token_id=(2,))
    assert read(tmp_path, **GenerationConfig._get_default_generation_params()).num_beams == 1
    assert read(tmp_path, **dict.fromkeys(names)) == nothing


@pytest.mark.parametrize("name", sorted(NEUTRAL | NEUTRAL_IN_SAMPLING))
def test_unsupported_settings_are_refused_by_name(tmp_path, name):
    read(tmp_path, do_sample=True, **{name: (NEUTRAL | NEUTRAL_IN_SAMPLING)[name]})
    with pytest.raises(ValueError, match=f"^{name} must be .*; change it in generation_config.json$"):
        read(tmp_path, do_sample=True, **{name: ODD.get(name, 3)})
    if name in NEUTRAL_IN_SAMPLING:  # it counts where tokens are drawn
        read(tmp_path, **{name: 3})


def test_sampling_settings_survive_a_round_trip(tmp_path):
    decoding = to_dict(td.GenerationConfig(temperature=0.7, top_k=9, top_p=0.8, min_p=0.1))
    stored = read(tmp_path, **sampling_settings(decoding, ()))
    ours = read_sampling(stored, language_model(30).config)
    assert {name: ours[name] for name in ("temperature", "top_k", "top_p", "min_p")}.items() <= decoding.items()


def test_config_json_replaces_a_missing_generation_config(tmp_path):
    assert read(tmp_path, chat_format="x", _from_model_config=True) == Generation(eos_token_id=(2,))
    (tmp_path / "generation_config.json").unlink()
    assert read_generation(replace(SETTINGS, directory=tmp_path)) == Generation(eos_token_id=(2,), num_beams=7)


@pytest.mark.parametrize("ids", [{}, {"bos_token_id": 5}])
def test_force_bos_token_to_be_generated_means_what_it_means_to_transformers(tmp_path, ids):
    """In config.json of old BARTs, if there is no generation_config.json."""
    from transformers import BartConfig, GenerationConfig

    old = ids | {"force_bos_token_to_be_generated": True}
    theirs = GenerationConfig.from_model_config(BartConfig(**old))
    read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | old))
    settings = replace(SETTINGS, directory=tmp_path)
    assert read_generation(settings).forced_bos_token_id is None
    (tmp_path / "generation_config.json").unlink()
    assert read_generation(settings).forced_bos_token_id == theirs.forced_bos_token_id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": "4"}, "it must be a whole number, but it is '4' @ $.num_beams"),
        ({"suppress_tokens": "x"}, "@ $.suppress_tokens"),
        ({"bad_words_ids": [3]}, "@ $.bad_words_ids"),
        ({"suppress_tokens": [0]}, "suppress_tokens must be without eos_token_id, but in {} it is [0]"),
        ({"eos_token_id": [0, 3]}, "eos_token_id must be one id, that of config.json, but in {} it is [0, 3]"),
        ({"forced_eos_token_id": 3}, "forced_eos_token_id must be eos_token_id, but in {} it is 3"),
        ({"eos_token_id": 3}, "eos_token_id must be one id, that of config.json, but in {} it is [3]"),
        ({"early_stopping": "never"}, "it must be true or false, but it is 'never' @ $.early_stopping"),
        (
            {"decoder_start_token_id": 9},
            "decoder_start_token_id must be pad_token_id, eos_token_id or one of suppress_tokens, but in {} it is 9",
        ),
        ({"forced_bos_token_id": 9}, "forced_bos_token_id must be null, but in {} it is 9"),
        ({"num_beams": 2, "length_penalty": -1.0}, "length_penalty must be at least 0, but in {} it is -1.0"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, spm, settings, message):
    test_marian.rival(tmp_path / "theirs", 0, spm)
    changed(tmp_path / "theirs" / "generation_config.json", **settings)
    with pytest.raises(ValueError) as error:
        read_run(read_settings(tmp_path / "theirs"))
    assert message.format(tmp_path / "theirs") in str(error.value)


def set_generation(theirs: Any, directory: Path, settings: dict[str, Any]) -> None:
    """Let this model and its directory generate so."""
    for name, value in settings.items():
        setattr(theirs.generation_config, name, value)
    theirs.generation_config.save_pretrained(directory)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "renormalize_logits": True, "length_penalty": 1.0},
        {"num_beams": 1, "max_new_tokens": 7, "min_new_tokens": 5},
        pytest.param({"num_beams": 3, "max_new_tokens": 11}, marks=pytest.mark.long),
    ],
)
def test_beams_and_lengths_equal_those_of_generate(tmp_path, spm, settings):
    theirs, tokenizer = test_marian.rival(tmp_path / "theirs", 1, spm)
    pad = theirs.config.pad_token_id
    with torch.no_grad():  # what is ruled out is likely
        theirs.final_logits_bias[0, pad] = theirs.final_logits_bias.max() + 1
    theirs.save_pretrained(tmp_path / "theirs")
    whole = {"early_stopping": False, "forced_eos_token_id": None, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
    set_generation(theirs, tmp_path / "theirs", whole | settings)
    _, got, want = compare(theirs, tokenizer, tmp_path / "theirs")
    assert got == want


@pytest.mark.parametrize("family", ["nllb", "m2m100", "mbart50"])
def test_languages_of_a_call_act_like_those_of_the_files(tmp_path, family):
    """Published models name none, and NLLB's tokenizer.json of 2022 has it behind the text, which its class does not heed."""
    theirs, tokenizer = test_fairseq.rival(directory := tmp_path / "theirs", 2, family)
    source, target = tokenizer.src_lang, tokenizer.tgt_lang
    settings = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False, "no_repeat_ngram_size": 0}
    set_generation(theirs, directory, settings | {"forced_bos_token_id": None, "max_length": 30, "min_length": 6})
    changed(directory / "tokenizer_config.json", src_lang=None, tgt_lang=None)
    changed(directory / "config.json", forced_bos_token_id=None)
    if family == "nllb":
        plain = json.loads((directory / "tokenizer.json").read_text())
        single = plain["post_processor"]["single"]
        tag = next(part for part in single if part.get("SpecialToken", {}).get("id") == source)
        plain["post_processor"]["single"] = [*(part for part in single if part != tag), tag]
        (directory / "tokenizer.json").write_text(json.dumps(plain))
    assert main(["import", str(directory), str(run := tmp_path / "run")]) == 0
    lines = [line for line in LINES if line.strip()]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    code = tokenizer.get_lang_id(target) if family == "m2m100" else tokenizer.convert_tokens_to_ids(target)
    theirs.generation_config.forced_bos_token_id = code
    with torch.no_grad():
        rows = theirs.generate(**batch)
    want = tokenizer.batch_decode(rows[:, 2:], skip_special_tokens=True)
    assert translated(run, lines, "--source-language", source, "--target-language", target) == [t.strip() for t in want]


def test_decoder_only_models_follow_their_generation_config(tmp_path, capsys):
    """And what is special there is in no text, though it ends nothing."""
    import transformers

    theirs = test_llama.rival(tmp_path / "theirs", "qwen2", vocab_size=294, eos_token_id=292, bos_token_id=None)
    test_llama.chat_tokenizer(tmp_path / "theirs", begins=False)
    settings = {"repetition_penalty": 1.7, "max_new_tokens": 12, "do_sample": False, "eos_token_id": 292}
    set_generation(theirs, tmp_path / "theirs", settings | {"suppress_tokens": [7, 0], "pad_token_id": 0})
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    generator, want, free = td.load_generator(tmp_path / "run"), list[str](), list[str]()
    for prompt in PROMPTS[:3]:
        ids = tokenizer(prompt, return_tensors="pt")
        given = {"input_ids": ids.input_ids, "attention_mask": ids.attention_mask}
        for got, how in ((want, {}), (free, {"repetition_penalty": 1.0})):
            row = theirs.generate(**given, **how)[0, ids.input_ids.size(1) :]
            got.append(tokenizer.decode(row, skip_special_tokens=True))
    assert generator(PROMPTS[:3]) == want
    # rules hold where a call leaves them alone, and are gone where it does not
    assert generator(PROMPTS[:3], td.GenerationConfig(temperature=0.0, max_length=12)) == want != free
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "--prompt", PROMPTS[0]]) == 0
    assert capsys.readouterr().out == f"{PROMPTS[0]}{want[0]}\n"
    i = next(i for i in range(3) if want[i] != free[i])
    assert main(["generate", str(tmp_path / "run"), "--prompt", PROMPTS[i], "--repetition-penalty", "1"]) == 0
    assert capsys.readouterr().out == f"{PROMPTS[i]}{free[i]}\n"
    rows = [[40, 293, 41], [291, 50]]
    assert generator.tokenizer.decode(rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "num_beams must be 1, but in {} it is 2"),
        ({"max_length": 20}, "max_length must be at least 64, for it counts the prompt, but in {} it is 20"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size must be 0, but in {} it is 2"),
        ({"stop_strings": ["x"]}, 'stop_strings must be null, but in {} it is ["x"]'),
        ({"do_sample": True, "typical_p": 0.9}, "typical_p must be 1, but in {} it is 0.9"),
    ],
)
def test_unsupported_settings_of_decoder_only_models_are_refused(tmp_path, settings, message):
    test_llama.rival(tmp_path, "qwen2", vocab_size=294, eos_token_id=292, bos_token_id=None)
    test_llama.chat_tokenizer(tmp_path, begins=False)
    changed(tmp_path / "generation_config.json", **settings)
    with pytest.raises(ValueError) as error:
        read_run(read_settings(tmp_path))
    assert message.format(tmp_path) in str(error.value)
