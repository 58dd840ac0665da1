"""Samples of what translates and transcribes, from Python and the command line."""

import math
import re
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.runs import ENGLISH, RATE, sound
from tests.tasks.test_ensemble import check, whole_model
from tests.tasks.test_search import SHORT
from transduce.cli.main import main
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.tasks.base import Details
from transduce.tasks.transcribe import AT_ONCE

CPU = ["--device", "cpu"]
LINES = [*ENGLISH[:3], "", "one word and many more words after it"]
DRAWN = replace(SHORT, no_repeat_ngram=0, sample=True, beam_size=5, n_best=5)


@pytest.fixture(scope="module")
def translator(text_run) -> td.Translator:
    return td.load_translator(text_run, dtype=torch.float64)


def test_samples_depend_only_on_seed_line_and_number(text_run, translator):
    got = translator.translate(LINES, DRAWN, token_scores=True)
    alone = translator.translate(LINES, DRAWN, batch_tokens=1)
    assert [[o.tokens for o in each] for each in alone] == [[o.tokens for o in each] for each in got]
    later = translator.translate(LINES[2:], DRAWN, first_line=3)
    assert [[o.tokens for o in each] for each in later] == [[o.tokens for o in each] for each in got[2:]]
    assert [o[0].tokens for o in translator.translate(LINES, DRAWN, n_best=1)] == [o[0].tokens for o in got]
    assert [o[0].tokens for o in translator.translate(LINES, DRAWN, seed=1)] != [o[0].tokens for o in got]
    assert len({tuple(o.tokens) for o in got[0]}) == 5
    source = torch.tensor([[*translator.source_tokenizer.encode(LINES[:1])[0], EOS]])
    for output in got[0]:
        check([text_run], output, source=source)
        n = len(output.tokens) + output.finished
        assert output.score == pytest.approx(output.log_prob / ((5 + n) / 6) ** DRAWN.alpha)


@pytest.mark.parametrize(
    ("settings", "left"),
    [({}, 330), ({"temperature": 0.3}, 330), ({"top_k": 3}, 3), ({"top_p": 0.05}, None)],
    ids=["plain", "cold", "top k", "top p"],
)
def test_token_frequencies_equal_their_probabilities(text_run, translator, settings, left):
    """A thousand first tokens; what no text holds leaves its probability to the others."""
    way = replace(DRAWN, beam_size=1000, n_best=1000, length_extra=1, **settings)
    (outputs,) = translator.translate(ENGLISH[:1], way)
    drawn = [o.tokens[0] if o.tokens else EOS for o in outputs]
    source = torch.tensor([[*translator.source_tokenizer.encode(ENGLISH[:1])[0], EOS]])
    with torch.no_grad():
        logits = whole_model(text_run)(source=source, target_in=torch.tensor([[BOS]]))[0, -1]
    logits[:3] = -math.inf
    probs = (logits / settings.get("temperature", 1.0)).softmax(-1)
    order = probs.argsort(descending=True).tolist()
    if "top_p" in settings:
        left = next(k for k in range(1, 330) if probs[order[:k]].sum() >= settings["top_p"])
    kept = probs[order[:left]] / probs[order[:left]].sum()
    assert set(drawn) <= set(order[:left])
    for some in (order[:1], order[1 : left // 2]):
        p = sum(kept[order.index(i)].item() for i in some)
        assert sum(drawn.count(i) for i in some) == pytest.approx(
            1000 * p, abs=4 * math.sqrt(1000 * p * (1 - p)) + 1e-6
        )


def test_command_and_python_draw_the_same_samples(text_run, speech_run, recordings, tmp_path, capsys):
    words = ["--sample", "--seed", "3", "--top-k", "7", "--length-ratio", "0", "--length-extra", "7", *CPU]
    way = {"sample": True, "seed": 3, "top_k": 7}
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    assert main(["translate", str(text_run), str(tmp_path / "in.txt"), "--n-best", "2", *words]) == 0
    got = td.load_translator(text_run).translate(LINES, replace(SHORT, no_repeat_ngram=0), n_best=2, **way)
    assert capsys.readouterr().out == "".join(f"{output.text}\n" for each in got for output in each)
    sounds = [recording.audio for recording in recordings[:3]]
    both = []
    for some in (sounds, sounds[:2]):
        assert main(["transcribe", str(speech_run), *map(str, some), "--no-repeat-ngram", "4", *words]) == 0
        both.append(capsys.readouterr().out.splitlines())
    assert both[0] == td.load_transcriber(speech_run)(sounds, SHORT, **way)
    assert both[1] == both[0][:2]


def test_sampled_segments_one_by_one_equal_those_of_the_recording(transcriber):
    """Also where more than a few follow each other, and the words of what was drawn have their times."""
    samples = sound("green red " * 12)
    way = replace(SHORT, max_seconds=1.0, sample=True, n_best=2)
    (whole,) = transcriber.transcribe([(samples, RATE)], way, word_times=True)
    assert len(whole.segments) > AT_ONCE
    (read,) = transcriber.read([(samples, RATE)], way)
    pieces = list(transcriber.in_order(read, way, details=Details(word_times=True)))
    for piece, segment in zip(pieces, whole.segments, strict=True):
        assert [output.tokens for output in piece.outputs] == [output.tokens for output in segment.outputs]
        for output, want in zip(piece.outputs, segment.outputs, strict=True):
            assert [word.text for word in output.words] == output.text.split()
            assert [(word.start, word.stop) for word in output.words] == [
                (word.start, word.stop) for word in want.words
            ]


def test_contradictory_settings_are_refused():
    message = (
        "temperature, top_k, top_p and min_p are for sampling, but temperature=0.5, top_k=0, top_p=1.0, min_p=0.0 and "
        "sample=False; add sample"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        td.SearchConfig(temperature=0.5)
    with pytest.raises(ValueError, match=r"temperature=0\.0"):
        td.SearchConfig(sample=True, temperature=0.0)


def test_greedy_search_disables_sampling(text_run, tmp_path, capsys):
    own = td.SearchConfig(beam_size=6, sample=True, top_k=3, temperature=0.4)
    assert own.greedy() == td.SearchConfig(beam_size=1)
    assert main(["translate", str(text_run), "--greedy", "--sample", "--top-k", "3", "-", *CPU]) == 2
    assert "--greedy " in (err := capsys.readouterr().err) and "--sample, --top-k" in err
