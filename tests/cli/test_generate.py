"""`transduce generate` and `transduce score perplexity` as a user meets them."""

import io
import json
import math
import sys
from importlib.metadata import version

import pytest
import torch

import transduce as td
from tests.language_runs import language_model, language_run
from transduce.cli.main import main
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.tasks.perplexity import measure_perplexity

RULE = "-" * 20 + "\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("cli") / "run")


@pytest.fixture
def stdin(monkeypatch):
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


def printed(run, prompts: list[str], **settings) -> str:
    """What the command line should print, from Python."""
    got = td.load(run).generate(prompts, td.GenerationConfig(**settings))
    return RULE.join(p + text.text + "\n" for p, texts in zip(prompts, got, strict=True) for text in texts)


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_generate_prints_prompts_with_continuations(run, stdin, capsys, stream):
    common = ["generate", str(run), "--max-length", "12", *stream]
    assert main([*common, "--prompt", "ROMEO:", "--seed", "4"]) == 0
    assert capsys.readouterr().out == printed(run, ["ROMEO:"], max_length=12, seed=4)
    assert main([*common, "--prompt", "ROMEO:", "it's", "--n", "3", "--temperature", "0.8", "--top-k", "5"]) == 0
    want = printed(run, ["ROMEO:", "it's"], max_length=12, n=3, temperature=0.8, top_k=5)
    assert capsys.readouterr().out == want
    stdin(b"All\nlight!\n\ndone")
    assert main([*common, "--top-p", "0.9", "--repetition-penalty", "1.3"]) == 0
    want = printed(run, ["All", "light!", "", "done"], max_length=12, top_p=0.9, repetition_penalty=1.3)
    assert capsys.readouterr().out == want
    beam = [*common, "--prompt", "All", "--beam-size", "4", "--n", "2", "--alpha", "1.0"]
    assert main(beam) == (2 if stream else 0)
    out, err = capsys.readouterr()
    if stream:
        assert "a text can be shown as it comes only if it is sampled, but beam_size=4; set it to 1" in err and not out
    else:
        assert out == printed(run, ["All"], max_length=12, beam_size=4, n=2, alpha=1.0)


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_generate_with_stop_strings_and_logit_bias(run, capsys, stream):
    """Texts end with their first stop string; of a beam none is known before its end."""
    common = ["generate", str(run), "--prompt", "ROMEO:", "it's", "--max-length", "30", *stream]
    config = td.GenerationConfig(max_length=30)
    texts = [text.text for (text,) in td.load(run).generate(["ROMEO:", "it's"], config)]
    stops = [texts[0][4:6], texts[1][7:8]]
    ends = [min(text.find(s) + len(s) for s in stops if s in text) for text in texts]
    assert main([*common, "--stop", stops[0], "--stop", stops[1]]) == 0
    cut = [p + text[:end] + "\n" for p, text, end in zip(["ROMEO:", "it's"], texts, ends, strict=True)]
    assert capsys.readouterr().out == RULE.join(cut)
    assert main([*common, "--stop", "a", "--beam-size", "2"]) == 2
    assert "beam_size=2; set it to 1" in capsys.readouterr().err
    assert main([*common, "--logit-bias", "e", "-100", "5", "100", "--min-p", "0.1"]) == 0
    want = printed(run, ["ROMEO:", "it's"], max_length=30, logit_bias={"e": -100.0, 5: 100.0}, min_p=0.1)
    assert capsys.readouterr().out == want


def test_stream_prints_token_by_token(run, monkeypatch):
    pieces = []
    out = io.StringIO()
    monkeypatch.setattr(out, "write", pieces.append)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["generate", str(run), "--prompt", "All", "--max-length", "9", "--stream"]) == 0
    assert pieces[0] == "All" and [len(piece) for piece in pieces[1:10]] == [1] * 9


def test_prompts_from_files_and_texts_to_a_file(run, stdin, tmp_path, capsys):
    """A line is a prompt, and gives n texts, in order; - is standard input."""
    (tmp_path / "a").write_text("All\n\nROMEO:")
    stdin(b"light!\n")
    arguments = ["generate", str(run), str(tmp_path / "a"), "-", "--max-length", "12", "--n", "2"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    prompts = ["All", "", "ROMEO:", "light!"]
    assert (tmp_path / "out").read_text() == printed(run, prompts, max_length=12, n=2)
    stdin(b"light!\n")
    assert main([*arguments, "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    want = td.load(run).generate(prompts, td.GenerationConfig(max_length=12, n=2))
    assert rows == [{"prompt": p, "text": t.text} for p, texts in zip(prompts, want, strict=True) for t in texts]
    stdin(b"light!\n")
    assert main([*arguments, "--format", "json", "--token-scores"]) == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.removesuffix("\n").split("\n")]
    assert [{name: row[name] for name in ("prompt", "text")} for row in scored] == rows
    for row, output in zip(scored, (text for texts in want for text in texts), strict=True):
        assert len(row["tokens"]) == len(output.tokens) + (
            output.finished and td.load(run).tokenizer.eos_id is not None
        )
    assert main([*arguments, "--prompt", "All"]) == 2
    assert main(["generate", str(run), str(tmp_path / "none")]) == 2
    both, missing = capsys.readouterr().err.splitlines()
    assert both == "transduce: prompts come from files or from --prompt, but both are given; leave one out"
    assert str(tmp_path / "none") in missing


def test_invalid_prompts_and_options_are_refused(run, capsys):
    assert main(["generate", str(run), "--prompt", "ROMEO§"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("transduce: prompt 1: ") and "but '§' (U+00A7) is not one of them; leave it out" in err
    assert main(["generate", str(run), "--prompt", "a", "--temperature", "-1"]) == 2
    assert main(["generate", str(run), "--prompt"]) == 2
    value, empty = capsys.readouterr().err.splitlines()
    assert "temperature=-1.0" in value
    assert empty == 'transduce: --prompt takes texts, but nothing follows it; --prompt "" is an empty prompt'
    assert main(["generate", str(run), "--token-scores"]) == 2
    for options in (
        ["--format", "json", "--stream"],
        ["--format", "json", "--interactive"],
        ["--stream", "--output", "a"],
        ["--stream", "--part", "1/2"],
    ):
        assert main(["generate", str(run), *options]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "transduce: scores of tokens need --format json, but it is text; add --format json"
    assert (
        others
        == [
            "transduce: text is printed to standard output piece by piece, so leave out --format json, --output, --workers and "
            "--part with --stream and --interactive"
        ]
        * 4
    )
    assert main(["translate", str(run)]) == 2
    assert "is a language model; use transduce generate" in capsys.readouterr().err


def test_forbidden_phrases_may_come_from_standard_input_if_prompts_do_not(run, stdin, capsys):
    for where in ([], ["-"], ["--interactive"]):
        stdin(b"e\n")
        assert main(["generate", str(run), *where, "--forbid", "-"]) == 2
        assert "standard input can be read once, but - stands for 2 files" in capsys.readouterr().err
    stdin(b"e\n")
    assert main(["generate", str(run), "--prompt", "ROMEO:", "--max-length", "12", "--forbid", "-"]) == 0
    assert capsys.readouterr().out == printed(run, ["ROMEO:"], max_length=12, forbid=("e",))


# Perplexity


TEXT = "ROMEO:\nBut soft, what light! it's done; speak, speak. Größe\nAy me.\n"


def score_token_by_token(model, ids: list[int], window: int, stride: int) -> float:
    """The definition: every token from the tokens of the first window that reaches it."""
    total = 0.0
    for t in range(1, len(ids)):
        begin = 0
        while begin + window < t:
            begin += stride
        with torch.no_grad():
            logits = model(target_in=torch.tensor([ids[begin:t]]))[0, -1].double()
        total -= logits.log_softmax(-1)[ids[t]].item()
    return total


@pytest.mark.parametrize(("window", "stride"), [(40, 20), (40, 40), (7, 1), (7, 3), (7, 7), (1, 1), (100, 5), (66, 1)])
def test_perplexity_equals_token_by_token_scoring(window, stride):
    tokenizer = CharTokenizer.train([TEXT])
    model = language_model(tokenizer.vocab_size)
    (ids,) = tokenizer.encode([TEXT])
    want = score_token_by_token(model, ids, window, stride)
    for batch_tokens in (50, 4096):
        got = measure_perplexity(model, tokenizer, TEXT, window=window, stride=stride, batch_tokens=batch_tokens)
        assert got.nats == pytest.approx(want, rel=1e-5), batch_tokens
        assert (got.n_tokens, got.n_bytes) == (len(TEXT) - 1, len(TEXT.encode()) - 1)  # the first character is given
        assert got.nats_per_token == got.nats / got.n_tokens
        assert got.perplexity == pytest.approx(math.exp(want / (len(TEXT) - 1)), rel=1e-4)
        assert got.bits_per_byte == pytest.approx(want / math.log(2) / (len(TEXT.encode()) - 1), rel=1e-5)


def test_perplexity_includes_bos_and_eos_of_each_line():
    tokenizer = SentencePieceTokenizer.train(TEXT.split("\n") * 9, vocab_size=300)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 3)
    model = language_model(tokenizer.vocab_size)
    got = measure_perplexity(model, tokenizer, TEXT + "\n \n", window=40, stride=20)
    ids = [i for row in tokenizer.encode(TEXT.splitlines()) for i in (2, *row, 3)]
    assert got.nats == pytest.approx(score_token_by_token(model, ids, 40, 20), rel=1e-5)
    assert (got.n_tokens, got.n_bytes) == (len(ids) - 1, len(TEXT.encode()) + 3)
    assert "|first:bos|eos:yes|" in got.signature


@pytest.mark.parametrize("kind", ["characters", "bytes", "pieces"])
def test_a_prompt_that_is_not_utf8_is_refused(tmp_path, capsys, kind):
    """Python reads the bytes of an argument that are not UTF-8 as lone surrogates."""
    arguments = ["generate", str(language_run(tmp_path / "run", kind)), "--prompt", "Gr\udcfc\udcdfe"]
    for options in ([], ["--stream"]):
        assert main([*arguments, *options]) == 2
        assert capsys.readouterr().err == (
            "transduce: prompt 1: a prompt is text, but element 0 is 'Gr\\udcfc\\udcdfe', which UTF-8 cannot hold; "
            "make text of it\n"
        )


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary_size(tmp_path):
    tokenizer = CharTokenizer.train(["abcdefgh"])
    model = language_model(8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    got = measure_perplexity(model, tokenizer, "hgfedcbaabcd")
    assert got.perplexity == pytest.approx(8, rel=1e-6) and got.bits_per_byte == pytest.approx(3, rel=1e-6)


def test_score_perplexity_prints_three_figures_and_a_signature(run, tmp_path, stdin, capsys):
    (tmp_path / "text").write_text("All: Speak,\nspeak\n")
    assert main(["score", "perplexity", str(run), str(tmp_path / "text")]) == 0
    out = capsys.readouterr().out
    g = td.load(run)
    got = measure_perplexity(g.model, g.tokenizer, "All: Speak,\nspeak\n")
    assert out == (
        f"perplexity {got.perplexity:.3f} per token, {got.nats_per_token:.4f} nats per token, "
        f"{got.bits_per_byte:.4f} bits per byte\n"
        f"tokens:17|vocabulary:{g.tokenizer.vocab_size}|window:40|stride:20|first:given|eos:no|"
        f"version:{version('transduce')}\n"
    )
    stdin(b"All: Speak,\nspeak\n")
    assert main(["score", "perplexity", str(run), "-", "--stride", "20"]) == 0
    assert capsys.readouterr().out == out
    assert main(["score", "perplexity", str(run), str(tmp_path / "text"), "--window", "5", "--stride", "6"]) == 2
    assert capsys.readouterr().err == (
        "transduce: stride must lie in 1 ... window, and window within learned positions, but "
        "stride=6, window=5 and max_positions=40\n"
    )
    small = ["score", "perplexity", str(run), str(tmp_path / "text"), "--precision", "int8"]
    assert main(small) == 0
    low = td.load(run, dtype="int8")
    want = measure_perplexity(low.engine, g.tokenizer, "All: Speak,\nspeak\n").perplexity
    assert capsys.readouterr().out.startswith(f"perplexity {want:.3f} per token") and want != got.perplexity
    for name in ("stride", "window"):
        assert main(["score", "perplexity", str(run), str(tmp_path / "text"), f"--{name}", "0"]) == 2
        assert capsys.readouterr().err == f"transduce: {name} must be at least 1, but {name}=0\n"
    for path, what in ((tmp_path, "is a directory"), (tmp_path / "none", "does not exist")):
        assert main(["score", "perplexity", str(run), str(path)]) == 2
        assert f"{path} {what}" in capsys.readouterr().err
    (tmp_path / "text").write_text("")
    assert main(["score", "perplexity", str(run), str(tmp_path / "text")]) == 2
    assert capsys.readouterr().err == (
        "transduce: perplexity needs a token to predict, but the text has 0 characters\n"
    )
