"""Real clients, unchanged, get what the runs give without a server."""

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version

import httpx
import numpy as np
import openai
import pytest
import soundfile
from libretranslatepy import LibreTranslateAPI

from tests.runs import ENGLISH, RATE, sentences, sound
from tests.serve.conftest import served_of, serving
from transduce.data.lines import read_lines
from transduce.decode.sample import Sampler
from transduce.serve import ServeConfig
from transduce.serve.app import serve_run
from transduce.serve.http import Languages
from transduce.tasks.config import GenerationConfig
from transduce.tasks.load import load
from transduce.tasks.markup import translate_markup


def wav(text: str, *, seed: int = 0) -> bytes:
    """Tones as a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, sound(text, seed=seed), RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


LONG = wav(" ".join(sentences(5)))
"""Several segments."""


def test_libretranslate(url, offline):
    api, translator = LibreTranslateAPI(url), offline["mt"]
    text = "Print it.\n\nOpen the old letter."
    assert api.translate(text, "en", "de") == "\n".join(translator(text.split("\n")))
    assert api.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert api.detect("Hello") == [{"confidence": 100.0, "language": "en"}]


def test_libretranslate_with_its_api_key(runs, offline):
    """LibreTranslate itself lists its languages and settings without one."""
    with serving(served_of({"mt": runs["mt"]}), token="sesame") as url:
        api = LibreTranslateAPI(url, "sesame")
        assert [each["code"] for each in api.languages()] == ["en", "de"]
        assert [api.translate("Print it.", "en", "de")] == offline["mt"](["Print it."])
        assert httpx.get(f"{url}/frontend/settings").json()["keyRequired"]


def test_request_text_is_split_into_lines_like_a_file(http, offline, tmp_path):
    text = "\ufeffPrint it.\r\nOpen the\rold letter.\u2028Print\x85it.\n\n"
    (path := tmp_path / "in").write_bytes(text.encode())
    answer = http.post("/translate", json={"q": text, "source": "en", "target": "de"}).json()
    assert answer["translatedText"] == "\n".join([*offline["mt"](read_lines(path)), ""])


def test_libretranslate_requests_of_its_web_page(http, offline):
    asked = {"q": ["Print it.", "Close the green folder, please."], "source": "auto", "target": "de", "alternatives": 2}
    answer = http.post("/translate", json={**asked, "format": "text", "api_key": ""}).json()
    got = [[output.text for output in each] for each in offline["mt"].translate(asked["q"], n_best=3)]
    assert answer["translatedText"] == [texts[0] for texts in got]
    assert answer["alternatives"] == [texts[1:] for texts in got]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "en"]
    one = http.post("/translate", json={**asked, "q": "Print it.", "source": "en"}).json()
    assert one == {"translatedText": got[0][0], "alternatives": got[0][1:]}
    settings = http.get("/frontend/settings").json()
    assert settings["charLimit"] == 10_000 and settings["language"]["target"] == {"code": "de", "name": "German"}
    assert http.get("/health").json() == {"status": "ok"}


def test_concurrent_requests_equal_single_ones(http, offline):
    lines = [f"{line} {i}" for i, line in enumerate(ENGLISH[:12])]
    with ThreadPoolExecutor(8) as pool:
        asked = [{"q": line, "source": "en", "target": "de"} for line in lines]
        got = [*pool.map(lambda each: http.post("/translate", json=each).json()["translatedText"], asked)]
    assert got == [text for line in lines for text in offline["mt"]([line])]
    sizes = re.findall(r'batch_inputs_bucket\{le="(\S+)",model="mt"\} (\S+)', http.get("/metrics").text)
    counts = [float(count) for _, count in sizes]
    assert counts[-1] > counts[0], "some batch had more than one input"


def test_samples_do_not_depend_on_other_lines(runs, tmp_path):
    """What is drawn for a line is the same alone and beside others."""
    translator = load(runs["mt"])
    translator.decoding = translator.decoding.changed(sample=True, temperature=1.5, max_length=12)
    served = serve_run("mt", translator, ServeConfig(), [Languages("en", "de")])
    lines = ENGLISH[:12]
    with serving([served]) as url:
        asked = {"q": lines, "source": "en", "target": "de"}
        got = httpx.post(f"{url}/translate", json=asked, timeout=60).json()["translatedText"]
    assert got == [text for line in lines for text in translator([line])]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["mt", "asr", "lm"]
    assert client.models.retrieve("asr").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


@pytest.mark.parametrize("raw", [wav("red blue"), LONG], ids=["one segment", "several"])
def test_transcriptions(client, offline, raw):
    (transcript,) = offline["asr"].transcribe([io.BytesIO(raw)], word_times=True, no_speech_threshold=1.0)

    def ask(written: str, **how) -> object:
        return client.audio.transcriptions.create(
            file=("talk.wav", raw), model="asr", response_format=written, language="en", **how
        )

    assert ask("json").text == transcript.text
    assert ask("text") == transcript.text + "\n"
    verbose = ask("verbose_json", timestamp_granularities=["word", "segment"])
    assert verbose.text == transcript.text and verbose.language == "en"
    assert verbose.duration == pytest.approx(soundfile.info(io.BytesIO(raw)).duration)
    expected = [(each.start, each.stop, each.outputs[0].text, each.outputs[0].tokens) for each in transcript.segments]
    assert [(each.start, each.end, each.text, each.tokens) for each in verbose.segments] == expected
    probs = [each.outputs[0].no_speech_prob for each in transcript.segments]
    assert [each.no_speech_prob for each in verbose.segments] == pytest.approx(probs) and None not in probs
    words = [word for each in transcript.segments for word in each.outputs[0].words if word.start is not None]
    assert [(w.word, w.start, w.end) for w in verbose.words] == [(w.text, w.start, w.stop) for w in words]
    assert ask("srt").count(" --> ") == ask("vtt").count(" --> ") == len(transcript.segments)
    assert ask("srt").startswith("1\n00:00:00,") and ask("vtt").startswith("WEBVTT\n\n00:00:00.")


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_no_speech_prob_is_null_without_a_ctc_head(client, runs):
    """The openai client takes it; of digital silence every run can tell."""
    served, silence = served_of({"asr": runs["asr"]}), io.BytesIO()
    task = served[0].task
    task.model.config = replace(task.model.config, ctc=False)
    task.model.ctc = None
    task.engines = (task.model,)
    soundfile.write(silence, np.zeros(RATE), RATE, format="WAV")
    with serving(served) as url:
        client = client.with_options(base_url=f"{url}/v1")
        for raw, want in ((wav("red blue"), None), (silence.getvalue(), 1.0)):
            got = client.audio.transcriptions.create(
                file=("talk.wav", raw), model="asr", response_format="verbose_json"
            )
            assert [each.no_speech_prob for each in got.segments] == [want]


@pytest.mark.parametrize("raw", [wav("red blue"), LONG], ids=["one segment", "several"])
def test_transcriptions_stream(client, offline, raw):
    (transcript,) = offline["asr"].transcribe([io.BytesIO(raw)])
    events = [*client.audio.transcriptions.create(file=("talk.wav", raw), model="whisper-1", stream=True)]
    assert len(events) == len(transcript.segments) + 1
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == transcript.text


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_translations(client, offline):
    raw = wav("green")
    got = client.audio.translations.create(file=("talk.wav", raw), model="asr")
    assert [got.text] == offline["asr"]([io.BytesIO(raw)])


def test_clients_of_whisper_cpp(http, offline):
    raw = wav("black red")
    fields = {"temperature": "0.0", "temperature_inc": "0.2", "response_format": "json"}
    got = http.post("/inference", files={"file": ("talk.wav", raw, "audio/wav")}, data=fields).json()
    assert [got["text"]] == offline["asr"]([io.BytesIO(raw)])


def test_forms_of_every_content_type_are_utf_8(http):
    """As curl sends it with -d, with --data-urlencode and with -F, and deep-translator in the URL."""
    text = "Öffne den grünen Ordner, Zoë."
    plain = http.post("/translate", json={"q": text, "source": "en", "target": "de"}).json()
    head = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (
        {"content": f"q={text}&source=en&target=de".encode(), "headers": head},
        {"data": {"q": text, "source": "en", "target": "de"}},
        {"params": {"q": text, "source": "en", "target": "de"}},
        {"files": {"q": (None, text), "source": (None, "en"), "target": (None, "de")}},
    ):
        assert http.post("/translate", **body).json() == plain
    latin = http.post("/translate", content=f"q={text}&source=en&target=de".encode("latin-1"), headers=head)
    assert latin.status_code == 400 and "utf-8" in latin.text


def test_request_with_a_glossary(http, offline):
    asked = {"q": "Print it.\nOpen the old letter.", "source": "en", "target": "de"}
    plain = http.post("/translate", json=asked).json()["translatedText"].split("\n")
    given = (
        http.post("/translate", json={**asked, "glossary": {"letter": "Epistel"}}).json()["translatedText"].split("\n")
    )
    assert given == offline["mt"](asked["q"].split("\n"), glossary={"letter": "Epistel"}) and given[0] == plain[0]
    refused = http.post("/translate", json={**asked, "glossary": {"": "a"}})
    assert refused.status_code == 400 and "one is blank" in refused.text


def test_request_with_markup(http, offline):
    """Several texts with alternatives; one without any text."""
    texts = ["<p>Print <b>it</b>.</p><p>Open the <a href='x'>old</a> letter.</p>", "<br>", "Print it. &amp; go"]
    asked = {"q": texts, "source": "en", "target": "de", "format": "html", "alternatives": 1}
    got = http.post("/translate", json=asked).json()
    for text, best, (second,) in zip(texts, got["translatedText"], got["alternatives"], strict=True):
        assert best == translate_markup(offline["mt"], text, "html", n_best=2)
        assert second.count("<a href='x'>") >= text.count("<a href='x'>") and (second != best or text == "<br>")


def test_completions(client, offline):
    prompts, config = ["ROMEO:", "All: Speak"], GenerationConfig(max_length=12, n=2, seed=5)
    got = client.completions.create(model="lm", prompt=prompts, max_tokens=12, n=2, seed=5)
    outputs = offline["lm"].generate(prompts, config)
    assert [choice.text for choice in got.choices] == [output.text for each in outputs for output in each]
    assert {choice.finish_reason for choice in got.choices} == {"length"}
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (sum(map(len, prompts)), 4 * 12)
    biased = client.completions.create(model="lm", prompt=prompts[0], max_tokens=5, logit_bias={"7": 100})
    assert biased.choices[0].text == offline["lm"].tokenizer.decode([[7] * 5])[0]
    greedy = client.completions.create(model="lm", prompt=prompts, max_tokens=12, temperature=0, echo=True)
    texts = offline["lm"](prompts, GenerationConfig(max_length=12, temperature=0.0))
    assert [each.text for each in greedy.choices] == [
        prompt + text for prompt, text in zip(prompts, texts, strict=True)
    ]


def test_completions_use_the_runs_sampling_settings_by_default(runs):
    """Temperature and top_p are OpenAI's, and no beam is searched."""
    (served,) = served_of({"lm": runs["lm"]})
    plain = GenerationConfig(max_length=12, seed=5)
    own = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5, "min_length": 4}
    served.task.decoding = replace(plain, **own, temperature=0.3, top_p=0.5)
    asked = {"model": "lm", "prompt": "ROMEO:", "max_tokens": 12, "seed": 5, "user": "me", "n_predict": None}
    asked |= {
        "ignore_eos": False,
        "use_beam_search": False,
        "length_penalty": 1,
        "repeat_penalty": 1.0,
        "typical_p": 1.0,
    }
    asked |= {"stop_token_ids": [], "response_format": {"type": "text"}}
    off = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
    lm = load(runs["lm"])
    expected = [lm("ROMEO:", replace(plain, **own)), lm("ROMEO:", plain)]
    with serving([served]) as url, httpx.Client(base_url=url) as client:
        for stream in (False, True):
            ways = [asked | way | {"stream": stream} for way in ({}, off, off | {"top_k": -1})]
            assert [completion(client, way) for way in ways] == [*expected, expected[1]]
        served.task.decoding = GenerationConfig(beam_size=3)
        assert completion(client, asked) == expected[1] != expected[0]


def completion(client: httpx.Client, asked: dict[str, object]) -> str:
    """The text, of an answer or of the events of a stream."""
    answer = client.post("/v1/completions", json=asked).raise_for_status().text
    events = re.findall("^data: ({.*)", answer, re.M) if asked.get("stream") else [answer]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_completions_end_at_stop_strings(client, offline, temperature):
    """Which may span tokens, and is not searched beyond; the usage has the tokens up to it, as llama.cpp counts."""
    lm, config = (
        offline["lm"],
        GenerationConfig(max_length=40, n=3 if temperature else 1, seed=5, temperature=temperature),
    )
    outputs = [output for each in lm.generate(["ROMEO:", "All:"], config) for output in each]
    stops, n_tokens, expected = [outputs[0].text[3:6], outputs[-1].text[5:7]], 0, list[str]()
    for output in outputs:  # by brute force: the fewest tokens whose text has a stop
        texts = [lm.tokenizer.decode([output.tokens[:n]])[0] for n in range(1, len(output.tokens) + 1)]
        n = next((n for n, text in enumerate(texts) if any(stop in text for stop in stops)), len(texts) - 1)
        places = [place for stop in stops if (place := texts[n].find(stop)) >= 0]
        expected.append(texts[n][: min(places, default=None)])
        n_tokens += n + 1
    asked = {"model": "lm", "prompt": ["ROMEO:", "All:"], "max_tokens": 40, "n": config.n, "seed": 5, "stop": stops}
    got = client.completions.create(**asked, temperature=temperature)
    assert [choice.text for choice in got.choices] == expected
    assert got.choices[0].finish_reason == got.choices[-1].finish_reason == "stop"
    assert got.usage.completion_tokens == n_tokens < len(outputs) * 40
    *events, last = client.completions.create(
        **asked, temperature=temperature, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == [] and last.usage == got.usage
    assert all(event.usage is None and len(event.choices) == 1 for event in events)
    for index, text in enumerate(expected):
        assert "".join(event.choices[0].text for event in events if event.choices[0].index == index) == text


def test_decoding_ends_at_a_stop_string(http, monkeypatch):
    steps, step = [], Sampler.step
    monkeypatch.setattr(Sampler, "step", lambda self: steps.append(1) or step(self))
    asked = {"model": "lm", "prompt": "a", "max_tokens": 1000, "temperature": 0}
    first = http.post("/v1/completions", json={**asked, "max_tokens": 3}).json()["choices"][0]["text"]
    for stream in (False, True):
        steps.clear()
        http.post("/v1/completions", json={**asked, "stop": [first[-1]], "stream": stream}).raise_for_status()
        assert 1 <= len(steps) <= 3


def test_many_completions_equal_those_of_one_call(client, offline):
    """n texts are made in several parts, so that others have their turn in between."""
    got = client.completions.create(
        model="lm", prompt=["a", "e"], max_tokens=4, n=40, seed=1, extra_body={"best_of": 40}
    )
    outputs = offline["lm"].generate(["a", "e"], GenerationConfig(max_length=4, n=40, seed=1))
    assert [choice.text for choice in got.choices] == [output.text for each in outputs for output in each]


@pytest.mark.parametrize("stop", [None, "stop"])
def test_completions_stream(client, offline, stop):
    config = GenerationConfig(max_length=20, n=2, seed=5)
    texts = [output.text for output in offline["lm"].generate(["ROMEO:"], config)[0]]
    stops = [texts[0][7:10]] if stop else []
    expected = [text[: text.find(stops[0])] if stop and stops[0] in text else text for text in texts]
    asked = {"model": "lm", "prompt": "ROMEO:", "max_tokens": 20, "n": 2, "seed": 5, "stop": stops or None}
    got, reasons = ["", ""], [None, None]
    for event in client.completions.create(**asked, stream=True):
        (choice,) = event.choices
        got[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert got == expected
    assert got == [choice.text for choice in client.completions.create(**asked).choices]
    assert reasons[0] == ("stop" if stop else "length")


def test_openapi_description(http):
    plain = http.get("/openapi.json").json()
    assert {"/translate", "/inference", "/v1/audio/transcriptions", "/v1/completions"} <= set(plain["paths"])
    assert "$defs" not in json.dumps(plain)
    assert plain["info"]["version"] == version("transduce")
    assert http.get("/docs").status_code == 200


def test_silence_is_transcribed_as_blank_text(client):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(RATE), RATE, format="WAV")
    assert client.audio.transcriptions.create(file=("a.wav", file.getvalue()), model="asr").text == ""
