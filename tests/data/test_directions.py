"""Text of several languages for one model, and the tags that tell it what to write."""

import gzip
from collections import Counter
from itertools import permutations

import pytest

from transduce.data.corpus import Directions
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer

LANGUAGES = ("cs", "de", "en")


def line(split, language, i):
    return f"{split} {language} {i}"


@pytest.fixture
def folder(tmp_path):
    """40 training lines that mean the same in three languages, 7 to validate, 3 to test; Czech is packed."""
    for split, n in (("train", 40), ("val", 7), ("test", 3)):
        for language in LANGUAGES:
            text = "".join(line(split, language, i) + "\n" for i in range(n)).encode()
            if language == "cs":
                (tmp_path / f"{split}.cs.gz").write_bytes(gzip.compress(text))
            else:
                (tmp_path / f"{split}.{language}").write_bytes(text)
    return tmp_path


def pairs(text):
    return list(zip(text.source, text.target, strict=True))


def test_directions_default_to_all_pairs_of_languages(folder):
    corpus = Directions(data=folder, languages=LANGUAGES)
    train, valid, test = corpus.splits(seed=1)
    for split, text, n in (("train", train, 40), ("val", valid, 7), ("test", test, 3)):
        assert Counter(pairs(text)) == Counter(
            (f"<2{t}> {line(split, s, i)}", line(split, t, i)) for s, t in permutations(LANGUAGES, 2) for i in range(n)
        )
    assert corpus.symbols == ("<2cs>", "<2de>", "<2en>")
    assert corpus.test_groups() == [f"{s}-{t}" for s, t in permutations(LANGUAGES, 2) for _ in range(3)]


def test_zero_shot_test_directions(folder):
    corpus = Directions(data=folder, languages=LANGUAGES, directions=("en-de", "cs-en"), test_directions=("cs-de",))
    train, valid, test = corpus.splits(seed=1)
    assert {source[:5] for source in train.source} == {source[:5] for source in valid.source} == {"<2de>", "<2en>"}
    assert len(train) == 80
    assert pairs(test) == [(f"<2de> {line('test', 'cs', i)}", line("test", "de", i)) for i in range(3)]
    assert corpus.test_groups() == ["cs-de"] * 3


@pytest.mark.parametrize("name", ["train.en-de", "train.de-en"])
def test_a_pair_of_languages_may_have_its_own_files(folder, name):
    for language in ("en", "de"):
        (folder / f"{name}.{language}").write_text(f"own {language}\n")
    train, *_ = Directions(data=folder, languages=LANGUAGES, directions=("en-de", "de-en", "cs-en")).splits(seed=1)
    assert pairs(train)[:2] == [("<2de> own en", "own de"), ("<2en> own de", "own en")]
    assert len(train) == 42


def test_language_names_may_have_hyphens(folder):
    for split in ("train", "val", "test"):
        (folder / f"{split}.pt-BR").write_text(line(split, "pt-BR", 0) + "\n")
        (folder / f"{split}.en-pt-BR.en").write_text(line(split, "en", 0) + "\n")
        (folder / f"{split}.en-pt-BR.pt-BR").write_text(line(split, "pt-BR", 0) + "\n")
    corpus = Directions(data=folder, languages=("pt-BR", "en"), directions=("pt-BR-en",), test_directions=("en-pt-BR",))
    train, _, test = corpus.splits(seed=1)
    assert pairs(train) == [("<2en> train pt-BR 0", "train en 0")]
    assert pairs(test) == [("<2pt-BR> test en 0", "test pt-BR 0")]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_temperature_upsamples_small_corpora(folder, temperature):
    sizes = {"de": 160, "cs": 10}
    for language, n in sizes.items():
        for side in (language, "en"):
            (folder / f"train.{language}-en.{side}").write_text("".join(line("own", side, i) + "\n" for i in range(n)))
    corpus = Directions(data=folder, languages=LANGUAGES, directions=("de-en", "cs-en"), temperature=temperature)
    got = Counter(source.split()[2] for source in corpus.splits(seed=1)[0].source)
    wanted = {language: n ** (1 / temperature) for language, n in sizes.items()}
    share = wanted["cs"] / sum(wanted.values())
    assert got["de"] == 160
    assert got["cs"] / got.total() == pytest.approx(share, abs=0.003)
    each = Counter(source for source in corpus.splits(seed=1)[0].source if " cs " in source)
    assert len(each) == 10
    assert max(each.values()) - min(each.values()) <= 1


def test_validation_pairs_are_spread_over_the_file(folder):
    _, valid, _ = Directions(data=folder, languages=LANGUAGES, directions=("en-de",), valid_pairs=3).splits(seed=1)
    assert valid.target == [line("val", "de", i) for i in (0, 2, 4)]


def test_duplicate_directions_are_read_once(folder):
    once, twice = (Directions(data=folder, languages=LANGUAGES, directions=d) for d in (("en-de",), ("en-de",) * 2))
    assert twice.splits(1) == once.splits(1) and twice.test_groups() == once.test_groups()


def test_wrong_directions_are_refused(folder):
    with pytest.raises(ValueError) as caught:
        Directions(data=folder, languages=("en",))
    assert str(caught.value).startswith("directions need two languages or more, but there are 1")
    for wrong in ("en-fr", "ende", "en-en", "-de"):
        with pytest.raises(ValueError, match=r"two of the languages \(en, de\) with - between them, but there is"):
            Directions(data=folder, languages=("en", "de"), directions=(wrong,))
    with pytest.raises(ValueError, match=r"must hold train\.fr or train\.fr\.gz, but it holds test\.cs\.gz"):
        Directions(data=folder, languages=("en", "fr")).splits(seed=1)
    with pytest.raises(ValueError, match="a folder of parallel text must be named"):
        Directions(languages=("en", "de")).splits(seed=1)


def test_with_tag_equals_a_tag_in_the_text(folder):
    train, *_ = Directions(data=folder, languages=LANGUAGES).splits(seed=1)
    tokenizer = SentencePieceTokenizer.train(train.source, vocab_size=300, symbols=("<2cs>", "<2de>", "<2en>"))
    assert sorted(tokenizer.tagged_languages) == ["cs", "de", "en"]
    to_german = tokenizer.with_tag("de")
    lines = ["train en 1", "  two   spaces", "", "ﬁ é"]
    tagged = tokenizer.with_eos(tokenizer.encode([f"<2de> {line}" for line in lines]))
    assert to_german.with_eos(to_german.encode(lines)) == tagged
    assert tokenizer.opening == ()
    with pytest.raises(ValueError, match=r"one that the model writes \(.*\), but it is 'fr'"):
        tokenizer.with_tag("fr")
