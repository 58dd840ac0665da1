"""What comes next? Four models that lead up to attention, small enough to do by hand. Run it: it shows every step.

A corpus is {sentence: share}. A model is {context: {next word: weight}}: it counts which words follow which contexts,
and needs no training. Each model below solves a problem of the one before it.

Source: "Transformers from Scratch" (Brandon Rohrer, 2021), from the first order sequence model to masking.
"""

from collections.abc import Callable, Iterable

Corpus = dict[str, float]
Key = str | tuple[str, ...]
Model = dict[Key, dict[str, float]]

SHOW = {
    "show me my directories please": 0.2,
    "show me my files please": 0.3,
    "show me my photos please": 0.5,
}
CHECK = {
    "check whether the battery ran down please": 0.4,
    "check whether the program ran please": 0.6,
}
FIND_OUT = {
    "check the program log and find out whether it ran please": 0.5,
    "check the battery log and find out whether it ran down please": 0.5,
}


def count(corpus: Corpus, seen: Callable[[list[str]], Iterable[Key]]) -> Model:
    """How often each word follows each context that `seen` finds in the words before it, as shares that sum to 1."""
    model: Model = {}
    for sentence, share in corpus.items():
        words = sentence.split()
        for end in range(1, len(words)):
            for key in seen(words[:end]):
                row = model.setdefault(key, {})
                row[words[end]] = row.get(words[end], 0.0) + share
    return {key: {word: share / sum(row.values()) for word, share in row.items()} for key, row in model.items()}


def first_order(corpus: Corpus) -> Model:
    """Looks at the last word: a Markov chain."""
    return count(corpus, lambda past: past[-1:])


def second_order(corpus: Corpus) -> Model:
    """Looks at the last two words: V^2 rows instead of V, but only those that occur are kept."""
    return count(corpus, lambda past: [tuple(past[-2:])] if len(past) > 1 else [])


def features(past: list[str]) -> list[tuple[str, str]]:
    """The last word, paired with each word before it, at any distance. Their order is ignored."""
    return [(word, past[-1]) for word in dict.fromkeys(past[:-1])]


def second_order_with_skips(corpus: Corpus) -> Model:
    """Looks at pairs again, but at all of them: a row is no longer a state, but a feature that votes."""
    return count(corpus, features)


def votes(model: Model, past: list[str], mask: set[Key] | None = None) -> dict[str, float]:
    """The sum of the rows of all features of `past`; those outside the mask are multiplied by 0.

    Written with matrices this is (features * mask) @ transitions, and the mask is what attention will learn.
    """
    total: dict[str, float] = {}
    for feature in features(past):
        active = 1.0 if mask is None or feature in mask else 0.0
        for word, vote in model.get(feature, {}).items():
            total[word] = total.get(word, 0.0) + active * vote
    return total


def decisive(model: Model, last: str) -> set[Key]:
    """The mask that keeps only the features with `last` that determine the next word."""
    return {key for key, row in model.items() if key[1] == last and len(row) == 1}


def branches(model: Model) -> list[Key]:
    """The contexts with several possible next words."""
    return [key for key, row in model.items() if len(row) > 1]


def show(model: Model, keys: Iterable[Key]) -> None:
    for key in keys:
        name = key if isinstance(key, str) else " ... ".join(key)
        print(f"  {name:<18} -> " + ", ".join(f"{word} {weight:g}" for word, weight in model[key].items()))


def main() -> None:
    print("1. First order: one word decides. Three commands, and all but one word leave no doubt:")
    show(first_order(SHOW), first_order(SHOW))

    print("\n2. Other commands, in doubt at two words:")
    show(first_order(CHECK), branches(first_order(CHECK)))
    print("   Second order: two words decide, and after 'ran' there is no doubt left:")
    show(second_order(CHECK), [("battery", "ran"), ("program", "ran"), *branches(second_order(CHECK))])

    print("\n3. The word that decides may be eight words back. Pairs with skips reach it; they vote:")
    model = second_order_with_skips(FIND_OUT)
    show(model, [key for key in model if key[1] == "ran"])
    mask = decisive(model, "ran")
    for sentence in FIND_OUT:
        past = sentence.split()[: sentence.split().index("ran") + 1]
        print(f"   {' '.join(past)} ...")
        print("     all votes:", votes(model, past))
        print("     masked:   ", votes(model, past, mask))

    print("\n4. Most features say nothing. The mask hides them, and 5 against 4 becomes 1 against 0.")
    print("   Choosing what to look at is attention; a Transformer learns to choose.")


if __name__ == "__main__":
    main()
