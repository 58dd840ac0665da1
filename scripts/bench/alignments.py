"""How well does a translation run know which word it wrote from which? On the commands that ship.

    python recipes/translation.py; python scripts/bench alignments runs/commands

The grammar that made the commands (scripts/corpora/commands) says which German forms an English noun, name, number, adjective or
verb without a prefix becomes. Where exactly one word of either side is such a pair, it is a known link. Prints which
share of the known links of the test sentences, given their references, is found: by the rule of
`transduce translate --alignments`, and by each layer.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from commands.words import ADJECTIVES, DEVICES, NAMES, NOUNS, NUMBERS, PEOPLE, PLACES, VERBS

import transduce as td
from transduce.tasks.outputs import word_alignment, word_spans

DATA = Path(__file__).parents[2] / "recipes" / "data" / "commands"
ENDINGS = ("", "e", "en", "er", "es", "em")


def main() -> None:
    """Read the command line, align and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of the commands, English to German")
    parser.add_argument("--split", default="test", choices=["valid", "test"])
    asked = parser.parse_args()
    translator, forms = td.load_translator(asked.run), dictionary()
    sources, targets = ((DATA / f"{asked.split}.{side}").read_text("utf-8").splitlines() for side in ("en", "de"))
    known = [set(links(*pair, forms)) for pair in zip(sources, targets, strict=True)]
    aligned = translator.align(sources, targets)
    n_links, n_layers = sum(map(len, known)), len(aligned[0].weights)
    found = sum(len(set(each.words.pairs) & own) for each, own in zip(aligned, known, strict=True) if each.words)
    print(f"{n_links:,} known links of {len(known)} sentences; the sharpest layer of each finds {found / n_links:.1%}")
    for layer in range(n_layers):
        hits = 0
        for source, target, each, own in zip(sources, targets, aligned, known, strict=True):
            sides = (translator.source_tokenizer, source), (translator.tokenizer, target)
            spans = [word_spans(tokenizer, tokenizer.encode([text])[0]) for tokenizer, text in sides]
            hits += len(set(word_alignment(each.weights[layer : layer + 1].mean(dim=1), *spans).pairs) & own)
        print(f"layer {layer + 1} of {n_layers}: {hits / n_links:.1%}")


def dictionary() -> dict[str, set[str]]:
    """By English form, the German forms, in small letters."""
    found = defaultdict[str, set[str]](set)
    for noun in (*NOUNS, *DEVICES, *PLACES):
        for english in (noun.en, noun.en_plural):
            found[english] |= {noun.de, noun.de_plural, noun.genitive, f"{noun.de_plural}n"}
    for person in PEOPLE:
        for english in (person.en, person.owner):
            found[english] |= set(person.de.split())
    for english, stem, _ in ADJECTIVES:
        found[english] |= {stem + ending for ending in ENDINGS}
    for name in NAMES:
        found[name], found[f"{name}'s"] = {name, f"{name}s"}, {f"{name}s"}
    for english, german in NUMBERS:
        found[english] = {german}
    for verb in VERBS:
        for english in (verb.en, verb.past) if not verb.prefix else ():
            found[english] |= {verb.imperative, verb.infinitive, verb.participle, verb.you}
    return {english.lower(): {each.lower() for each in german} for english, german in found.items()}


def links(english: str, german: str, forms: dict[str, set[str]]) -> list[tuple[int, int]]:
    """The numbers of the words that can only belong together."""
    source, target = ([word.strip(".,?!").lower() for word in line.split()] for line in (english, german))
    pairs = [(i, j) for i, s in enumerate(source) for j, t in enumerate(target) if t in forms.get(s, ())]
    return [(i, j) for i, j in pairs if sum(i == a or j == b for a, b in pairs) == 1]


if __name__ == "__main__":
    main()
