"""Our translation models in transformers: MarianMTModel gives the logits, MarianTokenizer the ids, generate the texts."""

import errno
import json
import re
import warnings
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.interop.rivals import LINES, drawn
from tests.interop.test_marian import rival
from tests.language_runs import any_tokenizer
from tests.runs import ENGLISH, LITTLE, random_run
from transduce.cli.main import main
from transduce.interop.encoder_decoder import export_marian
from transduce.interop.pretrained import Parts
from transduce.model.config import StackConfig, Tokens
from transduce.model.transformer import Transformer

pytestmark = pytest.mark.usefixtures("transformers")

HALF = StackConfig(input=Tokens(vocab_size=37, multiple=8), n_layers=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie": "all", "output_bias": True},
        {"tie": "none", "activation": "gelu", "scale_embeddings": False},
        {"tie": "output", "encoder": StackConfig(input=Tokens(vocab_size=29), n_layers=1), "activation": "gelu_tanh"},
    ],
    ids=lambda changes: changes["tie"],
)
def test_logits_equal_those_of_transformers(tmp_path, rng, changes):
    from transformers import MarianMTModel

    ours = Transformer(replace(LITTLE, **({"encoder": HALF, "decoder": HALF} | changes))).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    export_marian(Parts(ours, None, any_tokenizer("sentencepiece"), {}), tmp_path)
    theirs, info = MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    source, target = torch.randint(29, (3, 9), generator=rng), torch.randint(37, (3, 8), generator=rng)
    lengths = torch.tensor([9, 6, 2])
    visible = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        want = theirs.eval()(input_ids=source, attention_mask=visible, decoder_input_ids=target).logits
        got = ours(source=source, source_lengths=lengths, target_in=target)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("joint", [pytest.param(True, marks=pytest.mark.long), False])
def test_exported_runs_translate_the_same_and_can_be_imported(tmp_path, capsys, caplog, joint):
    from transformers import MarianMTModel, MarianTokenizer

    run, lines = random_run(tmp_path / "run", joint=joint, model=LITTLE), sorted({*ENGLISH})
    assert main(["export", str(run), str(tmp_path / "out"), "--to", "marian"]) == 0
    assert capsys.readouterr().err == ""
    assert caplog.messages == [
        "generation_config.json cannot store length_ratio=2.0, alpha=0.6, length_offset=5.0, at_max_length=finished_first; "
        "transformers will ignore it"
    ]
    tokenizer, model = (
        MarianTokenizer.from_pretrained(tmp_path / "out"),
        MarianMTModel.from_pretrained(tmp_path / "out"),
    )
    translator = td.load_translator(run)
    assert tokenizer(lines)["input_ids"] == translator.sources(lines)
    got = model.eval().generate(
        **tokenizer(lines, return_tensors="pt", padding=True), num_beams=4, max_new_tokens=12, length_penalty=0.0,
        early_stopping=False, max_length=None,
    )  # fmt: skip
    how = {"beam_size": 4, "alpha": 0.0, "max_length": 12, "length_extra": 20, "at_max_length": "by_score"}
    assert tokenizer.batch_decode(got, skip_special_tokens=True) == translator(lines, **how)
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "back")]) == 0
    back = td.load_translator(tmp_path / "back")
    assert back(lines, **how) == translator(lines, **how) and back.sources(lines) == translator.sources(lines)
    again, want = back.model.state_dict(), translator.model.state_dict()
    assert again.keys() == want.keys() and all(torch.equal(weight, want[name]) for name, weight in again.items())


@pytest.mark.parametrize("seed", drawn(4, default=(1,), long=(0, 2, 3)))
def test_opus_mt_round_trip(tmp_path, spm, seed):
    """With its bias, its two SentencePiece models and its tables: the same logits, ids and texts."""
    from transformers import MarianMTModel, MarianTokenizer

    theirs, tokenizer = rival(tmp_path / "theirs", seed, spm)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "back"), "--to", "marian"]) == 0
    again = MarianMTModel.from_pretrained(tmp_path / "back").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package
        own = MarianTokenizer.from_pretrained(tmp_path / "back")
    lines = [line for line in LINES if line.strip()]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    assert own(lines)["input_ids"] == tokenizer(lines)["input_ids"]
    begin = torch.full((len(lines), 1), theirs.config.decoder_start_token_id)
    with torch.no_grad():
        want, got = (model(**batch, decoder_input_ids=begin).logits for model in (theirs, again))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    written = [model.generate(**batch) for model in (theirs, again)]  # as their files say
    texts = [
        each.batch_decode(rows, skip_special_tokens=True) for each, rows in zip((tokenizer, own), written, strict=True)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"norm_position": "pre"},
            "a marian has fixed values of some fields, but in this model they differ: norm_position: post -> pre",
        ),
        ({"attention": "linear"}, "attention: softmax -> linear"),
        ({"encoder": None}, "a Marian model turns tokens into tokens, but this model does not; "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_features_are_refused_by_name(tmp_path, changes, message):
    parts = Parts(Transformer(replace(LITTLE, **changes)), None, any_tokenizer("sentencepiece"), {})
    with pytest.raises(ValueError, match=re.escape(message)):
        export_marian(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_search_settings_are_exported_where_transformers_has_them(tmp_path, caplog):
    run = random_run(tmp_path / "run", model=LITTLE)
    plain = json.loads((run / "config.json").read_text())
    same = {"beam_size": 3, "alpha": 0.0, "at_max_length": "by_score", "length_ratio": 0.0, "length_extra": 9}
    for i, (decoding, settings, lost) in enumerate([
        (same, {"num_beams": 3, "length_penalty": 0.0, "max_length": 10}, ""),
        (same | {"split_length": 27}, {"num_beams": 3, "length_penalty": 0.0}, "cannot store split_length=27; "),
        (same | {"beam_size": 1, "alpha": 0.6}, {"num_beams": 1, "length_penalty": None}, ""),
        (same | {"alpha": 0.6}, {"num_beams": 3, "length_penalty": None}, "cannot store alpha=0.6, length_offset=5.0; "),
        (same | {"begin_with": "<s> </s>"}, {"num_beams": 3}, "cannot store begin_with=<s> </s>; "),
        (same | {"repetition_penalty": 1.5}, {"repetition_penalty": None}, "cannot store repetition_penalty=1.5; "),
        (same | {"beam_size": 1, "repetition_penalty": 1.5}, {"repetition_penalty": 1.5}, ""),
    ]):  # fmt: skip
        (run / "config.json").write_text(json.dumps(plain | {"experiment": {"decoding": decoding}}))
        assert main(["export", str(run), str(tmp_path / str(i)), "--to", "marian"]) == 0
        got = json.loads((tmp_path / str(i) / "generation_config.json").read_text())
        assert {name: got.get(name) for name in settings} == settings
        assert lost in caplog.text and bool(caplog.messages) == bool(lost)
        caplog.clear()


def test_an_export_that_a_full_disk_stopped_can_be_repeated(tmp_path, monkeypatch, capsys):
    words = ["export", str(random_run(tmp_path / "run", model=LITTLE)), str(tmp_path / "out"), "--to", "marian"]

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("transduce.interop.pretrained.write_file", fail)
        assert main(words) == 2
    assert "make room, and run it again" in capsys.readouterr().err
    assert main(words) == 0
