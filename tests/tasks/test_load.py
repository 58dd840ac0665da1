"""Text in, text out: as many lines as came, in their order, whatever shares their batch."""

import logging
import math
import random
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.runs import ENGLISH, LITTLE, library_tokenizer, random_run, random_speech_run
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.decode.config import BeamConfig
from transduce.decode.phrases import load_lexicon, save_lexicon
from transduce.tasks.base import Details, in_order
from transduce.tasks.outputs import Output
from transduce.tasks.search import GREEDY
from transduce.tasks.translate import join_parts

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7)


@pytest.fixture(scope="module", params=["text_run", "two_vocabularies"], ids=["joint", "one per side"])
def translator(request):
    return td.load(request.getfixturevalue(request.param))


@pytest.mark.parametrize("decoding", [SHORT, replace(SHORT, beam_size=1)], ids=["beam", "greedy"])
def test_batch_size_order_and_padding_change_no_output(translator, decoding):
    lines = [*ENGLISH[:6], "", "one word and many more words after it, until it is really long, far too long"]
    alone = [translator([line], decoding)[0] for line in lines]
    assert translator(lines, replace(decoding, batch_tokens=10_000)) == alone
    assert translator(lines, replace(decoding, batch_tokens=1)) == alone
    order = random.Random(5).sample(range(len(lines)), len(lines))
    assert translator([lines[i] for i in order], decoding) == [alone[i] for i in order]


def test_greedy_search_equals_a_loop_over_argmax(translator):
    line = ENGLISH[1]
    source = torch.tensor([[*translator.source_tokenizer.encode([line])[0], EOS]])
    target = [BOS]
    with torch.no_grad():
        while len(target) < 8 and target[-1] != EOS:
            logits = translator.model(source=source, target_in=torch.tensor([target]))[0, -1]
            logits[:3] = -torch.inf
            target.append(int(logits.argmax()))
    want = translator.tokenizer.decode([[i for i in target[1:] if i != EOS]])[0]
    assert translator([line], replace(GREEDY, length_ratio=0.0, length_extra=7)) == [want]


def test_tokenizer_without_eos_is_refused(tmp_path):
    library = library_tokenizer("bpe", ENGLISH, special=("<unk>", "<s>"))
    run = random_speech_run(tmp_path / "run", None, JSONTokenizer(library.to_str().encode()))
    with pytest.raises(ValueError, match=rf"^{run}: a model that turns .* has none for eos_id \(</s>, <eos>, "):
        td.load(run)


def test_blank_lines_give_blank_lines_in_their_place(translator):
    got = translator(["", ENGLISH[0], " \t", ENGLISH[1], ""], SHORT)
    assert [bool(line) for line in got] == [False, True, False, True, False]
    assert translator([], SHORT) == []
    assert translator(["", ""], SHORT) == ["", ""]


def test_too_long_lines_are_cut_with_a_warning(translator, caplog):
    line = "word " * 40
    n_tokens = len(translator.source_tokenizer.encode([line])[0])
    short = replace(SHORT, max_source_length=9)
    with caplog.at_level(logging.WARNING):
        cut = translator.translate([ENGLISH[5], line], short, first_line=41)
    message = [record.getMessage() for record in caplog.records if record.name == "transduce"][-1]
    assert all(part in message for part in ("line 42 ", f" {n_tokens} ", "cut to 8 ", "max_source_length"))
    assert cut[1][0].text == translator(["word " * 30 + "letter"], short)[0]  # only what was cut off differs


@pytest.mark.parametrize("decoding", [SHORT, replace(SHORT, beam_size=3, n_best=2)], ids=["greedy", "beam"])
def test_long_lines_are_split_where_sentences_are_more_probable(translator, decoding):
    parts = [ENGLISH[0], ENGLISH[1], ENGLISH[3]]
    lines = [ENGLISH[5], " ".join(parts), "", " ".join(parts[:2]), "word " * 12]
    whole = translator.translate(lines, decoding)
    one = max(len(ids) for ids in translator.source_tokenizer.encode(ENGLISH))
    got = translator.translate(lines, decoding, split_length=one)
    for i, n in ((1, 3), (3, 2)):
        each = translator.translate(parts[:n], decoding)
        for rank, output in enumerate(got[i]):
            way = [outputs[rank] for outputs in each]
            mean = sum(o.log_prob for o in (e[0] for e in each)) / sum(len(e[0].tokens) + 1 for e in each)
            if mean > whole[i][0].log_prob / (len(whole[i][0].tokens) + 1):
                assert output.log_prob == pytest.approx(sum(o.log_prob for o in way), rel=1e-4)
                assert output.tokens == [token for o in way for token in o.tokens]
                assert output.text == " ".join(o.text for o in way)
            else:
                assert output.text == whole[i][rank].text
    for i in (0, 2, 4):  # too short, blank, and one sentence only
        assert [(o.text, o.tokens) for o in got[i]] == [(o.text, o.tokens) for o in whole[i]]


def test_bias_does_not_affect_the_choice_to_split_a_line(translator):
    """It counts once for the line, and once for each sentence."""
    pairs = [(a, b) for a in ENGLISH[:4] for b in ENGLISH[4:7]]
    lines = [" ".join(pair) for pair in pairs]
    shortest = min(len(ids) for ids in translator.source_tokenizer.encode(lines))
    changed = 0
    for letter in "aeits":
        biased = replace(SHORT, logit_bias=((letter, 2.0),))
        whole = translator.translate(lines, biased)
        apart = translator.translate([each for pair in pairs for each in pair], biased)
        got = translator.translate(lines, biased, split_length=shortest - 1)
        for i, pair in enumerate(pairs):
            ways = [([lines[i]], [whole[i][0]]), (pair, [each[0] for each in apart[2 * i : 2 * i + 2]])]
            sizes = [sum(len(o.tokens) + 1 for o in outputs) for _, outputs in ways]
            means = [sum(s.log_prob for s in translator.score(*way)) / n for way, n in zip(ways, sizes, strict=True)]
            of_search = [sum(o.log_prob for o in way[1]) / n for way, n in zip(ways, sizes, strict=True)]
            best = means.index(max(means))
            assert got[i][0].text == " ".join(o.text for o in ways[best][1])
            changed += of_search[best] != max(of_search)
    assert changed


@pytest.mark.parametrize("how", [{}, {"split_length": 8}, {"sample": True, "seed": 3}, {"beam_size": 3}])
def test_texts_are_the_same_without_scores(translator, how):
    lines, how = [ENGLISH[5], f"{ENGLISH[0]} {ENGLISH[1]}", ""], {"beam_size": 1} | how
    got = [in_order(translator.stream(lines, SHORT, details=Details(scores=scores), **how)) for scores in (True, False)]
    texts = [[outputs[0].text for outputs in each] for each in got]
    assert texts[0] == texts[1] == translator(lines, SHORT, **how)
    computed = "split_length" in how or how["beam_size"] > 1  # ways of a line and hypotheses are compared by them
    assert not math.isnan(got[0][0][0].log_prob)
    assert math.isnan(got[1][0][0].log_prob) is math.isnan(got[1][0][0].score) is not computed


def test_parts_are_joined_rank_by_rank():
    a = [Output("a", -3.0, -3.0, [1, 2]), Output("A", -6.0, -6.0, [9])]
    b = [Output("b", -5.0, -5.0, [3], False), Output("B", -7.0, -7.0, [])]
    assert join_parts([a, b], BeamConfig(alpha=1.0)) == [
        Output("a b", -8.0, -8.0 / (10 / 6), [1, 2, 3], False),
        Output("A B", -13.0, -13.0 / (8 / 6), [9]),
    ]
    assert join_parts([a], BeamConfig(alpha=1.0)) == a


def test_too_long_lines_with_sentences_are_split_instead_of_cut(translator, caplog):
    parts = [ENGLISH[0], ENGLISH[1], ENGLISH[3]]
    longest = max(len(ids) for ids in translator.source_tokenizer.encode(parts)) + 1
    with caplog.at_level(logging.WARNING):
        (got,) = translator([" ".join(parts)], replace(SHORT, max_source_length=longest, split_length=longest))
    assert got == " ".join(translator(parts, SHORT))
    assert not [r for r in caplog.records if "was cut to" in r.getMessage()]


@pytest.mark.parametrize(("ratio", "extra"), [(0.0, 5), (1.5, 2)])
def test_the_output_is_bounded_in_proportion_to_the_source(translator, monkeypatch, ratio, extra):
    lengths = []
    monkeypatch.setattr(translator.tokenizer, "decode", lambda rows: [lengths.append(len(r)) or "" for r in rows])
    translator([ENGLISH[2]], td.SearchConfig(length_ratio=ratio, length_extra=extra))
    n_source = len(translator.source_tokenizer.encode([ENGLISH[2]])[0]) + 1
    assert 0 < max(lengths) <= int(ratio * n_source) + extra


def test_calls_change_only_the_given_settings(translator, monkeypatch):
    monkeypatch.setattr(translator, "decoding", replace(SHORT, alpha=1.6))
    wide = replace(SHORT, alpha=1.6, n_best=7, beam_size=7)
    got = translator.translate(ENGLISH[:3], n_best=7)
    assert got == translator.translate(ENGLISH[:3], wide) and len(got[0]) == 7
    assert dict(translator.stream(ENGLISH[:3], n_best=7)) == dict(enumerate(got))
    assert translator(ENGLISH[:3], SHORT, alpha=0.0) == translator(ENGLISH[:3], replace(SHORT, alpha=0.0))


def test_n_best_outputs_are_sorted_and_complete(translator):
    outputs = translator.translate(["", *ENGLISH[:3]], replace(SHORT, n_best=4))
    assert [len(each) for each in outputs] == [4] * 4
    for each in outputs[1:]:
        scores = [output.score for output in each]
        assert scores == sorted(scores, reverse=True)
        assert all(output.log_prob < 0 for output in each)


def test_decoded_line_breaks_become_spaces(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "decode", lambda rows: ["two\nlines\r"] * len(rows))
    assert translator([ENGLISH[0]], SHORT) == ["two lines "]


def test_stream_yields_every_line_once_and_blank_ones_first(translator):
    lines, config = [*ENGLISH[:5], ""], replace(SHORT, batch_tokens=20, n_best=2)
    stream = translator.stream(lines, config)
    assert next(stream) == (5, [Output("")] * 2)
    got = list(stream)
    assert [i for i, _ in got] != sorted(i for i, _ in got) == [0, 1, 2, 3, 4]
    assert [dict(got)[i] for i in range(5)] == translator.translate(lines, config)[:5]
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(ValueError) as caught:
        next(translator.stream("one"))
    assert str(caught.value) == "translate takes a list of lines, but got one string; use ['one']"


def test_missing_files_of_a_run_are_errors(tmp_path):
    with pytest.raises(ValueError) as error:
        td.load(tmp_path / "none")
    assert str(error.value) == (
        f"a run directory holds config.json, but {tmp_path / 'none'} does not exist; "
        "a recipe makes one (--run DIRECTORY)"
    )
    run = random_run(tmp_path / "run", model=LITTLE)
    (run / "model.safetensors").unlink()
    with pytest.raises(ValueError) as error:
        td.load(run)
    assert str(error.value) == (
        f"a run needs weights, but {run} has neither model.safetensors nor a checkpoint; train it first"
    )
    (run / "tokenizer.model").unlink()
    with pytest.raises(ValueError) as error:
        td.load(run)
    assert str(error.value) == f"a run needs a tokenizer to write text, but {run} has none"


def test_words_added_to_the_lexicon_are_kept(tmp_path):
    save_lexicon(tmp_path, ["red", "blue"])
    with (tmp_path / "lexicon.txt").open("a") as file:
        file.write("green\n")
    save_lexicon(tmp_path, ["red", "blue"])
    assert load_lexicon(tmp_path) == ("red", "blue", "green")
