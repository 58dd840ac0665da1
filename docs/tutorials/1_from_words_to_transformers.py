# %% [markdown]
# # 1. From words to Transformers
#
# A Transformer turns one sequence into another: English into German, sound into text, the beginning of a story into its
# end. This chapter begins with counting words and ends with a whole Transformer, and every step on the way mends
# something that the step before could not do. You need some Python. What a vector is, what a matrix product does and
# why anybody would want a softmax is explained when it is needed.
#
# The route is that of Brandon Rohrer's *Transformers from Scratch* (2021); examples, code and pictures are ours.

# %%
import math
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import transduce as td
from pictures import BLUE, GREEN, GREY, ORANGE, PINK, Matrix, chain, equation, heatmap, shapes
from transduce.recipes import DATA

# %% [markdown]
# ## Words as numbers: one-hot vectors
#
# A computer calculates with numbers, so words must become numbers. We list all the words that we know, the
# *vocabulary*, and number them. In a language of three words, "roses" is 0, "the" is 1 and "water" is 2.
#
# The numbers themselves mean nothing: "water" is not twice as much as "the". So we write each of them as a list
# with one place for each word of the vocabulary: a 1 in the word's own place and a 0 everywhere else. That is a
# **one-hot vector**. A sentence then is a *matrix*, a table of numbers, with a row for each word.

# %%
vocabulary = ["roses", "the", "water"]
one_hot = np.eye(3)  # row i is the vector of word i
sentence = ["water", "the", "roses"]
vectors = one_hot[[vocabulary.index(word) for word in sentence]]

# %% tags=["hide-input"]
equation(Matrix(vectors, sentence, vocabulary), title="A sentence of one-hot vectors")

# %% [markdown]
# ## The dot product
#
# The **dot product** of two vectors multiplies them place by place, and adds up. Between one-hot vectors it says
# whether two words are the same: 1 if they are, 0 if not. With a vector of other numbers, it says how much of the
# word is in there. So it is a measure of likeness, and a Transformer uses it as just that, millions of times.

# %%
water, the = one_hot[2], one_hot[1]
mixture = np.array([0.7, 0.1, 0.2])  # mostly roses
print(
    "same word:", water @ water, " other word:", water @ the, " in the mixture:", water @ mixture
)
assert water @ mixture == sum(a * b for a, b in zip(water, mixture, strict=True)) == 0.2

# %% tags=["hide-input"]
for left, name, title in (
    (water, "water", "A word with itself: 1"),
    (the, "the", "With another word: 0"),
    (mixture, "mixture", "With a mixture: how much of the word is in there"),
):
    equation(
        Matrix(left, [name], vocabulary),
        "·",
        Matrix(water[:, None], columns=["water"]),
        "=",
        Matrix(left @ water),
        title=title,
    )

# %% [markdown]
# ## The matrix product
#
# A **matrix product** A × B is many dot products at once: each row of A with each column of B. The number in row i and
# column j of the result comes from row i of A and column j of B. The rows of A must be as long as the columns of B.

# %%
a = np.array([[1, 2, 0], [0, 1, 3]])
b = np.array([[2, 1], [0, 1], [1, 0]])
product = a @ b
assert all(
    product[i, j] == sum(a[i, k] * b[k, j] for k in range(3)) for i in range(2) for j in range(2)
)

# %% tags=["hide-input"]
equation(
    Matrix(a[:1]),
    "×",
    Matrix(b[:, :1]),
    "=",
    Matrix(product[:1, :1]),
    title="A row and a column: one dot product",
)
equation(
    Matrix(a),
    "×",
    Matrix(b[:, :1]),
    "=",
    Matrix(product[:, :1]),
    title="Two rows: one dot product below the other",
)
equation(
    Matrix(a[:1]),
    "×",
    Matrix(b),
    "=",
    Matrix(product[:1]),
    title="Two columns: one dot product beside the other",
)
equation(
    Matrix(a, name="A"),
    "×",
    Matrix(b, name="B"),
    "=",
    Matrix(product, name="A × B"),
    title="Two rows and two columns: a matrix product",
)

# %% [markdown]
# ### A matrix product as a look-up
#
# One-hot rows make the product do something special. Each of them picks one row of the other matrix and copies
# it. So a matrix product can look things up in a table. Computers are very good at matrix products, and that is why
# we want everything to be one.

# %%
table = np.array([[5, 1], [2, 7], [0, 4]])
picked = one_hot[[2, 0]] @ table
assert (picked == table[[2, 0]]).all()

# %% tags=["hide-input"]
equation(
    Matrix(one_hot[[2, 0]], ["water", "roses"], vocabulary),
    "×",
    Matrix(table, vocabulary, name="table"),
    "=",
    Matrix(picked, ["water", "roses"]),
    title="One-hot rows look up rows of a table",
)

# %% [markdown]
# ## What comes next? Count
#
# Let us build a machine that guesses the next word. Our first language is that of a small café, where half of the
# guests want coffee. To know what follows a word, count what followed it so far. The shares of each word are a row of
# a table; a row has the sum 1. This is a **first-order** model, or Markov chain: it looks at one word.

# %%
ORDERS = {"bring me a coffee now": 0.5, "bring me a tea now": 0.3, "bring me a cake now": 0.2}


def count(corpus, context):
    """{what was seen: {next word: share}}; context(past) lists what is seen in the words so far."""
    table = {}
    for sentence, share in corpus.items():
        words = sentence.split()
        for end in range(1, len(words)):
            for seen in context(words[:end]):
                row = table.setdefault(seen, {})
                row[words[end]] = row.get(words[end], 0) + share
    return {
        key: {w: n / sum(row.values()) for w, n in row.items()} for key, row in table.items()
    }


def words_of(corpus):
    return sorted({word for sentence in corpus for word in sentence.split()})


def as_matrix(table, rows, columns):
    return np.array([[table.get(row, {}).get(column, 0) for column in columns] for row in rows])


first = count(ORDERS, lambda past: past[-1:])
words = words_of(ORDERS)
transitions = as_matrix(first, words, words)
asked = np.eye(len(words))[[words.index("a")]]
following = asked @ transitions
assert np.allclose(
    following[0, [words.index(w) for w in ("coffee", "tea", "cake")]], [0.5, 0.3, 0.2]
)

# %% tags=["hide-input"]
chain(
    {tuple(sentence.split()): share for sentence, share in ORDERS.items()},
    "What follows what: a Markov chain",
)
equation(
    Matrix(asked, ["a"], words),
    "×",
    Matrix(transitions, words, words, "what follows", bright=[words.index("a")]),
    title="What follows “a”? A look-up in the table of counts",
)
equation(Matrix(following, ["after “a”"], words))

# %% [markdown]
# Nearly every row has a single 1: this language leaves little doubt. Only after "a" there is a choice.
#
# ### Two words see more than one
#
# In the kitchen they say two other things. One word is not enough here: after "boils" may come "over" or "please", and
# "boils" alone cannot tell which. The last *two* words can. A **second-order** model has a row for each pair of words.

# %%
KITCHEN = {
    "wait until the milk boils over please": 0.4,
    "wait until the water boils please": 0.6,
}
first = count(KITCHEN, lambda past: past[-1:])
second = count(KITCHEN, lambda past: [tuple(past[-2:])] if len(past) > 1 else [])
print("boils      ->", first["boils"])
print("milk boils ->", second["milk", "boils"])
print(
    "in doubt:",
    [w for w, row in first.items() if len(row) > 1],
    "->",
    [w for w, r in second.items() if len(r) > 1],
)
assert second["milk", "boils"] == {"over": 1} and second["water", "boils"] == {"please": 1}

# %% tags=["hide-input"]
spoken = {tuple(sentence.split()): share for sentence, share in KITCHEN.items()}
chain(spoken, "First order: after “boils” the way forks once more")
chain(
    {tuple("\n".join(pair) for pair in pairwise(path)): share for path, share in spoken.items()},
    "Second order: who knows the pair is in no doubt any more",
)
words = words_of(KITCHEN)
last_words, last_pairs = list(first), list(second)
equation(
    Matrix(
        as_matrix(first, last_words, words),
        last_words,
        words,
        bright=[last_words.index("boils")],
    ),
    title="First order: a row for each word, and doubt in two of them",
)
equation(
    Matrix(
        as_matrix(second, last_pairs, words),
        [" ".join(pair) for pair in last_pairs],
        words,
        bright=[last_pairs.index(("milk", "boils")), last_pairs.index(("water", "boils"))],
    ),
    title="Second order: a row for each pair, and doubt in one",
)

# %% [markdown]
# But pairs cost a lot. A vocabulary of 50,000 words has 50,000² = 2.5 billion pairs, and a row for each.
#
# ## Far back: skips
#
# Worse, the word that decides may stand far back. To know how the bread or the milk *is*, one has to look back eight
# words:

# %%
SHELF = {
    "take the bread from the shelf and see if it is stale": 0.5,
    "take the milk from the shelf and see if it is sour": 0.5,
}
bread, milk = (sentence.split()[:-1] for sentence in SHELF)
print("the word that decides stands", len(bread) - 1 - bread.index("bread"), "words before “is”")

# %% [markdown]
# A table of all sequences of nine words is out of the question. Here is a trick that is not: look at pairs, but let
# them **skip** words. The last word is paired with *each* word before it, however far back. A row of the table now is a
# *feature* of the sentence, and many features are there at once. Each has a vote on the next word, and votes are added.


# %%
def features(past):
    return [(word, past[-1]) for word in dict.fromkeys(past[:-1])]


skips = count(SHELF, features)
rows = [pair for pair in skips if pair[1] == "is"]
answers = ["sour", "stale"]
votes = as_matrix(skips, rows, answers)
active = np.array(
    [[pair in features(past) for pair in rows] for past in (bread, milk)], dtype=float
)
total = active @ votes
print({answer: float(n) for answer, n in zip(answers, total[0], strict=True)})
assert (total == [[4, 5], [5, 4]]).all()

# %% tags=["hide-input"]
equation(
    Matrix(
        active, ["… bread … is", "… milk … is"], [f"{word}, is" for word, _ in rows], "features"
    ),
    "×",
    Matrix(votes, columns=answers, name="votes"),
    "=",
    Matrix(total, columns=answers),
    title="Every pair that is there has a vote",
)

# %% [markdown]
# The right answers win, five votes to four. That is close: eight features know nothing, and each adds half a vote to
# both. In a real language there would be thousands of such features, and their noise would drown the one that knows.
#
# ## Masking: the idea of attention
#
# So let us switch the useless features off. A **mask** is a vector with 1 for what may count and 0 for what may not. We
# multiply the features by it, place by place, before they vote.

# %%
mask = np.array(
    [[len(skips[pair]) == 1 for pair in rows]], dtype=float
)  # those that leave no doubt
masked = active * mask
assert ((masked @ votes) == [[0, 1], [1, 0]]).all()

# %% tags=["hide-input"]
equation(
    Matrix(
        [active[0], mask[0], masked[0]],
        ["features", "mask", "product"],
        [f"{word}, is" for word, _ in rows],
    ),
    title="“… bread … is”: features times mask, place by place",
)
equation(
    Matrix(
        masked,
        ["… bread … is", "… milk … is"],
        [f"{word}, is" for word, _ in rows],
        "features × mask",
    ),
    "×",
    Matrix(votes, columns=answers, name="votes"),
    "=",
    Matrix(masked @ votes, columns=answers),
    title="With a mask, only those vote who know something",
)

# %% [markdown]
# Five to four has become one to nothing. *Choosing what to look at is attention.* The rest of this chapter is about doing
# it with matrix products whose numbers are learned, not chosen by hand. To learn means: begin with random numbers, see
# how wrong the guesses are, and move every number a little in the direction that makes them less wrong. That takes
# formulas without jumps, so that a little move has a little effect, and slopes that are about as steep in all directions,
# as one step has to suit them all.
#
# ### Attention as a matrix product
#
# Which mask is right depends on the last word: after "is" we want the food. So put the masks of all words into a table,
# and look the mask up with the one-hot vector of the last word. This vector is called the **query**, the table is made of
# **keys**, and the look-up is a matrix product, written Q Kᵀ in the paper that introduced Transformers (Vaswani et al.
# 2017).

# %%
words = words_of(SHELF)
queries = np.eye(len(words))
keys = np.zeros((len(words), len(words)))  # a column for each word that asks
keys[[words.index("bread"), words.index("milk")], words.index("is")] = 1
found = queries[[words.index("is")]] @ keys.T
assert {word for word, seen in zip(words, found[0], strict=True) if seen} == {"bread", "milk"}

# %% tags=["hide-input"]
near = [words.index(word) for word in ("and", "see", "if", "it", "is", "bread", "milk", "shelf")]
said = [words[i] for i in near]
equation(
    Matrix(queries[[words.index("is")]][:, near], ["is"], said, "Q"),
    "×",
    Matrix(keys.T[near][:, near], said, said, "Kᵀ: only the mask of “is” is drawn", bright=[4]),
    title="The look-up of a mask, for eight of the words",
)
equation(Matrix(found, ["mask of “is”"], words), title="Q Kᵀ, for all words")

# %% [markdown]
# ### Pairs as a matrix product
#
# After the mask, what is left of a sentence is a vector with a few ones: the words that we attend to. Pairs of words
# must be made of it, "bread *and* is". One matrix product and one bend do it. The product adds up how much speaks for
# a pair and subtracts what speaks against it; the bend, **ReLU**, turns negative numbers into 0. A constant 1 at the end, the
# *bias*, allows to demand both words. A second product then looks up the votes.

# %%
seen = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], dtype=float)  # bread, milk, is, and the constant
pairs = np.array([[1, -1], [-1, 1], [1, 1], [-1, -1]], dtype=float)
hidden = seen @ pairs
answer = np.maximum(hidden, 0) @ np.array([[0, 1], [1, 0]])
assert (answer == [[0, 1], [1, 0]]).all()

# %% tags=["hide-input"]
equation(
    Matrix(seen, ["bread …", "milk …"], ["bread", "milk", "is", "1"], "seen"),
    "×",
    Matrix(pairs, columns=["bread, is", "milk, is"]),
    "=",
    Matrix(hidden, columns=["bread, is", "milk, is"]),
    "→",
    Matrix(np.maximum(hidden, 0), columns=["bread, is", "milk, is"], name="ReLU"),
    title="A feed-forward layer recognizes pairs",
)

# %% [markdown]
# Product, bend, product: this is the **feed-forward** part of a Transformer, and attention is its other part.
#
# ### Going on and on
#
# To write more than a word, add the guess to the sentence and guess again. Taking the likeliest word each time is called
# *greedy* search. What stands there at the beginning is the *prompt*.

# %%
text = ["wait", "until"]
while tuple(text[-2:]) in second:
    row = second[tuple(text[-2:])]
    text.append(max(row, key=row.get))
print(" ".join(text))
assert " ".join(text) == "wait until the water boils please"

# %% [markdown]
# ## Embeddings: vectors that mean something
#
# One-hot vectors are long, and all of them are equally far from each other: "photo" is no nearer to "picture" than to
# "if". An **embedding** gives each word a short vector, in which words that are used alike lie close together. What is
# learned of one word then holds for its neighbours, too. It is a table again, and one-hot vectors look it up.
#
# In a Transformer the table is learned with all the rest. One can make one by counting, too. Here are 12,000 commands to
# a computer, which ship with `transduce`. We count which words stand beside which, and squeeze each row of counts into
# two numbers (by a *singular value decomposition*, which keeps as much of a table as two numbers can).

# %%
corpus = (DATA / "commands" / "train.en").read_text()
lines = [line.lower().rstrip(".?!").split() for line in corpus.splitlines()]
number = {word: i for i, word in enumerate(sorted({word for line in lines for word in line}))}
beside = np.zeros((len(number), 2 * len(number)))  # to the left, to the right
for line in lines:
    for left, right in pairwise(number[word] for word in line):
        beside[right, left] += 1
        beside[left, len(number) + right] += 1
expected = beside.sum(1, keepdims=True) * beside.sum(0) / beside.sum()
surprise = np.log(
    np.maximum(beside / np.maximum(expected, 1e-9), 1)
)  # more often than by chance
embedding = np.linalg.svd(surprise, full_matrices=False)
embedding = embedding.U * embedding.S
print(f"{len(number)} words: from {beside.shape[1]} numbers for a word to 2")

# %% tags=["hide-input"]
GROUPS = {
    BLUE: ("letters", "photos", "recipes", "stories", "bills", "reports"),
    ORANGE: ("my", "your", "our", "the"),
    GREEN: ("old", "new", "long", "short", "english", "german"),
    PINK: ("read", "delete", "open", "print", "forward", "check"),
}
axes = plt.figure(figsize=(6, 3.6)).subplots()
for color, group in GROUPS.items():
    places = np.array([embedding[number[word], 1:3] for word in group])
    axes.scatter(*places.T, color=color, s=16)
    middle, side = places.mean(axis=0), -1 if places[:, 0].mean() > 0 else 1
    said = ", ".join(group[:3]) + ",\n" + ", ".join(group[3:])
    axes.annotate(
        said,
        middle,
        xytext=(side * 24, 0),
        textcoords="offset points",
        ha="right" if side < 0 else "left",
        va="center",
        color=color,
    )
axes.set(xlabel="first number", ylabel="second number")
axes.set_title("Words that are used alike lie close together")

# %% [markdown]
# Directions mean something, too. From "letter" to "letters" is a step from one to many, and the same step leads from "photo"
# to "photos": *letters − letter + photo ≈ photos*. The famous example is *King − Man + Woman ≈ Queen* (Mikolov et al. 2013).
# Two numbers are too few for that, so there are 48. They are the counted ones, and others that are *trained*, as Mikolov's
# were: they begin at random, and learn to guess which words stand to the left and right of a word. The cell asks all such
# questions about 21 nouns, and looks whether the nearest word is the right one.

# %%
nouns = [
    "bill",
    "contract",
    "draft",
    "file",
    "film",
    "folder",
    "game",
    "letter",
    "list",
    "message",
    "photo",
    "picture",
    "poem",
    "program",
]
nouns += ["recipe", "recording", "report", "song", "video"]
plurals = {noun: noun + "s" for noun in nouns} | {"story": "stories", "directory": "directories"}
spelled = list(number)

torch.manual_seed(1)
seen = torch.tensor(beside, dtype=torch.float32).unflatten(1, (2, -1))  # word, side, neighbour
trained = nn.Parameter(torch.randn(len(number), 48) / 10)
neighbours = nn.Parameter(torch.randn(2, len(number), 48) / 10)
optimizer = torch.optim.Adam([trained, neighbours], lr=0.02)
for _ in range(200):
    guesses = torch.einsum("we,sne->wsn", trained, neighbours).log_softmax(dim=-1)
    optimizer.zero_grad()
    (-(seen * guesses).sum() / seen.sum()).backward()
    optimizer.step()


def nearest(vectors, one, many, other):
    """The word nearest to many - one + other, other than these three."""
    score = vectors @ (vectors[number[many]] - vectors[number[one]] + vectors[number[other]])
    score[[number[one], number[many], number[other]]] = -np.inf
    return spelled[score.argmax()]


for name, table in (("counted", embedding[:, :48]), ("trained", trained.detach().numpy())):
    vectors = table / np.linalg.norm(table, axis=1, keepdims=True)
    answers_to = {
        (noun, other): nearest(vectors, noun, plurals[noun], other)
        for noun in plurals
        for other in plurals
        if noun != other
    }
    right = np.mean([answer == plurals[other] for (_, other), answer in answers_to.items()])
    plural = np.mean([answer in plurals.values() for answer in answers_to.values()])
    print(
        f"{name}: of {len(answers_to)} answers {right:.0%} are right, {plural:.0%} are a plural"
    )
    for other in ("photo", "poem", "song"):
        print(f"  letters - letter + {other} = {answers_to['letter', other]}")
    assert right > 0.5 and plural > 0.99

# %% [markdown]
# ## Positions
#
# Attention as we have it does not know the order of words: "the dog bites the man" and "the man bites the dog" are the
# same set of words. So each position gets a vector of its own, which is added to that of the word. The paper's vectors are
# made of circles. Each pair of numbers is a point that runs around a circle as the position grows, fast for the first pair
# and slower for each that follows, like the hands of a clock. Together they tell the time.

# %%
from transduce.model.inputs import sinusoidal

d_model, n_positions = 32, 60
positions = np.zeros((n_positions, d_model))
for position in range(n_positions):
    for pair in range(d_model // 2):
        angle = position / 10000 ** (2 * pair / d_model)
        positions[position, 2 * pair : 2 * pair + 2] = math.sin(angle), math.cos(angle)
assert np.allclose(positions, sinusoidal(0, n_positions, d_model), atol=1e-6)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.3))
for axes, (pair, color) in zip(
    figure.subplots(1, 3), ((0, BLUE), (3, ORANGE), (6, GREEN)), strict=True
):
    x, y = positions[:8, 2 * pair], positions[:8, 2 * pair + 1]
    axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.5))
    axes.plot(x, y, color=color, marker="o", markersize=4, linestyle="")
    for position in (0, 7):
        axes.plot([0, x[position]], [0, y[position]], color=color, linewidth=1 + position / 7)
        axes.annotate(position, (1.2 * x[position], 1.2 * y[position]), ha="center", va="center")
    axes.set(aspect="equal", xlim=(-1.4, 1.4), ylim=(-1.4, 1.4))
    axes.axis("off")
    axes.set_title(f"pair {pair}", color=color)
figure.suptitle("From position 0 to position 7")
axes = plt.figure(figsize=(6, 2.8)).subplots()
image = axes.imshow(positions.T, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
axes.set(xlabel="position", ylabel="number in the vector")
axes.set_title("All positions: a column each")
axes.figure.colorbar(image)

# %% [markdown]
# Near positions have like vectors. The dot product of two positions depends on their distance alone, which is how
# attention can learn "the word before".

# %%
likeness = positions @ positions.T
assert np.allclose(np.diag(likeness, 5), likeness[0, 5])

# %% tags=["hide-input"]
axes = plt.figure(figsize=(6, 2.4)).subplots()
for position, color in ((10, BLUE), (30, ORANGE)):
    axes.plot(likeness[position], color=color, label=f"with position {position}")
axes.set(xlabel="position", ylabel="dot product")
axes.set_title("Near positions are alike")
axes.legend()

# %% [markdown]
# ## Back to words: softmax
#
# At the end, a vector must become a word again. Its dot product with the embedding of each word is a score, also
# called *logit*: how well would this word fit? Taking the largest is simple, but jumps: one word wins everything, however
# close the second is. **Softmax** makes shares of the scores: e to the power of each, divided by the sum of all. Shares are
# positive and have the sum 1; a large lead becomes nearly everything, a tie stays a tie, and nothing jumps.
#
# The first picture is the way back, which is called **de-embedding**: the table of embeddings, lying on its side.

# %% tags=["hide-input"]
shown = ["photo", "photos", "letter", "old", "delete"]
few = np.array([embedding[number[word], :12] for word in shown])
few /= np.linalg.norm(few, axis=1, keepdims=True)
equation(
    Matrix(few[0], ["photo"], digits=-1),
    "×",
    Matrix(few.T, columns=shown, digits=-1),
    "=",
    Matrix(few[0] @ few.T, columns=shown, digits=2),
    title="De-embedding: “photo” scores highest, words like it come next",
)


# %%
def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


scores = np.array([[2.0, 1.8, 0.2, -1.0], [6.0, 1.8, 0.2, -1.0]])
assert np.allclose(softmax(scores), torch.tensor(scores).softmax(-1))

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.4))
for axes, row, title in zip(
    figure.subplots(1, 2, sharey=True), scores, ("A close race", "A clear lead"), strict=True
):
    places = np.arange(4)
    axes.bar(
        places - 0.2, np.arange(4) == row.argmax(), 0.4, color=GREY, alpha=0.5, label="largest"
    )
    axes.bar(places + 0.2, softmax(row), 0.4, color=BLUE, label="softmax")
    axes.set_xticks(
        places,
        [
            f"{word}\n{score:g}"
            for word, score in zip(("tea", "coffee", "cake", "if"), row, strict=True)
        ],
    )
    axes.set_title(title)
axes.legend()
figure.supylabel("share")

# %% [markdown]
# ## Attention, as it is
#
# With vectors instead of one-hot words, attention becomes smooth. Every word makes three vectors by three learned
# matrices: a query (what do I look for?), a key (what have I to offer?) and a value (what do I hand over?). The dot
# products of queries with keys are scores. They are divided by the square root of the keys' width E, so that wide vectors
# do not make huge scores, and softmax makes shares of them. The result is the mixture of the values:
#
# > attention(Q, K, V) = softmax(Q Kᵀ / √E) V
#
# In text that is being written, the words to the right are not there yet. A mask hides them: their scores become −∞, and
# their shares 0. [Chapter 2](2_attention_step_by_step.py) takes this formula apart, step by step.
#
# Softmax likes to choose *one* thing. A word may have to look at several, so attention happens several times side by
# side, each time on narrower vectors: these are the **heads**. Their results are joined, and one more matrix mixes them.


# %%
def attention(q, k, v, n_heads, causal):
    """(T, D), (S, D), (S, D) -> (T, D), and the shares (H, T, S)."""
    q, k, v = (x.unflatten(-1, (n_heads, -1)).transpose(0, 1) for x in (q, k, v))  # (H, T, E)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -torch.inf)
    shares = scores.softmax(-1)
    return (shares @ v).transpose(0, 1).flatten(1), shares


torch.manual_seed(1)
q, k, v = torch.randn(3, 7, 32)
ours, shares = attention(q, k, v, n_heads=4, causal=True)
heads = (x.unflatten(-1, (4, -1)).transpose(0, 1)[None] for x in (q, k, v))
theirs = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0]
assert torch.allclose(ours, theirs.transpose(0, 1).flatten(1), atol=1e-6)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.2))
for head, axes in enumerate(figure.subplots(1, 4, sharey=True), 1):
    heatmap(axes, shares[head - 1], range(1, 8), range(1, 8), f"head {head}", vmin=0, vmax=1)
figure.supxlabel("looks at word")
figure.supylabel("word")
shapes(
    [
        ("words", 1, 7, 32, GREY),
        ("queries", 4, 7, 8, BLUE),
        ("keys", 4, 7, 8, ORANGE),
        ("scores", 4, 7, 7, PINK),
        ("values", 4, 7, 8, GREEN),
        ("mixtures", 4, 7, 8, GREEN),
        ("joined", 1, 7, 32, GREY),
    ],
    "The shapes in four heads of attention",
    cell=0.25,
)

# %% [markdown]
# ## Skip connections
#
# The mixture of values does not replace the word's own vector, it is *added* to it: x + f(x). This **skip connection** has
# two good effects. The word itself is not forgotten, whatever attention looks at. And learning reaches the lower layers.
# Learning goes backwards through the layers, from the mistake at the end to the first numbers, and each layer weakens
# its signal; along the sum it passes unhindered. The picture shows how much of it arrives, through 20 random layers.

# %%
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(20)]
arrives = {}
for skip in (False, True):
    x = torch.randn(16, 64)
    inputs = []
    for layer in layers:
        inputs.append(x := x.detach().requires_grad_() if not inputs else x)
        x.retain_grad()
        x = x + layer(x) if skip else layer(x)
    x.square().mean().backward()
    arrives[skip] = [each.grad.norm().item() for each in inputs]
assert arrives[True][0] > 1000 * arrives[False][0]

# %% tags=["hide-input"]
axes = plt.figure(figsize=(6, 2.6)).subplots()
axes.semilogy(range(1, 21), arrives[True], color=BLUE, marker="o", label="x + f(x)")
axes.semilogy(range(1, 21), arrives[False], color=ORANGE, marker="o", label="f(x)")
axes.set(xlabel="layer", ylabel="size of the gradient")
axes.set_xticks(range(1, 21, 2))
axes.set_title("How much of the mistake reaches each layer")
axes.legend()

# %% [markdown]
# One can also look at the loss from above. Two random directions in the space of all weights span a plane, and the loss is
# a landscape over it. Without the sum it is rough, and a slope soon ends in another. With the sum it is a valley, whose slope
# leads down (the picture follows Li et al. 2018, *Visualizing the loss landscape of neural nets*).

# %%
torch.manual_seed(3)
x, wanted = torch.randn(64, 16), torch.randn(64, 16)
weights, *directions = torch.randn(3, 20, 16, 16) / 4
steps = torch.linspace(-1, 1, 25)


def losses(skip):
    """The loss of 20 layers for every pair of steps along the two directions."""
    found = torch.empty(len(steps), len(steps))
    for i, up in enumerate(steps):
        for j, right in enumerate(steps):
            h = x
            for layer in weights + up * directions[0] + right * directions[1]:
                h = h + torch.tanh(h @ layer) / 5 if skip else torch.tanh(h @ layer)
            found[i, j] = (h - wanted).square().mean()
    return found


surfaces = {"f(x)": losses(skip=False), "x + f(x)": losses(skip=True)}
rough = {
    name: (surface.diff(n=2, dim=0).abs().mean() / surface.std()).item()
    for name, surface in surfaces.items()
}
print({name: f"roughness {value:.2f}" for name, value in rough.items()})
assert rough["f(x)"] > 3 * rough["x + f(x)"]

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.8))
for i, (name, surface) in enumerate(surfaces.items(), 1):
    axes = figure.add_subplot(1, 2, i, projection="3d")
    axes.plot_surface(
        *torch.meshgrid(steps, steps, indexing="ij"),
        surface.numpy(),
        cmap="viridis",
        linewidth=0,
    )
    axes.set(xticks=[], yticks=[], zticks=[], title=f"the loss of {name}")

# %% [markdown]
# ## Normalization
#
# Sums grow: after many layers, the numbers would be far too large. **Layer normalization** brings each vector back: subtract
# its mean, divide by its standard deviation. Two learned vectors then stretch and shift it (they begin as 1 and 0).


# %%
def normalized(x):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(
        x.var(-1, unbiased=False, keepdim=True) + 1e-5
    )


x = torch.randn(5, 64) * 7 + 3
assert torch.allclose(normalized(x), nn.LayerNorm(64)(x), atol=1e-5)

# %% tags=["hide-input"]
sizes = {}
for norm in (False, True):
    x, sizes[norm] = torch.randn(16, 64), []
    for _ in range(20):
        x = x + nn.functional.relu(x @ torch.randn(64, 64) / 8)
        x = normalized(x) if norm else x
        sizes[norm].append(x.std().item())
axes = plt.figure(figsize=(6, 2.4)).subplots()
axes.semilogy(range(1, 21), sizes[False], color=ORANGE, marker="o", label="as it is")
axes.semilogy(range(1, 21), sizes[True], color=BLUE, marker="o", label="normalized")
axes.set(xlabel="layer", ylabel="size of the numbers")
axes.set_xticks(range(1, 21, 2))
axes.set_title("Without normalization, sums grow from layer to layer")
axes.legend()

# %% [markdown]
# ## Layers, and two stacks of them
#
# Attention and feed-forward, each with its skip connection and norm, are a **layer**. Layers are stacked, six in the
# paper. Think of a conveyor belt: the vectors pass all layers, and every layer lays something on top. What one misses,
# another may still find.

# %% tags=["hide-input"]
axes = plt.figure(figsize=(6, 1.9)).subplots()
axes.axis("off")
axes.set(xlim=(-0.5, 13.4), ylim=(-1.2, 2.9))
axes.annotate(
    "", (13.3, 0), (0.6, 0), arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 5}
)
axes.text(0.5, 0, "x", ha="right", va="center", fontsize=13)
for i in range(6):
    name, color = (("attention", BLUE), ("feed-forward", GREEN))[i % 2]
    here = 1.2 + 2 * i
    axes.add_patch(plt.Rectangle((here, 1.1), 1.5, 0.9, facecolor=color, edgecolor="none"))
    axes.text(here + 0.75, 1.55, name, ha="center", va="center", color="white", fontsize=6.5)
    for place, way in ((here + 0.2, ((0, 0.1), (0, 1.0))), (here + 1.3, ((0, 1.0), (0, 0.15)))):
        axes.annotate(
            "",
            (place, way[1][1]),
            (place, way[0][1]),
            arrowprops={"arrowstyle": "-|>", "color": color},
        )
    axes.text(here + 1.5, 0.45, "+", color=color, fontsize=11)
for i in range(3):
    axes.text(2.95 + 4 * i, 2.35, f"layer {i + 1}", ha="center", fontsize=9)
axes.set_title("Every layer reads what lies on the belt, and adds something")

# %% [markdown]
# - A **decoder** writes. Its attention is causal. Alone, it is a language model, such as GPT.
# - An **encoder** reads. It may look in both directions, as its text is all there.
# - **Cross-attention** joins the two. It is a third part in each layer of the decoder: the queries come from the text that
#   is being written, keys and values from what the encoder made of the source.
#
# That is the whole Transformer; [figure 1 of the paper](../figure_1.md) has it in one picture, with the names of our classes.
# Here it is, written with the pieces of this chapter. The numbers, random as yet, are those of a `td.Transformer`, so that
# the results can be compared.


# %%
def add_and_norm(x, change, sublayer):
    return sublayer.norm(x + change)


def through(layer, x, n_heads, causal, memory=None):
    own, _ = attention(*layer.attention.qkv(x).chunk(3, -1), n_heads, causal)
    x = add_and_norm(x, layer.attention.output(own), layer.attention_sublayer)
    if memory is not None:
        source, _ = attention(
            layer.cross.q(x), *layer.cross.kv(memory).chunk(2, -1), n_heads, causal=False
        )
        x = add_and_norm(x, layer.cross.output(source), layer.cross_sublayer)
    thought = layer.feed_forward.narrow(layer.feed_forward.wide(x).relu())
    return add_and_norm(x, thought, layer.feed_forward_sublayer)


def embed(table, ids):
    return table[ids] * math.sqrt(table.size(1)) + sinusoidal(0, len(ids), table.size(1))


def transformer(model, source, target):
    n_heads = model.config.n_heads
    memory, x = (
        embed(model.source_input.weight, source),
        embed(model.target_input.weight, target),
    )
    for layer in model.encoder.layers:
        memory = through(layer, memory, n_heads, causal=False)
    for layer in model.decoder.layers:
        x = through(layer, x, n_heads, causal=True, memory=memory)
    return x @ model.output.T  # the logits of the next word, at every position


torch.manual_seed(1)
config = td.TransformerConfig(
    encoder=td.StackConfig(input=td.Tokens(vocab_size=50), n_layers=3),
    decoder=td.StackConfig(input=td.Tokens(vocab_size=40), n_layers=2),
    d_model=64,
    n_heads=4,
    d_ff=128,
)
model = td.Transformer(config).eval()
source, target = torch.randint(50, (9,)), torch.randint(40, (6,))
with torch.no_grad():
    by_hand = transformer(model, source, target)
    ours = model(source=source[None], target_in=target[None])[0]
print("shape:", tuple(ours.shape), f" largest difference: {(ours - by_hand).abs().max():.1e}")
assert torch.allclose(ours, by_hand, atol=1e-5)

# %% [markdown]
# The shapes on the way, for `S` = 9 words of the source and `T` = 6 of the target: every layer gives back what it got, so
# there can be any number of them.

# %%
trace = []
hooks = [
    part.register_forward_hook(
        lambda _, __, out, name=name: trace.append(
            (name, tuple((out[0] if isinstance(out, tuple) else out).shape[1:]))
        )
    )
    for name, part in model.named_modules()
    if name in ("source_input", "target_input") or name.split(".")[-2:-1] == ["layers"]
]
with torch.no_grad():
    logits = model(source=source[None], target_in=target[None])
for hook in hooks:
    hook.remove()
trace.append(("logits", tuple(logits.shape[1:])))
assert [shape for _, shape in trace] == [(9, 64)] * 4 + [(6, 64)] * 3 + [(6, 40)]

# %% tags=["hide-input"]
shapes(
    [
        (
            name.replace("_input", "\nembedded").replace(".layers.", "\nlayer "),
            1,
            *shape,
            BLUE
            if name.startswith(("source", "encoder"))
            else GREEN
            if name != "logits"
            else ORANGE,
        )
        for name, shape in trace
    ],
    "The shapes on the way: a row for each word",
)

# %% [markdown]
# ## Where does it learn to look?
#
# We drew our mask by hand: after "is", look at the food. Now a decoder shall find that out by itself. It has one layer
# with one head. It is shown 48 sentences: six foods, each with its own way to spoil, at four places that do not matter,
# in two orders, so that the food may be the third word or the sixth. Only its guess of the last word counts.
#
# It begins with very small numbers, as GPT-2 did. So at first all scores are nearly 0, and it looks everywhere alike.

# %%
FOODS = {
    "bread": "stale",
    "milk": "sour",
    "soup": "cold",
    "apples": "rotten",
    "tea": "weak",
    "cheese": "mouldy",
}
sentences = [
    f"{order} and see if it is {state}".split()
    for food, state in FOODS.items()
    for place in ("shelf", "table", "cellar", "oven")
    for order in (f"take the {food} from the {place}", f"from the {place} take the {food}")
]
words = sorted({word for sentence in sentences for word in sentence})
ids = torch.tensor([[words.index(word) for word in sentence] for sentence in sentences])

torch.manual_seed(2)
config = td.TransformerConfig(
    decoder=td.StackConfig(input=td.Tokens(vocab_size=len(words)), n_layers=1),
    d_model=32,
    n_heads=1,
    d_ff=64,
    dropout=0.0,
    init="gpt2",
    norm_position="pre",
    positions="learned",
    scale_embeddings=False,
)
model = td.Transformer(config)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


def looks():
    """(sentences, positions): the shares of the last position."""
    with torch.no_grad():
        layer, found = model.decoder.layers[0], []
        for row in ids[:, :-1]:
            x = model.target_input.weight[row] + model.decoder.positions.learned[: len(row)]
            x = layer.attention_sublayer.norm(x)
            _, shares = attention(*layer.attention.qkv(x).chunk(3, -1), 1, causal=True)
            found.append(shares[0, -1])
    return torch.stack(found)


before = looks()
for update in range(101):
    logits = model(target_in=ids[:, :-1])[:, -1]
    loss = nn.functional.cross_entropy(logits, ids[:, -1])
    if update % 25 == 0:
        right = (logits.argmax(-1) == ids[:, -1]).float().mean().item()
        print(f"update {update:3}: loss {loss.item():.2f}, right {right:.0%}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
after = looks()
assert right == 1
foods = torch.tensor([[word in FOODS for word in sentence[:-1]] for sentence in sentences])
assert after[foods].min() > 0.5  # more than all other words together

# %% tags=["hide-input"]
for example in (0, 1):
    equation(
        Matrix(
            torch.stack((before[example], after[example])),
            ["before", "after"],
            sentences[example][:-1],
            digits=2,
        ),
        title="Where “is” looks, before and after training" if example == 0 else "",
    )

# %% [markdown]
# That is our mask, and nobody drew it.
#
# ## Pieces of words
#
# Which words does a vocabulary have? All forms of all words, all names and all misspellings are too many; single letters
# are few, but mean little and make sequences long. **Byte pair encoding** (BPE) lies in between, and lets the text decide.
# Begin with letters. Find the pair of neighbours that occurs most often, and make it one piece. Repeat.

# %%
COUNTS = {"bake": 9, "baker": 7, "baking": 6, "cake": 12, "cakes": 5, "making": 4, "maker": 3}


def merge(pieces, pair):
    merged = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


cut, merges = {word: list(word) for word in COUNTS}, []
for _ in range(4):
    pairs = {}
    for word, n in COUNTS.items():
        for pair in pairwise(cut[word]):
            pairs[pair] = pairs.get(pair, 0) + n
    merges.append(max(pairs, key=pairs.get))
    cut = {word: merge(pieces, merges[-1]) for word, pieces in cut.items()}
    print(
        f"{merges[-1]} {pairs[merges[-1]]} times:",
        " ".join("·".join(pieces) for pieces in cut.values()),
    )

# %% [markdown]
# Frequent words become one piece, rare ones a few, and a new word can still be spelled. A well-known library finds the
# same merges:

# %%
import json

from tokenizers import Tokenizer, models, trainers

tokenizer = Tokenizer(models.BPE())
trainer = trainers.BpeTrainer(vocab_size=len(set("".join(COUNTS))) + 4, show_progress=False)
tokenizer.train_from_iterator((word for word, n in COUNTS.items() for _ in range(n)), trainer)
theirs = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
assert theirs == merges, theirs

# %% [markdown]
# `transduce` trains such a vocabulary on the text that it learns from. This is what one of 600 pieces makes of a command
# that it has never seen ("▁" is a space):

# %%
from transduce import experiment as ex

tokenizer, _ = ex.train_tokenizer_pair(
    corpus.splitlines()[:4000], [], vocab_size=600, joint=True
)
unseen = ["Photograph the old bakeries."]
print(" ".join(tokenizer.tokens(tokenizer.encode(unseen)[0])))
assert tokenizer.decode(tokenizer.encode(unseen)) == unseen

# %% [markdown]
# ## Sound
#
# Sound needs no vocabulary. A recording is a long list of numbers, 16,000 per second. The ear does not follow each of them;
# it hears how much there is of each pitch. So we cut the sound into short windows, 100 per second, and measure the
# loudness of 80 pitch bands in each, more finely for low pitches than for high ones. The logarithms of these are a
# *log-mel spectrogram*. A cosine transform of each window then separates the coarse shape of the sound, which tells the
# vowel, from finer detail: *MFCC*.

# %%
from transduce.data.audio import read_audio
from transduce.data.features import FeatureExtractor

sounds = DATA / "commands" / "sound"
header, row = (line.split("\t") for line in (sounds / "test.tsv").read_text().splitlines()[:2])
recording = dict(zip(header, row, strict=True))
waveform = read_audio(sounds / recording["audio"], 16000)
extract = FeatureExtractor(ex.FeatureConfig())
log_mel, frames = extract.log_mel(waveform), extract(waveform)
print(
    f"{recording['text']!r}: {len(waveform)} samples, {len(frames)} frames of {frames.size(1)} numbers"
)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 4.6))
seconds = len(waveform) / 16000
wave, mel, mfcc = figure.subplots(3, 1, sharex=True)
wave.plot(np.arange(len(waveform)) / 16000, waveform.numpy(), color=BLUE, linewidth=0.4)
wave.set_title(f"“{recording['text']}”")
wave.set_ylabel("pressure")
for axes, values, label in ((mel, log_mel, "log-mel band"), (mfcc, frames, "MFCC")):
    axes.imshow(
        values.T.numpy(),
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, values.size(1)),
        cmap="viridis",
    )
    axes.set_ylabel(label)
mfcc.set_xlabel("seconds")

# %% [markdown]
# Each frame is a vector of real numbers, which is just what an embedding would have made of a word. So frames go into the
# encoder *as they are*, four at a time, without a vocabulary and without a table. What follows is the same
# Transformer, and its decoder writes text.

# %%
config = td.TransformerConfig(
    encoder=td.StackConfig(input=td.Frames(n_features=40, stack=4), n_layers=2),
    decoder=td.StackConfig(input=td.Tokens(vocab_size=600), n_layers=2),
    d_model=160,
    n_heads=4,
)
model = td.Transformer(config).eval()
vectors, _ = model.source_input(frames[None])
assert torch.equal(vectors[0, 0], frames[:4].flatten())  # no weight in between
print("the encoder sees", tuple(vectors.shape[1:]))

# %% [markdown]
# ## What to read next
#
# [Chapter 2](2_attention_step_by_step.py) takes attention apart, number by number. [Chapter
# 3](3_attention_in_chat_models.py) shows what has changed since 2017. To train a real model, go to
# [your own experiment](../your_own_experiment.md), or run the demo: a translator in a minute.
