"""An imported Whisper and Speech2Text against transformers: features, logits, greedy search and beam search of sound files."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from torch import Tensor
from wyoming.asr import Transcribe, Transcript
from wyoming.info import Describe, Info

import transduce as td
from tests.serve.conftest import client_of, serving
from tests.serve.test_wyoming import speech, talk
from transduce.cli.main import main
from transduce.config import to_dict
from transduce.data.features import FeatureExtractor
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.interop import read_run
from transduce.interop.pretrained import Parts, read_settings
from transduce.interop.speech import NAMES
from transduce.interop.whisper import export_whisper
from transduce.serve import ServeConfig
from transduce.serve.app import serve_run
from transduce.tasks.speech import attention_starts

pytestmark = pytest.mark.usefixtures("transformers")

RATE, SEED = 16000, 3
WORDS = ["red", "green", "blue", "open the door", "close it now", "the red door is green", "no", "yes and no"]
BOUND = 30
HEADS = [[0, 1], [2, 0], [2, 1]]
"""Layers and heads of a Whisper whose attention is taken for times."""


class Rival(NamedTuple):
    """A model of transformers that has learned WORDS, what it has learned them from, and our run of it."""

    directory: Path
    run: Path
    model: Any
    features: Any
    tokenizer: Any
    sounds: list[Path]
    task: dict[str, str]
    """What its `generate` is told to write."""

    def inputs(self, waveform: np.ndarray) -> dict[str, Tensor]:
        return dict(self.features(waveform, sampling_rate=RATE, return_tensors="pt"))

    def generate(self, waveform: np.ndarray, **settings) -> str:
        with torch.no_grad():
            ids = self.model.generate(**self.inputs(waveform), max_new_tokens=BOUND, **(self.task | settings))
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()


def imported(directory: Path) -> Parts:
    return read_run(read_settings(directory))


def read(path: Path) -> np.ndarray:
    return soundfile.read(path, dtype="float32")[0]


def write_sounds(directory: Path) -> list[Path]:
    """A chord for each text, of 0.45 to 0.9 seconds, that swells and fades in a little noise."""
    rng, paths = np.random.default_rng(SEED), []
    for i in range(len(WORDS)):
        t = np.arange(int(RATE * (0.45 + 0.06 * i))) / RATE
        chord = sum(np.sin(2 * np.pi * f * t) for f in (200 + 90 * i, 1000 + 170 * i))
        paths.append(directory / f"{i}.wav")
        soundfile.write(paths[-1], 0.2 * chord * np.sin(np.pi * t / t[-1]) + 0.005 * rng.standard_normal(len(t)), RATE)
    return paths


def learn(model: torch.nn.Module, features: Any, sounds: list[Path], labels: list[list[int]], steps: int) -> None:
    """Until what the model says ends by itself, at all sorts of lengths."""
    inputs = features(
        [read(path) for path in sounds], sampling_rate=RATE, return_tensors="pt", padding=PAD[type(features).__name__]
    )
    wanted = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in labels], True, -100)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**inputs, labels=wanted).loss.backward()
        optimizer.step()


PAD = {"WhisperFeatureExtractor": "max_length", "Speech2TextFeatureExtractor": True}


def whisper_tokenizer() -> Any:
    """Byte-level BPE of WORDS, behind it the special tokens of Whisper in their order, and times up to a second."""
    from transformers import WhisperTokenizer

    core = json.loads(JSONTokenizer.train(WORDS * 3, vocab_size=290).model)["model"]
    tokenizer = WhisperTokenizer(vocab=core["vocab"], merges=[tuple(merge) for merge in core["merges"]])
    names = ["startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
    tokenizer.add_tokens([AddedToken(f"<|{name}|>", special=True) for name in [*names, "notimestamps"]])
    tokenizer.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False) for i in range(51)])
    return tokenizer


def with_times(tokenizer: Any, labels: list[int], text: str) -> list[int]:
    """The words of a text in two stretches, with their times instead of the token that says there are none."""
    zero = tokenizer.convert_tokens_to_ids("<|0.00|>")
    words = text.split()
    parts = [" " + " ".join(part) for part in (words[:2], words[2:]) if part]
    rows = [tokenizer(part, add_special_tokens=False).input_ids for part in parts]
    times = [0, 12, 14, 25]
    spoken = [i for k, row in enumerate(rows) for i in (zero + times[2 * k], *row, zero + times[2 * k + 1])]
    return [*labels[: labels.index(zero - 1)], *spoken, labels[-1]]


def whisper(
    directory: Path,
    *,
    steps: int = 30,
    seconds: int = 1,
    n_mels: int = 21,
    n_positions: int = 41,
    times: bool = False,
) -> Rival:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = whisper_tokenizer()
    size, eos = len(tokenizer), tokenizer.eos_token_id
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("startoftranscript", "notimestamps")}
    config = WhisperConfig(
        vocab_size=size, num_mel_bins=n_mels, d_model=20, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=23,
        encoder_attention_heads=2, decoder_attention_heads=2, decoder_ffn_dim=23, max_source_positions=50 * seconds,
        max_target_positions=n_positions, decoder_start_token_id=ids["startoftranscript"], pad_token_id=eos, bos_token_id=eos,
        eos_token_id=eos, init_std=0.2,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    space = tokenizer.convert_tokens_to_ids("Ġ")
    how: dict[str, Any] = {"is_multilingual": True, "no_timestamps_token_id": ids["notimestamps"]}
    how["max_length"] = n_positions
    how["lang_to_id"] = {f"<|{name}|>": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("en", "de")}
    how["task_to_id"] = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("transcribe", "translate")}
    how |= {"suppress_tokens": [5, 9, ids["startoftranscript"]], "begin_suppress_tokens": [space, eos]}
    how["alignment_heads"] = HEADS
    for name, value in how.items():
        setattr(model.generation_config, name, value)
    features = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=seconds)
    sounds = write_sounds(directory)
    task = {"language": "en", "task": "transcribe"}
    tokenizer.set_prefix_tokens(**task, predict_timestamps=False)
    labels = [tokenizer(" " + text).input_ids[1:] for text in WORDS]
    if times:
        labels = [with_times(tokenizer, *pair) for pair in zip(labels, WORDS, strict=True)]
    learn(model, features, sounds, labels, steps)
    for each in (model, features, tokenizer):
        each.save_pretrained(directory)
    return Rival(directory, directory / "run", model, features, tokenizer, sounds, task)


def speech2text(directory: Path, *, steps: int = 30, **settings) -> Rival:
    import transformers

    torch.manual_seed(0)
    text = directory / "text"
    text.write_text("\n".join(WORDS * 4), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(directory / "sentencepiece.bpe"), vocab_size=45, model_type="unigram",
        minloglevel=2, num_threads=1, hard_vocab_limit=False, user_defined_symbols=["<lang:de>"],
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(str(directory / "sentencepiece.bpe.model"))
    pieces = [processor.id_to_piece(i) for i in reversed(range(3, len(processor)))]
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (directory / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    tokenizer = transformers.Speech2TextTokenizer(directory / "vocab.json", directory / "sentencepiece.bpe.model")
    plain = {
        "vocab_size": len(names), "d_model": 20, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 23,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 23, "input_feat_per_channel": 21,
        "conv_channels": 26, "conv_kernel_sizes": [5, 5], "max_source_positions": 600, "max_target_positions": 50,
        "init_std": 0.2, "scale_embedding": True,
    }  # fmt: skip
    model = transformers.Speech2TextForConditionalGeneration(
        transformers.Speech2TextConfig(
            **(plain | settings), num_conv_layers=len(settings.get("conv_kernel_sizes", "12"))
        )
    ).eval()
    model.generation_config.suppress_tokens = [0, 1, 3]  # <s>, <pad> and <unk>, which no text here holds
    features = transformers.Speech2TextFeatureExtractor(feature_size=21, num_mel_bins=21)
    sounds = write_sounds(directory)
    learn(model, features, sounds, [tokenizer(text).input_ids for text in WORDS], steps)
    for each in (model, features, tokenizer):
        each.save_pretrained(directory)
    return Rival(directory, directory / "run", model, features, tokenizer, sounds, {})


MAKERS: dict[str, Callable[..., Rival]] = {"whisper": whisper, "speech_to_text": speech2text}


@pytest.fixture(scope="module", params=MAKERS)
def rival(request, tmp_path_factory) -> Rival:
    """Trained and imported on the command line."""
    got = MAKERS[request.param](tmp_path_factory.mktemp(request.param))
    assert main(["import", str(got.directory), str(got.run)]) == 0
    return got


def test_features_equal_those_of_transformers(rival):
    extractor = td.load_transcriber(rival.run).feature_extractor
    for path in rival.sounds:
        want, got = rival.inputs(read(path))["input_features"][0], extractor(torch.from_numpy(read(path)))
        want = want.T if len(want) == extractor.config.n_features else want
        assert len(got) == extractor.config.n_frames(len(read(path)))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def differences(rival: Rival, ours: td.Transformer, rows: int = 3) -> list[Tensor]:
    """Of logits of any target, sound by sound: alone as theirs are, and ours in one batch."""
    rng, actual = torch.Generator().manual_seed(0), []
    features = [rival.inputs(read(path)) for path in rival.sounds[:rows]]
    frames = [
        each["input_features"][0].T if "attention_mask" not in each else each["input_features"][0] for each in features
    ]
    target = torch.randint(4, ours.vocab_size, (rows, 7), generator=rng)
    lengths = torch.tensor([len(each) for each in frames])
    source = torch.nn.utils.rnn.pad_sequence(frames, batch_first=True, padding_value=9.0)
    with torch.no_grad():
        got = ours(source=source, source_lengths=lengths, target_in=target)
        for row, inputs in enumerate(features):
            want = rival.model(**inputs, decoder_input_ids=target[row : row + 1]).logits[0]
            assert want.std() > 0.1
            actual.append(got[row] - want)
    return actual


def test_logits_equal_those_of_transformers(rival):
    for got in differences(rival, td.load_model(rival.run)):
        assert got.abs().max() < 1e-4


@pytest.mark.parametrize("beam_size", [1, pytest.param(4, marks=pytest.mark.long)])
def test_transcripts_equal_those_of_generate(rival, capsys, beam_size):
    how = {"num_beams": beam_size, "length_penalty": 0.0} if beam_size > 1 else {}
    want = [rival.generate(read(path), **how) for path in rival.sounds]
    capsys.readouterr()
    flags = ["--beam-size", str(beam_size), "--alpha", "0"] if beam_size > 1 else []
    assert main(["transcribe", str(rival.run), *map(str, rival.sounds), *flags]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == want and not err
    assert len(set(want)) > 3, want


def test_begin_with_sets_the_task(rival):
    """And scores of tokens are those of transformers behind it."""
    if rival.task:
        names, settings = (
            "<|startoftranscript|> <|de|> <|translate|> <|notimestamps|>",
            {"language": "de", "task": "translate"},
        )
    else:
        names, settings = "</s> <lang:de>", {"forced_bos_token_id": rival.tokenizer.convert_tokens_to_ids("<lang:de>")}
    transcriber, sounds = td.load_transcriber(rival.run), rival.sounds[:6]  # what follows never ends
    want = [rival.generate(read(path), **settings).removeprefix("<lang:de>").strip() for path in sounds]
    got = transcriber.transcribe(sounds, begin_with=names, token_scores=True)
    assert [each.text for each in got] == want != transcriber(sounds)
    (output,), inputs = got[3].segments[0].outputs, rival.inputs(read(rival.sounds[3]))
    before = [rival.tokenizer.convert_tokens_to_ids(name) for name in names.split()]
    ids = torch.tensor([*before, *output.tokens])
    with torch.no_grad():
        logits = rival.model(**inputs, decoder_input_ids=ids[None]).logits[0, len(before) - 1 :]
    wanted = torch.cat([ids[len(before) :], torch.tensor([rival.model.config.eos_token_id])])
    scores = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
    torch.testing.assert_close(output.token_scores.log_probs, scores, rtol=0, atol=1e-3)


def test_no_speech_prob_equals_that_of_transformers(rival, caplog):
    """At <|startoftranscript|>, as openai-whisper reads it; Speech2Text has no such token, and no CTC head."""
    ours = td.load_transcriber(rival.run).transcribe(rival.sounds, no_speech_threshold=1.0)
    got = [each.segments[0].outputs[0].no_speech_prob for each in ours]
    if not rival.task:
        assert set(got) == {None} and "no_speech_threshold changes nothing" in caplog.text
        return
    start, token = rival.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|nospeech|>"])
    with torch.no_grad():
        logits = [
            rival.model(**rival.inputs(read(path)), decoder_input_ids=torch.tensor([[start]])).logits[0, 0]
            for path in rival.sounds
        ]
    want = [float(each.softmax(-1)[token]) for each in logits]
    assert got == pytest.approx(want, rel=1e-3) and max(want) > 1.5 * min(want)


def test_word_times_equal_those_of_transformers(rival, tmp_path, capsys):
    """Of the steps that predict a word, as openai-whisper takes them, its transformers' own those behind it."""
    if not rival.task:
        with pytest.raises(
            ValueError, match=r"^times of words come from a CTC head, or from the alignment_heads of an"
        ):
            td.load_transcriber(rival.run).transcribe(rival.sounds, word_times=True)
        return
    from transformers import WhisperForConditionalGeneration
    from transformers.generation.utils import GenerateEncoderDecoderOutput

    model = WhisperForConditionalGeneration.from_pretrained(rival.directory, attn_implementation="eager")
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    prompt, done = rival.tokenizer.convert_tokens_to_ids(names), dict[Path, int]()
    for path, got in zip(
        rival.sounds, td.load_transcriber(rival.run).transcribe(rival.sounds, word_times=True), strict=True
    ):
        (output,), waveform = got.segments[0].outputs, read(path)
        ids = torch.tensor([[*prompt, *output.tokens]])
        with torch.no_grad():
            looks = model(**rival.inputs(waveform), decoder_input_ids=ids, output_attentions=True)
        made = GenerateEncoderDecoderOutput(sequences=ids, cross_attentions=[looks.cross_attentions])
        times = model._extract_token_timestamps(
            made, HEADS, num_frames=-(-len(waveform) // 160), num_input_ids=len(prompt) - 1
        )[0, len(prompt) - 1 :]
        pieces = rival.tokenizer.convert_ids_to_tokens(output.tokens)
        if any(piece.startswith("<|") for piece in pieces):  # which is no word
            continue
        firsts = [n for n, piece in enumerate(pieces) if n == 0 or piece.startswith("Ġ")]
        numbers = [range(a, b) for a, b in pairwise([*firsts, len(pieces)])]
        words = ["".join(pieces[n] for n in each).strip("Ġ") for each in numbers]
        seconds = len(waveform) / RATE
        want = [(float(times[i[0]]), min(seconds, float(times[i[-1] + 1]))) for i in numbers]
        assert [word.text for word in output.words] == words
        assert [(word.start, word.stop) for word in output.words] == [pytest.approx(each, abs=1e-6) for each in want]
        probs = looks.logits[0].softmax(-1)[range(len(prompt) - 1, len(ids[0]) - 1), output.tokens]
        shares = [probs[i].log().mean().exp().item() for i in numbers]
        assert [word.confidence for word in output.words] == pytest.approx(shares, rel=1e-3)
        (again,) = td.load_transcriber(rival.run).words([path], [output])
        assert again == output.words
        done[path] = len(words)
    assert len(done) > 3 and max(done.values()) > 2, done
    (path, n_words), *_ = done.items()
    assert main(["transcribe", str(rival.run), str(path), "--word-times", "--format", "srt"]) == 0
    assert capsys.readouterr().out.count(" --> ") == n_words
    shutil.copytree(rival.run, tmp_path / "run")
    plain = json.loads((tmp_path / "run" / "config.json").read_text())
    plain["experiment"]["decoding"]["alignment_heads"] = [[3, 0]]
    (tmp_path / "run" / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"^alignment_heads are layers below 3 and heads below 2, but in the run's"):
        td.load_transcriber(tmp_path / "run").transcribe([path], word_times=True)


@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize(("n_tokens", "n_positions"), [(1, 1), (1, 9), (5, 4), (6, 40), (30, 40), (12, 200)])
def test_token_starts_equal_the_dtw_path_of_transformers(monkeypatch, n_tokens, n_positions, width):
    """Of attention at random. Medians are often equal, and so are paths: there rounding decides, in float32 in theirs."""
    from transformers.generation.utils import GenerateEncoderDecoderOutput
    from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

    monkeypatch.setattr("transduce.tasks.speech.SMOOTHED", width)
    config = SimpleNamespace(decoder_layers=3, median_filter_width=width)
    rng, n_same = torch.Generator().manual_seed(n_tokens), 0
    for _ in range(20):
        looks = torch.rand(3, 1, 2, n_tokens, n_positions, generator=rng).softmax(-1)
        made = GenerateEncoderDecoderOutput(sequences=torch.zeros(1, n_tokens), cross_attentions=[tuple(looks)])
        want = WhisperGenerationMixin._extract_token_timestamps(
            SimpleNamespace(config=config), made, HEADS, time_precision=1.0, num_input_ids=0
        )[0, :-1].tolist()
        got = attention_starts(torch.stack([looks[layer, 0, head] for layer, head in HEADS]))
        assert n_tokens < 6 or len({*got}) > 2
        n_same += got == want
    assert n_same == 20 or (width > 1 and n_same > 15)


def test_given_language_equals_generate_and_conflicts_are_refused(rival, capsys):
    transcriber = td.load_transcriber(rival.run)
    if not rival.task:
        with pytest.raises(ValueError, match=r"^a multilingual Whisper detects the language"):
            transcriber(rival.sounds, target_language="auto")
        return
    want = [rival.generate(read(path), language="de") for path in rival.sounds]
    capsys.readouterr()
    assert main(["transcribe", str(rival.run), *map(str, rival.sounds), "--language", "de"]) == 0
    assert capsys.readouterr().out.splitlines() == want != transcriber(rival.sounds)
    with pytest.raises(ValueError, match=r"^a language must be one of the model's \(de, en\), but it is 'fr'"):
        transcriber(rival.sounds[0], target_language="fr")
    both = ["--language", "de", "--begin-with", "<|startoftranscript|> <|de|>"]
    assert main(["transcribe", str(rival.run), str(rival.sounds[0]), *both]) == 2
    assert capsys.readouterr().err == (
        "transduce: begin_with names the language among its tokens, but it is '<|startoftranscript|> <|de|>', and "
        "target_language=de; leave one of them out, in the run's config.json, too\n"
    )
    transcriber.decoding = transcriber.decoding.changed(begin_with="<|startoftranscript|> <|en|>")  # a run's own
    for language in ("de", "auto"):
        with pytest.raises(ValueError, match=r"^begin_with names the language .* and target_language=(de|en); leave"):
            transcriber(rival.sounds[0], target_language=language)
    transcriber.decoding = transcriber.decoding.changed(begin_with="")
    with pytest.raises(ValueError, match=r"^the language must be known here, but target_language=auto"):
        transcriber.score(rival.sounds[:1], ["red"], target_language="auto")


def test_server_clients_choose_the_language(rival):
    """Over HTTP and Wyoming; a run of one language ignores what it is called."""
    served, listening = (
        serve_run("asr", td.load_transcriber(rival.run), ServeConfig()),
        socket.create_server(("127.0.0.1", 0)),
    )
    plain = [rival.generate(read(path)) for path in rival.sounds]
    german = [rival.generate(read(path), language="de") for path in rival.sounds] if rival.task else plain
    samples = [soundfile.read(path, dtype="int16")[0] for path in rival.sounds]
    with listening, serving([served], wyoming=listening) as url, client_of(url) as client:

        def ask(path: Path, **fields: str) -> httpx.Response:
            fields = {"response_format": "verbose_json", **fields}
            return client.post("/v1/audio/transcriptions", files={"file": path.read_bytes()}, data=fields)

        for language, texts in (("", plain), ("de", german)):
            answers = [ask(path, language=language).json() for path in rival.sounds]
            assert [answer["text"] for answer in answers] == texts
            assert {answer["language"] for answer in answers} == {language or "unknown"}
            port = listening.getsockname()[1]
            events = [talk(port, Transcribe(language=language).event(), *speech(each, rate=RATE)) for each in samples]
            assert [Transcript.from_event(each).text for each in events] == texts
        ((model,),) = (each.models for each in Info.from_event(talk(port, Describe().event())).asr)
        refused = ask(rival.sounds[0], language="fr")
        if rival.task:
            assert plain != german and sorted(model.languages) == ["de", "en"]
            assert refused.status_code == 400 and "(de, en), but it is 'fr'" in refused.json()["error"]["message"]
            assert ask(rival.sounds[0], language="auto").json()["language"] in ("de", "en")
        else:
            assert model.languages == [] and refused.json()["text"] == plain[0]


def test_detected_languages_equal_those_of_transformers(rival, tmp_path, capsys):
    """The vectors of both languages differ by what hidden states of the sounds differ by, so that both come out."""
    if not rival.task:
        pytest.skip("only for Whisper")
    from transformers import WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(rival.directory)
    start, en, de = rival.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|en|>", "<|de|>"])
    inputs = [rival.inputs(read(path))["input_features"] for path in rival.sounds]
    with torch.no_grad():
        states = torch.cat([model.model(each, decoder_input_ids=torch.tensor([[start]]))[0][:, 0] for each in inputs])
        mean = states.mean(dim=0)
        most = torch.linalg.svd(states - mean).Vh[0]
        model.proj_out.weight[de] = model.proj_out.weight[en] + most - mean * (most @ mean) / (mean @ mean)
    shutil.copytree(rival.directory, tmp_path / "theirs", ignore=shutil.ignore_patterns("run"))
    model.save_pretrained(tmp_path / "changed")
    shutil.copy(tmp_path / "changed" / "model.safetensors", tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    languages = {en: "en", de: "de"}
    want = [
        languages[int(model.detect_language(each, generation_config=rival.model.generation_config))] for each in inputs
    ]
    assert len({*want}) == 2
    files = [str(path) for path in rival.sounds]
    capsys.readouterr()
    assert main(["transcribe", str(tmp_path / "run"), *files, "--language", "auto", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["segments"][0]["language"] for row in rows] == want
    transcriber = td.load_transcriber(tmp_path / "run")
    assert [row["text"] for row in rows] == [
        transcriber(path, target_language=language) for path, language in zip(files, want, strict=True)
    ]


def test_whisper_round_trip(rival, tmp_path, capsys):
    """Weights bit for bit, the tokenizer, texts that transformers writes of it, and how it is searched when read again."""
    import transformers

    there, again = tmp_path / "theirs", tmp_path / "run"
    code = main(["export", str(rival.run), str(there), "--to", "whisper"])
    if not rival.task:
        assert code == 2 and "transduce: a Whisper has its own tokenizer, but this run has" in capsys.readouterr().err
        return
    assert code == 0
    want, got = (load_file(each / "model.safetensors") for each in (rival.directory, there))
    assert want.keys() == got.keys() and all(torch.equal(want[name], got[name]) for name in want)
    want, got = (json.loads((each / "tokenizer.json").read_text()) for each in (rival.directory, there))
    assert want == got
    model = transformers.WhisperForConditionalGeneration.from_pretrained(there)
    processor = transformers.WhisperProcessor.from_pretrained(there)
    for path in rival.sounds:
        inputs = processor(read(path), sampling_rate=RATE, return_tensors="pt")
        row = model.generate(**inputs, max_new_tokens=BOUND)
        assert processor.batch_decode(row, skip_special_tokens=True)[0].strip() == rival.generate(read(path))
    assert main(["import", str(there), str(again)]) == 0
    files = {path.name: path.read_bytes() for path in rival.run.iterdir()}
    assert {path.name: path.read_bytes() for path in again.iterdir()} == files and len(files) > 2


@pytest.mark.parametrize("language", ["de", "auto"])
def test_whisper_export_keeps_the_language_of_the_run(rival, tmp_path, language):
    """Or with none, so that transformers finds it out too."""
    if not rival.task:
        pytest.skip("only for Whisper")
    import transformers

    run, there = tmp_path / "run", tmp_path / "theirs"
    shutil.copytree(rival.run, run)
    plain = json.loads((run / "config.json").read_text())
    plain["experiment"]["decoding"]["target_language"] = language
    (run / "config.json").write_text(json.dumps(plain))
    assert main(["export", str(run), str(there), "--to", "whisper"]) == 0
    model = transformers.WhisperForConditionalGeneration.from_pretrained(there)
    want = [
        rival.tokenizer.decode(
            model.generate(**rival.inputs(read(path)), max_new_tokens=BOUND)[0], skip_special_tokens=True
        )
        for path in rival.sounds
    ]
    assert td.load_transcriber(run)(rival.sounds, max_length=BOUND) == [text.strip() for text in want]


def test_changed_whisper_is_exported_to_transformers_and_ctranslate2(rival, tmp_path):
    """Its keys' biases, which it has not there, change no logit. CTranslate2, which runs it in faster-whisper, hears the same."""
    if not rival.task:
        pytest.skip("only for Whisper")
    import ctranslate2
    import transformers

    run, there = tmp_path / "run", tmp_path / "theirs"
    shutil.copytree(rival.run, run)
    weights = load_file(run / "model.safetensors")
    rng = torch.Generator().manual_seed(SEED)
    save_file(
        {name: w + 0.02 * torch.randn(w.shape, generator=rng) for name, w in weights.items()}, run / "model.safetensors"
    )
    plain = json.loads((run / "config.json").read_text())
    plain["experiment"]["decoding"] |= {"no_repeat_ngram": 3, "min_length": 2, "length_ratio": 0.0, "length_extra": 9}
    (run / "config.json").write_text(json.dumps(plain))
    assert main(["export", str(run), str(there), "--to", "whisper"]) == 0
    model = transformers.WhisperForConditionalGeneration.from_pretrained(there)
    for got in differences(rival._replace(model=model), td.load_model(run)):
        assert got.abs().max() < 1e-4
    transcriber, texts = td.load_transcriber(run), []
    for path in rival.sounds:
        texts.append(
            rival.tokenizer.decode(model.generate(**rival.inputs(read(path)))[0], skip_special_tokens=True).strip()
        )
    assert transcriber(rival.sounds) == texts and len({*texts}) > 2
    ctranslate2.converters.TransformersConverter(str(there), copy_files=["tokenizer.json"]).convert(
        str(tmp_path / "ct2")
    )
    engine = ctranslate2.models.Whisper(str(tmp_path / "ct2"))
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    for path, text in zip(
        rival.sounds,
        transcriber(rival.sounds, suppress=(), suppress_first=(), no_repeat_ngram=0, min_length=0),
        strict=True,
    ):
        features = ctranslate2.StorageView.from_array(rival.inputs(read(path))["input_features"].numpy())
        ids = rival.tokenizer.convert_tokens_to_ids(names)
        (row,) = engine.generate(
            features, [ids], beam_size=1, max_length=len(ids) + 9, suppress_blank=False, suppress_tokens=[]
        )[0].sequences_ids
        assert rival.tokenizer.decode(row, skip_special_tokens=True).strip() == text


def test_whisper_without_a_translate_token_is_exported(untrained, tmp_path):
    shutil.copytree(untrained["whisper"], there := tmp_path / "theirs", ignore=shutil.ignore_patterns("run"))
    path = there / "tokenizer.json"
    path.write_text(path.read_text().replace("<|translate|>", "<|other|>"))
    assert main(["import", str(there), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "whisper"]) == 0
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert list(settings["task_to_id"]) == ["transcribe"]


def test_models_unlike_whisper_are_not_exported(rival, tmp_path):
    if not rival.task:
        pytest.skip("only for Whisper")
    parts = imported(rival.directory)._replace(decoding=to_dict(td.SearchConfig()))
    model, features = parts.model, parts.feature_extractor
    for changed_features in (None, FeatureExtractor(replace(features.config, normalize="utterance"))):
        with pytest.raises(
            ValueError, match=r"^a Whisper has its own features of sound, but this run has others; export"
        ):
            export_whisper(parts._replace(feature_extractor=changed_features), tmp_path / "a")
    model.config = replace(model.config, ctc=True)
    with pytest.raises(
        ValueError, match=r"^a whisper has fixed values of some fields, but in this model they differ: ctc"
    ):
        export_whisper(parts, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> Rival:
    """One that has learned times, too."""
    got = whisper(tmp_path_factory.mktemp("timed"), times=True)
    assert main(["import", str(got.directory), str(got.run)]) == 0
    return got


@pytest.mark.parametrize("beam_size", [1, pytest.param(3, marks=pytest.mark.long)])
def test_timestamps_equal_those_of_transformers(timed, capsys, beam_size):
    """Within one window; transformers' own loop would begin another at the last time."""
    from transformers.generation import GenerationMixin
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    rival = timed
    how = rival.model.generation_config
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
    begin = torch.tensor([rival.tokenizer.convert_tokens_to_ids(names)])
    rules = [
        SuppressTokensLogitsProcessor(how.suppress_tokens),
        SuppressTokensAtBeginLogitsProcessor(how.begin_suppress_tokens, begin_index=3),
        WhisperTimeStampLogitsProcessor(how, begin_index=3),
    ]
    settings = {"max_new_tokens": BOUND, "max_length": None, "num_beams": beam_size, "length_penalty": 0.0}
    transcriber, n_cut = td.load_transcriber(rival.run), 0
    for path in rival.sounds:
        row = GenerationMixin.generate(
            rival.model, **rival.inputs(read(path)), decoder_input_ids=begin, logits_processor=rules, **settings
        )
        want, got, seconds = [], [], soundfile.info(path).duration
        for token in rival.tokenizer.convert_ids_to_tokens(row[0, 3:-1].tolist()):
            time = re.fullmatch(r"<\|(\d\.\d\d)\|>", token)
            want.append(f"<|{min(float(time[1]), seconds):.2f}|>" if time else token)
        want.append(f"<|{seconds:.2f}|>")  # where a text has no time behind it
        ours = transcriber.transcribe([path], timestamps=True, max_length=BOUND, beam_size=beam_size, alpha=0.0)[
            0
        ].segments
        for each in ours:
            tokens = rival.tokenizer.convert_ids_to_tokens(each.outputs[0].tokens)
            got += [f"<|{each.start:.2f}|>", *tokens, f"<|{each.stop:.2f}|>"]
        assert want[: len(got)] == got and not any("Ġ" in token for token in want[len(got) :])
        n_cut += len(ours)
    assert n_cut > len(WORDS)
    plain, named = (
        [each.segments for each in transcriber.transcribe(rival.sounds, timestamps=True, beam_size=beam_size, **how)]
        for how in ({}, {"begin_with": " ".join([*names, "<|notimestamps|>"])})
    )
    assert named == plain  # a token against times, as other outputs begin with it, has no effect beside times
    capsys.readouterr()
    assert main(["transcribe", str(rival.run), str(path), "--timestamps", "--n-best", "2", "--format", "json"]) == 2
    assert "timestamps cut an output into segments; leave out n_best" in capsys.readouterr().err


def test_long_recordings_are_transcribed_in_segments(rival, tmp_path):
    """Each of them is what generate makes of it."""
    silence = np.zeros(RATE // 2, dtype=np.float32)
    whole = np.concatenate([each for path in rival.sounds[:4] for each in (read(path), silence)])
    soundfile.write(tmp_path / "long.wav", whole, RATE)
    (got,) = td.load_transcriber(rival.run).transcribe([tmp_path / "long.wav"], max_seconds=1.0)
    waveform, spans = read(tmp_path / "long.wav"), [(s.start, s.stop) for s in got.segments]
    assert len(spans) == 4 and all(stop - start <= 1 for start, stop in spans)
    want = [rival.generate(waveform[round(a * RATE) : round(b * RATE)]) for a, b in spans]
    assert [each.outputs[0].text.strip() for each in got.segments] == want


# What is refused


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "file", "values", "message"),
    [
        ("whisper", "config", {"tie_word_embeddings": False}, "tie_word_embeddings must be True, but in {} it is False"),
        ("whisper", "config", {"decoder_ffn_dim": 5}, "encoder_ffn_dim must equal decoder_ffn_dim, but in {} they are 23 and 5"),
        ("whisper", "preprocessor_config", {"do_normalize": True}, "do_normalize must be None or False, but in {} it is True"),
        ("whisper", "preprocessor_config", {"dither": 0.1}, "dither must be 0.0, but in {} it is 0.1"),
        (
            "whisper", "generation_config", {"is_multilingual": False, "suppress_tokens": [10**6]},
            "ids of 0 to 349, but in {} one is 1000000",
        ),
        ("speech_to_text", "config", {"conv_kernel_sizes": [5, 3]}, "but in {} they are [5, 3] and 1"),
        ("speech_to_text", "preprocessor_config", {"normalize_vars": False}, "normalize_vars must be True, but in {} it is False"),
        ("speech_to_text", "tokenizer_config", {"do_upper_case": True}, "do_upper_case must be False, but in {} it is True"),
        ("speech_to_text", "vocab", {"<s>": 99}, "{}/vocab.json must have an id of 0 to 29 for every piece, but '<s>' has 99"),
    ],
)  # fmt: skip
def test_unsupported_configurations_are_refused(untrained, tmp_path, kind, file, values, message):
    shutil.copytree(untrained[kind], tmp_path / "theirs")
    changed(tmp_path / "theirs" / f"{file}.json", **values)
    with pytest.raises(ValueError) as error:
        imported(tmp_path / "theirs")
    assert message.format(tmp_path / "theirs") in str(error.value)


def test_positions_that_are_no_sinusoids_are_refused(untrained, tmp_path):
    shutil.copytree(untrained["whisper"], tmp_path / "theirs")
    weights = load_file(tmp_path / "theirs" / "model.safetensors")
    weights["model.encoder.embed_positions.weight"][3, 4] += 0.5
    save_file(weights, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/theirs embed_positions differs from them by 0.5")):
        imported(tmp_path / "theirs")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> dict[str, Path]:
    return {kind: make(tmp_path_factory.mktemp(kind), steps=0).directory for kind, make in MAKERS.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("whisper", {"seconds": 30, "n_mels": 128}),
        ("whisper", {"seconds": 30, "n_mels": 80}),
        ("speech_to_text", {"scale_embedding": False, "conv_kernel_sizes": [3], "activation_function": "gelu"}),
        ("speech_to_text", {"conv_kernel_sizes": [7, 7, 7], "conv_channels": 16}),
    ],
)
def test_other_sizes(tmp_path, kind, settings):
    rival = MAKERS[kind](tmp_path, steps=0, **settings)
    assert main(["import", str(rival.directory), str(rival.run)]) == 0
    test_features_equal_those_of_transformers(rival)
    test_logits_equal_those_of_transformers(rival)


@pytest.mark.parametrize(
    ("settings", "language"),
    [
        ({"max_length": 9}, "en"),
        ({"language": None, "task": None, "forced_decoder_ids": "de transcribe"}, "de"),
        ({"language": "<|de|>", "max_new_tokens": 4}, "de"),
        ({"language": "de", "task": "transcribe", "min_length": 12}, "de"),
    ],
)
def test_whisper_settings_act_as_in_generate_also_exported(untrained, tmp_path, settings, language):
    """Its max_length counts new tokens alone; older directories name language and task by forced_decoder_ids."""
    import transformers

    shutil.copytree(untrained["whisper"], directory := tmp_path / "theirs")
    tokenizer = transformers.WhisperTokenizer.from_pretrained(directory)
    names = settings.get("forced_decoder_ids", "").split()
    if names:
        ids = tokenizer.convert_tokens_to_ids([*(f"<|{name}|>" for name in names), "<|notimestamps|>"])
        settings = settings | {"forced_decoder_ids": [[i, token] for i, token in enumerate(ids, start=1)]}
    base: dict[str, Any] = {"language": "en", "task": "transcribe", "_from_model_config": False}
    base["no_repeat_ngram_size"] = 4  # so that no loop is searched again
    changed(directory / "generation_config.json", **(base | settings))
    assert main(["import", str(directory), str(tmp_path / "run")]) == 0
    transcriber = td.load_transcriber(tmp_path / "run")
    assert transcriber.tokenizer.tokens(transcriber.tokenizer.opening)[0] == f"<|{language}|>"
    paths = sorted(directory.glob("*.wav"))[:3]
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(directory)
    inputs = extractor([read(path) for path in paths], sampling_rate=RATE, return_tensors="pt")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "again"), "--to", "whisper"]) == 0
    for each in (directory, tmp_path / "again"):
        theirs = transformers.WhisperForConditionalGeneration.from_pretrained(each)
        with torch.no_grad():
            rows = theirs.generate(inputs.input_features)
        want = tokenizer.batch_decode(rows, skip_special_tokens=True)
        assert [text.strip() for text in want] == [text.strip() for text in transcriber(paths)]


@pytest.mark.parametrize("language", ["german", "<|de|>", "De"])
def test_language_may_be_given_by_name(untrained, tmp_path, language):
    shutil.copytree(untrained["whisper"], tmp_path / "theirs")
    changed(tmp_path / "theirs" / "generation_config.json", language=language)
    tokenizer = imported(tmp_path / "theirs").target_tokenizer
    assert tokenizer.tokens(tokenizer.opening) == ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]


def test_language_names_equal_those_of_transformers():
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    assert " ".join(f"{name.replace(' ', '_')} {code}" for name, code in TO_LANGUAGE_CODE.items()) == NAMES


def test_features_of_another_size_than_the_model_are_refused(untrained, tmp_path, capsys):
    """Such as those of a large-v2 beside a large-v3, whose run could not be loaded."""
    theirs, run = shutil.copytree(untrained["whisper"], tmp_path / "theirs"), tmp_path / "run"
    path = theirs / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"feature_size": 80}))
    assert main(["import", str(theirs), str(run)]) == 2
    message = f"transduce: the model takes 21 features a frame, but those of {path} are 80\n"
    assert capsys.readouterr().err == message and not run.exists()


def test_the_files_of_a_slow_tokenizer_are_read(untrained, tmp_path):
    """vocab.json, merges.txt and added_tokens.json, as the first Whispers had them."""
    shutil.copytree(untrained["whisper"], tmp_path / "theirs")
    want = imported(tmp_path / "theirs").target_tokenizer
    path = tmp_path / "theirs" / "tokenizer.json"
    plain = json.loads(path.read_text())
    path.unlink()
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(plain["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in plain["model"]["merges"])
    (tmp_path / "theirs" / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    added = {token["content"]: token["id"] for token in plain["added_tokens"]}
    (tmp_path / "theirs" / "added_tokens.json").write_text(json.dumps(added))
    got = imported(tmp_path / "theirs").target_tokenizer
    texts = [*WORDS, " two  spaces", "a<|0.00|>b", "Größe 東京"]
    assert got.encode(texts) == want.encode(texts) and got.opening == want.opening
    rows = [[*row, *added.values()] for row in want.encode(texts)]
    assert got.decode(rows) == want.decode(rows)
