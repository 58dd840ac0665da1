"""Which share of known word pairs do the alignments of a translation run contain?

    python recipes/translation.py; python scripts/bench alignments runs/commands

The grammar of the bundled commands (scripts/corpora/commands) gives the German forms of each
English noun, name, number, adjective or verb without a prefix. If exactly one word on each side
forms such a pair, the pair is a known link. Prints the recall of known links in the alignments of
the test sentences with their references: by the rule of `transduce translate --alignments`, and by
each layer.
"""

from collections import defaultdict
from pathlib import Path
from typing import Literal

from commands.words import ADJECTIVES, DEVICES, NAMES, NOUNS, NUMBERS, PEOPLE, PLACES, VERBS

import transduce as td
from transduce.tasks.outputs import word_alignment, word_spans

DATA = Path(__file__).parents[2] / "recipes" / "data" / "commands"
ENDINGS = ("", "e", "en", "er", "es", "em")


def main(run: Path, /, *, split: Literal["valid", "test"] = "test") -> None:
    """Align and print.

    Args:
        run: a run of the commands, English to German.
        split: the sentences to align.
    """
    translator = td.load_translator(run)
    forms = dictionary()
    sources, targets = (
        (DATA / f"{split}.{side}").read_text("utf-8").splitlines() for side in ("en", "de")
    )
    known = [links(*pair, forms) for pair in zip(sources, targets, strict=True)]
    aligned = translator.align(sources, targets)
    n_links = sum(map(len, known))
    n_layers = len(aligned[0].weights)

    def share(pairs: list[list[tuple[int, int]]]) -> str:
        n = sum(len(links & set(each)) for links, each in zip(known, pairs, strict=True))
        return f"{n / n_links:.1%}"

    sharpest = share([each.words.pairs if each.words else [] for each in aligned])
    print(
        f"{n_links:,} known links of {len(known)} sentences; the sharpest layer of each has "
        f"{sharpest}"
    )
    source_tokenizer = translator.source_tokenizer
    spans = [
        (
            word_spans(source_tokenizer, source_tokenizer.encode([source])[0]),
            word_spans(translator.tokenizer, translator.tokenizer.encode([target])[0]),
        )
        for source, target in zip(sources, targets, strict=True)
    ]
    for layer in range(n_layers):
        pairs = [
            word_alignment(each.weights[layer : layer + 1].mean(dim=1), *words).pairs
            for each, words in zip(aligned, spans, strict=True)
        ]
        print(f"layer {layer + 1} of {n_layers}: {share(pairs)}")


def dictionary() -> dict[str, set[str]]:
    """The German forms of each English form, in lower case."""
    forms = defaultdict[str, set[str]](set)
    for noun in (*NOUNS, *DEVICES, *PLACES):
        for english in (noun.en, noun.en_plural):
            forms[english] |= {noun.de, noun.de_plural, noun.genitive, f"{noun.de_plural}n"}
    for person in PEOPLE:
        for english in (person.en, person.owner):
            forms[english] |= set(person.de.split())
    for english, stem, _ in ADJECTIVES:
        forms[english] |= {stem + ending for ending in ENDINGS}
    for name in NAMES:
        forms[name] = {name, f"{name}s"}
        forms[f"{name}'s"] = {f"{name}s"}
    for english, german in NUMBERS:
        forms[english] = {german}
    for verb in VERBS:
        for english in (verb.en, verb.past) if not verb.prefix else ():
            forms[english] |= {verb.imperative, verb.infinitive, verb.participle, verb.you}
    return {english.lower(): {form.lower() for form in german} for english, german in forms.items()}


def links(english: str, german: str, forms: dict[str, set[str]]) -> set[tuple[int, int]]:
    """The index pairs of words that can only be aligned with each other."""
    source, target = (
        [word.strip(".,?!").lower() for word in line.split()] for line in (english, german)
    )
    pairs = [
        (i, j)
        for i, word in enumerate(source)
        for j, form in enumerate(target)
        if form in forms.get(word, ())
    ]
    return {(i, j) for i, j in pairs if sum(i == a or j == b for a, b in pairs) == 1}
