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
from pathlib import Path
from random import Random

from commands.sentences import KINDS
from commands.words import ADJECTIVES, NOUNS, PLACES, VERBS

SEED = 2017
SIZES = {"train": 12000, "valid": 400, "test": 400}
COMMON = 5  # a word of valid or test occurs at least this often in train
MAY_REPEAT = ["a", "an", "in", "is", "me", "my", "on", "our", "the", "to", "you", "your"]
LONGEST = 14  # English words: about six seconds of speech

# English word forms to lemmas: of nouns, and of their modifiers.
NOUN_OF = {form: noun.en for noun in NOUNS for form in (noun.en, noun.en_plural)}
MODIFIER_OF = (
    {form: verb.en for verb in VERBS for form in (verb.en, verb.past)}
    | {en.lower(): en.lower() for en, _, _ in ADJECTIVES}
    | {noun.en: noun.en for noun in PLACES if noun.en not in NOUN_OF}
)


def word_list(text: str) -> list[str]:
    return re.findall(r"[\w']+", text)


def repeats(en: str) -> bool:
    """Whether a sentence has a noun, a name, a number or an adjective twice, which is not natural."""
    lemmas = [word.lower().removesuffix("'s").rstrip("'") for word in word_list(en)]
    lemmas = [NOUN_OF.get(w, MODIFIER_OF.get(w, w)) for w in lemmas if w not in MAY_REPEAT]
    return len(lemmas) != len(set(lemmas))


def home(noun: str, modifier: str) -> str:
    """The split of a pair: one pair in 24 is in test, one in 24 in valid."""
    number = int(hashlib.sha256(f"{noun} {modifier}".encode()).hexdigest(), 16) % 24
    return {0: "test", 1: "valid"}.get(number, "train")


def split_of(en: str) -> str | None:
    """The split a sentence belongs to, None if it mixes test and valid pairs."""
    words = [word.lower() for word in word_list(en)]
    nouns = [NOUN_OF[word] for word in words if word in NOUN_OF]
    homes = {home(noun, MODIFIER_OF[word]) for noun in nouns for word in words if word in MODIFIER_OF} - {"train"}
    return None if len(homes) > 1 else homes.pop() if homes else "train"


def make_corpus(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """English-German pairs by split, each English sentence once."""
    rng, german = Random(seed), {}
    functions, weights = zip(*KINDS, strict=True)
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in SIZES}
    while any(len(splits[name]) < size * (1 if name == "train" else 1.5) for name, size in SIZES.items()):
        en, de = rng.choices(functions, weights)[0](rng)
        if len(word_list(en)) > LONGEST or repeats(en):
            continue
        if en in german:
            assert german[en] == de, f"two translations of {en!r}: {german[en]!r} and {de!r}"
            continue
        german[en] = de
        if split := split_of(en):
            splits[split].append((en, de))
    splits["train"] = splits["train"][: SIZES["train"]]
    counts = [Counter(word for pair in splits["train"] for word in word_list(pair[side])) for side in (0, 1)]
    for name in ("valid", "test"):
        common = [
            pair
            for pair in splits[name]
            if all(counts[side][word] >= COMMON for side in (0, 1) for word in word_list(pair[side]))
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
        default=Path(__file__).parents[2] / "recipes/data/commands",
        help="folder for {train,valid,test}.{en,de} (default: recipes/data/commands of this project)",
    )
    write_corpus(parser.parse_args().output)


if __name__ == "__main__":
    main()
