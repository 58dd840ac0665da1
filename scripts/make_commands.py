"""Write the corpus `commands`: spoken commands to a computer, in English and in German.

A small grammar makes both sides at once, so every English sentence has exactly one translation, and the two differ as
the languages do: case, gender and number on articles and adjectives, the verb last in subordinate clauses, separable
verbs, `haben` or `sein`, time before object, a pronoun that takes the gender of the German noun.

What is held out. A *pair* is an English noun of `NOUNS` with a verb of `VERBS`, an adjective of `ADJECTIVES` or a
place of `PLACES` that stand in the same sentence, in any form and anywhere in it ("photo" and "delete" in "Who deleted
all my photos?"). SHA-256 of "noun modifier" deals every possible pair to train, valid or test (`home`). A sentence is
in test if it has at least one test pair and no valid pair, in valid if it has at least one valid pair and no test pair,
in train if it has neither; any other is thrown away. So a test pair occurs in neither train nor valid, while every word
of valid and test, English and German and as it is written there, occurs at least `COMMON` times in train.
"""

import argparse
import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

SEED = 2017
SIZES = {"train": 12000, "valid": 400, "test": 400}
COMMON = 5  # a word of valid or test occurs at least this often in train
MAY_REPEAT = ["a", "an", "in", "is", "me", "my", "on", "our", "the", "to", "you", "your"]
LONGEST = 14  # English words: about six seconds of speech
CASES = {"nom": 0, "acc": 1, "dat": 2, "gen": 3}

# Endings by gender (p: plural of any gender), in the order of CASES; "-" is no ending.
ARTICLE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
DIES = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
EIN = {"m": "- en em es", "f": "e e er er", "n": "- - em es", "p": "e e en er"}
BARE = dict.fromkeys("mfnp", "- - - -")
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
MIXED = {"m": "er en en en", "f": "e e en en", "n": "es es en en", "p": "en en en en"}
STRONG = {"m": "er en em en", "f": "e e er er", "n": "es es em en", "p": "e e en er"}


@dataclass(frozen=True)
class Noun:
    """A thing; `kinds` says what can be done with it: t text, f file, i image, a plays, s tells, c contains, p runs."""

    en: str
    en_plural: str
    de: str
    gender: str
    de_plural: str
    genitive: str
    kinds: str = ""


@dataclass(frozen=True)
class Verb:
    """A verb and the kinds of its objects; `recipient` is "" (none), "may" or "must" (dative), or "an" (accusative)."""

    en: str
    past: str
    imperative: str
    prefix: str
    infinitive: str
    participle: str
    you: str  # second person singular at the end of a subordinate clause
    kinds: str
    recipient: str = ""


@dataclass(frozen=True)
class Happening:
    """What things do by themselves: base, past, participle, auxiliary, and who does it (English nouns)."""

    en: str
    past: str
    participle: str
    sein: bool
    subjects: str


@dataclass(frozen=True)
class Determiner:
    """`singular` and `plural` are the English words, None where there is no such form."""

    singular: str | None
    plural: str | None
    stem: str
    endings: dict[str, str]
    adjective: dict[str, str]
    after: str = ""  # what follows the German determiner: die *zwei*


@dataclass(frozen=True)
class Person:
    """Somebody's relative: English, its possessive, gender, and the German noun in the order of CASES."""

    en: str
    owner: str
    gender: str
    de: str


@dataclass(frozen=True)
class Time:
    """A time as an adverb, and as an attribute ("the letter *from Monday*")."""

    en: str
    de: str
    of_en: str = ""
    of_de: str = ""


@dataclass(frozen=True)
class Phrase:
    """A noun phrase, name or pronoun: English, German by case, gender, grammatical person, trailing relative clause."""

    en: str
    de: tuple[str, str, str, str]
    gender: str = "m"
    person: str = "3s"
    pronoun: bool = False
    rel_en: str = ""
    rel_de: str = ""

    def __getitem__(self, case: str) -> str:
        return self.de[CASES[case]]


@dataclass(frozen=True)
class Action:
    """A verb with its object, recipient, goal (English, German) and time."""

    verb: Verb
    object: Phrase
    recipient: Phrase | None = None
    goal: tuple[str, str] = ("", "")
    time: tuple[str, str] = ("", "")


NOUNS = [
    Noun("file", "files", "Datei", "f", "Dateien", "Datei", "f"),
    Noun("letter", "letters", "Brief", "m", "Briefe", "Briefs", "t"),
    Noun("report", "reports", "Bericht", "m", "Berichte", "Berichts", "t"),
    Noun("contract", "contracts", "Vertrag", "m", "Verträge", "Vertrags", "t"),
    Noun("draft", "drafts", "Entwurf", "m", "Entwürfe", "Entwurfs", "t"),
    Noun("list", "lists", "Liste", "f", "Listen", "Liste", "t"),
    Noun("message", "messages", "Nachricht", "f", "Nachrichten", "Nachricht", "t"),
    Noun("bill", "bills", "Rechnung", "f", "Rechnungen", "Rechnung", "t"),
    Noun("story", "stories", "Geschichte", "f", "Geschichten", "Geschichte", "ts"),
    Noun("poem", "poems", "Gedicht", "n", "Gedichte", "Gedichts", "ts"),
    Noun("recipe", "recipes", "Rezept", "n", "Rezepte", "Rezepts", "t"),
    Noun("photo", "photos", "Foto", "n", "Fotos", "Fotos", "i"),
    Noun("picture", "pictures", "Bild", "n", "Bilder", "Bildes", "i"),
    Noun("song", "songs", "Lied", "n", "Lieder", "Liedes", "a"),
    Noun("recording", "recordings", "Aufnahme", "f", "Aufnahmen", "Aufnahme", "a"),
    Noun("film", "films", "Film", "m", "Filme", "Films", "a"),
    Noun("video", "videos", "Video", "n", "Videos", "Videos", "a"),
    Noun("folder", "folders", "Ordner", "m", "Ordner", "Ordners", "c"),
    Noun("directory", "directories", "Verzeichnis", "n", "Verzeichnisse", "Verzeichnisses", "c"),
    Noun("program", "programs", "Programm", "n", "Programme", "Programms", "p"),
    Noun("game", "games", "Spiel", "n", "Spiele", "Spiels", "p"),
]
VERBS = [
    Verb("show", "showed", "zeig", "", "zeigen", "gezeigt", "zeigst", "tfiacp", "must"),
    Verb("send", "sent", "schick", "", "schicken", "geschickt", "schickst", "tfia", "may"),
    Verb("read", "read", "lies", "vor", "vorlesen", "vorgelesen", "vorliest", "tf", "must"),
    Verb("write", "wrote", "schreib", "", "schreiben", "geschrieben", "schreibst", "t", "may"),
    Verb("forward", "forwarded", "leite", "weiter", "weiterleiten", "weitergeleitet", "weiterleitest", "tfia", "an"),
    Verb("find", "found", "finde", "", "finden", "gefunden", "findest", "tfiacp"),
    Verb("open", "opened", "mach", "auf", "aufmachen", "aufgemacht", "aufmachst", "tficp"),
    Verb("close", "closed", "mach", "zu", "zumachen", "zugemacht", "zumachst", "tficp"),
    Verb("delete", "deleted", "lösch", "", "löschen", "gelöscht", "löschst", "tfiacp"),
    Verb("copy", "copied", "kopiere", "", "kopieren", "kopiert", "kopierst", "tfiacp"),
    Verb("move", "moved", "verschiebe", "", "verschieben", "verschoben", "verschiebst", "tfiacp"),
    Verb("rename", "renamed", "benenne", "um", "umbenennen", "umbenannt", "umbenennst", "fiac"),
    Verb("print", "printed", "druck", "aus", "ausdrucken", "ausgedruckt", "ausdruckst", "tfi"),
    Verb("play", "played", "spiel", "ab", "abspielen", "abgespielt", "abspielst", "a"),
    Verb("save", "saved", "speichere", "", "speichern", "gespeichert", "speicherst", "tfia"),
    Verb("check", "checked", "prüf", "", "prüfen", "geprüft", "prüfst", "tf"),
    Verb("translate", "translated", "übersetze", "", "übersetzen", "übersetzt", "übersetzt", "t"),
    Verb("download", "downloaded", "lade", "herunter", "herunterladen", "heruntergeladen", "herunterlädst", "tfiap"),
    Verb("sort", "sorted", "sortiere", "", "sortieren", "sortiert", "sortierst", "tfiac"),
    Verb("start", "started", "starte", "", "starten", "gestartet", "startest", "p"),
]
HAPPENINGS = [
    Happening("run", "ran", "gelaufen", True, "program game"),
    Happening("crash", "crashed", "abgestürzt", True, "program game computer"),
    Happening("arrive", "arrived", "angekommen", True, "letter message bill report contract photo picture"),
    Happening(
        "disappear", "disappeared", "verschwunden", True, "file letter report list photo song folder directory film"
    ),
    Happening("run down", "ran down", "leergelaufen", True, "battery"),
    Happening("work", "worked", "funktioniert", False, "program game computer printer phone"),
]
STATES = [
    ("empty", "leer", "battery folder directory"),
    ("full", "voll", "battery folder directory"),
    ("broken", "kaputt", "battery printer computer phone"),
    ("new", "neu", "battery printer computer phone"),
]
DEVICES = [
    Noun("battery", "batteries", "Akku", "m", "Akkus", "Akkus"),
    Noun("printer", "printers", "Drucker", "m", "Drucker", "Druckers"),
    Noun("computer", "computers", "Computer", "m", "Computer", "Computers"),
    Noun("phone", "phones", "Handy", "n", "Handys", "Handys"),
]
TRASH = Noun("trash", "trash", "Papierkorb", "m", "Papierkörbe", "Papierkorbs")
PLACES = {  # noun: (English preposition, German preposition)
    Noun("archive", "archives", "Archiv", "n", "Archive", "Archivs"): ("in", "in"),
    Noun("mailbox", "mailboxes", "Postfach", "n", "Postfächer", "Postfachs"): ("in", "in"),
    TRASH: ("in", "in"),
    Noun("library", "libraries", "Bibliothek", "f", "Bibliotheken", "Bibliothek"): ("in", "in"),
    Noun("disk", "disks", "Festplatte", "f", "Festplatten", "Festplatte"): ("on", "auf"),
    Noun("desktop", "desktops", "Desktop", "m", "Desktops", "Desktops"): ("on", "auf"),
    NOUNS[17]: ("in", "in"),
    DEVICES[2]: ("on", "auf"),
    DEVICES[3]: ("on", "auf"),
}
ADJECTIVES = [  # English, German stem, kinds of nouns
    ("new", "neu", "tfiacpd"),
    ("old", "alt", "tfiacpd"),
    ("important", "wichtig", "tfc"),
    ("secret", "geheim", "tfic"),
    ("long", "lang", "ta"),
    ("short", "kurz", "ta"),
    ("big", "groß", "ficpd"),
    ("small", "klein", "ficpd"),
    ("beautiful", "schön", "ias"),
    ("funny", "lustig", "iasp"),
    ("German", "deutsch", "tap"),
    ("English", "englisch", "tap"),
]
PEOPLE = [
    Person("sister", "sister's", "f", "Schwester Schwester Schwester Schwester"),
    Person("mother", "mother's", "f", "Mutter Mutter Mutter Mutter"),
    Person("daughter", "daughter's", "f", "Tochter Tochter Tochter Tochter"),
    Person("brother", "brother's", "m", "Bruder Bruder Bruder Bruders"),
    Person("father", "father's", "m", "Vater Vater Vater Vaters"),
    Person("boss", "boss's", "m", "Chef Chef Chef Chefs"),
    Person("neighbor", "neighbor's", "m", "Nachbar Nachbarn Nachbarn Nachbarn"),
    Person("parents", "parents'", "p", "Eltern Eltern Eltern Eltern"),
    Person("friends", "friends'", "p", "Freunde Freunde Freunden Freunde"),
]
NAMES = ["Anna", "Maria", "Lena", "Peter", "Paul"]
NUMBERS = [("two", "zwei"), ("three", "drei"), ("four", "vier"), ("ten", "zehn")]
THE = Determiner("the", "the", "", ARTICLE, WEAK)
POSSESSIVES = [Determiner(en, en, de, EIN, MIXED) for en, de in (("my", "mein"), ("your", "dein"), ("our", "unser"))]
THIS = Determiner("this", "these", "dies", DIES, WEAK)
OWNERS = [Determiner(f"{name}'s", f"{name}'s", f"{name}s", BARE, STRONG) for name in NAMES]
COUNTED = [Determiner(None, f"the {en}", "", ARTICLE, WEAK, de) for en, de in NUMBERS]
OURS = [*6 * [THE], *3 * POSSESSIVES, *2 * [THIS], *OWNERS]
DEFINITE = [*OURS, *COUNTED]
SOME = [Determiner("a", None, "ein", EIN, MIXED), *(Determiner(None, en, de, BARE, STRONG) for en, de in NUMBERS)]
EVERY = [Determiner("every", None, "jed", DIES, WEAK), Determiner(None, "all", "all", DIES, WEAK)]
WHICH = [Determiner("which", "which", "welch", DIES, WEAK)]
HOW_MANY = [Determiner(None, "how many", "wie viele", BARE, STRONG)]
PAST = [
    Time("yesterday", "gestern", "from yesterday", "von gestern"),
    Time("today", "heute", "from today", "von heute"),
    Time("this morning", "heute Morgen", "from this morning", "von heute Morgen"),
    Time("last week", "letzte Woche", "from last week", "von letzter Woche"),
    Time("last month", "letzten Monat", "from last month", "vom letzten Monat"),
    Time("last year", "letztes Jahr", "from last year", "vom letzten Jahr"),
    Time("on Monday", "am Montag", "from Monday", "vom Montag"),
    Time("on Friday", "am Freitag", "from Friday", "vom Freitag"),
    Time("in May", "im Mai", "from May", "vom Mai"),
    Time("in July", "im Juli", "from July", "vom Juli"),
    Time("an hour ago", "vor einer Stunde"),
    Time("two days ago", "vor zwei Tagen"),
    Time("three weeks ago", "vor drei Wochen"),
]
FUTURE = [
    Time("now", "jetzt"),
    Time("tomorrow", "morgen"),
    Time("tonight", "heute Abend"),
    Time("next week", "nächste Woche"),
    Time("on Monday", "am Montag"),
    Time("on Friday", "am Freitag"),
    Time("at four o'clock", "um vier Uhr"),
    Time("at ten o'clock", "um zehn Uhr"),
]
NEED = [
    ("need", "needs", {"1s": "brauche", "2s": "brauchst", "3s": "braucht", "1p": "brauchen", "3p": "brauchen"}),
    ("like", "likes", {"1s": "mag", "2s": "magst", "3s": "mag", "1p": "mögen", "3p": "mögen"}),
]
MODALS = [
    ("want to", "wants to", {"1s": "will", "2s": "willst", "3s": "will", "1p": "wollen", "3p": "wollen"}),
    ("have to", "has to", {"1s": "muss", "2s": "musst", "3s": "muss", "1p": "müssen", "3p": "müssen"}),
]
HABEN = {"1s": "habe", "2s": "hast", "3s": "hat", "1p": "haben", "3p": "haben"}
SEIN = {"3s": "ist", "3p": "sind"}
PRONOUNS = [
    Phrase("me", ("", "mich", "mir", ""), pronoun=True),
    Phrase("us", ("", "uns", "uns", ""), pronoun=True),
    Phrase("him", ("", "ihn", "ihm", ""), pronoun=True),
    Phrase("her", ("", "sie", "ihr", ""), pronoun=True),
    Phrase("them", ("", "sie", "ihnen", ""), pronoun=True),
]
SPEAKERS = [
    Phrase("I", ("ich", "", "", ""), person="1s"),
    Phrase("you", ("du", "", "", ""), person="2s"),
    Phrase("we", ("wir", "", "", ""), person="1p"),
]
WHO = Phrase("who", ("wer", "", "", ""))
IT = {
    "m": Phrase("it", ("er", "ihn", "", ""), pronoun=True),
    "f": Phrase("it", ("sie", "sie", "", ""), pronoun=True),
    "n": Phrase("it", ("es", "es", "", ""), pronoun=True),
    "p": Phrase("them", ("sie", "sie", "", ""), pronoun=True),
}
INTROS = [
    ("check", "prüf", "."),
    ("please check", "prüf bitte", "."),
    ("tell me", "sag mir", "."),
    ("I want to know", "ich will wissen", "."),
    ("do you know", "weißt du", "?"),
    ("can you tell me", "kannst du mir sagen", "?"),
]


def words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def ending(table: dict[str, str], gender: str, case: str) -> str:
    return table[gender].split()[CASES[case]].strip("-")


def decline(noun: Noun, det: Determiner, plural: bool, adjective: tuple[str, str], case: str) -> str:
    """The German noun phrase in one case."""
    gender = "p" if plural else noun.gender
    if plural:
        form = noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    else:
        form = noun.genitive if case == "gen" else noun.de
    inflected = adjective[1] and adjective[1] + ending(det.adjective, gender, case)
    return words(det.stem + ending(det.endings, gender, case), det.after, inflected, form)


def noun_phrase(
    rng: Random,
    noun: Noun,
    dets: list[Determiner],
    *,
    plural: bool | None = None,
    adjective: float = 0.4,
    owner: float = 0.0,
) -> Phrase:
    """A noun with a determiner, perhaps an adjective, perhaps an owner in the genitive ("my brother's photos")."""
    det = rng.choice([det for det in dets if plural is None or (det.plural if plural else det.singular) is not None])
    if plural is None:
        plural = det.singular is None or (det.plural is not None and rng.random() < 0.5)
    fitting = [(en, de) for en, de, kinds in ADJECTIVES if set(kinds) & set(noun.kinds or "d")]
    adj = rng.choice(fitting) if rng.random() < adjective else ("", "")
    head, tail = (det.plural if plural else det.singular), ""
    if rng.random() < owner:
        whose, someone = rng.choice(POSSESSIVES), rng.choice(PEOPLE)
        head, det, tail = f"{whose.singular} {someone.owner}", THE, person(whose, someone)["gen"]
    en = words(head, adj[0], noun.en_plural if plural else noun.en)
    en = re.sub(r"^a (?=[aeiouE])", "an ", en)
    de = tuple(words(decline(noun, det, plural, adj, case), tail) for case in CASES)
    return Phrase(en, de, "p" if plural else noun.gender, "3p" if plural else "3s")


def person(whose: Determiner, who: Person) -> Phrase:
    de = tuple(f"{whose.stem}{ending(EIN, who.gender, case)} {who.de.split()[CASES[case]]}" for case in CASES)
    return Phrase(f"{whose.singular} {who.en}", de, who.gender, "3p" if who.gender == "p" else "3s")


def somebody(rng: Random, others: list[Phrase]) -> Phrase:
    """One of `others`, a name, or a relative."""
    if rng.random() < 0.4:
        return rng.choice(others)
    if rng.random() < 0.3:
        name = rng.choice(NAMES)
        return Phrase(name, (name, name, name, f"{name}s"))
    return person(rng.choice(POSSESSIVES), rng.choice(PEOPLE))


def place(rng: Random, case: str, apart_from: tuple[Noun, ...] = ()) -> tuple[str, str]:
    """Where (dative) or whereto (accusative): im Ordner, in den Ordner."""
    noun = rng.choice([noun for noun in PLACES if noun not in apart_from])
    where = noun_phrase(rng, noun, [THE, THE, *POSSESSIVES], plural=False, adjective=0.2)
    de = re.sub("^in dem ", "im ", re.sub("^in das ", "ins ", f"{PLACES[noun][1]} {where[case]}"))
    return f"{'to' if case == 'acc' else PLACES[noun][0]} {where.en}", de


def attribute(rng: Random, noun: Noun, dated: bool) -> tuple[str, str]:
    """What may follow a noun: a place, a time (unless the sentence is dated), or (of folders and texts) what is in it."""
    if set("ct") & set(noun.kinds) and rng.random() < 0.4:
        contents = rng.choice([other for other in NOUNS if set("tia") & set(other.kinds) and other is not noun])
        inside = noun_phrase(rng, contents, [*OURS, *COUNTED, *SOME[1:]], plural=True)
        return f"with {inside.en}", f"mit {inside['dat']}"
    if not dated and rng.random() < 0.5:
        time = rng.choice([time for time in PAST if time.of_en])
        return time.of_en, time.of_de
    return place(rng, "dat", (noun,))


def with_attribute(rng: Random, phrase: Phrase, noun: Noun, dated: bool = False) -> Phrase:
    en, de = attribute(rng, noun, dated)
    return Phrase(f"{phrase.en} {en}", tuple(f"{form} {de}" for form in phrase.de), phrase.gender, phrase.person)


def with_relative(rng: Random, phrase: Phrase, noun: Noun) -> Phrase:
    """A relative clause about `phrase`: the German verb goes last, the pronoun agrees with the German noun."""
    which = {case: ending(ARTICLE, phrase.gender, case) for case in ("nom", "acc")}
    kind, subject = rng.random(), somebody(rng, SPEAKERS)
    third = subject.person == "3s"
    fitting = [verb for verb in VERBS if set(verb.kinds) & set(noun.kinds)]
    happenings = [h for h in HAPPENINGS if noun.en in h.subjects.split()]
    if kind < 0.22:
        plain, s_form, forms = rng.choice(NEED)
        en, de = (
            f"{subject.en} {s_form if third else plain}",
            f"{which['acc']} {subject['nom']} {forms[subject.person]}",
        )
    elif kind < 0.35:
        plain, s_form, forms = rng.choice(MODALS)
        verb, (en_time, de_time) = rng.choice([v for v in fitting if v.recipient in ("", "may")]), when(rng, FUTURE)
        en = words(subject.en, s_form if third else plain, verb.en, en_time)
        de = words(which["acc"], subject["nom"], de_time, verb.infinitive, forms[subject.person])
    elif kind < 0.5 and happenings:
        happening, (en_time, de_time) = rng.choice(happenings), when(rng, PAST)
        aux = (SEIN if happening.sein else HABEN)[phrase.person]
        en, de = words(happening.past, en_time), words(which["nom"], de_time, happening.participle, aux)
    elif kind < 0.6:
        en_place, de_place = place(rng, "dat", (noun,))
        en = f"{'are' if phrase.person == '3p' else 'is'} {en_place}"
        de = f"{which['nom']} {de_place} {SEIN[phrase.person]}"
    else:
        verb, (en_time, de_time) = rng.choice(fitting), when(rng, PAST)
        to = (
            rng.choice([p for p in PRONOUNS if p.en not in ("me", "us") or third])
            if (verb.recipient == "must" or (verb.recipient == "may" and rng.random() < 0.5))
            else None
        )
        if verb.recipient == "an":
            verb = VERBS[1]
        en = words(subject.en, verb.past, to.en if to else "", en_time)
        de = words(
            which["acc"], subject["nom"], to["dat"] if to else "", de_time, verb.participle, HABEN[subject.person]
        )
    return Phrase(phrase.en, phrase.de, phrase.gender, phrase.person, False, f"that {en}", f", {de}")


def when(rng: Random, times: list[Time], chance: float = 0.5) -> tuple[str, str]:
    time = rng.choice(times)
    return (time.en, time.de) if rng.random() < chance else ("", "")


def action(
    rng: Random,
    *,
    times: list[Time],
    me: bool = True,
    dets: list[Determiner] | None = None,
    simple: bool = False,
    apart_from: Noun | None = None,
    without: tuple[str, ...] = (),
) -> tuple[Action, Noun]:
    """A verb and all that belongs to it, with the noun of its object.

    `me` allows "me" and "us" as recipients, `simple` leaves out attributes and times, and `without` names the verbs
    and the values of `Verb.recipient` that are not wanted.
    """
    verb = rng.choice([verb for verb in VERBS if verb.recipient not in without and verb.en not in without])
    noun = rng.choice([noun for noun in NOUNS if set(noun.kinds) & set(verb.kinds) and noun is not apart_from])
    if dets is None:
        dets = SOME if verb.en == "write" else DEFINITE if rng.random() < 0.7 else EVERY + SOME
        dets = DEFINITE + EVERY if verb.en in ("sort", "close", "rename") else dets
    thing = noun_phrase(
        rng, noun, dets, plural=True if verb.en == "sort" else None, owner=0.1 if dets is DEFINITE else 0
    )
    to = goal = None
    if verb.recipient == "an":
        someone = somebody(rng, PRONOUNS if me else PRONOUNS[2:])
        goal = (f"to {someone.en}", f"an {someone['acc']}")
    elif verb.recipient == "must" or (verb.recipient == "may" and rng.random() < 0.7):
        to = rng.choice(PRONOUNS[:1]) if me and rng.random() < 0.4 else somebody(rng, PRONOUNS if me else PRONOUNS[2:])
    elif verb.en in ("copy", "move", "download") and rng.random() < 0.6:
        goal = place(rng, "acc", (noun,) if verb.en == "move" else (noun, TRASH))
    elif verb.en == "sort" and rng.random() < 0.6:
        goal = rng.choice([("by name", "nach Namen"), ("by date", "nach Datum"), ("by size", "nach Größe")])
    elif verb.en == "translate" and rng.random() < 0.6:
        goal = rng.choice([("into German", "ins Deutsche"), ("into English", "ins Englische")])
    time = when(rng, times, 0.0 if simple else 0.3)
    if not simple and not goal and verb.en != "write" and rng.random() < 0.5:
        if rng.random() < 0.6 and not time[0]:
            thing = with_relative(rng, thing, noun)
        else:
            thing = with_attribute(rng, thing, noun, dated=bool(time[0]))
    return Action(verb, thing, to, goal or ("", ""), time), noun


def english(form: str, act: Action, rng: Random) -> str:
    """The English predicate: the recipient stands before the object, or, with "to", after it."""
    to = act.recipient.en if act.recipient else ""
    if to and act.verb.en != "read" and not act.object.rel_en and rng.random() < 0.3:
        return words(form, act.object.en, f"{'for' if act.verb.en == 'write' else 'to'} {to}", act.time[0])
    return words(form, to, act.object.en, act.goal[0], act.time[0], act.object.rel_en)


def middle(act: Action, *, please: bool = False, negative: bool = False) -> str:
    """What stands between the two German verb positions: pronouns, recipient, time, object, negation, goal."""
    early = [act.object["acc"]] if act.object.pronoun else []
    late = [] if act.object.pronoun else [act.object["acc"]]
    if act.recipient:
        (early if act.recipient.pronoun else late).insert(0, act.recipient["dat"])
    bitte, nicht = "bitte" if please else "", "nicht" if negative else ""
    if negative:
        return words(*early, *late, act.time[1], bitte, nicht, act.goal[1])
    return words(*early, bitte, *late[:-1], act.time[1], *late[-1:], act.goal[1])


def imperative(act: Action, **how: bool) -> str:
    return words(act.verb.imperative, middle(act, **how), act.verb.prefix) + act.object.rel_de


def past(act: Action, subject: Phrase, *, question: bool, first: str = "") -> str:
    """A clause in the perfect: verb second or first in a question, otherwise last."""
    have = HABEN[subject.person]
    core = words(middle(act), act.verb.participle)
    clause = words(first, have, subject["nom"], core) if question else words(first, subject["nom"], core, have)
    return clause + act.object.rel_de


def sentence(en: str, de: str, mark: str = ".") -> tuple[str, str]:
    return en[0].upper() + en[1:] + mark, de[0].upper() + de[1:] + mark


def command(rng: Random) -> tuple[str, str]:
    act, _ = action(rng, times=FUTURE)
    please, en = rng.random(), english(act.verb.en, act, rng)
    if please < 0.25:
        return sentence(f"please {en}", imperative(act, please=True))
    if please < 0.35 and not act.object.rel_en:
        return sentence(f"{en}, please", f"{imperative(act)}, bitte")
    return sentence(en, imperative(act))


def prohibition(rng: Random) -> tuple[str, str]:
    act, _ = action(rng, times=FUTURE, dets=OURS, without=("may", "find"))
    please = rng.random() < 0.3
    en = words("please" if please else "", "do not", english(act.verb.en, act, rng))
    return sentence(en, imperative(act, please=please, negative=True))


def two_commands(rng: Random) -> tuple[str, str]:
    """Two commands joined by "and" or "before"; the second may speak of "it", which is er, sie or es in German."""
    one, noun = action(rng, times=FUTURE, simple=True)
    two, _ = action(rng, times=FUTURE, simple=True, apart_from=noun)
    plain = not two.verb.recipient and set(noun.kinds) & set(two.verb.kinds) and two.verb is not one.verb
    if plain and two.verb.en not in ("sort", "find") and one.verb.en != "write" and rng.random() < 0.6:
        two = Action(two.verb, IT[one.object.gender])
    en_one, en_two = english(one.verb.en, one, rng), english(two.verb.en, two, rng)
    if rng.random() < 0.5:
        return sentence(f"{en_one} and {en_two}", f"{imperative(one)} und {imperative(two)}")
    de_two = words("bevor du", middle(two), two.verb.you)
    if two.object.pronoun or rng.random() < 0.5:
        return sentence(f"{en_one} before you {en_two}", f"{imperative(one)}, {de_two}")
    return sentence(f"before you {en_two}, {en_one}", f"{de_two}, {imperative(one)}")


def wish(rng: Random) -> tuple[str, str]:
    """Modal verbs: the infinitive goes last."""
    act, _ = action(rng, times=FUTURE)
    if rng.random() < 0.4:
        please = rng.random() < 0.4
        en = words("can you", "please" if please else "", english(act.verb.en, act, rng))
        return sentence(
            en, words("kannst du", middle(act, please=please), act.verb.infinitive) + act.object.rel_de, "?"
        )
    plain, s_form, forms = rng.choice(MODALS)
    subject = somebody(rng, SPEAKERS)
    act, _ = action(rng, times=FUTURE, me=subject.person == "3s")
    en = words(subject.en, s_form if subject.person == "3s" else plain, english(act.verb.en, act, rng))
    de = words(subject["nom"], forms[subject.person], middle(act), act.verb.infinitive)
    return sentence(en, de + act.object.rel_de)


def event(rng: Random, times: list[Time], *, question: bool, en_first: str = "", de_first: str = "") -> tuple[str, str]:
    """Something happened: somebody did something, or a thing did it by itself; as a direct question or a clause."""
    if rng.random() < 0.65:
        subject = somebody(rng, SPEAKERS)
        act, _ = action(rng, times=times, me=subject.person == "3s", dets=[*DEFINITE, *EVERY])
        en = english(act.verb.en if question else act.verb.past, act, rng)
        return (
            words(en_first, "did" if question else "", subject.en, en),
            past(act, subject, question=question, first=de_first),
        )
    happening = rng.choice(HAPPENINGS)
    noun = rng.choice([noun for noun in NOUNS + DEVICES if noun.en in happening.subjects.split()])
    thing = noun_phrase(rng, noun, OURS, plural=False if noun in DEVICES else None, adjective=0.3)
    en_time, de_time = when(rng, times, 0.6)
    aux = (SEIN if happening.sein else HABEN)[thing.person]
    if question:
        return (
            words(en_first, "did", thing.en, happening.en, en_time),
            words(de_first, aux, thing["nom"], de_time, happening.participle),
        )
    return (
        words(en_first, thing.en, happening.past, en_time),
        words(de_first, thing["nom"], de_time, happening.participle, aux),
    )


def presence(rng: Random, *, question: bool) -> tuple[str, str]:
    """Whether there is something, in what state it is, where it is, or how many there are."""
    kind, if_en, if_de = rng.random(), "" if question else "whether", "" if question else "ob"
    noun = rng.choice(NOUNS)
    en_place, de_place = place(rng, "dat", (noun,))
    if kind < 0.25:
        thing = noun_phrase(rng, noun, SOME, adjective=0.5)
        be = "is" if thing.person == "3s" else "are"
        if question:
            return f"{be} there {thing.en} {en_place}", f"gibt es {de_place} {thing['acc']}"
        return f"whether there {be} {thing.en} {en_place}", f"ob es {de_place} {thing['acc']} gibt"
    if kind < 0.4:
        en_state, de_state, subjects = rng.choice(STATES)
        noun = rng.choice([noun for noun in NOUNS + DEVICES if noun.en in subjects.split()])
        thing = noun_phrase(rng, noun, OURS, plural=False, adjective=0.0)
        if question:
            return f"is {thing.en} {en_state}", f"ist {thing['nom']} {de_state}"
        return words(if_en, thing.en, "is", en_state), words(if_de, thing["nom"], de_state, "ist")
    if kind < 0.55:
        thing = noun_phrase(rng, noun, HOW_MANY, adjective=0.5)
        de = words(thing["nom"], "sind", de_place) if question else words(thing["nom"], de_place, "sind")
        return f"{thing.en} are {en_place}", de
    thing = noun_phrase(rng, noun, DEFINITE, adjective=0.7, owner=0.15)
    thing = rng.choice([with_relative, with_attribute])(rng, thing, noun) if rng.random() < 0.5 else thing
    be_en, be_de = ("is", "ist") if thing.person == "3s" else ("are", "sind")
    rel_en = f" {thing.rel_en}" if thing.rel_en else ""
    if question:
        return f"where {be_en} {thing.en}{rel_en}", f"wo {be_de} {thing['nom']}{thing.rel_de}"
    return (f"where {thing.en} {be_en}", f"wo {thing['nom']} {be_de}")


def question(rng: Random) -> tuple[str, str]:
    kind = rng.random()
    if kind < 0.3:
        en, de = presence(rng, question=True)
    elif kind < 0.5:
        en, de = event(rng, PAST, question=True)
    elif kind < 0.65:
        en_first, de_first = rng.choice([("when", "wann"), ("why", "warum")])
        times = PAST if en_first == "why" else [Time("", "")]
        en, de = event(rng, times, question=True, en_first=en_first, de_first=de_first)
    elif kind < 0.8:
        act, _ = action(rng, times=PAST, dets=[*DEFINITE, *EVERY])
        en = f"who {english(act.verb.past, act, rng)}"
        de = words("wer hat", middle(act), act.verb.participle) + act.object.rel_de
    else:
        subject = somebody(rng, SPEAKERS)
        act, _ = action(rng, times=PAST, dets=WHICH, simple=True, without=("must", "an"))
        to = rng.choice(PRONOUNS) if act.verb.recipient and subject.person == "3s" else None
        en_time, de_time = when(rng, PAST)
        en = words(act.object.en, "did", subject.en, act.verb.en, to.en if to else "", en_time)
        have, dative = HABEN[subject.person], to["dat"] if to else ""
        de = words(act.object["acc"], have, subject["nom"], dative, de_time, act.verb.participle)
    return sentence(en, de, "?")


def indirect_question(rng: Random) -> tuple[str, str]:
    en_intro, de_intro, mark = rng.choice(INTROS)
    kind = rng.random()
    if kind < 0.3:
        en, de = presence(rng, question=False)
    elif kind < 0.75:
        en, de = event(rng, PAST, question=False, en_first="whether", de_first="ob")
    elif kind < 0.9:
        en_first, de_first = rng.choice([("when", "wann"), ("why", "warum")])
        times = PAST if en_first == "why" else [Time("", "")]
        en, de = event(rng, times, question=False, en_first=en_first, de_first=de_first)
    else:
        act, _ = action(rng, times=PAST, dets=[*DEFINITE, *EVERY])
        en, de = f"who {english(act.verb.past, act, rng)}", past(act, WHO, question=False)
    return sentence(f"{en_intro} {en}", f"{de_intro}, {de}", mark)


def property_of(rng: Random) -> tuple[str, str]:
    """The genitive: die Größe der neuen Datei."""
    en_intro, de_intro = rng.choice(
        [("tell me", "sag mir"), ("show me", "zeig mir"), ("please tell me", "sag mir bitte")]
    )
    en_what, de_what = rng.choice([("size", "die Größe"), ("date", "das Datum"), ("name", "den Namen")])
    noun = rng.choice(NOUNS)
    thing = noun_phrase(rng, noun, [THE, THE, *POSSESSIVES, THIS], plural=None if en_what == "size" else False)
    thing = with_attribute(rng, thing, noun) if rng.random() < 0.4 else thing
    return sentence(f"{en_intro} the {en_what} of {thing.en}", f"{de_intro} {de_what} {thing['gen']}")


def condition(rng: Random) -> tuple[str, str]:
    """A command that depends on a state: wenn der Akku leer ist."""
    act, _ = action(rng, times=FUTURE, simple=True)
    en_state, de_state, subjects = rng.choice(STATES[:3])
    noun = rng.choice([noun for noun in NOUNS + DEVICES if noun.en in subjects.split()])
    thing = noun_phrase(rng, noun, OURS, plural=False, adjective=0.0)
    en_if, de_if = f"if {thing.en} is {en_state}", f"wenn {thing['nom']} {de_state} ist"
    en_do, de_do = english(act.verb.en, act, rng), imperative(act)
    if rng.random() < 0.5:
        return sentence(f"{en_if}, {en_do}", f"{de_if}, {de_do}")
    return sentence(f"{en_do} {en_if}", f"{de_do}, {de_if}")


KINDS = [
    (command, 30),
    (prohibition, 8),
    (two_commands, 10),
    (wish, 12),
    (question, 18),
    (indirect_question, 16),
    (property_of, 4),
    (condition, 4),
]


# English word forms to lemmas: of nouns, and of their modifiers.
NOUN_OF = {form: noun.en for noun in NOUNS for form in (noun.en, noun.en_plural)}
MODIFIER_OF = (
    {form: verb.en for verb in VERBS for form in (verb.en, verb.past)}
    | {en.lower(): en.lower() for en, _, _ in ADJECTIVES}
    | {noun.en: noun.en for noun in PLACES if noun.en not in NOUN_OF}
)


def spoken_words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text)


def repeats(en: str) -> bool:
    """Whether a sentence says a noun, a name, a number or an adjective twice, which nobody would."""
    said = [word.lower().removesuffix("'s").rstrip("'") for word in spoken_words(en)]
    said = [NOUN_OF.get(w, MODIFIER_OF.get(w, w)) for w in said if w not in MAY_REPEAT]
    return len(said) != len(set(said))


def home(noun: str, modifier: str) -> str:
    """The split that a pair is dealt to: one pair in 24 to test, one in 24 to valid."""
    number = int(hashlib.sha256(f"{noun} {modifier}".encode()).hexdigest(), 16) % 24
    return {0: "test", 1: "valid"}.get(number, "train")


def split_of(en: str) -> str | None:
    """The split a sentence belongs to, None if it mixes test and valid pairs."""
    spoken = [word.lower() for word in spoken_words(en)]
    nouns = [NOUN_OF[word] for word in spoken if word in NOUN_OF]
    homes = {home(noun, MODIFIER_OF[word]) for noun in nouns for word in spoken if word in MODIFIER_OF} - {"train"}
    return None if len(homes) > 1 else homes.pop() if homes else "train"


def make_corpus(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """English-German pairs by split, each English sentence once."""
    rng, german = Random(seed), {}
    functions, weights = zip(*KINDS, strict=True)
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in SIZES}
    while any(len(splits[name]) < size * (1 if name == "train" else 1.5) for name, size in SIZES.items()):
        en, de = rng.choices(functions, weights)[0](rng)
        if len(spoken_words(en)) > LONGEST or repeats(en):
            continue
        if en in german:
            assert german[en] == de, f"two translations of {en!r}: {german[en]!r} and {de!r}"
            continue
        german[en] = de
        if split := split_of(en):
            splits[split].append((en, de))
    splits["train"] = splits["train"][: SIZES["train"]]
    counts = [Counter(word for pair in splits["train"] for word in spoken_words(pair[side])) for side in (0, 1)]
    for name in ("valid", "test"):
        common = [
            pair
            for pair in splits[name]
            if all(counts[side][word] >= COMMON for side in (0, 1) for word in spoken_words(pair[side]))
        ]
        splits[name] = common[: SIZES[name]]
    return splits


def write_corpus(folder: Path) -> None:
    """Write `train.en`, `train.de`, ... one sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in make_corpus().items():
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{name}.{language}").write_bytes(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the corpus `commands`: spoken commands in English with their German translations.",
        epilog="The same bytes on every run. The test sentences combine nouns with verbs, adjectives and places that never "
        "stand in one training sentence; the docstring of this file states the rule.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path(__file__).parents[1] / "recipes/data/commands",
        help="folder for {train,valid,test}.{en,de} (default: recipes/data/commands of this project)",
    )
    write_corpus(parser.parse_args().output)


if __name__ == "__main__":
    main()
