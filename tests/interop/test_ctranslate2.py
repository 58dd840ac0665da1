"""Models in CTranslate2 against the model itself: log-probabilities of given texts, and what a search finds."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.language_runs import any_tokenizer, language_run
from tests.runs import LITTLE, random_run, random_speech_run
from transduce.cli.main import main
from transduce.interop.ctranslate2 import LACKING, export_ctranslate2, write_ctranslate2
from transduce.interop.pretrained import TRAINING, Parts
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

PAGE = Path(__file__).parents[2] / "docs" / "models_in_and_out.md"
NAMES = [f"t{i}" for i in range(37)]
BOS, EOS = 2, 3
HALF = StackConfig(input=Tokens(vocab_size=37, multiple=8), n_layers=2)
BASE = replace(LITTLE, encoder=HALF, decoder=replace(HALF, n_layers=1), max_positions=24)


def random_model(config: TransformerConfig) -> Transformer:
    """A model whose every weight matters."""
    torch.manual_seed(1)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3)
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    return model


@pytest.mark.parametrize("alone", [False, True], ids=["translation", "language"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre", "bias": False, "tie": "none", "activation": "gelu"},
        {
            "norm_position": "pre",
            "norm": "rms",
            "norm_eps": 0.1,
            "gated": True,
            "activation": "silu",
            "positions": "rotary",
        },
        {
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_width": 6,
            "positions": "rotary",
            "rotary_theta": 50.0,
            "rotary_factor": 4.0,
            "tie": "all",
        },
        {
            "positions": "rotary",
            "head_width": 16,
            "rotary_theta": 50.0,
            "rotary_factor": 4.0,
            "rotary_bands": (1.0, 4.0, 16),
        },
        {"positions": "learned", "scale_embeddings": False, "activation": "gelu_tanh", "norm_eps": 0.1},
        {"output_bias": True, "embedding_norm": True, "first_position": 2, "sinusoids": "tensor2tensor", "tie": "all"},
        {"encoder": replace(BASE.encoder, positions="learned", max_positions=20)},
        {"positions": "none", "norm": "rms", "gated": True, "n_kv_heads": 1, "bias": False, "qkv_bias": True},
    ],
    ids=lambda changes: ",".join(changes) or "paper",
)
def test_log_probs_and_greedy_outputs_equal_those_of_the_model(tmp_path, rng, changes, alone):
    import ctranslate2

    config = replace(BASE, **changes)
    model = random_model(replace(config, encoder=None, qk_norm=True) if alone else config)
    special = {"bos_token": NAMES[BOS], "eos_token": NAMES[EOS], "unk_token": NAMES[1]}
    texts = torch.randint(4, 37, (3, 7), generator=rng)
    if alone:
        write_ctranslate2(model, tmp_path, NAMES, settings=special)
        engine = ctranslate2.Generator(str(tmp_path), intra_threads=1)
        given = engine.score_batch([[NAMES[i] for i in row] for row in texts.tolist()])
        with torch.no_grad():
            log_probs = model(target_in=texts[:, :-1]).log_softmax(-1)
        want = log_probs.gather(2, texts[:, 1:, None])[:, :, 0]
        prompts, tokens = texts[:, :3], [[NAMES[i] for i in row[:3]] for row in texts.tolist()]
        how = {"max_length": 9, "end_token": [], "sampling_topk": 1, "include_prompt_in_result": False}
        rows = torch.tensor([each.sequences_ids[0] for each in engine.generate_batch(tokens, **how)])
        with torch.no_grad():
            choices = model(target_in=torch.cat([prompts, rows], dim=1)).argmax(-1)
        assert torch.equal(rows, choices[:, 2:-1]) and rows.size(1) == 9
    else:
        settings = special | {"decoder_start_token": NAMES[BOS], "add_source_eos": True}
        write_ctranslate2(model, tmp_path, NAMES, settings=settings)
        engine = ctranslate2.Translator(str(tmp_path), intra_threads=1)
        source, lengths = torch.randint(4, 37, (3, 10), generator=rng), [9, 7, 4]
        tokens = [[NAMES[i] for i in row[:n]] for row, n in zip(source.tolist(), lengths, strict=True)]
        given = engine.score_batch(tokens, [[NAMES[i] for i in row] for row in texts.tolist()])
        got = engine.translate_batch(
            tokens, beam_size=1, min_decoding_length=9, max_decoding_length=9, suppress_sequences=[[NAMES[1]]]
        )
        rows = torch.tensor([[int(token[1:]) for token in each.hypotheses[0]] for each in got])
        for row, n in enumerate(lengths):
            source[row, n] = EOS
        begin, known = torch.full((3, 1), BOS), {"source": source, "source_lengths": torch.tensor(lengths) + 1}
        with torch.no_grad():
            log_probs = model(**known, target_in=torch.cat([begin, texts], dim=1)).log_softmax(-1)
            choices = model(**known, target_in=torch.cat([begin, rows], dim=1))
        ends = torch.cat([texts, begin + EOS - BOS], dim=1)
        want = log_probs.gather(2, ends[:, :, None])[:, :, 0]
        choices[:, :, [1, EOS]] = -torch.inf
        assert torch.equal(rows, choices.argmax(-1)[:, :-1])
    torch.testing.assert_close(torch.tensor([each.log_probs for each in given]), want, rtol=0, atol=1e-4)


def printed(code: str, capsys) -> str:
    exec(compile(code, str(PAGE), "exec"), {})
    return capsys.readouterr().out


@pytest.mark.parametrize("joint", [True, False])
def test_documented_code_translates_like_the_run(tmp_path, capsys, monkeypatch, joint):
    run, lines = random_run(tmp_path / "run", joint=joint, model=LITTLE), ["Open the old letter.", "Print it."]
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run", "exported", "--to", "ctranslate2"]) == 0
    assert capsys.readouterr().out == "exported\n"
    code, _ = re.findall(r"```python\n(import ctranslate2\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert repr(lines).replace("'", '"') in code
    code = code.replace("length_penalty=1.0", "length_penalty=0, max_decoding_length=20")
    if not joint:
        code = code.replace("tokenizer.model", "source.model")
        assert sorted(path.name for path in Path("exported").glob("*.model")) == ["source.model", "target.model"]
        code = code.replace(
            "print([pieces", 'print([sentencepiece.SentencePieceProcessor(model_file="exported/target.model")'
        )
    want = td.load_translator(run)(
        lines, beam_size=5, alpha=0.0, max_length=20, length_extra=20, at_max_length="by_score"
    )
    assert printed(code, capsys) == f"{want}\n"


def test_documented_code_generates_like_the_run(tmp_path, capsys, monkeypatch):
    run = language_run(tmp_path / "run", "bytes", positions="learned")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run", "exported", "--to", "ctranslate2"]) == 0
    capsys.readouterr()
    _, code = re.findall(r"```python\n(import ctranslate2\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    config = td.GenerationConfig(max_length=20, temperature=0.0)
    assert printed(code, capsys) == f"{td.load_generator(run)(['Speak'], config)[0]}\n"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"window": 3},
            "CTranslate2 supports only window=None, but this model has window=3; it cannot be exported",
        ),
        ({"attention": "linear"}, "but this model has attention='linear'; "),
        ({"n_experts": 4}, "but this model has n_experts=4; "),
        ({"ctc": True}, "but this model has ctc=True; "),
        ({"qk_norm": True}, "but qk_norm=True; "),
        ({"decoder": None}, "but this model has only an encoder; "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_features_are_refused_by_name(tmp_path, config, message):
    parts = Parts(Transformer(replace(BASE, **config)), None, any_tokenizer("sentencepiece"), {})
    with pytest.raises(ValueError, match=re.escape(message)):
        export_ctranslate2(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_config_field_is_exported_or_refused():
    """What is written has a case above; a new field of a model needs one, or stands in LACKING."""
    written = {
        "encoder",
        "decoder",
        "d_model",
        "n_heads",
        "n_kv_heads",
        "head_width",
        "qk_norm",
        "d_ff",
        "activation",
        "gated",
        "bias",
        "qkv_bias",
        "output_bias",
        "norm",
        "norm_position",
        "norm_eps",
        "embedding_norm",
        "scale_embeddings",
        "tie",
        "positions",
        "max_positions",
        "first_position",
        "sinusoids",
        "rotary_theta",
        "rotary_factor",
        "rotary_bands",
    }
    refused = {*LACKING, "ctc_layers", "ctc_conditioning"}  # without ctc there are none
    assert {field.name for field in fields(TransformerConfig)} == written | refused | TRAINING


def test_export_command_reports_errors(tmp_path, capsys, monkeypatch):
    speech, run = random_speech_run(tmp_path / "speech"), random_run(tmp_path / "run", model=LITTLE)
    words = ["--to", "ctranslate2"]
    assert main(["export", str(speech), str(tmp_path / "out"), *words]) == 2
    assert "this model's encoder takes frames" in capsys.readouterr().err
    monkeypatch.setattr("transduce.errors.find_spec", lambda _: None)
    assert main(["export", str(run), str(tmp_path / "out"), *words]) == 2
    message = "this export needs the library ctranslate2, but it is not installed; in a clone of transduce: "
    assert capsys.readouterr().err == f"transduce: {message}pip install '.[ctranslate2]'\n"
    assert not (tmp_path / "out").exists()
    assert main(["export", str(run), str(run), *words]) == 2
    assert capsys.readouterr().err.startswith(f"transduce: {run}/config.json is there already")
