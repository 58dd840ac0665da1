"""What a finished speech run prints and keeps: every search once, a bad file named once."""

import json
import random
import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import jiwer
import pytest
import sacrebleu

import transduce as td
from tests.runs import random_speech_run, record, sentences
from transduce.data.manifest import Recording
from transduce.report import evaluation
from transduce.report.evaluation import search_report, speech_report
from transduce.tasks import sound as sounds, transcribe as transcriber
from transduce.tasks.sound import Sound

PLAIN = td.SearchConfig(beam_size=3, length_ratio=0.0, length_extra=7, no_repeat_ngram=4, n_best=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_speech_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Three, one that is no sound, and one without a text."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "bad.wav").write_text("no sound")
    good = record(folder, sentences(4))
    return [*good[:2], Recording("bad", folder / "bad.wav", 1.0, "A", "red blue"), good[2], replace(good[3], text=" ")]


@pytest.mark.parametrize(
    ("decoding", "searches"),
    [
        (PLAIN, {"greedy": {"beam_size": 1}, "beam3": {}}),
        (
            replace(PLAIN, ctc_weight=0.6),
            {"greedy": {"beam_size": 1}, "beam3": {}, "beam3.ctc": {"ctc_weight": 0.6}},
        ),
        (replace(PLAIN, beam_size=1, n_best=1), {"greedy": {"beam_size": 1}}),
        (
            replace(PLAIN, beam_size=1, n_best=1, ctc_weight=0.6),
            {"greedy": {"beam_size": 1}, "greedy.ctc": {"beam_size": 1, "ctc_weight": 0.6}},
        ),
    ],
    ids=["beam", "ctc", "greedy", "greedy and ctc"],
)
def test_every_search_runs_once_and_reads_the_audio(run, recordings, monkeypatch, capsys, decoding, searches):
    opened, made, read, search = [], [], sounds.audio_blocks, td.Transcriber._search
    monkeypatch.setattr(
        sounds, "audio_blocks", lambda path, *rest, **named: opened.append(path) or read(path, *rest, **named)
    )
    monkeypatch.setattr(
        td.Transcriber, "_search", lambda *parts, **named: made.append(parts[3]) or search(*parts, **named)
    )
    scores = speech_report(run, recordings, decoding, "cpu")
    assert opened == [r.audio for r in recordings] * len(searches)
    spoken = recordings[:4]
    ways = {name: replace(PLAIN, n_best=1, **fields) for name, fields in searches.items()}
    assert made == list(ways.values())  # a batch each
    printed = capsys.readouterr().out
    assert printed.count(f"{spoken[2].audio} cannot be read as sound") == 1
    assert set(scores) == {f"{measure}.{name}" for measure in ("wer", "cer") for name in ways}
    for name, way in ways.items():
        first, second, last, unasked = td.load(run)([recordings[i].audio for i in (0, 1, 3, 4)], way)
        outputs = [first, second, "", last]
        assert (run / f"test.{name}.txt").read_text() == "".join(line + "\n" for line in [*outputs, unasked])
        texts = [r.text for r in spoken]
        for measure, rate, units in (("wer", jiwer.wer, str.split), ("cer", jiwer.cer, list)):
            n = sum(len(units(text)) for text in texts)
            wrong = rate(texts, outputs) * n + len(units(unasked.strip()))  # all of the last are insertions
            assert scores[f"{measure}.{name}"] == pytest.approx(100 * wrong / n)
    kept = json.loads((run / "test.json").read_text())
    assert [each["search"] for each in kept] == [name for name in ways for _ in range(2)]
    assert all(each["score"] in printed for each in kept)
    assert {f"{each['measure']}.{each['search']}": each["value"] for each in kept} == scores
    assert all(each["low"] <= each["value"] <= each["high"] for each in kept)
    errors = (run / "test.errors.txt").read_text()
    assert errors.startswith(f"test, {name}: {next(x['score'] for x in reversed(kept) if x['measure'] == 'wer')[:9]}")
    texts = [(r.text, output) for r, output in zip(spoken, outputs, strict=True) if r.speaker == "A"]
    rate = 100 * jiwer.wer(*map(list, zip(*texts, strict=True)))
    assert recordings[4].speaker == "B" and re.search(rf"(?m)^A +{len(texts)} +\d+ +{rate:.2f} ", errors)
    assert all(f"\n{r.id}: " in errors for r, output in zip(spoken, outputs, strict=True) if r.text != output)


def test_sampled_outputs_are_named_sampled(run, recordings):
    sampled = replace(PLAIN, n_best=1, sample=True)
    scores = speech_report(run, recordings[:2], sampled, "cpu")
    assert set(scores) == {f"{measure}.{name}" for measure in ("wer", "cer") for name in ("greedy", "sampled")}
    outputs = td.load(run)([recording.audio for recording in recordings[:2]], sampled)
    assert (run / "test.sampled.txt").read_text() == "".join(line + "\n" for line in outputs)


def test_canary_scores_do_not_change_the_test_files(run, recordings, capsys):
    test, canary = [recordings[i] for i in (0, 2)], [recordings[i] for i in (1, 3)]
    files = [run / name for name in ("test.greedy.txt", "test.beam3.txt", "test.errors.txt")]
    alone = speech_report(run, test, PLAIN, "cpu"), [path.read_text() for path in files]
    both = speech_report(run, test, PLAIN, "cpu", canary=canary), [path.read_text() for path in files]
    others = {name: value for name, value in both[0].items() if name.endswith(".canary")}
    assert (both[0].items() - others.items(), both[1]) == (alone[0].items(), alone[1])
    outputs = td.load(run)([r.audio for r in canary], replace(PLAIN, n_best=1))
    assert others["wer.beam3.canary"] == pytest.approx(100 * jiwer.wer([r.text for r in canary], outputs))
    assert set(others) == {f"{name}.canary" for name in alone[0]}
    assert "  canary: WER " in capsys.readouterr().out


def test_search_time_includes_reading_the_audio(run, recordings, monkeypatch, capsys):
    """Seven seconds of greedy search, six of the beam's."""
    clock = iter([0.0, 7.0, 7.0, 13.0])
    monkeypatch.setattr(evaluation, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    speech_report(run, recordings, PLAIN, "cpu")
    sound = sum(r.seconds for r in recordings)
    lines = [line for line in capsys.readouterr().out.split("\n") if line.startswith("test, ")]
    assert lines == [
        f"test, greedy: 5 recordings in 7.0 s, real-time factor {7 / sound:.4f}",
        f"test, beam3: 5 recordings in 6.0 s, real-time factor {6 / sound:.4f}",
    ]


def test_features_in_memory_are_bounded_by_chunks(run, recordings, monkeypatch):
    """However many recordings are tested: the chunk that is searched, and what completes the next one."""
    features, alive, search = [], [], td.Transcriber._search

    def sound(path, segments, *rest, **named):
        features.extend(weakref.ref(frames) for *_, frames in segments)
        return Sound(path, segments, *rest, **named)

    def look(*parts, **named):
        alive.append(sum(frames() is not None for frames in features))
        return search(*parts, **named)

    monkeypatch.setattr("transduce.tasks.sound.Sound", sound)
    monkeypatch.setattr(transcriber, "CHUNK", 2 * recordings[0].seconds)
    monkeypatch.setattr(td.Transcriber, "_search", look)
    speech_report(run, recordings[:1] * 20, PLAIN, "cpu")
    assert len(features) == 40 and len(alive) == 20 and max(alive) <= 4


def test_translation_errors_are_sorted_by_sentence_chrf(run, capsys):
    rng = random.Random(1)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "no", "dog"]
    pairs = [(f"source {i}", " ".join(rng.choices(words, k=6))) for i in range(30)]
    outputs = [right if i % 5 == 0 else " ".join(rng.choices(words, k=6)) for i, (_, right) in enumerate(pairs)]
    search_report(run, lambda how: outputs, pairs, replace(PLAIN, n_best=1), ["bleu"])
    errors = (run / "test.errors.txt").read_text()
    assert errors.startswith("test, beam3: 24 of 30 lines differ,")
    shown = [int(number) - 1 for number in re.findall(r"(?m)^line (\d+): chrF ", errors)]
    values = {i: sacrebleu.sentence_chrf(outputs[i], [pairs[i][1]]).score for i in range(30) if i % 5}
    assert [values[i] for i in shown] == pytest.approx(sorted(values.values())[:20])
    assert all(f"  {pairs[i][0]}\n    should be  {pairs[i][1]}\n    is         {outputs[i]}\n" in errors for i in shown)
