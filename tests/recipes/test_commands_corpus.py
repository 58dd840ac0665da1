"""The corpus `commands`: its files, its held-out pairs, its German, and how far copying or a dictionary gets."""

import importlib.util
import itertools
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "recipes" / "data" / "commands"
SPLITS = {"train": 12000, "valid": 400, "test": 400}

# Pairs that the docstring of the script promises to hold out for the test: every form of the noun, of its modifier.
HELD_OUT = [
    ("bill bills", "delete deleted"),
    ("bill bills", "save saved"),
    ("contract contracts", "close closed"),
    ("contract contracts", "short"),
    ("file files", "rename renamed"),
    ("film films", "long"),
    ("film films", "secret"),
    ("film films", "short"),
    ("folder folders", "important"),
    ("game games", "move moved"),
    ("list lists", "secret"),
    ("photo photos", "save saved"),
    ("photo photos", "small"),
    ("picture pictures", "close closed"),
    ("picture pictures", "copy copied"),
    ("picture pictures", "funny"),
    ("recipe recipes", "open opened"),
    ("recipe recipes", "print printed"),
    ("recording recordings", "copy copied"),
    ("recording recordings", "move moved"),
    ("report reports", "archive"),
    ("song songs", "find found"),
    ("story stories", "long"),
    ("film films", "phone"),
]

# Translated by hand.
EXPECTED = {
    # an imperative with a separable verb, adverb before object
    "Play the song on Friday, please.": "Spiel am Freitag das Lied ab, bitte.",
    "Copy the draft tomorrow.": "Kopiere morgen den Entwurf.",
    # the recipient: dative, before the object whatever the English order; or "an" with the accusative
    "Read my mother the recipe.": "Lies meiner Mutter das Rezept vor.",
    "Send my sister your new letter now.": "Schick meiner Schwester jetzt deinen neuen Brief.",
    "Can you please show the contracts to me tonight?": "Kannst du mir bitte heute Abend die Verträge zeigen?",
    "Forward ten lists to my brother.": "Leite zehn Listen an meinen Bruder weiter.",
    # where (dative) and whereto (accusative)
    "Tell me the name of your photo in the folder.": "Sag mir den Namen deines Fotos im Ordner.",
    "Move Paul's messages to the archive, please.": "Verschiebe Pauls Nachrichten ins Archiv, bitte.",
    "Copy the story to your new computer.": "Kopiere die Geschichte auf deinen neuen Computer.",
    # genitive, weak and strong endings, dative plural
    "Read me your neighbor's message.": "Lies mir die Nachricht deines Nachbarn vor.",
    "Show me the name of the old letter.": "Zeig mir den Namen des alten Briefs.",
    "Show me the size of our old draft with the poems.": "Zeig mir die Größe unseres alten Entwurfs mit den Gedichten.",
    "Where is my old song?": "Wo ist mein altes Lied?",
    "Where is my English draft?": "Wo ist mein englischer Entwurf?",
    "Translate every letter into English.": "Übersetze jeden Brief ins Englische.",
    # a relative clause behind the second part of the verb
    "Open the poems that I need.": "Mach die Gedichte auf, die ich brauche.",
    "Open every draft that is on your disk.": "Mach jeden Entwurf auf, der auf deiner Festplatte ist.",
    # subordinate clauses
    "Check whether the battery ran down.": "Prüf, ob der Akku leergelaufen ist.",
    "Tell me how many photos are on my computer.": "Sag mir, wie viele Fotos auf meinem Computer sind.",
    "Before you close the letter, print a list.": "Bevor du den Brief zumachst, druck eine Liste aus.",
    "If the battery is broken, show me a funny poem.": "Wenn der Akku kaputt ist, zeig mir ein lustiges Gedicht.",
    # "it" takes the gender of the German noun
    "Find my bill and copy it.": "Finde meine Rechnung und kopiere sie.",
    "Find the poem and print it.": "Finde das Gedicht und druck es aus.",
    # modal verbs, negation
    "We have to print the photo.": "Wir müssen das Foto ausdrucken.",
    "Please do not delete your letter on Friday.": "Lösch deinen Brief am Freitag bitte nicht.",
    "Do not close my games.": "Mach meine Spiele nicht zu.",
    # questions
    "Which poems did we send on Monday?": "Welche Gedichte haben wir am Montag geschickt?",
    "Who opened Paul's long bill from last month?": "Wer hat Pauls lange Rechnung vom letzten Monat aufgemacht?",
    "When did the programs run?": "Wann sind die Programme gelaufen?",
    "Is there a film on our disk?": "Gibt es auf unserer Festplatte einen Film?",
}


def lines(split: str, language: str) -> list[str]:
    text = (DATA / f"{split}.{language}").read_text(encoding="utf-8")
    assert text.endswith("\n") and "\r" not in text
    return text.removesuffix("\n").split("\n")


@pytest.fixture(scope="module")
def corpus() -> dict[str, tuple[list[str], list[str]]]:
    return {split: (lines(split, "en"), lines(split, "de")) for split in SPLITS}


def tokens(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'[a-z]*)?", text)


@pytest.fixture(scope="module")
def bags(corpus) -> dict[str, list[set[str]]]:
    """The words of each English sentence, in lower case."""
    return {split: [set(tokens(sentence.lower())) for sentence in corpus[split][0]] for split in SPLITS}


def load_script():
    spec = importlib.util.spec_from_file_location("make_commands", ROOT / "scripts" / "corpora" / "make_commands.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_making_the_corpus_again_gives_the_committed_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_commands.py", "--output", str(tmp_path)])
    load_script().main()
    names = [f"{split}.{language}" for split in SPLITS for language in ("en", "de")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), name


def test_sizes(corpus):
    for split, size in SPLITS.items():
        assert [len(side) for side in corpus[split]] == [size, size]


def test_every_english_sentence_occurs_once_in_the_whole_corpus(corpus):
    english = [sentence for split in SPLITS for sentence in corpus[split][0]]
    assert len(set(english)) == len(english)


def test_sentences_are_short_and_well_formed(corpus):
    for english, german in corpus.values():
        for en, de in zip(english, german, strict=True):
            assert 3 <= len(en.split()) <= 14, en
            assert en[0].isupper() and de[0].isupper() and en[-1] in ".?" and en[-1] == de[-1], (en, de)
            assert not re.search(r"\d|  | [.,?]", en + de), (en, de)


def test_held_out_word_pairs_are_only_in_test(bags):
    for noun, modifier in HELD_OUT:
        nouns, modifiers = set(noun.split()), set(modifier.split())
        together = {split: sum(bool(bag & nouns and bag & modifiers) for bag in bags[split]) for split in SPLITS}
        assert together["train"] == together["valid"] == 0 and together["test"] >= 1, (noun, modifier)
        for half in (nouns, modifiers):
            assert sum(bool(bag & half) for bag in bags["train"]) >= 50, half


def test_every_test_sentence_has_an_unseen_word_pair(bags):
    """Any two words of one sentence count here, so this asks less than the rule, but knows nothing of its tables."""
    known = {pair for bag in bags["train"] for pair in itertools.combinations(sorted(bag), 2)}
    for bag in bags["valid"] + bags["test"]:
        assert set(itertools.combinations(sorted(bag), 2)) - known, bag


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_word_of_valid_and_test_is_common_in_train(corpus, language):
    side = ["en", "de"].index(language)
    counts = Counter(word for sentence in corpus["train"][side] for word in tokens(sentence))
    rare = {word for split in ("valid", "test") for s in corpus[split][side] for word in tokens(s) if counts[word] < 5}
    assert not rare


def test_translations_written_by_hand(corpus):
    pairs = {en: de for sides in corpus.values() for en, de in zip(*sides, strict=True)}
    assert {english: pairs[english] for english in EXPECTED} == EXPECTED


def test_copying_the_source_has_low_bleu(corpus):
    english, german = corpus["test"]
    assert sacrebleu.corpus_bleu(english, [german]).score < 5


@pytest.mark.long
def test_word_by_word_translation_has_low_bleu(corpus):
    """Each English word becomes the German word with the highest Dice coefficient in train, in the English order."""
    english_counts, german_counts, together = Counter(), Counter(), Counter()
    for en, de in zip(*corpus["train"], strict=True):
        en_words, de_words = set(tokens(en.lower())), set(tokens(de))
        english_counts.update(en_words)
        german_counts.update(de_words)
        together.update(itertools.product(en_words, de_words))
    best: dict[str, tuple[float, str]] = {}
    for (en, de), n in together.items():
        best[en] = max(best.get(en, (0.0, "")), (2 * n / (english_counts[en] + german_counts[de]), de))
    english, german = corpus["test"]
    glossed = [" ".join(best[word][1] for word in tokens(en.lower())) + en[-1] for en in english]
    score = sacrebleu.corpus_bleu(glossed, [german]).score
    assert 1 < score < 30  # above 1: it is a dictionary and not noise
