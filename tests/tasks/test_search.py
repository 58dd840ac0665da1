"""What a transcriber is told about the search, and the search function itself."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import transduce as td
from tests.language_runs import language_run
from tests.runs import LITTLE, RATE, library_tokenizer, random_run, random_speech_run, sentences
from transduce.config import from_dict, to_dict
from transduce.data.audio import read_audio
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.lines import is_blank
from transduce.decode.beam import beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.rules import Constraints
from transduce.decode.scorer import ModelScorer, Scorer, combined
from transduce.files import save_weights
from transduce.model.config import TransformerConfig

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, no_repeat_ngram=4)  # no second search


@pytest.fixture(scope="module")
def json_transcriber(tmp_path_factory) -> td.Transcriber:
    """The same with a tokenizer of another library, whose special ids are others."""
    tokenizer = JSONTokenizer(library_tokenizer("unigram", sentences(30)).to_str().encode())
    return td.load(random_speech_run(tmp_path_factory.mktemp("run") / "run", None, tokenizer), dtype=torch.float64)


def search_directly(transcriber, path, *, beam_size=5, alpha=0.6, ctc_weight=0.0) -> tuple[str, float]:
    """Text and score of one file by the search function itself, as SHORT bounds it."""
    model = transcriber.model
    special = transcriber.tokenizer.tokens(range(5))
    pad, unk, bos, eos = (special.index(name) for name in ("<pad>", "<unk>", "<s>", "</s>"))
    frames = transcriber.feature_extractor(read_audio(path, RATE)).to(next(model.parameters()).dtype)
    with torch.inference_mode():
        memory = model.encode(frames[None])
        scorer: Scorer = ModelScorer(model, memory)
        if ctc_weight:
            ctc = CTCPrefixScorer(model.ctc_logits(memory.states), eos_id=eos, blank_id=pad)
            scorer = combined([(1 - ctc_weight, scorer), (ctc_weight, ctc)])
        settings = {"beam_size": beam_size, "alpha": alpha}
        rules = {"suppressed": (pad, unk, bos), "config": RulesConfig(no_repeat_ngram=SHORT.no_repeat_ngram)}
        constraints = Constraints(torch.tensor([SHORT.length_extra]), eos_id=eos, **rules)
        ((best,),) = beam_search(scorer, torch.tensor([[bos]]), constraints, BeamConfig(**settings))
    return transcriber.tokenizer.decode([best.tokens])[0].strip(), best.score


WAYS = ({"beam_size": 1}, {}, {"alpha": 2.0}, {"ctc_weight": 0.6}, {"ctc_weight": 1.0})


@pytest.mark.parametrize(("fixture", "ways"), [("transcriber", WAYS), ("json_transcriber", WAYS[:2] + WAYS[3:4])])
def test_beam_alpha_and_ctc_reach_the_search(fixture, ways, request, recordings):
    transcriber = request.getfixturevalue(fixture)
    paths = [r.audio for r in recordings[:3]]
    ours = []
    for way in ways:
        got = [t.segments[0].outputs[0] for t in transcriber.transcribe(paths, replace(SHORT, **way))]
        texts, scores = [output.text.strip() for output in got], [output.score for output in got]
        want = [search_directly(transcriber, path, **way) for path in paths]
        assert texts == [text for text, _ in want] and scores == pytest.approx([score for _, score in want], abs=1e-5)
        ours.append((texts, scores))
    plain = ours[ways.index({})]
    for way, (texts, scores) in zip(ways, ours, strict=True):
        if way:
            assert scores != pytest.approx(plain[1], abs=0.1)
            assert "alpha" in way or texts != plain[0]  # alpha moves the score


def test_calls_change_only_the_given_settings(transcriber, recordings, monkeypatch):
    """A second output, and nothing else: CTC, alpha and the bounds are still the run's."""
    own = replace(SHORT, ctc_weight=0.6, alpha=1.6)
    monkeypatch.setattr(transcriber, "decoding", own)
    paths = [r.audio for r in recordings[:3]]
    got = transcriber.transcribe(paths, n_best=2)
    assert got == transcriber.transcribe(paths, replace(own, n_best=2))
    assert got != transcriber.transcribe(paths, replace(SHORT, n_best=2))
    sounds = list(transcriber.read(paths, own))
    assert [
        s
        for _, s in sorted(transcriber.stream(sounds, transcriber.decoding.changed(n_best=2)), key=lambda each: each[0])
    ] == [segment for transcript in got for segment in transcript.segments]
    assert transcriber(paths, alpha=0.0, beam_size=1) == transcriber(paths, replace(own, alpha=0.0, beam_size=1))


def test_more_outputs_widen_the_beam():
    own = td.SearchConfig(beam_size=3, alpha=1.6)
    assert own.changed() == own
    assert own.changed(n_best=8) == replace(own, n_best=8, beam_size=8)
    assert own.changed(n_best=2, alpha=0.1) == replace(own, n_best=2, alpha=0.1)
    with pytest.raises(ValueError, match=r"^n_best .*n_best=8$"):
        own.changed(n_best=8, beam_size=5)
    with pytest.raises(ValueError) as error:
        own.changed(nbest=2)
    assert str(error.value) == "there is no field nbest; here it is n_best"


def test_settings_are_converted_to_their_types_or_refused():
    own = td.SearchConfig()
    assert own.changed(beam_size=np.int64(3), alpha=1, forbid=["a"]) == replace(
        own, beam_size=3, alpha=1.0, forbid=("a",)
    )
    assert own.changed(suppress=torch.tensor([3, 4])) == replace(own, suppress=(3, 4))
    for settings, message in (
        ({"beam_size": "3"}, 'beam_size must be a whole number, but it is "3"'),
        ({"beam_size": 2.5}, "beam_size must be a whole number, but it is 2.5"),
        ({"beam_size": {"a": 3}}, 'beam_size must be a whole number, but it is {"a": 3}'),
        (
            {"logit_bias": {(1, 2): "x"}},
            'logit_bias must be a list, each a list of 2, each a string or a number, but it is {"(1, 2)": "x"}',
        ),
        ({"n_best": "2"}, 'n_best must be a whole number, but it is "2"'),
        ({"num_beams": 3}, "there is no field num_beams; here it is beam_size"),
        (
            {"alignment_heads": [[1]]},
            "alignment_heads must be a list, each a list of 2, each a whole number, but it is [[1]]",
        ),
    ):
        with pytest.raises(td.InputError) as error:
            own.changed(**settings)
        assert str(error.value) == message
    with pytest.raises(td.InputError, match=r"^max_length must be a whole number, but it is 1\.5$"):
        td.GenerationConfig().changed(max_length=1.5)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32), ("int4", None)])
def test_a_dtype_may_be_a_name(text_run, name, dtype):
    if dtype is None:
        with pytest.raises(td.InputError, match=r"^a dtype must be one of fp32, bf16, fp16, int8, but it is 'int4'$"):
            td.load(text_run, dtype=name)
    else:
        assert next(td.load(text_run, dtype=name).model.parameters()).dtype == dtype


def test_greedy_changes_only_beam_size_and_n_best():
    own = td.SearchConfig(beam_size=7, n_best=3, alpha=1.6, ctc_weight=0.3, no_repeat_ngram=2, max_seconds=9.0)
    assert own.greedy() == replace(own, beam_size=1, n_best=1)
    assert own.beam_size == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_size", 0),
        ("n_best", 6),
        ("alpha", -1.0),
        ("length_ratio", -0.5),
        ("length_extra", 0),
        ("no_repeat_ngram", -1),
        ("ctc_weight", -0.1),
        ("max_seconds", 0.5),
    ],
)
def test_settings_out_of_their_bounds_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name} .*{name}={value}$"):
        td.SearchConfig(**{name: value})


def test_min_length_raises_the_length_bound(text_run, transcriber, recordings):
    """Whatever bound the source gives; the tokens that a model can have are the only other one."""
    bounds = {"length_ratio": 0.0, "length_extra": 3}
    for beam_size in (1, 3):
        how = {**bounds, "min_length": 9, "beam_size": beam_size, "no_repeat_ngram": 0}
        outputs = td.load(text_run).translate(["Print it."], **how)[0]
        outputs += transcriber.transcribe([recordings[0].audio], ctc_weight=0.0, **how)[0].segments[0].outputs
        assert all(len(output.tokens) >= 9 for output in outputs)


def test_lines_of_invisible_characters_are_blank(text_run):
    """Of a byte order mark, a soft hyphen, spaces without a width, a bell, the beginning of a colour."""
    lines = ["\ufeff", "\u00ad", "\u200b \u2060", "\x07", "\x1b", "\u2028", ""]
    assert td.load(text_run)([*lines, "\u200bPrint it."])[:-1] == [""] * len(lines)
    assert td.load(text_run)([*lines, "\u200bPrint it."])[-1]
    assert not any(map(is_blank, "\u06dd\u0601\u070f"))  # format characters that are seen


def test_rules_reach_the_search_of_every_task(transcriber, recordings, text_run, tmp_path):
    """Lengths, suppressed tokens and no token twice, greedily and with a beam; without them, outputs break them all."""
    paths = [r.audio for r in recordings[:2]]
    own = replace(SHORT, no_repeat_ngram=0)
    translator = td.load(text_run, dtype=torch.float64)
    generator = td.load(language_run(tmp_path / "letters", "pieces"), dtype=torch.float64)

    def got(**rules) -> list[list[int]]:
        tokens = []
        for beam_size in (1, 3):
            search = replace(own, beam_size=beam_size, **rules)
            tokens += [s.outputs[0].tokens for t in transcriber.transcribe(paths, search) for s in t.segments]
            tokens += [outputs[0].tokens for outputs in translator.translate(["Print it.", "Open the"], search)]
            config = td.GenerationConfig(
                beam_size=beam_size, temperature=float(beam_size > 1), **{"max_length": 6, **rules}
            )
            tokens += [texts[0].tokens for texts in generator.generate(["All", "it"], config)]
        return tokens

    plain = got()
    often = tuple(sorted({token for tokens in plain for token in tokens if token < 290}))
    ruled = got(suppress=often, no_repeat_ngram=1, min_length=2, max_length=4)
    assert len(ruled) == len(plain) == 12 and any(len(set(tokens)) < len(tokens) for tokens in plain)
    for tokens in ruled:
        assert len(set(tokens)) == len(tokens) >= 2 and not {*tokens} & {*often}
    assert max(map(len, ruled)) <= 4 < min(max(map(len, plain[i : i + 2])) for i in range(0, 12, 2))
    with pytest.raises(ValueError) as error:
        translator(["Print it."], suppress=[3])
    size = translator.tokenizer.vocab_size
    assert str(error.value) == (
        f"suppress and logit_bias take ids from 0 to {size - 1} (suppress without EOS), but one has 3; leave it out"
    )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_begin_with_tokens_precede_and_condition_outputs(tmp_path, caplog, beam_size):
    """As a search of the model itself from there; learned positions of the source may be fewer than of the target."""
    directory = random_run(tmp_path / "run", model=LITTLE)
    plain = json.loads((directory / "config.json").read_text())
    model = from_dict(TransformerConfig, plain["model"], "")
    halves = {
        "encoder": replace(model.encoder, positions="learned", max_positions=15),
        "decoder": replace(model.decoder, positions="learned", max_positions=12),
    }
    config = replace(model, **halves)
    torch.manual_seed(1)
    (directory / "config.json").write_text(json.dumps(plain | {"model": to_dict(config)}))
    save_weights(directory / "model.safetensors", td.Transformer(config))
    translator = td.load_translator(directory, dtype=torch.float64)
    tokenizer, lines = translator.tokenizer, ["Print it.", "Open the"]
    settings = {"beam_size": beam_size, "begin_with": "</s> <s> <unk>", "at_max_length": "by_score", "alpha": 0.0}
    outputs = translator.translate(lines, token_scores=True, **settings)
    start = torch.tensor([[3, 2, 1]])
    for source, (output,) in zip(translator.sources(lines), outputs, strict=True):
        with torch.inference_mode():
            scorer = ModelScorer(translator.model, translator.model.encode(torch.tensor([source])), prompts=start)
            bound = torch.tensor([12 - 2])
            constraints = Constraints(bound, eos_id=3, suppressed=tokenizer.suppressed)
            config = BeamConfig(beam_size=beam_size, alpha=0.0, at_max_length="by_score")
            ((best,),) = beam_search(scorer, start, constraints, config)
        assert output.tokens == best.tokens
        assert float(output.token_scores.log_probs.sum()) == pytest.approx(best.log_prob, abs=1e-4)
    assert [o.tokens for (o,) in outputs] != [o.tokens for (o,) in translator.translate(lines, beam_size=beam_size)]
    with caplog.at_level("WARNING"):
        ((long,),) = translator.translate(lines[:1], beam_size=beam_size, min_length=11)
    assert len(long.tokens) >= 11
    assert long.finished or "1 outputs were cut after 12 tokens, as positions end there" in caplog.text
    with pytest.raises(
        ValueError, match=r"^an output may have 12 tokens, EOS included, as positions end there, but min_length=12; ta"
    ):
        translator(lines, min_length=12)
    for text, message in (
        ("</s> <2dee>", "begin_with takes tokens of the vocabulary, but '<2dee>' is not one; leave it out"),
        ("<s> " * 13, "begin_with must leave room for an output, but it has 13 tokens; take fewer"),
    ):
        with pytest.raises(ValueError) as error:
            translator(lines, begin_with=text)
        assert str(error.value) == message
    with pytest.raises(ValueError, match="'</s>>' is not one"):
        translator(lines, begin_with="</s>>")
    with pytest.raises(ValueError, match=r"^input 1 must fit into the model's learned positions, which end at 15, but"):
        translator.encode(["Print it. " * 4])
