"""Kinds of sentences: commands, wishes, questions, conditions; each function draws one, in English and in German."""

from random import Random

from commands.phrases import (
    action,
    english,
    imperative,
    middle,
    noun_phrase,
    past,
    place,
    somebody,
    when,
    with_attribute,
    with_relative,
    words,
)
from commands.words import (
    DEFINITE,
    DEVICES,
    EVERY,
    FUTURE,
    HABEN,
    HAPPENINGS,
    HOW_MANY,
    INTROS,
    IT,
    MODALS,
    NOUNS,
    OURS,
    PAST,
    POSSESSIVES,
    PRONOUNS,
    SEIN,
    SOME,
    SPEAKERS,
    STATES,
    THE,
    THIS,
    WHICH,
    WHO,
    Action,
    Time,
)


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
