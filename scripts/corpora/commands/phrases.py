"""Parts of a spoken command, in English and in German: noun phrases, attributes, relative clauses, actions."""

import re
from random import Random

from commands.words import (
    ADJECTIVES,
    ARTICLE,
    CASES,
    COUNTED,
    DEFINITE,
    EIN,
    EVERY,
    FUTURE,
    HABEN,
    HAPPENINGS,
    MODALS,
    NAMES,
    NEED,
    NOUNS,
    OURS,
    PAST,
    PEOPLE,
    PLACES,
    POSSESSIVES,
    PRONOUNS,
    SEIN,
    SOME,
    SPEAKERS,
    THE,
    TRASH,
    VERBS,
    Action,
    Determiner,
    Noun,
    Person,
    Phrase,
    Time,
)


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


def imperative(act: Action, **options: bool) -> str:
    return words(act.verb.imperative, middle(act, **options), act.verb.prefix) + act.object.rel_de


def past(act: Action, subject: Phrase, *, question: bool, first: str = "") -> str:
    """A clause in the perfect: verb second or first in a question, otherwise last."""
    have = HABEN[subject.person]
    core = words(middle(act), act.verb.participle)
    clause = words(first, have, subject["nom"], core) if question else words(first, subject["nom"], core, have)
    return clause + act.object.rel_de
