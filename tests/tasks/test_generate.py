"""Texts from prompts: the same alone and in any batch, as a stream and as a whole, for every kind of tokenizer."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import transduce as td
from tests.language_runs import TEXT, any_tokenizer, language_model, language_run
from transduce.data.base_tokenizer import CharTokenizer, TextStream
from transduce.decode import sample
from transduce.decode.sample import Sampler
from transduce.run import load_run
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.load import load_as

KINDS = ["characters", "bytes", "pieces"]
FILES = {"characters": "characters.json", "bytes": "tokenizer.json", "pieces": "tokenizer.model"}
PROMPTS = ["ROMEO:", "", "JULIET:\nAy", "it's", "All: Speak, speak", "a", "light!", "東京 🙂", "done", "ROMEO:"]
SOME = PROMPTS[:6]


def generator(kind: str, **changes) -> Generator:
    tokenizer = any_tokenizer(kind)
    return Generator(language_model(tokenizer.vocab_size, **changes), tokenizer)


def by_hand(g: Generator, prompt: list[int], x: GenerationConfig, i: int, k: int) -> list[int]:
    """One token after the other, without cache and batch, by the inverse of the distribution function."""
    tokens, end = list(prompt), g.tokenizer.eos_id
    for uniform in np.random.default_rng((x.seed, i, k)).random(x.max_length):
        with torch.no_grad():
            logits = g.model(target_in=torch.tensor([tokens]))[0, -1].double()
        logits[list(g.suppressed)] = -torch.inf
        if x.temperature:
            up_to = (logits / x.temperature).softmax(-1).cumsum(0)
            token = int((up_to <= uniform).sum())
        else:
            token = int(logits.argmax())
        tokens.append(token)
        if token == end:
            break
    return tokens[len(prompt) :]


def test_beam_search_survives_hypotheses_without_continuation():
    """Of two characters, no pair of which comes twice; some beams have none left. Renormalized, the others count alone."""
    g = Generator(language_model(2, seed=0, max_positions=60).double(), CharTokenizer.train(["ab"]))
    ((best,),) = g.generate(["a"], beam_size=2, no_repeat_ngram=2, max_length=5, renormalize=True)
    tokens, log_prob = [0], 0.0
    for n, token in enumerate(best.tokens):
        with torch.no_grad():
            logits = g.model(target_in=torch.tensor([tokens]))[0, -1].double()
        for other in range(2):
            pair = (best.tokens[n - 1], other)
            if n and pair in pairwise(best.tokens[:n]):
                logits[other] = -torch.inf
        log_prob += float(logits.log_softmax(-1)[token])
        tokens.append(token)
    assert len(best.tokens) == 5 and best.log_prob == pytest.approx(log_prob, abs=1e-9)


@pytest.mark.parametrize(("kind", "temperature"), [*((kind, 0.7) for kind in KINDS), ("bytes", 0.0)])
def test_texts_equal_a_loop_without_cache_and_batch(kind, temperature):
    g, x = generator(kind), GenerationConfig(max_length=5, temperature=temperature, seed=5, n=2 if temperature else 1)
    got = g.generate(SOME, x)
    for i, (prompt, texts) in enumerate(zip(SOME, got, strict=True)):
        ids = g.encode(prompt)
        for k, text in enumerate(texts):
            want = by_hand(g, ids, x, i, k)
            assert text.tokens + [g.tokenizer.eos_id] * text.finished == want
            whole, before = g.tokenizer.decode([ids + text.tokens, ids])
            assert before + text.text == whole
        assert len(texts) == x.n
    assert g(SOME, x) == [texts[0].text for texts in got]


def test_batch_size_does_not_change_texts():
    g, x = generator("bytes"), GenerationConfig(max_length=6, n=3, seed=2)
    together = g.generate(PROMPTS, x)
    for size in (2, 5):
        again = g.generate(PROMPTS, replace(x, batch_size=size))
        assert [[text.tokens for text in texts] for texts in again] == [[t.tokens for t in texts] for texts in together]
    for i, prompt in enumerate(PROMPTS):
        (alone,) = g.generate([prompt], x, first_prompt=i)
        assert [text.tokens for text in alone] == [text.tokens for text in together[i]]
    assert [t.tokens for t in together[0]] != [t.tokens for t in together[-1]]  # one prompt, two indices


def test_fewer_and_shorter_samples_are_prefixes_of_more():
    g = generator("characters")
    more = g.generate(PROMPTS, GenerationConfig(max_length=12, n=4))
    fewer = g.generate(PROMPTS, GenerationConfig(max_length=5, n=2))
    for some, all_ in zip(fewer, more, strict=True):
        assert [text.text for text in some] == [text.text[:5] for text in all_[:2]]
    assert g(PROMPTS, GenerationConfig(max_length=12, seed=1)) != [texts[0].text for texts in more]


def test_beams_are_sorted_and_have_exact_log_probs():
    g = generator("pieces")
    beams = g.generate(PROMPTS, GenerationConfig(max_length=8, beam_size=5, n=3, alpha=0.0))
    for prompt, texts in zip(PROMPTS, beams, strict=True):
        assert [t.log_prob for t in texts] == sorted((t.log_prob for t in texts), reverse=True)
        for text in texts:
            ids, end = g.encode(prompt), [g.tokenizer.eos_id] * text.finished
            with torch.no_grad():
                logits = g.model(target_in=torch.tensor([ids + text.tokens + end]))[0].double().log_softmax(-1)
            want = sum(logits[len(ids) - 1 + j, token].item() for j, token in enumerate(text.tokens + end))
            assert text.log_prob == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize(("kind", "temperature"), [*((kind, 1.0) for kind in KINDS), ("bytes", 0.0)])
def test_streamed_pieces_add_up_to_the_text(kind, temperature):
    g, x = generator(kind), GenerationConfig(max_length=8, n=2 if temperature else 1, temperature=temperature)
    n_pieces = 0
    for i, texts in enumerate(g.generate(SOME, x)):
        for k, text in enumerate(texts):
            pieces = list(g.stream(SOME[i], x, prompt_number=i, text_number=k))
            assert "".join(pieces) == text.text and all(pieces)
            n_pieces += len(pieces)
    assert n_pieces > 3 * x.n * len(SOME)
    assert not torch.is_inference_mode_enabled()


def test_multi_byte_characters_are_streamed_whole(monkeypatch):
    g = generator("bytes")
    (ids,) = g.tokenizer.encode(["a🙂b"])
    assert len(ids) > 3  # the bytes are tokens of their own
    coming = iter(ids)
    monkeypatch.setattr(sample, "next_tokens", lambda *_: torch.tensor([next(coming)]))
    assert list(g.stream("x", GenerationConfig(max_length=len(ids)))) == ["a", "🙂", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_arbitrary_tokens_gives_the_decoded_text(kind):
    """Of random ids, bytes that spell nothing, blanks, and characters whose bytes come one by one."""
    g, rng = generator(kind), np.random.default_rng(4)
    ids = [i for i in range(g.tokenizer.vocab_size) if i not in g.suppressed and i != g.tokenizer.eos_id]
    single = [i for i in ids if g.tokenizer.decode([[i]])[0] in ("\ufffd", "", " ")] or ids
    (known,) = g.tokenizer.encode(["東🙂 ö" if kind == "characters" else "東京 🙂🙂 Größe"])
    rows = [rng.choice(pool, size=n).tolist() for pool in (ids, single) for n in (1, 2, 3, 7, 40)]
    for prompt in ("ROMEO:", "", "東京", "a ", " ", *([] if kind == "characters" else ["a\ufffd"])):
        start = g.encode(prompt)
        for tokens in (known * 3, *rows):
            stream = TextStream(g.tokenizer, start)
            pieces = [stream.add([token], last=i + 1 == len(tokens)) for i, token in enumerate(tokens)]
            before, whole = g.tokenizer.decode([start, start + tokens])
            assert before + "".join(pieces) == whole
            assert tokens in rows or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_decodes_a_bounded_tail_of_the_text(kind, monkeypatch):
    """Twice the text costs twice the decoding, not four times as much."""
    g, decoded = generator(kind), []
    decode = g.tokenizer.decode
    monkeypatch.setattr(g.tokenizer, "decode", lambda rows: decoded.extend(map(len, rows)) or decode(rows))
    list(g.stream("All: Speak, speak", GenerationConfig(max_length=40, seed=1)))
    once = sum(decoded)
    list(g.stream("All: Speak, speak", GenerationConfig(max_length=80, seed=1)))
    assert sum(decoded) - once < min(2.5 * once, 20 * 80)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_ends_with_the_first_of_its_stop_strings(kind):
    """Found by decoding every beginning of the text that has no stop; in a stream too."""
    g, x, ended = generator(kind), GenerationConfig(max_length=20, n=3, seed=2), []

    def finish(stream):
        ended.append((yield from stream))

    for i, outputs in enumerate(g.generate(SOME, x)):
        start = g.encode(SOME[i])
        for stop in (["e"], [outputs[0].text[2:5], outputs[1].text[4:7]], ["nothing has this"]):
            stop = [each for each in stop if each and "\ufffd" not in each] or ["a"]
            (got,) = g.generate([SOME[i]], x, first_prompt=i, stop=stop)
            for k, (whole, output) in enumerate(zip(outputs, got, strict=True)):
                rows = [start + whole.tokens[:n] for n in range(len(whole.tokens) + 1)]
                before, *texts = g.tokenizer.decode(rows)
                texts = [text[len(before) :] for text in texts]
                n = next((n for n, text in enumerate(texts) if any(each in text for each in stop)), len(texts) - 1)
                cut = [texts[n].find(each) + len(each) for each in stop if texts and each in texts[n]]
                assert output.text == (texts[n][: min(cut, default=None)] if texts else "")
                assert output.tokens == whole.tokens[: n + 1]
                assert output.finished == (
                    whole.finished and n == len(texts) - 1 and not any(s in output.text for s in stop)
                )
                pieces = list(finish(g.stream(SOME[i], x, prompt_number=i, text_number=k, stop=stop)))
                assert "".join(pieces) == output.text == ended[-1].text and ended[-1].tokens == output.tokens
    with pytest.raises(ValueError, match="stop needs sampling, but beam_size=2; set it to 1"):
        g.generate(["a"], GenerationConfig(beam_size=2), stop=["a"])
    with pytest.raises(ValueError, match="stop takes a list of strings"):
        g.generate(["a"], GenerationConfig(), stop="ab")
    with pytest.raises(ValueError, match="stop takes a list of strings, but element 1 is 3"):
        g.generate(["a"], GenerationConfig(), stop=["a", 3])
    with pytest.raises(ValueError, match=r"^a stop string must have a character, but one is empty; leave it out$"):
        g.generate(["a"], GenerationConfig(), stop=["a", ""])


def test_samples_in_parts_equal_samples_at_once():
    g, x = generator("characters"), GenerationConfig(max_length=6, n=5, seed=2)
    (outputs,) = g.generate(["All"], x)
    for first in range(4):
        (part,) = g.generate(["All"], replace(x, n=2), first_text=first)
        assert [o.tokens for o in part] == [o.tokens for o in outputs[first : first + 2]]


def test_streams_compute_only_consumed_tokens(monkeypatch):
    g, steps, step = generator("characters"), [], Sampler.step
    monkeypatch.setattr(Sampler, "step", lambda self: steps.append(1) or step(self))
    stream = g.stream("All", GenerationConfig(max_length=30))
    assert "".join(next(stream) for _ in range(5)) == g(["All"], GenerationConfig(max_length=5))[0]
    assert len(steps) == 10


# Prompts


def test_first_token_of_encoded_prompts():
    characters, pieces, byte = (generator(kind) for kind in KINDS)
    assert characters.encode("") == characters.tokenizer.encode(["\n"])[0]
    assert characters.encode("All") == characters.tokenizer.encode(["All"])[0]
    assert pieces.tokenizer.bos_id == 0 and pieces.encode("") == [0]
    assert pieces.encode("All") == pieces.tokenizer.encode(["All"])[0]  # GPT-2's only stands between texts
    assert byte.encode("") == [2]
    assert byte.encode("All") == [2, *byte.tokenizer.encode(["All"])[0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam_size", [1, 2])
def test_trailing_space_of_a_prompt_is_written_once(kind, beam_size):
    """Where tokens have no such space, a text begins with it, and it is written once; beside a prompt without."""
    g = generator(kind)
    x = GenerationConfig(max_length=6, n=3 if beam_size == 1 else 1, seed=1, beam_size=beam_size)
    prompts = ["All ", "All", "it's "]
    for number, (outputs, prompt) in enumerate(zip(g.generate(prompts, x), prompts, strict=True)):
        for k, output in enumerate(outputs):
            ids = g.encode(prompt) + output.tokens
            written = g.tokenizer.decode([ids])[0]
            assert written == prompt + output.text
            if beam_size == 1:
                stream = g.stream(prompt, x, prompt_number=number, text_number=k)
                assert "".join(stream) == output.text
    if kind == "pieces":  # SentencePiece knows no tab and no line break
        assert g(["All\t"], x) == g(["All\n"], x) == g(["All "], x) != g(["All"], x)


def test_long_prompts_are_cut_and_texts_end_with_the_positions(caplog):
    g = generator("characters", positions="learned")
    prompt = "it's done" * 9
    assert g.encode(prompt, 11) == g.tokenizer.encode([prompt])[0][-30:]
    assert g.encode(prompt, 1000) == g.tokenizer.encode([prompt])[0][-20:]
    assert g.encode(prompt[:40], 1000) == g.tokenizer.encode([prompt[:40]])[0]
    texts = g.generate([prompt[:33], prompt[:3], prompt[:40]], GenerationConfig(max_length=20))
    assert [len(text[0].tokens) for text in texts] == [8, 20, 1]
    messages = [record.getMessage() for record in caplog.records]
    ends = (("81 tokens", " 30 "), ("81 tokens", " 20 "), ("after 8 tokens",), ("after 1 tokens",))
    for message, parts in zip(messages, ends, strict=True):
        assert all(part in message for part in (*parts, "max_positions=40"))
    caplog.clear()
    assert len("".join(g.stream(prompt[:33], GenerationConfig(max_length=20)))) == 8
    (message,) = [record.getMessage() for record in caplog.records]
    assert "after 8 tokens" in message
    endless = generator("characters")  # sinusoidal positions have no end
    assert [len(t[0].tokens) for t in endless.generate([prompt], GenerationConfig(max_length=50))] == [50]


def test_suppressed_ids_are_never_generated():
    tokenizer = any_tokenizer("pieces")
    g = Generator(language_model(tokenizer.vocab_size + 84), tokenizer)  # a table filled up to a round number
    texts = g.generate(PROMPTS[:3], GenerationConfig(max_length=20, temperature=3.0, n=9))
    ids = {token for some in texts for text in some for token in text.tokens}
    assert max(ids) < tokenizer.vocab_size and not ids & {0, 1, 2}
    assert len(g.suppressed) == 3 + 84


# A run directory


@pytest.mark.parametrize("kind", KINDS)
def test_runs_store_every_kind_of_tokenizer(tmp_path, kind):
    run = language_run(tmp_path / "run", kind)
    assert sorted(path.name for path in run.iterdir()) == sorted(["config.json", FILES[kind], "model.safetensors"])
    g = td.load(run)
    assert isinstance(g, Generator) and type(g.tokenizer) is type(any_tokenizer(kind))
    assert g.tokenizer.encode(TEXT) == any_tokenizer(kind).encode(TEXT)
    kept = load_run(run)
    assert kept.source_tokenizer is None and kept.target_tokenizer.model == g.tokenizer.model
    assert re.fullmatch("[0-9a-f]{12}", kept.resume_key()["target_tokenizer"])
    x = GenerationConfig(max_length=6)
    assert g(PROMPTS, x) == generator(kind)(PROMPTS, x)


def test_loading_another_kind_of_run_is_an_error(letters_run, text_run):
    for kind in (td.Translator, td.Transcriber):
        with pytest.raises(
            ValueError, match=f"{re.escape(str(letters_run))} is a language model; use transduce generate$"
        ):
            load_as(kind, letters_run)
    with pytest.raises(ValueError) as caught:
        load_as(Generator, text_run)
    assert str(caught.value) == (
        f"generating takes a run of a language model, but {text_run} translates; use transduce translate"
    )


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"beam_size": 4, "top_k": 3},
            "beam search does not sample and keeps beam_size texts, so it takes temperature=1, top_k=0, top_p=1, "
            "min_p=0 and n <= beam_size, but temperature=1.0, top_k=3, top_p=1.0, min_p=0.0, n=1, beam_size=4",
        ),
        (
            {"temperature": 0.0, "n": 2},
            "greedy search has one text per prompt, but n=2 at temperature=0; raise the temperature, or use beam_size",
        ),
    ],
)
def test_contradictory_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GenerationConfig(**settings)


@pytest.mark.parametrize(("name", "value"), [("max_length", 0), ("seed", -1), ("alpha", -0.5), ("top_p", 1.5)])
def test_settings_out_of_their_bounds_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name} .*{name}={value}$"):
        GenerationConfig(**{name: value})


def test_invalid_models_and_calls_are_refused(text_run):
    translator = td.load(text_run)
    with pytest.raises(
        ValueError, match=r"^a generator takes a decoder-only model, but this model has an encoder; use td"
    ):
        Generator(translator.model, translator.tokenizer)
    with pytest.raises(ValueError, match=r"^the model must have every id of its tokenizer, but it has 9 and the token"):
        Generator(language_model(9), any_tokenizer("characters"))
    with pytest.raises(ValueError, match=r"^generate takes a list of prompts, but got one string; use \['ROMEO:'\]$"):
        generator("characters").generate("ROMEO:")
    with pytest.raises(ValueError) as caught:
        next(generator("characters").stream("ROMEO:", GenerationConfig(beam_size=3)))
    assert str(caught.value) == ("streaming needs sampling, but beam_size=3; set it to 1, or use generate")


def test_a_setting_of_a_call_turns_off_a_rule_of_the_run():
    plain, g, x = generator("characters"), generator("characters"), GenerationConfig(max_length=20, temperature=0.0)
    g.decoding = replace(x, repetition_penalty=5.0)
    off = {"repetition_penalty": 1.0}
    assert g("Speak", x) == g("Speak") != plain("Speak", x)
    assert g("Speak", x, **off) == g("Speak", **off) == "".join(g.stream("Speak", **off)) == plain("Speak", x)
    g.decoding = replace(x, min_length=15)  # more than this call has
    short = replace(x, max_length=9)
    assert g("Speak", short, min_length=0) == plain("Speak", short)
