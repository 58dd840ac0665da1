"""What outputs begin with and must not hold, as text: for every task, every kind of tokenizer, greedily and with a beam."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

import transduce as td
from tests.interop.rivals import pieces_of, sentencepiece_model
from tests.language_runs import any_tokenizer, language_model
from tests.runs import GERMAN, RATE, SPECIAL, TINY, library_tokenizer, sentences, sound
from transduce.cli.main import main
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import train_tokenizer_pair
from transduce.decode.phrases import text_prefix
from transduce.decode.text_rules import biased, forbidden, lexicon
from transduce.experiment.config import with_vocabularies
from transduce.files import save_weights
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run
from transduce.tasks.base import warn_of_lacking
from transduce.tasks.generate import Generator

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=12)
LINES = ["Print it.", "Open the old letter.", "", "Close the green folder, please.", "Print it."]


@pytest.fixture(scope="module")
def translator(text_run) -> td.Translator:
    """In float64, so that no batch moves a near tie."""
    got = td.load(text_run, dtype=torch.float64)
    got.decoding = SHORT
    return got


def library(kind: str) -> Tokenizer:
    return JSONTokenizer(library_tokenizer(kind, GERMAN).to_str().encode())


def lower_case_tokenizer() -> Tokenizer:
    texts = ["ein Hund mit Katze", "Ⅷ Katzen"] * 20
    (tokenizer, _) = train_tokenizer_pair(texts, texts, vocab_size=290, joint=True, lowercase=True)
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [*map(any_tokenizer, ("bytes", "pieces", "characters")), library("bpe"), library("unigram")],
    ids=lambda tokenizer: type(tokenizer).__name__,
)
def test_surfaces_are_the_text_that_tokens_add(tokenizer, rng):
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.surfaces[i]]
    assert len(ids) >= tokenizer.vocab_size - 5
    for _ in range(50):
        row = [ids[int(i)] for i in torch.randint(len(ids), (9,), generator=rng)]
        whole, (decoded,) = b"".join(tokenizer.surfaces[i] for i in row), tokenizer.decode([row])
        try:
            written = whole.decode()
        except UnicodeDecodeError:  # halves of characters
            continue
        assert decoded in (written, written.removeprefix(" "))


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_surfaces_of_imported_tokenizers(kind, rng):
    """Whose tokens may be halves of characters, special ones of any name, or a space alone."""
    of, special = any_tokenizer(kind), {"bos": 0, "eos": 0, "pad": 0, "unk": 1}
    if kind == "bytes":
        library = Library.from_str(of.model.decode())
        library.add_special_tokens(["<|nospeech|>"])
        tokenizer = ImportedTokenizer.of(
            {"tokenizer": json.loads(library.to_str())}, size=library.get_vocab_size(), special=special
        )
    else:
        pieces = ["</s>", "<unk>", *(token for token in of.all_tokens if token not in SPECIAL)]
        tokenizer = ImportedTokenizer.of_pieces(of.model, pieces, special=special)
    for line in (*GERMAN[:6], "grüne Öfen"):
        assert tokenizer.spelled(line).decode().removeprefix(" ") == line
    for _ in range(50):
        row = torch.randint(tokenizer.vocab_size, (9,), generator=rng).tolist()
        written = b"".join(tokenizer.surfaces[i] for i in row)
        (decoded,) = tokenizer.decode([row])
        assert "\ufffd" in decoded or decoded.strip() == written.decode().strip()


def word_suffix_tokenizer(kind: str) -> Tokenizer:
    """Its tokens write the space behind a word, but for the last one: GPT's </w>, or what SentencePiece calls a suffix."""
    if kind == "imported":
        model = sentencepiece_model(GERMAN, vocab_size=90, treat_whitespace_as_suffix=True)
        special = {"bos": 0, "eos": 0, "pad": 0, "unk": 1}
        return ImportedTokenizer.of_pieces(model, ["</s>", "<unk>", *pieces_of(model)], special=special)
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.WhitespaceSplit(), decoders.BPEDecoder(suffix="</w>")
    how = {"vocab_size": 200, "special_tokens": [*SPECIAL], "show_progress": False}
    library.train_from_iterator(GERMAN, trainers.BpeTrainer(end_of_word_suffix="</w>", **how))
    return JSONTokenizer(library.to_str().encode())


@pytest.mark.parametrize("kind", ["library", "imported"])
def test_rules_work_with_tokens_that_end_words(kind, rng):
    tokenizer = word_suffix_tokenizer(kind)
    rows = tokenizer.encode(GERMAN)
    drawn = [i for row in rows for i in row]
    known = lexicon(tokenizer, tuple({word for line in GERMAN for word in line.split()}))
    for line, row in zip(GERMAN, rows, strict=True):
        assert tokenizer.spelled(line).decode() == f"{line} "
        assert all(known(row[:n])[i] == 0.0 for n, i in enumerate(row))
        phrase = f" {line.split()[1]}"
        assert min(forbidden(tokenizer, (phrase,))(row[:n])[i] for n, i in enumerate(row)) == -torch.inf
        for text in (line, line[: -len(line.split()[-1])]):
            prefix, tokens = text_prefix(tokenizer, text), list[int]()
            while (following := prefix.next(tokens)) is not None:
                tokens.append(following[int(torch.randint(len(following), (1,), generator=rng))])
            assert f"{tokenizer.decode([tokens])[0]} ".startswith(text)
        some = [drawn[int(i)] for i in torch.randint(len(drawn), (9,), generator=rng)]
        assert b"".join(tokenizer.surfaces[i] for i in some).decode().strip() == tokenizer.decode([some])[0]
    letters = [tokenizer.surfaces.index(letter) for letter in (b"e", b"s")]
    assert text_prefix(tokenizer, "es").next(letters) is None  # the word may go on


@pytest.mark.parametrize("kind", ["library", "imported"])
def test_trailing_space_is_written_once_by_tokens_that_end_words(kind):
    tokenizer = word_suffix_tokenizer(kind)
    generator = Generator(language_model(tokenizer.vocab_size), tokenizer)
    for seed, prompt in enumerate(("Mach ", "Druck es ")):
        (output,), *_ = generator.generate([prompt], td.GenerationConfig(max_length=6, seed=seed))
        (whole,) = tokenizer.decode([generator.encode(prompt) + output.tokens])
        assert f"{prompt}{output.text}" == whole


@pytest.mark.parametrize("text", ["Druck", " Druck", "Mach bitte "])
def test_prefix_with_a_tokenizer_that_adds_a_leading_space(text):
    """As in the byte-level BPE of Blenderbot."""
    library = Library.from_str(any_tokenizer("bytes").model.decode())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = JSONTokenizer(library.to_str().encode())
    prefix, tokens = text_prefix(tokenizer, text), list[int]()
    while (following := prefix.next(tokens)) is not None:
        tokens.append(following[-1])
    assert tokenizer.decode([tokens])[0].startswith(f" {text.strip()}")


def test_spelled_lines_equal_their_text(translator):
    """One tokenizer after the other gives back what was encoded, with the space that it puts before a word."""
    for tokenizer in (translator.tokenizer, any_tokenizer("bytes"), library("bpe")):
        for line in GERMAN[:6]:
            assert tokenizer.spelled(line).decode().removeprefix(" ") == line


@pytest.mark.parametrize("beam_size", [1, 4])
def test_forbidden_phrases_are_in_no_output(translator, transcriber, recordings, beam_size):
    tokenizer = any_tokenizer("bytes")
    generator = Generator(language_model(tokenizer.vocab_size).double(), tokenizer)
    paths = [r.audio for r in recordings[:2]]

    def got(forbid: list[str]) -> list[str]:
        search = SHORT.changed(beam_size=beam_size, no_repeat_ngram=4, forbid=forbid)
        config = td.GenerationConfig(max_length=12, beam_size=beam_size, forbid=tuple(forbid))
        return translator(LINES, search) + transcriber(paths, search) + generator(["All:", "it"], config)

    plain, forbid = got([]), list[str]()
    for text in plain:
        forbid += [text[i : i + 2] for i in (1, 5) if "\ufffd" not in text[i : i + 2] and text[i : i + 2].strip()]
    assert len(forbid) >= 4
    ruled = got(forbid)
    assert not [phrase for phrase in forbid for text in ruled if phrase in text]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_begin_with_their_prefix_in_any_batch(translator, beam_size):
    prefix = ["Druck", "", "Nichts", "Mach bitte den ", "Zeig mir die Fo"]
    got = translator(LINES, prefix=prefix, beam_size=beam_size)
    assert all(text.startswith(begin) for text, begin in zip(got, prefix, strict=True) if begin != "Nichts")
    assert got[2] == "" and got[1] == translator([LINES[1]], beam_size=beam_size)[0]
    assert got[0] != translator(["Print it."], beam_size=beam_size)[0]
    for line, begin, text in zip(LINES, prefix, got, strict=True):
        assert translator([line], prefix=[begin], beam_size=beam_size, batch_tokens=1) == [text]


def test_last_word_of_a_prefix_may_continue_unless_a_space_follows(translator):
    """Of ten beginnings some go on, and none does where a space stands behind it."""
    words = ["Dr", "Ma", "Zei", "Schi", "Ha", "Öff", "lan", "grü", "let", "Wo"]
    free = translator(["Print it."] * 10, prefix=words)
    assert any(not text.removeprefix(word).startswith(" ") for text, word in zip(free, words, strict=True))
    ended = translator(["Print it."] * 10, prefix=[f"{word} " for word in words])
    assert all(text.startswith(f"{word} ") for text, word in zip(ended, words, strict=True))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_contain_required_phrases_in_any_batch(translator, beam_size, caplog):
    """Words and names, in lines of their own and beside a prefix and forbidden phrases."""
    require = [["Größe", "Anna"], [], ["nothing"], ["den grünen Ordner"], ["Bericht", "richt", " lang"]]
    prefix = ["", "", "", "Mach", "Druck"]
    got = translator(LINES, require=require, prefix=prefix, beam_size=beam_size, forbid=["yy"])
    for line, begin, phrases, text in zip(LINES, prefix, require, got, strict=True):
        assert not line or (text.startswith(begin) and all(phrase in f" {text}" for phrase in phrases))
        how = {"beam_size": beam_size, "forbid": ["yy"]}
        assert translator([line], require=[phrases], prefix=[begin], **how) == [text]
    assert got[1] == translator([LINES[1]], beam_size=beam_size, forbid=["yy"])[0]
    assert not caplog.messages
    translator(["Print it."], require=[["Anna"]], forbid=["Ann"], beam_size=beam_size)
    assert caplog.messages == ["line 1 lacks required phrases (no room, or forbidden): ['Anna']"]


def test_the_command_line_takes_prefixes_and_forbidden_phrases(text_run, tmp_path, capsys):
    (tmp_path / "in").write_text("Print it.\tDruck\nOpen the old letter.\na\tb\tc\n", encoding="utf-8")
    (tmp_path / "phrases").write_text("k k\n\nu\n", encoding="utf-8")
    files = [str(text_run), str(tmp_path / "in"), "--forbid", str(tmp_path / "phrases"), "--prefix"]
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["translate", *files, "--length-extra", "12", "--length-ratio", "0", "--device", "cpu"])
    out, err = capsys.readouterr()
    loaded, rules = td.load(text_run), {"forbid": ("k k", "u"), "length_extra": 12, "length_ratio": 0.0}
    want = loaded(["Print it.", "Open the old letter."], prefix=["Druck", ""], **rules)
    assert out.splitlines() == [*want, ""]
    require = ["translate", str(text_run), str(tmp_path / "in"), "--prefix", "--require", "--device", "cpu"]
    assert main(require) == 0
    prefix = ["Druck", "", "b"]
    want = loaded(["Print it.", "Open the old letter.", "a"], prefix=prefix, require=[[], [], ["c"]])
    assert capsys.readouterr().out.splitlines() == want and "c" in want[2]
    assert "transduce: line 3 must be INPUT<TAB>PREFIX, but it has 3 columns; remove tabs\n" in err


def test_lines_with_unspellable_phrases_are_blank(tmp_path, capsys):
    """As a sound of such a line is; a tokenizer without bytes lacks characters."""
    tokenizer = library("unigram")
    config = with_vocabularies(TINY, tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    save_run(tmp_path / "run", Run(config, {}, tokenizer, tokenizer))
    save_weights(tmp_path / "run" / "model.safetensors", Transformer(config))
    (tmp_path / "in").write_text("Mach\t\u6f22\nBericht\tAnna\n", encoding="utf-8")
    for flag in ("--prefix", "--require"):
        with pytest.raises(SystemExit, match=r"^1$"):
            main(["translate", str(tmp_path / "run"), str(tmp_path / "in"), flag, "--device", "cpu"])
        out, err = capsys.readouterr()
        blank, text = out.splitlines()
        assert not blank and "Anna" in text
        assert "line 1: a phrase must be made of tokens, but this vocabulary cannot spell '\u6f22'" in err


@pytest.mark.parametrize(
    "way",
    [{"beam_size": 1}, pytest.param({"ctc_weight": 0.0}, marks=pytest.mark.long), {"ctc_weight": 0.6, "beam_size": 3}],
    ids=str,
)
def test_transcripts_have_their_prefix_and_required_phrases_in_any_batch(transcriber, recordings, way, caplog):
    """Also where CTC finds it impossible, as the sound is too short."""
    paths = [r.audio for r in recordings[:4]]
    prefix, require = ["blue ", "", "", "red green " * 9], [[], [" black ", "ee"], [], ["blue"]]
    config = SHORT.changed(no_repeat_ngram=4, **way)
    got = transcriber(paths, config, prefix=prefix, require=require)
    plain = transcriber(paths, config)
    assert [a == b for a, b in zip(got, plain, strict=True)] == [False, False, True, False]
    for path, begin, phrases, text in zip(paths, prefix, require, got, strict=True):
        assert text.startswith(begin) and all(phrase in f" {text} " for phrase in phrases)
        assert transcriber([path], config, prefix=[begin], require=[phrases]) == [text]
    few = config.changed(ctc_weight=1.0, min_length=30)  # more than CTC finds possible
    got = transcriber(paths, few, prefix=["blue ", "", "", ""])
    assert got[1:] == transcriber(paths[1:], few)
    assert not caplog.messages
    transcriber(paths[:1], config, require=[["blue"]], forbid=["blu"])
    assert caplog.messages == [f"{paths[0]} from 0.0 s lacks required phrases (no room, or forbidden): ['blue']"]


def test_prefix_of_long_audio_begins_the_first_segment_with_speech(transcriber):
    """Behind a minute of silence; the same one by one, as they are streamed, and together."""
    parts = [np.zeros(70 * RATE), *(sound(text, seed=i) for i, text in enumerate(sentences(5)))]
    samples = (np.concatenate(parts).astype(np.float32), RATE)
    config = SHORT.changed(max_seconds=1.0, beam_size=2, no_repeat_ngram=4)
    (plain,) = transcriber.transcribe([samples], config)
    (begun,) = transcriber.transcribe([samples], config, prefix=["blu"])
    texts = [[segment.outputs[0].text for segment in each.segments] for each in (plain, begun)]
    first = texts[0].index(next(filter(None, texts[0])))
    assert first > 60 and len(texts[0]) > first + 3
    assert texts[1][first].startswith("blu") and not texts[0][first].startswith("blu")
    assert texts[1][:first] + texts[1][first + 1 :] == texts[0][:first] + texts[0][first + 1 :]
    stretches = list(transcriber.read([samples], config, prefix=["blu"]))
    in_order = [segment for stretch in stretches for segment in transcriber.in_order(stretch, config)]
    assert [segment.outputs[0].text for segment in in_order] == texts[1] and len(stretches) > 1
    (refused,) = transcriber.transcribe([samples], config, require=[["red"]])
    assert refused.error == (
        f"sound 1 cannot be transcribed: required phrases are for sound in one segment, but it has {len(plain.segments)}; cut it where you know "
        "what is said, or raise max_seconds"
    )


def test_audio_lists_of_the_command_have_prefixes_and_phrases(speech_run, recordings, tmp_path, capsys):
    paths = [r.audio for r in recordings[:3]]
    lines = [f"{paths[0]}\tblue ", f"{paths[1]}\r", f"{tmp_path / 'none.wav'}\tred", f"{paths[2]}\t\tblack\tred"]
    (tmp_path / "list").write_text("\n".join(lines) + "\n")
    how = ["--length-extra", "12", "--length-ratio", "0", "--no-repeat-ngram", "4", "--device", "cpu"]
    command = ["transcribe", str(speech_run), str(tmp_path / "list"), "--prefix", *how]
    want = td.load_transcriber(speech_run)(
        paths, SHORT.changed(no_repeat_ngram=4), prefix=["blue ", "", ""], require=[[], [], ["black", "red"]]
    )
    for more in ([], ["--stream"], ["--output", str(tmp_path / "out")]):
        with pytest.raises(SystemExit, match=r"^1$"):
            main([*command, "--require", *more])
        out = (tmp_path / "out").read_text() if "--output" in more else capsys.readouterr().out
        assert [line for line in out.splitlines() if line] == want
    for content, parts in (
        (None, ["list: line 4 must be INPUT<TAB>PREFIX, but it has 4 columns; remove tabs\n"]),
        (b"\tred\n", ["list: line 1 must begin with the name of a sound"]),
        (b"a\xff\n", ["line 1, byte 2 is 0xff", "a FILE is a list that names sound"]),
    ):
        if content:
            (tmp_path / "list").write_bytes(content)
        capsys.readouterr()
        assert main(command) == 2
        err = capsys.readouterr().err
        assert all(part in err for part in parts), err
    assert main(["transcribe", str(speech_run), "--microphone", "--prefix"]) == 2
    assert capsys.readouterr().err == (
        "transduce: --prefix and --require are for lists of sound, but --microphone records; record to a file, and name that "
        "in one\n"
    )


def test_invalid_phrases_and_prefixes_are_refused(translator):
    for settings, message in (
        (
            {"prefix": ["a"]},
            "prefix must be a list with one for each of the 5 inputs, but got 1; use an empty one for none",
        ),
        (
            {"prefix": [None] * 5},
            "prefix takes a list of texts, but element 0 is None, which UTF-8 cannot hold; make text of it",
        ),
        (  # its letters are no phrases
            {"require": ["red"] * 5},
            "require takes a list of phrases for each input, but got one string; use ['red']",
        ),
        (
            {"require": [[], ["a", None], [], [], []]},
            "require takes a list of phrases for each input, but element 1 is None, which UTF-8 cannot hold; make text of it",
        ),
        (
            {"require": [None] * 5},
            "require takes a list of phrases for each input, but got NoneType; make a list of it",
        ),
        ({"forbid": "Druck"}, 'forbid must be a list, each a string, but it is "Druck"'),
    ):
        with pytest.raises(ValueError) as error:
            translator(LINES, **settings)
        assert str(error.value) == message
    with pytest.raises(ValueError, match=r"^forbid takes a list of phrases, but got one string; use \['Druck'\]$"):
        td.SearchConfig(forbid="Druck")
    with pytest.raises(ValueError, match=r"prefix .* one string"):
        translator(LINES, prefix="Druck")
    with pytest.raises(ValueError, match=r"forbidden or biased .* empty"):
        translator(LINES, forbid=["a", ""])
    for cannot in (library("bpe").spelled, lambda text: text_prefix(library("bpe"), text)):
        with pytest.raises(ValueError) as error:
            cannot("a ☃")
        assert str(error.value) == "a phrase must be made of tokens, but this vocabulary cannot spell 'a ☃'; change it"


def test_phone_tokenizers_refuse_phrases_and_prefixes(transcriber, recordings, monkeypatch):
    monkeypatch.setattr(type(transcriber.tokenizer), "writes_phones", True)
    for phrases in ({"forbid": ["red"]}, {"require": [["red"]]}, {"prefix": ["red"]}):
        with pytest.raises(ValueError, match=r"the tokens of this run are phones; leave them out$"):
            transcriber([recordings[0].audio], **phrases)


def test_unspellable_phrases_forbid_nothing_and_spaces_can_be_forbidden(letters_run):
    """What no text can hold forbids nothing; a space is a phrase, too."""
    generator, prompt = td.load_generator(letters_run), ["ROMEO:"]
    config = td.GenerationConfig(max_length=20, temperature=0.0)
    assert generator(prompt, replace(config, forbid=("☃",))) == generator(prompt, config)
    free = td.GenerationConfig(max_length=60, seed=1, temperature=3.0)
    assert " " in generator(prompt, free)[0] and " " not in generator(prompt, replace(free, forbid=(" ",)))[0]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_custom_rules_and_id_biases_work_in_every_task(translator, transcriber, recordings, beam_size):
    """Tokens that a rule in three lines takes out are those that -1000 nats, or suppress, take out."""
    tokenizer = any_tokenizer("bytes")
    generator = Generator(language_model(tokenizer.vocab_size).double(), tokenizer)
    inputs = {translator: LINES, transcriber: [r.audio for r in recordings[:2]], generator: ["All:", "it"]}
    for task, some in inputs.items():
        greedy = {"beam_size": beam_size, "no_repeat_ngram": 4} | ({"temperature": 0.0} if beam_size == 1 else {})
        plain = (
            td.GenerationConfig(max_length=12, **greedy)
            if task is generator
            else SHORT.changed(beam_size=beam_size, no_repeat_ngram=4)
        )
        before = task(some, plain)
        written = " ".join(before).encode()
        often = [i for i, surface in enumerate(task.tokenizer.surfaces) if surface and surface in written]
        want = task(some, plain.changed(suppress=tuple(often)))
        assert want != before
        assert task(some, plain.changed(logit_bias=dict.fromkeys(often, -1000.0))) == want

        def without_them(scores, tokens, sentences, often=often):
            scores[:, often] = -torch.inf
            return scores

        task.rules = [without_them]
        assert task(some, plain) == want
        task.rules = []
        assert task(some, plain) == before


def test_strongly_biased_phrases_appear(translator, caplog):
    name = "Oberbürgermeister"
    assert not any(name in text for text in translator(LINES))
    assert sum(name in text for text in translator(LINES, logit_bias={f" {name}": 100.0})) == 4
    assert translator(LINES, logit_bias={f" {name}": -100.0}) == translator(LINES)
    assert not caplog.messages
    assert biased(library("unigram"), (("Brief", 1.0), ("\u6f22", 5.0))) is not None
    assert biased(library("unigram"), (("\u6f22", 5.0),)) is None
    assert caplog.messages == ["this vocabulary cannot spell '\u6f22', which is left out"] * 2
    size = translator.tokenizer.vocab_size
    for bias, message in (
        ({str(size): 1.0}, f"0 to {size - 1}.*has {size}"),
        ({"": 1.0}, "must have a character"),
        ({"a": float("nan")}, r"must lie in \[-1000, 1000\], but logit_bias=nan"),
    ):
        with pytest.raises(ValueError, match=message):
            translator(LINES, logit_bias=bias)


def test_a_biased_phrase_may_have_the_digits_of_another_script(translator):
    texts = translator(LINES, logit_bias={"٤": 100.0})
    assert sum("٤" in text for text in texts) == 4  # one line is blank


def test_a_biased_phrase_that_is_not_utf8_is_left_out(translator, caplog):
    """Such as an argument in Latin-1, whose bytes Python reads as lone surrogates."""
    assert translator(LINES, logit_bias={"Gr\udcfc": 5.0}) == translator(LINES)
    assert caplog.messages == ["this vocabulary cannot spell 'Gr\\udcfc', which is left out"]


def test_bias_of_absent_phrases_does_not_change_scores(translator):
    """A phrase that begins a word has begun behind every space, and before the text."""
    plain = translator.translate(LINES, beam_size=4, n_best=4)
    biased = translator.translate(LINES, beam_size=4, n_best=4, logit_bias={" xyzzy": 3.0})
    for one, other in zip(plain, biased, strict=True):
        assert [each.text for each in other] == [each.text for each in one]
        assert [each.score for each in other] == pytest.approx([each.score for each in one], abs=1e-5)


def test_required_phrases_are_checked_as_the_tokenizer_writes_them(caplog):
    """A tokenizer that lowers case writes what was required in small letters."""
    warn_of_lacking("line 1", ["Hund", " Ⅷ"], "ein hund mit ⅷ", lower_case_tokenizer())
    assert not caplog.messages
    warn_of_lacking("line 1", ["Hund", "Katze"], "ein hund", lower_case_tokenizer())
    assert caplog.messages == ["line 1 lacks required phrases (no room, or forbidden): ['Katze']"]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_glossary_applies_to_lines_with_its_terms_in_any_batch(translator, beam_size):
    """It is a bias, or required phrases, of those lines alone."""
    terms, how = {"print": "Berta", "old letter": "Epistel", "letter": "Buchstabe"}, {"beam_size": beam_size}
    plain = translator(LINES, **how)
    for bonus in (0.0, 3.0, 30.0, float("inf")):
        given = translator(LINES, glossary=terms, glossary_bonus=bonus, **how)
        for line, before, text in zip(LINES, plain, given, strict=True):
            words = {"Print it.": ["Berta"], "Open the old letter.": ["Epistel"]}.get(line, [])
            want = {"logit_bias": {f" {word}": bonus for word in words}, **how}
            if bonus == float("inf"):
                want = {"require": [[f" {word}" for word in words]], **how}
            assert translator([line], **want) == [text]
            assert bonus > 0 or text == before
            assert bonus < 30 or all(f" {word}" in f" {text}" for word in words)
    assert plain != given and plain[3] == given[3]


def test_a_blank_term_is_refused(translator):
    for terms in ({"": "a"}, {"a": " "}):
        with pytest.raises(ValueError, match=r"^terms of a glossary .* one is blank; leave it out$"):
            translator(LINES, glossary=terms)
        with pytest.raises(ValueError, match=r"^terms of a glossary .* one is blank; leave it out$"):
            td.SearchConfig(glossary=terms)


def test_a_configuration_takes_a_glossary_as_a_dict():
    """Its terms may have spaces, and later changes of the dict change nothing."""
    terms = {"old letter": "Epistel", "print": "Berta"}
    config = td.SearchConfig(glossary=terms)
    assert config == td.SearchConfig().changed(glossary=terms) == td.SearchConfig(glossary=(*terms.items(),))
    terms.clear()
    assert config.glossary == (("old letter", "Epistel"), ("print", "Berta"))


def test_glossary_applies_per_sentence_of_split_lines(translator):
    line, terms = "Print it. Open the old letter.", {"letter": "Epistel"}
    how = {"glossary": terms, "glossary_bonus": 30.0, "split_length": 1, "max_source_length": 12}
    assert translator(line, **how) == " ".join(translator(["Print it.", "Open the old letter."], **how))


def test_glossary_of_audio_applies_everywhere_and_extends_the_lexicon(transcriber, recordings):
    paths = [r.audio for r in recordings[:3]]
    given = transcriber(paths, SHORT, glossary={"Ada": "Ada"}, glossary_bonus=60.0)
    assert given == transcriber(paths, SHORT, logit_bias={" Ada": 60.0}) and all("Ada" in text for text in given)
    transcriber.lexicon = ("red",)
    known = transcriber(paths, SHORT, words="known", glossary={"Ada": "Ada"}, glossary_bonus=60.0)
    transcriber.lexicon = ()
    assert all("Ada" in text and not {*text.split()[:-1]} - {"red", "Ada"} for text in known)
    with pytest.raises(ValueError, match=r"this is sound and glossary_bonus=inf"):
        transcriber(paths, SHORT, glossary={"Ada": "Ada"}, glossary_bonus=float("inf"))


def test_the_command_line_takes_a_glossary(text_run, tmp_path, capsys):
    (tmp_path / "in").write_text("Print it.\n\nOpen the old letter.\n")
    (tmp_path / "terms").write_text("letter\tEpistel\nit\n")
    command = [
        "translate",
        str(text_run),
        str(tmp_path / "in"),
        "--device",
        "cpu",
        "--glossary",
        str(tmp_path / "terms"),
    ]
    assert main([*command, "--glossary-bonus", "20"]) == 0
    terms = {"letter": "Epistel", "it": "it"}
    want = td.load(text_run)(["Print it.", "", "Open the old letter."], glossary=terms, glossary_bonus=20.0)
    assert capsys.readouterr().out.splitlines() == want and " Epistel" in f" {want[2]}" and want[1] == ""
    (tmp_path / "terms").write_text("letter\tEpistel\ta\n")
    assert main(command) == 2
    assert f"{tmp_path / 'terms'}: line 1 of a glossary must be" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    for flag in ("--glossary", "--forbid"):
        assert main(["translate", str(text_run), flag, "-"]) == 2
        assert "standard input can be read once, but - stands for 2 files" in capsys.readouterr().err
