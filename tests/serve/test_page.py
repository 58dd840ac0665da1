"""The server's page: what it asks the server for, and, in a browser, what one does there."""

import base64
import io
import json
import math
import re
import shutil
import socket
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import soundfile

from tests.serve.conftest import SAMPLES, client_of, served_of, serving
from tests.serve.test_clients import wav
from transduce.cli.common import Machine
from transduce.cli.serve import load_served
from transduce.serve import ServeConfig
from transduce.tasks.config import GenerationConfig

FOLDER = Path(__file__).parents[2] / "transduce" / "serve" / "page"
MARKUP = r"(inner|outer)HTML|insertAdjacent|document\.write|\beval\b|Function\(|://(?!www\.w3)"
"""What makes markup or code of a text, or asks another server."""
LINE = "<b onclick=alert(1)>Open</b> the old letter."
SESAME = {"Authorization": "Bearer sesame"}


class Links(HTMLParser):
    """What a page points to, and what in it a browser may not run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.inline = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.inline += [name for name, _ in attrs if name == "style" or name.startswith("on")]
        self.inline += [tag] * (tag == "style" or (tag == "script" and "src" not in dict(attrs)))


def test_page_is_complete_and_self_contained(http):
    answer = http.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    rules = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(rules)
    page = Links(answer.text)
    assert page.inline == []
    assert {"page/page.js", "page/style.css", "page/icon.svg"} < set(page.links)
    scripts = {file.name: file.read_text() for file in FOLDER.glob("*.js")}
    imported = [f"page/{name}" for text in scripts.values() for name in re.findall(r'from "\./(.+)"', text)]
    for link in {*page.links, *imported}:
        assert ":" not in link and not link.startswith("/") and http.get(f"/{link}").status_code == 200, link
    for name, text in scripts.items():
        assert not re.search(MARKUP, text), name


@pytest.mark.parametrize("n", [1, 3])
def test_translations_have_scores_and_attention(http, offline, n):
    answer = http.post("/page/translate", json={"model": "mt", "line": LINE, "n_best": n}).json()["outputs"]
    (outputs,) = offline["mt"].translate([LINE], n_best=n)
    looks = offline["mt"].align([LINE] * n, outputs)
    assert [(each["text"], each["score"]) for each in answer] == [
        (each.text, pytest.approx(each.score, abs=1e-5)) for each in outputs
    ]
    for each, look in zip([each["attention"] for each in answer], looks, strict=True):
        assert (each["source"], each["target"]) == (look.source, look.target)
        assert each["layer"] == look.words.layer
        mean = look.weights[look.words.layer].mean(dim=0).tolist()
        assert each["weights"] == [[pytest.approx(weight, abs=1e-3) for weight in row] for row in mean]


@pytest.mark.parametrize("line", ["a b c " * 1000, " "], ids=["long", "blank"])
def test_long_and_blank_lines_have_no_attention_map(http, line):
    (output,) = http.post("/page/translate", json={"model": "mt", "line": line}).json()["outputs"]
    assert output["attention"] is None


def test_ensembles_have_the_first_runs_record_and_no_attention(runs, tmp_path):
    other = shutil.copytree(runs["mt"], tmp_path / "other")
    pair = Path(f"{runs['mt']},{other}")
    served = load_served((pair,), ("en-de",), None, ServeConfig(), Machine(device="cpu"))
    with serving(served) as url, client_of(url) as client:
        (output,) = client.post("/page/translate", json={"model": "mt,other", "line": "a"}).json()["outputs"]
        assert output["attention"] is None
        assert client.get("/page/runs/mt,other").json()["samples"][0]["source"] == "Print it."


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "../mt"}, 404, "to translate, this server has mt, but not '../mt'; see /v1/models"),
        ({"model": "lm"}, 404, "to translate, this server has mt, but not 'lm'; see /v1/models"),
        ({"line": "a" * 10_001}, 400, "a request may have 10000 characters, but it has 10001; ask for less"),
        ({"target": "fr"}, 400, "this server translates en to de, but not  to fr; see /languages"),
        ({"n_best": 11}, 400, "n_best: Input should be less than or equal to 10, but it is 11; correct it"),
    ],
)
def test_invalid_requests_are_refused(http, fields, status, message):
    answer = http.post("/page/translate", json={"model": "mt", "line": "a", **fields})
    assert (answer.status_code, answer.json()) == (status, {"error": message})


def test_page_lists_the_task_of_each_run(http):
    got = http.get("/page/runs").json()
    does = {"mt": "translate", "asr": "transcribe", "lm": "generate"}
    assert {each["name"]: each["does"] for each in got["runs"]} == does
    (mt,) = (each for each in got["runs"] if each["name"] == "mt")
    assert (mt["source"], mt["target"]) == ("en", "de")
    limits = ServeConfig()
    bounds = (got["seconds"], got["upload_mb"], got["max_tokens"])
    assert bounds == (limits.seconds, limits.upload_mb, limits.max_tokens)


def test_training_record_of_a_run(http):
    got = http.get("/page/runs/mt").json()
    loss, bleu = got["curves"]
    assert (loss["name"], loss["training"]) == ("loss", [[50, 4.5], [100, 4.0], [150, 3.5], [200, 3.0]])
    assert (loss["validation"], bleu["validation"]) == ([[100, 3.0], [200, 2.0]], [[100, 10.0], [200, 20.0]])
    outputs = [[update, output] for update, (*_, output) in SAMPLES.items()]
    assert got["samples"] == [{"source": "Print it.", "reference": "Druck es aus.", "outputs": outputs}]
    assert got["progress"] == "update 200, epoch 1, 0.0 min"
    assert [(each["measure"], each["value"], each["low"]) for each in got["scores"]["test"]] == [("bleu", 20.5, 19.0)]
    assert http.get("/page/runs/lm").json() == {"progress": "", "curves": [], "samples": [], "scores": {}}
    for name in ("..%2Fmt", "%2Fetc", "mt%2Fsamples", "mt%00"):
        assert http.get(f"/page/runs/{name}").status_code == 404


def test_page_data_requires_the_token(runs):
    with serving(served_of({"mt": runs["mt"]}), token="sesame") as url, client_of(url) as client:
        assert client.get("/").status_code == client.get("/page/page.js").status_code == 200
        for method, path in [("GET", "/page/runs"), ("GET", "/page/runs/mt"), ("POST", "/page/translate")]:
            assert client.request(method, path).status_code == 401
            known = client.request(method, path, headers=SESAME, json={"model": "mt", "line": "a"})
            assert known.status_code == 200


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/inference"])
def test_uploads_without_the_token_are_refused_by_their_header(runs, path):
    """The body never comes, and the answer does not wait for it."""
    with serving(served_of({"asr": runs["asr"]}), token="sesame") as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=20) as stranger:
            form = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 20000000"
            stranger.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{form}\r\n\r\n--x\r\n".encode())
            answer = stranger.makefile("rb").read()  # to its end: the connection is closed
    assert answer.startswith(b"HTTP/1.1 401 ") and b"connection: close" in answer.lower()


def test_scripts_use_the_labels_of_the_page():
    root, page = Path(__file__).parents[2], (FOLDER / "index.html").read_text()
    for user in ("scripts/ops/picture_page.py", "tests/cli/test_web.py", "tests/serve/test_page.py"):
        labels = re.findall(r'get_by_label\("(.+?)"\)', (root / user).read_text())
        assert [label for label in labels if f">{label}" not in page] == [], user


# In a browser.


@pytest.fixture
def page(browser, url, request):
    """The page as it has just been opened; nothing went wrong in its scripts when the test ends."""
    wrong = []
    with browser.new_context(**getattr(request, "param", {})) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.add_init_script(
            "window.played = []; const start = AudioBufferSourceNode.prototype.start;"
            "AudioBufferSourceNode.prototype.start = function (...when) { played.push(when); start.apply(this, when); };"
        )
        page.goto(url)
        page.get_by_role("tab").first.wait_for()
        yield page
    assert wrong == []


def status_of(page, name: str) -> object:
    """What a panel tells of its work."""
    return page.locator(f"#{name} .status")


def expect(locator) -> object:
    """What waits for something to become true of the page."""
    from playwright.sync_api import expect

    return expect(locator, "the page")


def translate(page, text: str) -> None:
    """Have a text translated."""
    page.get_by_role("tab", name="Translate").click()
    page.get_by_label("Text (lines are translated one by one)").fill(text)
    page.get_by_role("button", name="Translate").click()
    expect(status_of(page, "translate")).to_contain_text("Translated:")


@pytest.mark.long
def test_page_translates_and_shows_attention(page, offline):
    translate(page, f"{LINE}\n\nPrint it.")
    first, second = (offline["mt"].translate([line], n_best=3)[0] for line in (LINE, "Print it."))
    got = page.locator("#translate .ranked").first.get_by_role("button")
    expect(got).to_have_text([output.text for output in first])
    expect(page.locator("#translate .ranked").last.get_by_role("button").first).to_have_text(second[0].text)
    expect(page.locator("#translate .source").first).to_have_text(LINE)
    assert page.locator("#translate b").count() == 0, "a text is no markup"
    best = page.get_by_role("group", name="Translation")
    expect(best).to_have_text(f"{first[0].text}\n\n{second[0].text}")
    got.nth(1).click()
    expect(best).to_have_text(f"{first[1].text}\n\n{second[0].text}")
    page.get_by_text("Cross-attention").first.click()
    (look,) = offline["mt"].align([LINE], first[1:2])
    weights = look.weights[look.layer].mean(dim=0)
    cells, readout = page.locator("#translate [role=grid]").first.locator("tbody td"), page.locator(".readout").first
    assert cells.count() == weights.numel()
    n_places = len(look.source)
    cells.nth(n_places + 2).hover()
    pattern = r" attends to {}: (\d+) %"
    shown = look.source[2].replace("\u2581", "") or "\u2423"
    expect(readout).to_have_text(re.compile(pattern.format(re.escape(shown))))
    percent = int(re.search(r"(\d+) %", readout.text_content())[1])
    assert abs(percent - 100 * float(weights[1, 2])) < 0.6
    cells.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    last = cells.nth(2 * n_places - 1)
    expect(last).to_be_focused()
    expect(readout).to_have_text(last.get_attribute("aria-label"))


@pytest.mark.long
def test_text_direction_follows_the_script(page):
    translate(page, LINE)
    expect(page.locator("#translate .source")).to_have_attribute("dir", "auto")
    for place in ("textarea", ".best", ".ranked button"):
        expect(page.locator(f"#translate {place}").first).to_have_css("unicode-bidi", "plaintext")
        expect(page.locator(f"#translate {place}").first).to_have_css("text-align", "start")


@pytest.mark.long
def test_typed_text_is_translated_after_a_pause(page, offline):
    """And again when one goes on; nothing is said aloud, as nobody has asked."""
    page.get_by_role("tab", name="Translate").click()
    text, got = page.get_by_label("Text (lines are translated one by one)"), page.locator("#translate .ranked")
    text.press_sequentially("Print it")
    expect(page.locator("#translate .source")).to_have_text("Print it")
    expect(got.get_by_role("button").first).to_have_text(offline["mt"].translate(["Print it"], n_best=3)[0][0].text)
    text.press_sequentially(" now.")
    expect(page.locator("#translate .source")).to_have_text("Print it now.")
    expect(got.get_by_role("button").first).to_have_text(
        offline["mt"].translate(["Print it now."], n_best=3)[0][0].text
    )
    expect(status_of(page, "translate")).to_have_text("")
    assert got.count() == 1


@pytest.mark.long
def test_translation_stays_while_the_next_one_is_computed(page, offline):
    """And is cleared if that fails."""
    text, best = (
        page.get_by_label("Text (lines are translated one by one)"),
        page.get_by_role("group", name="Translation"),
    )
    translate(page, "Print it")
    want, then = (offline["mt"].translate([line], n_best=3)[0][0].text for line in ("Print it", "Print it now."))
    expect(best).to_have_text(want)
    waiting = []
    page.route("**/page/translate", lambda route: waiting.append(route))
    with page.expect_request("**/page/translate"):
        text.press_sequentially(" now.")
    expect(page.locator("#translate .source")).to_have_text("Print it now.")
    expect(best).to_have_text(want)
    waiting.pop().continue_()
    expect(best).to_have_text(then)
    with page.expect_request("**/page/translate"):
        text.press_sequentially("..")
    expect(best).to_have_text(then)
    waiting.pop().fulfill(body="")  # an answer that breaks off
    expect(best).to_be_empty()


@pytest.mark.long
@pytest.mark.parametrize("page", [{"permissions": ["clipboard-read", "clipboard-write"]}], indirect=True)
def test_an_example_is_translated_and_copied(page, offline):
    """A sentence of the run's held-out data, which is there while there is no text."""
    (source, *_), *_ = SAMPLES.values()
    text, example = page.get_by_label("Text (lines are translated one by one)"), page.get_by_role("button", name=source)
    expect(page.get_by_role("button", name="Copy").first).to_be_disabled()
    example.click()
    expect(text).to_have_value(source)
    want = offline["mt"].translate([source], n_best=3)[0][0].text
    expect(page.get_by_role("group", name="Translation")).to_have_text(want)
    page.locator("#translate").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == want
    text.fill("")
    expect(example).to_be_visible()
    expect(page.get_by_role("group", name="Translation")).to_be_empty()
    text.fill(" ")
    page.get_by_role("button", name="Translate").click()
    expect(status_of(page, "translate")).to_have_text("There is no text to translate.")


@pytest.mark.long
def test_page_errors_for_bad_files_and_a_stopped_server(browser, runs):
    limits = ServeConfig(upload_mb=1.0)
    with browser.new_context() as context:
        page = context.new_page()
        with serving(served_of(runs, limits), limits) as url:
            page.goto(url)
            page.get_by_role("tab", name="Transcribe").click()
            for size, message in [
                (9, "file 'notes.txt' cannot be read as sound"),
                (1_100_000, "but notes.txt has 1.1;"),
            ]:
                notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a" * size}
                page.get_by_label("or choose a sound file").set_input_files(notes)
                expect(status_of(page, "transcribe")).to_contain_text(message)
        for tab in ("Translate", "Training"):
            page.get_by_role("tab", name=tab).click()
            if tab == "Translate":
                page.get_by_label("Text (lines are translated one by one)").fill("Print it.")
            expect(status_of(page, tab.lower().replace("training", "runs"))).to_contain_text(
                "The server cannot be reached"
            )


@pytest.mark.long
def test_dropped_audio_is_transcribed_and_words_are_played(page, offline):
    page.get_by_role("tab", name="Transcribe").click()
    raw = wav("red blue")
    dropped = page.evaluate_handle(
        """(text) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const found = new DataTransfer();
            found.items.add(new File([bytes], "talk.wav", { type: "audio/wav" }));
            return found;
        }""",
        base64.b64encode(raw).decode(),
    )
    page.locator("#transcribe .drop").dispatch_event("drop", {"dataTransfer": dropped})
    expect(status_of(page, "transcribe")).to_contain_text("Translated:")
    (transcript,) = offline["asr"].transcribe([io.BytesIO(raw)], word_times=True)
    words = [word for segment in transcript.segments for word in segment.outputs[0].words]
    buttons = page.get_by_role("toolbar", name="What was said").get_by_role("button")
    expect(buttons).to_have_text([word.text for word in words])
    expect(page.locator("#transcribe .ranked button")).to_have_text(offline["mt"]([transcript.text])[0])
    buttons.first.click()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    heard_parts = [each for word in (words[0], words[-1]) for each in (0, word.start, word.stop - word.start)]
    assert [x for part in page.evaluate("played") for x in part] == pytest.approx(heard_parts, abs=1e-6)
    blue = "(canvas) => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
    assert page.locator("#transcribe canvas").evaluate(blue) > 2, "a line, what is chosen, and the ground"


@pytest.mark.long
def test_the_same_sound_is_transcribed_again(page):
    """When another run or translation is chosen, and when the file itself is."""
    page.get_by_role("tab", name="Transcribe").click()
    file = page.get_by_label("or choose a sound file")
    file.set_input_files({"name": "a.wav", "mimeType": "audio/wav", "buffer": wav("red")})
    expect(status_of(page, "transcribe")).to_contain_text("Translated:")
    with page.expect_response("**/transcriptions"):
        page.get_by_label("Then translate").select_option("No")
    expect(page.get_by_role("toolbar", name="What was said")).to_be_visible()
    assert page.locator("#transcribe .ranked").count() == 0
    with page.expect_file_chooser():
        file.click()
    expect(file).to_have_value("")


@pytest.mark.long
def test_a_sound_that_was_replaced_is_not_shown(page):
    """Its decoding may end after that of the sound that was chosen next."""
    page.get_by_role("tab", name="Transcribe").click()
    page.get_by_label("Then translate").select_option("No")
    page.evaluate(
        "() => { const decode = BaseAudioContext.prototype.decodeAudioData; window.held = [];"
        "BaseAudioContext.prototype.decodeAudioData = function (raw) { const sound = decode.call(this, raw);"
        "return held.length ? sound : new Promise((go) => held.push(() => go(sound))); }; }"
    )
    for words in ("red blue red blue", "red"):
        raw = {"name": "a.wav", "mimeType": "audio/wav", "buffer": wav(words)}
        page.get_by_label("or choose a sound file").set_input_files(raw)
        page.wait_for_function("held.length")
    seconds = soundfile.info(io.BytesIO(wav("red"))).duration
    waveform = page.get_by_role("img", name="Waveform")
    expect(waveform).to_have_attribute("aria-label", f"Waveform of {seconds:.1f} seconds")
    page.evaluate("held[0]()")
    expect(status_of(page, "transcribe")).to_contain_text(re.compile("Transcript: |no words"))
    expect(waveform).to_have_attribute("aria-label", f"Waveform of {seconds:.1f} seconds")


@pytest.mark.long
def test_page_records_audio(page):
    """What a browser records is sent as a WAV file of 16 bits."""
    page.get_by_role("tab", name="Transcribe").click()
    page.evaluate(
        "() => { const asked = MediaDevices.prototype.getUserMedia; window.streams = 0; "
        "MediaDevices.prototype.getUserMedia = function (...what) { streams++; return asked.apply(this, what); }; }"
    )
    page.get_by_role("button", name="Record").evaluate("(button) => { button.click(); button.click(); }")
    expect(status_of(page, "transcribe")).to_contain_text("Recording")
    assert page.evaluate("streams") == 1, "no second recording, which nothing would stop"
    page.wait_for_timeout(500)
    page.evaluate(
        "() => { const ask = fetch; window.fetch = (...how) => { window.sent ??= how[1].body; return ask(...how); }; }"
    )
    with page.expect_response("**/transcriptions") as answered:
        page.get_by_role("button", name="Stop").click()
    assert answered.value.status == 200
    sent = page.evaluate("sent.get('file').arrayBuffer().then((all) => [...new Uint8Array(all)])")
    sound = soundfile.info(io.BytesIO(bytes(sent)))
    assert (sound.format, sound.subtype, sound.samplerate, sound.channels) == ("WAV", "PCM_16", 16000, 1)
    assert sound.duration > 0.3
    expect(status_of(page, "transcribe")).to_have_text(
        re.compile("Transcript: .* Translated: |The recording has no words")
    )
    expect(page.get_by_role("img", name="Waveform")).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize("limits", [ServeConfig(seconds=1.0), ServeConfig(upload_mb=0.03)])
def test_a_recording_ends_before_the_server_would_refuse_it(browser, runs, limits):
    """For it would be lost: a second takes 32,000 bytes."""
    with browser.new_context() as context, serving(served_of(runs, limits), limits) as url:
        page = context.new_page()
        page.goto(url)
        page.get_by_role("tab", name="Transcribe").click()
        with page.expect_response("**/transcriptions") as answered:
            page.get_by_role("button", name="Record").click()
            page.wait_for_timeout(3500)
            if (stop := page.get_by_role("button", name="Stop")).is_visible():
                stop.click()
        assert answered.value.status == 200
        expect(page.get_by_role("img", name=re.compile("Waveform of (0.[5-9]|1.0) seconds"))).to_be_visible()


@pytest.mark.long
def test_page_generates_text(page, offline):
    page.get_by_role("tab", name="Generate").click()
    page.get_by_label("Prompt").fill("ROMEO:")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Tokens").fill("12")
    page.get_by_label("Prompt").press("Control+Enter")
    (text,) = offline["lm"](["ROMEO:"], GenerationConfig(max_length=12, temperature=0.0))
    expect(status_of(page, "generate")).to_have_text("Stopped at the token limit.")
    assert page.locator(".written").text_content() == f"ROMEO:{text}"


@pytest.mark.long
def test_page_shows_the_training_record(page):
    page.get_by_role("tab", name="Training").click()
    loss = page.get_by_role("img", name="loss (nats per token): validation from 3 to 2")
    assert loss.locator("polyline.training").get_attribute("points").count(",") == 4
    drawn = loss.locator("polyline.validation").get_attribute("points")
    points = [[float(x) for x in point.split(",")] for point in drawn.split()]
    assert points[0][1] < points[1][1], "a loss that falls is drawn falling"
    assert math.isclose(points[1][0] - points[0][0], points[0][0] - 46), "updates 0, 100 and 200 are equally far apart"
    loss.hover(position={"x": 1, "y": 50})
    expect(page.locator("#runs .readout").first).to_have_text("loss (nats per token): 3 at update 100")
    expect(page.locator("#runs mark")).to_have_text(["Mach"])
    expect(page.get_by_role("group", name="Scores").locator("tbody td")).to_have_text(
        ["test, beam5", "bleu", "20.5", "19 to 22"]
    )
    page.get_by_role("tabpanel").get_by_label("Run").select_option("asr")
    expect(status_of(page, "runs")).to_have_text("The directory of this run has no record of its training.")


@pytest.mark.long
def test_page_follows_a_running_training(browser, runs, tmp_path):
    """In the one tab of `transduce watch`."""
    run = shutil.copytree(runs["mt"], tmp_path / "mt")
    with serving([], records={"mt": run}) as url, browser.new_context() as context:
        page = context.new_page()
        page.clock.install()
        page.goto(url)
        expect(page.get_by_role("tab")).to_have_text(["Training"])
        for update in (300, 400):
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"update": update, "epoch": 0, "kind": "valid", "loss": 1.0}) + "\n")
            page.clock.run_for(5_000)
            expect(page.locator("#runs .results")).to_contain_text(f"update {update}, epoch 1")


@pytest.mark.long
def test_a_record_that_takes_long_is_shown(browser, runs):
    """The page waits for it, instead of asking anew every five seconds."""
    with serving([], records={"mt": runs["mt"]}) as url, browser.new_context() as context:
        page, asked = context.new_page(), []
        page.clock.install()
        page.route("**/page/runs/mt", lambda route: asked.append(route))
        page.goto(url)
        expect(status_of(page, "runs")).to_have_text("Reading ...")
        for _ in range(3):
            page.clock.run_for(5_000)
        (only,) = asked
        only.continue_()
        expect(page.locator("#runs .results")).to_contain_text("update 200, epoch")


@pytest.mark.long
def test_page_asks_for_the_token(browser, runs):
    with serving(served_of({"mt": runs["mt"]}), token="sesame") as url, browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        for token in ("wrong", "sesame"):
            page.get_by_label("This server requires a token").fill(token)
            page.get_by_role("button", name="Open").click()
            expect(page.locator("#trouble")).to_be_visible(visible=token == "wrong")
        translate(page, "Print it.")


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        {"color_scheme": scheme, "viewport": {"width": width, "height": 700}}
        for scheme, width in (("light", 320), ("dark", 1200))
    ],
    indirect=True,
    ids=["light, phone", "dark"],
)
def test_page_is_accessible(page):
    """axe finds nothing serious in any tab, and nothing is wider than the screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    translate(page, "Close the green folder, please.")
    page.get_by_role("tab", name="Transcribe").click()
    page.get_by_label("or choose a sound file").set_input_files({"name": "a.wav", "mimeType": "", "buffer": wav("red")})
    expect(status_of(page, "transcribe")).to_contain_text("Translated:")
    page.get_by_role("tab", name="Generate").click()
    page.get_by_role("button", name="Continue").click()
    expect(status_of(page, "generate")).to_have_text(re.compile("Stopped at|The text ended"))
    page.get_by_role("tab", name="Training").click()
    page.get_by_role("group", name="Scores").wait_for()
    for tab in page.get_by_role("tab").all():
        tab.click()
        serious = [each for each in axe.run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
