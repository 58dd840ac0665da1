"""Several runs as one: against the mean of the log-probabilities of every model's own forward pass."""

import json
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.language_runs import language_run
from tests.runs import ENGLISH, FEATURES, LITTLE, RATE, random_run, random_speech_run, record, sentences
from tests.tasks.test_search import SHORT
from transduce.cli.main import main
from transduce.data.audio import read_audio
from transduce.data.features import FeatureExtractor
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.tasks.base import Details
from transduce.tasks.outputs import Output

DOUBLE = {"dtype": torch.float64}
CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    """Two of each kind, of equal tokens and other weights."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"text": partial(random_run, model=LITTLE), "speech": random_speech_run, "language": language_run}
    return {
        kind: [make(folder / f"{kind}{seed}", seed=seed) for seed in (3, 4)] for kind, make in kinds.items()
    }  # fmt: skip


@cache
def whole_model(run: Path) -> td.Transformer:
    """Its weights, computed by layers."""
    return td.load_model(run).double().eval()


@torch.no_grad()
def mean_log_probs(runs: list[Path], target: list[int], **source) -> torch.Tensor:
    """(T, V): the mean over the models of the log-probabilities that each gives behind every token, by its forward pass."""
    return torch.stack(
        [m(target_in=torch.tensor([target]), **source)[0].log_softmax(-1) for m in map(whole_model, runs)]
    ).mean(dim=0)


def check(runs: list[Path], output: Output, **source) -> None:
    out = [*output.tokens, *[EOS] * output.finished]
    table = mean_log_probs(runs, [BOS, *out[:-1]], **source)
    each = table[range(len(out)), out]
    assert output.log_prob == pytest.approx(each.sum().item(), abs=1e-9)
    torch.testing.assert_close(output.token_scores.log_probs, each, rtol=0, atol=1e-10)


def test_translation_log_probs_are_the_mean_of_both_models(runs):
    translator, line = td.load_translator(runs["text"], **DOUBLE), ENGLISH[1]
    source = torch.tensor([[*translator.source_tokenizer.encode([line])[0], EOS]])
    (outputs,) = translator.translate([line], SHORT, n_best=5, token_scores=True, alignments=True)
    for output in outputs:
        check(runs["text"], output, source=source)
    assert len({tuple(output.tokens) for output in outputs}) == 5
    way, target = replace(SHORT.greedy(), no_repeat_ngram=0), [BOS]
    greedy = translator.translate([line], way)[0][0]
    for token in greedy.tokens:
        scores = mean_log_probs(runs["text"], target, source=source)[-1]
        scores[:3] = -torch.inf  # what no text holds
        assert int(scores.argmax()) == token
        target.append(token)
    alone = [td.load(run, **DOUBLE) for run in runs["text"]]
    assert greedy.tokens not in [each.translate([line], way)[0][0].tokens for each in alone]
    looks = [one._detailed(one.sources([line]), [outputs], Details(alignments=True))[0] for one in alone]
    assert [o.alignment for o in outputs] == [o.alignment for o in looks[0]] != [o.alignment for o in looks[1]]
    (scored,) = translator.score([line], [greedy.text])
    each = [one.score([line], [greedy.text])[0].log_probs for one in alone]
    torch.testing.assert_close(scored.log_probs, (each[0] + each[1]) / 2, rtol=0, atol=1e-10)


def test_transcript_log_probs_are_the_mean_with_and_without_ctc(runs, tmp_path):
    transcriber = td.load_transcriber(runs["speech"], **DOUBLE)
    path = record(tmp_path, sentences(1))[0].audio
    frames = transcriber.feature_extractor(read_audio(path, RATE)).double()[None]
    (ours,) = transcriber.transcribe([path], SHORT, n_best=3, token_scores=True)
    for output in ours.segments[0].outputs:
        check(runs["speech"], output, source=frames)
    ways = [replace(SHORT, beam_size=3, ctc_weight=weight) for weight in (0.5, 1.0)]
    alone = td.load_transcriber(runs["speech"][:1], **DOUBLE)
    twice = td.load_transcriber(runs["speech"][:1] * 2, **DOUBLE)
    for way in ways:
        want, got = (each.transcribe([path], way)[0].segments[0].outputs[0] for each in (alone, twice))
        assert got.tokens == want.tokens and got.log_prob == pytest.approx(want.log_prob, abs=1e-9)


def test_generation_uses_the_geometric_mean_of_both_models(runs):
    generator = td.load_generator(runs["language"], **DOUBLE)
    beams = td.GenerationConfig(beam_size=3, n=3, max_length=5)
    (outputs,) = generator.generate(["ROM"], beams, token_scores=True)
    prompt = generator.encode("ROM")
    for output in outputs:
        table = mean_log_probs(runs["language"], [*prompt, *output.tokens[:-1]])[len(prompt) - 1 :]
        assert output.log_prob == pytest.approx(table[range(5), output.tokens].sum().item(), abs=1e-9)
        torch.testing.assert_close(output.token_scores.log_probs, table[range(5), output.tokens], rtol=0, atol=1e-10)
    config = td.GenerationConfig(temperature=0.0, max_length=4)
    (text,) = generator(["ROM"], config)
    target = [*prompt]
    for _ in range(4):
        target.append(int(mean_log_probs(runs["language"], target)[-1].argmax()))
    assert text == generator.tokenizer.decode([target])[0][3:] == "".join(generator.stream("ROM", config))
    (scored,) = generator.score(["ROMEO"])
    each = [td.load_generator(run, **DOUBLE).score(["ROMEO"])[0].log_probs for run in runs["language"]]
    torch.testing.assert_close(scored.log_probs, (each[0] + each[1]) / 2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["text", "speech", "language"])
def test_command_accepts_comma_separated_runs(kind, runs, tmp_path, capsys):
    """JSON has the texts that Python gives, and the scores of their tokens."""
    loaded, some = td.load(runs[kind]), ["--length-ratio", "0", "--length-extra", "7", "--no-repeat-ngram", "4"]
    if kind == "text":
        (tmp_path / "in.txt").write_text("\n".join(ENGLISH[:2]) + "\n")
        words = ["translate", str(tmp_path / "in.txt"), *some]
        want = [outputs[0] for outputs in loaded.translate(ENGLISH[:2], SHORT, token_scores=True)]
    elif kind == "speech":
        sounds = [recording.audio for recording in record(tmp_path, sentences(2))]
        words = ["transcribe", *map(str, sounds), *some]
        want = [transcript.segments[0].outputs[0] for transcript in loaded.transcribe(sounds, SHORT, token_scores=True)]
    else:
        words = ["generate", "--prompt", "ROM", "--max-length", "5", "--temperature", "0"]
        config = td.GenerationConfig(max_length=5, temperature=0.0)
        want = [outputs[0] for outputs in loaded.generate(["ROM"], config, token_scores=True)]
    command, *rest = words
    assert main([command, ",".join(map(str, runs[kind])), *rest, "--format", "json", "--token-scores", *CPU]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = [row.get("outputs", row.get("segments", [row]))[0] for row in rows]
    assert [row["text"] for row in rows] == [output.text for output in want]
    for row, output in zip(rows, want, strict=True):
        numbers = [token["log_prob"] for token in row["tokens"]]
        assert numbers == pytest.approx(output.token_scores.log_probs.tolist(), abs=1e-4)


def test_partial_output_belongs_to_the_whole_ensemble(runs, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(ENGLISH[:2]) + "\n")
    both, out = ",".join(map(str, runs["text"])), tmp_path / "out"
    words = [str(tmp_path / "in.txt"), "--output", str(out), "--part", "1/2", *CPU, "--greedy", "--length-ratio", "0"]
    assert main(["translate", both, *words]) == 0
    assert main(["translate", both.split(",")[0], *words]) == 2
    assert "was begun with others: run: " in capsys.readouterr().err


def test_incompatible_runs_are_refused(runs, tmp_path):
    (text, _), (speech, _), (letters, _) = runs.values()
    other = random_run(tmp_path / "other", joint=False, model=LITTLE)
    rate = random_speech_run(tmp_path / "rate", FeatureExtractor(replace(FEATURES, hop=0.02)))
    wide = language_run(tmp_path / "wide", "bytes")
    rule = "the runs of an ensemble must have the same task, tokens and features, but"
    way_out = "train one with --tokenizer and the file of the other, or with --start-from the other"
    tokens, size = "source_tokenizer, target_tokenizer", "model.vocab_size"
    for pair, message in {
        (text, speech): f"{rule} {speech} and {text} differ in {tokens}, feature_extractor, {size}; {way_out}",
        (text, letters): f"{rule} {letters} and {text} differ in {tokens}, model.encoder, {size}; {way_out}",
        (text, other): f"{rule} {other} and {text} differ in {tokens}; {way_out}",
        (speech, rate): f"{rule} {rate} and {speech} differ in feature_extractor; {way_out}",
        (): "load takes a run directory, or several as an ensemble, but got none",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            td.load(pair)
    with pytest.raises(
        ValueError, match=f"{re.escape(str(wide))} and .* differ in target_tokenizer, model.vocab_size;"
    ):
        td.load([letters, wide])
    ensemble = td.load_translator(runs["text"])
    for ask, arguments in ((ensemble.encode, [["a"]]), (ensemble.align, [["a"], ["b"]])):
        message = f"{ask.__name__} needs a single model, but this is an ensemble of 2; load one run alone for it"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            ask(*arguments)


def test_empty_run_name_in_an_ensemble_is_refused(runs, capsys):
    assert main(["translate", f"{runs['text'][0]},", "-", *CPU]) == 2
    assert "an ensemble is named RUN,RUN without spaces, but it is '" in capsys.readouterr().err
