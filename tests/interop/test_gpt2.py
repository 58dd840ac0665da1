"""GPT-2 in and out against transformers, the library that wrote it: logits, search, perplexity, tokenizer."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Pieces, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn

import transduce as td
from tests.language_runs import byte_bpe, language_model, untokenized
from tests.runs import ENGLISH, library_tokenizer
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.interop import read_model
from transduce.interop.language_models import export_language_model
from transduce.interop.pretrained import Parts
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.perplexity import measure_perplexity

pytestmark = pytest.mark.usefixtures("transformers")

TEXT = [
    "First Citizen: Before we proceed any further, hear me speak.",
    "All: Speak, speak.",
    "It's what we'll do, they've said it; I'd say 1,234.50 times.",
    "def f(x):\n\treturn  x ** 2\n",
    "Größe, naïve, 東京 and 🙂🙂, done.",
] * 3
NASTY = [
    *TEXT[:5], "", " ", "  two  spaces  ", "\n\n\ttabs\r\n", "É = E\u0301", "\u200b\ufeff", "👩‍👩‍👧‍👦🏳️‍🌈", "\x00\x07", "ﬁ ½ ²",
    "a<|endoftext|>b", "<|endoftext|>", "<|endoftext |>", "'s'S 'LL don't", "مرحبا بالعالم", "𝕳𝖊𝖑𝖑𝖔", "x" * 300, "\u2028line",
]  # fmt: skip


def rival(directory: Path, *, seed: int = 0, kind: str = "GPT2LMHeadModel", **settings):
    """A GPT-2 with random weights, saved."""
    import transformers

    torch.manual_seed(seed)
    defaults = {
        "vocab_size": 53, "n_positions": 37, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    model = getattr(transformers, kind)(transformers.GPT2Config(**(defaults | settings))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    model.save_pretrained(directory)
    return model


def pieces(directory: Path, *, size: int = 300) -> None:
    """A small byte-level BPE with <|endoftext|>, as vocab.json and merges.txt."""
    tokenizer = Pieces(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.model.save(str(directory))


SIZES = [
    {},
    {"n_layer": 1, "n_head": 4, "vocab_size": 101, "n_inner": 23},
    {"n_layer": 3, "n_embd": 35, "n_head": 5, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
    {"activation_function": "gelu", "tie_word_embeddings": False},
    {"activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.3},
]


def names(settings: dict) -> str:
    return ",".join(settings) or "defaults"


def loaded_in_silence(directory: Path, caplog) -> nn.Module:
    """transformers' from_pretrained, which finds nothing to say (and Python's warnings are errors)."""
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_warning()
    logging.enable_propagation()
    with caplog.at_level("WARNING"):
        model, info = GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
    logging.disable_propagation()
    logging.set_verbosity_error()
    assert not any(info.values()) and not caplog.records, (info, caplog.text)
    return model.eval()


@pytest.mark.parametrize("settings", SIZES, ids=names)
def test_logits_equal_transformers_and_survive_a_round_trip(tmp_path, rng, caplog, settings):
    theirs = rival(tmp_path / "theirs", **settings)
    ours = read_model(tmp_path / "theirs")
    ids = torch.randint(53, (5, 37), generator=rng)
    with torch.no_grad():
        want = theirs(ids).logits
        torch.testing.assert_close(ours(target_in=ids), want, rtol=1e-5, atol=1e-5)
    assert not ours.training
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    export_language_model(untokenized(ours), tmp_path / "again", "gpt2")
    again = loaded_in_silence(tmp_path / "again", caplog)
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, want, rtol=1e-5, atol=1e-5)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert {name: weight.shape for name, weight in before.items()} == {name: w.shape for name, w in after.items()}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon", "attn_pdrop"):
        assert getattr(again.config, name) == getattr(theirs.config, name)


def test_missing_biases_are_exported_as_zeros(tmp_path, rng, caplog):
    """nanoGPT's models have none."""
    rival(tmp_path / "theirs")
    config = replace(read_model(tmp_path / "theirs").config, bias=False, init_gain=0.9)
    torch.manual_seed(1)
    ours = td.Transformer(config).eval()
    assert not any(name.endswith("bias") for name, _ in ours.named_parameters())
    export_language_model(untokenized(ours), tmp_path / "again", "gpt2")
    again, ids = loaded_in_silence(tmp_path / "again", caplog), torch.randint(53, (5, 37), generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, ours(target_in=ids), rtol=1e-5, atol=1e-5)


def test_older_file_formats_are_read(tmp_path, rng):
    """Without "transformer.", with every layer's causal mask, in half precision, in shards."""
    theirs = rival(tmp_path, kind="GPT2Model")
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    weights = {name.removeprefix("transformer."): weight.half() for name, weight in weights.items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 37, 37).tril().bool() for i in range(2)}
    masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
    half = len(weights) // 2
    shards = {
        "a.safetensors": dict(list(weights.items())[:half]) | masks,
        "b.safetensors": dict(list(weights.items())[half:]),
    }
    for name, shard in shards.items():
        save_file(shard, tmp_path / name)
    index = {"weight_map": {name: file for file, shard in shards.items() for name in shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    ids = torch.randint(53, (2, 9), generator=rng)
    with torch.no_grad():
        states = theirs.half().float()(ids).last_hidden_state
        got = read_model(tmp_path)(target_in=ids)
        torch.testing.assert_close(got, states @ theirs.wte.weight.T, rtol=1e-5, atol=1e-5)


# Search


def learned(folder: Path) -> None:
    """A GPT-2 that has learned for a moment, so that it ends at all sorts of steps; and the run made of it."""
    directory = folder / "theirs"
    theirs = rival(
        directory, vocab_size=300, n_embd=32, n_positions=64, initializer_range=0.2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    pieces(directory)
    rows = JSONTokenizer.load(directory).encode(TEXT[:5])
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=3e-3)
    for step in range(120):
        row = rows[step % 5]
        cut = int(torch.randint(4, min(len(row), 40), (), generator=rng))
        ids = torch.tensor([[0, *row[:cut], 0]])
        optimizer.zero_grad()
        theirs(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    theirs.save_pretrained(directory)
    assert main(["import", str(directory), str(folder / "run")]) == 0


@pytest.fixture(scope="module")
def run(once) -> tuple[nn.Module, Path]:
    """The model and the run."""
    from transformers import GPT2LMHeadModel

    folder = once("gpt2", learned)
    return GPT2LMHeadModel.from_pretrained(folder / "theirs"), folder / "run"


PROMPTS = [
    (text * 2)[i : i + 1 + (7 * i) % 23] for i, text in enumerate((TEXT[0], TEXT[1], TEXT[2], TEXT[4], TEXT[3]) * 10)
]


@pytest.mark.parametrize(
    ("beam_size", "n"),
    [(1, 12), (4, 4), *(pytest.param(size, 50, marks=pytest.mark.long) for size in (1, 4))],
)
def test_continuations_equal_those_of_generate(run, beam_size, n):
    theirs, directory = run
    generator = td.load(directory)
    assert isinstance(generator, Generator)
    config = GenerationConfig(max_length=14, beam_size=beam_size, alpha=0.0, temperature=float(beam_size > 1))
    ours = generator.generate(PROMPTS[:n], config)
    for prompt, (got,) in zip(PROMPTS[:n], ours, strict=True):
        ids = torch.tensor([generator.encode(prompt)])
        output = theirs.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beam_size, do_sample=False, length_penalty=0.0,
            early_stopping=False, max_new_tokens=14, pad_token_id=0,
        )  # fmt: skip
        assert got.tokens + [0] * got.finished == output[0, ids.size(1) :].tolist(), prompt
    if n == 50:  # of all lengths
        assert len({len(text.tokens) for (text,) in ours if text.finished}) > 3
        assert len({len(generator.encode(prompt)) for prompt in PROMPTS}) > 5


def test_a_table_with_rows_beyond_the_tokenizer_goes_out_and_comes_back(tmp_path):
    """As pad_to_multiple_of makes it; generation_config.json then suppresses the ids of those rows."""
    theirs = rival(tmp_path / "theirs", vocab_size=320)
    pieces(tmp_path / "theirs")
    for command in (["import", "theirs", "run"], ["export", "run", "out", "--to", "gpt2"], ["import", "out", "again"]):
        assert main([command[0], *(str(tmp_path / name) for name in command[1:3]), *command[3:]]) == 0
    generator = td.load_generator(tmp_path / "again")
    ids = torch.tensor([generator.encode(PROMPTS[0])])
    want = theirs.generate(ids, max_new_tokens=20, do_sample=False, suppress_tokens=[*range(300, 320)], pad_token_id=0)
    got = generator.generate(PROMPTS[:1], temperature=0.0, max_length=20)[0][0]
    assert got.tokens + [0] * got.finished == want[0, ids.size(1) :].tolist()


@pytest.mark.parametrize("stride", [64, 17, pytest.param(1, marks=pytest.mark.long)])
def test_strided_perplexity_equals_the_loss_of_transformers(run, stride):
    theirs, directory = run
    generator, text = td.load(directory), "\n".join(TEXT[:6])
    ids = torch.tensor([[0, *generator.tokenizer.encode([text])[0]]])
    n, seen, nats, begin = ids.size(1), 1, 0.0, 0
    while seen < n:  # window by window; -100 hides what was predicted before
        end = min(begin + 65, n)
        row = ids[:, begin:end]
        labels = row.clone()
        labels[:, : max(seen - begin, 1)] = -100
        with torch.no_grad():
            logits = theirs(row[:, :-1]).logits.double()
        nats += torch.nn.functional.cross_entropy(logits[0], labels[0, 1:], reduction="sum").item()
        seen, begin = end, begin + stride
    got = measure_perplexity(generator.model, generator.tokenizer, text, stride=stride, batch_tokens=200)
    assert got.n_tokens == n - 1
    assert got.nats == pytest.approx(nats, rel=1e-5)
    assert got.perplexity == pytest.approx(math.exp(nats / (n - 1)), rel=1e-5)
    assert got.bits_per_byte == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)


def test_perplexity_of_one_window_equals_the_loss_of_transformers(run):
    theirs, directory = run
    generator = td.load(directory)
    ids = torch.tensor([[0, *generator.tokenizer.encode([TEXT[0]])[0]]])
    with torch.no_grad():
        want = theirs(input_ids=ids, labels=ids).loss.item()
    got = measure_perplexity(generator.model, generator.tokenizer, TEXT[0])
    assert got.nats_per_token == pytest.approx(want, rel=1e-5)


# The tokenizer


def test_only_byte_level_bpe_is_exported(run, tmp_path, capsys):
    """Another JSON of the library would not be GPT-2's."""
    library = library_tokenizer("bpe", ENGLISH, special=("<unk>", "</s>"))
    shutil.copytree(run[1], tmp_path / "run")
    library.save(str(tmp_path / "run" / "tokenizer.json"))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "gpt2"]) == 0
    assert "gpt2 cannot store a JSONTokenizer, so the tokenizer was not written" in capsys.readouterr().err
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("source", ["files", "json", "exported"])
def test_token_ids_equal_those_of_transformers(run, tmp_path, source):
    from transformers import GPT2TokenizerFast

    _, directory = run
    pieces(tmp_path)
    theirs = GPT2TokenizerFast.from_pretrained(tmp_path)
    if source == "json":
        theirs.save_pretrained(tmp_path / "json")
        ours = JSONTokenizer.load(tmp_path / "json")
    elif source == "files":
        ours = JSONTokenizer.load(tmp_path)
    else:
        assert main(["export", str(directory), str(tmp_path / "out"), "--to", "gpt2"]) == 0
        theirs, ours = GPT2TokenizerFast.from_pretrained(tmp_path / "out"), td.load(directory).tokenizer
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.model_max_length) == (0, 0, 64)
    assert (ours.vocab_size, ours.bos_id, ours.eos_id) == (300, 0, 0)
    ids = ours.encode(NASTY)
    assert ids == [theirs(text)["input_ids"] for text in NASTY]
    assert ours.decode(ids) == [theirs.decode(row, skip_special_tokens=True) for row in ids]
    assert ours.decode(ids) == [text.replace("<|endoftext|>", "") for text in NASTY]
    assert ours.tokens(ids[0]) == theirs.convert_ids_to_tokens(ids[0])
    assert JSONTokenizer(ours.model).encode(NASTY) == ids


def test_other_byte_level_bpe_keeps_its_normalizer(tmp_path):
    """Such as those of newer models: GPT2Tokenizer would split texts in GPT-2's way, with their capitals."""
    from transformers import AutoTokenizer

    library = Pieces.from_str(byte_bpe(TEXT, size=290).model.decode())
    library.normalizer = normalizers.Lowercase()
    ours = JSONTokenizer(library.to_str().encode())
    model = language_model(ours.vocab_size, positions="learned", scale_embeddings=False, activation="gelu_tanh")
    assert export_language_model(Parts(model, None, ours, to_dict(GenerationConfig())), tmp_path, "gpt2")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode(NASTY)
    assert ids == [theirs(text)["input_ids"] for text in NASTY]
    assert ours.decode(ids) == [theirs.decode(row, skip_special_tokens=True) for row in ids]


# What is refused


def changed(directory: Path, **values) -> None:
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gptj"}, "or 'speech_to_text', but in {} it is 'gptj'"),
        ({"scale_attn_weights": False}, "scale_attn_weights must be True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be False"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn must be False"),
        ({"add_cross_attention": True}, "add_cross_attention must be False"),
        (
            {"activation_function": "tanh"},
            "'gelu_new' or 'gelu_pytorch_tanh' or 'gelu' or 'relu' or 'silu' or 'swish', but in {} it is 'tanh'",
        ),
        ({"embd_pdrop": 0.2}, "embd_pdrop must equal resid_pdrop, but in {} they are 0.2 and 0.1"),
        (
            {"n_layer": 1},
            "weights must fit the configuration, but in {} transformer.h.1.attn.c_attn.bias is unknown; "
            "transformer.h.1.attn.c_attn.weight is unknown; transformer.h.1.attn.c_proj.bias is unknown; "
            "transformer.h.1.attn.c_proj.weight is unknown; transformer.h.1.ln_1.bias is unknown",
        ),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
        ({"n_positions": 38}, "wpe.weight is (37, 16) instead of (38, 16)"),
    ],
)
def test_unsupported_configurations_are_refused(tmp_path, values, message):
    rival(tmp_path)
    changed(tmp_path, **values)
    with pytest.raises(ValueError, match=re.escape(message.format(tmp_path))):
        read_model(tmp_path)


def test_models_unlike_gpt2_are_not_exported(tmp_path):
    stack = td.StackConfig(input=td.Tokens(vocab_size=11), n_layers=1)
    small = {"d_model": 8, "n_heads": 2, "d_ff": 12}
    other = td.Transformer(td.TransformerConfig(decoder=stack, attention="linear", **small))
    message = (
        "a gpt2 has fixed values of some fields, but in this model they differ: attention: softmax -> linear; norm_position: pre -> post; "
        "positions: learned -> sinusoidal; scale_embeddings: False -> True"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        export_language_model(untokenized(other), tmp_path, "gpt2")
    both = td.Transformer(td.TransformerConfig(encoder=stack, decoder=stack, **small))
    with pytest.raises(ValueError, match=r"^a gpt2 has only a decoder, but this model has an encoder; it cannot be"):
        export_language_model(untokenized(both), tmp_path, "gpt2")
    assert not list(tmp_path.iterdir())


def test_a_list_of_padding_ids_is_refused(tmp_path, capsys):
    rival(tmp_path, vocab_size=300)
    pieces(tmp_path)
    changed(tmp_path, pad_token_id=[1])
    assert main(["import", str(tmp_path), str(tmp_path / "run")]) == 2
    assert "it must be a whole number, but it is [1] @ $.pad_token_id" in capsys.readouterr().err


def test_import_and_export_commands_report_errors(run, tmp_path, capsys):
    theirs = tmp_path / "theirs"
    rival(theirs, vocab_size=300, eos_token_id=7)
    new = tmp_path / "run"
    assert main(["import", str(theirs / "config.json"), str(new)]) == 2
    message = f"{theirs}/config.json is a file, where a folder must be; name another place"
    assert capsys.readouterr().err == f"transduce: {message}\n"
    assert main(["import", str(theirs), str(new)]) == 2
    assert f"tokenizer.json, or vocab.json and merges.txt, but {theirs} has neither" in capsys.readouterr().err
    pieces(theirs)
    for command in (["import", str(theirs), str(run[1])], ["export", str(run[1]), str(theirs), "--to", "gpt2"]):
        assert main(command) == 2
        taken = command[-1] if command[0] == "import" else command[2]
        assert capsys.readouterr().err.startswith(f"transduce: {taken}/config.json is there already")
    assert not new.exists()


def test_interrupted_import_can_be_repeated(tmp_path, monkeypatch):
    rival(tmp_path / "theirs", vocab_size=300, eos_token_id=7)
    pieces(tmp_path / "theirs")
    command = ["import", str(tmp_path / "theirs"), str(tmp_path / "run")]

    def stopped(tensors, path):
        path.write_bytes(b"half of them")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transduce.files.save_file", stopped)
        assert main(command) == 130
    assert main(command) == 0
    assert td.load_model(tmp_path / "run").config.vocab_size == 300
