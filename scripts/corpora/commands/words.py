"""The words of the spoken commands: nouns, verbs, times and people, in English and in German, and their endings."""

from dataclasses import dataclass

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
