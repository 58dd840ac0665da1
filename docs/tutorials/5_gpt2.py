# %% [markdown]
# # 5. GPT-2 from nothing
#
# GPT-2 does one thing: it reads a text and says how likely each token is to come next. All else, that it answers, tells
# or writes programs, follows from doing that again and again. This chapter builds it in about forty lines, proves that
# they compute what `transduce` and the library `transformers` compute, trains a small one, and lets it write.
#
# You need to know Python. [Tutorial 4](4_transformer.py) shows the same parts in a model with an encoder.

# %%
import importlib.util
import json
import math
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA

torch.manual_seed(1)
torch.set_num_threads(1)
BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"
plt.rcParams.update(
    {"figure.constrained_layout.use": True, "font.size": 9, "legend.frameon": False}
)

# %% [markdown]
# ## 5.1 Five numbers
#
# Five numbers say how large a GPT-2 is. The smallest one that was published has
#
# | number | name here | GPT-2 "small" |
# |---|---|---|
# | tokens that it knows | `vocab_size` | 50,257 |
# | tokens that it sees at once | `max_positions` | 1,024 |
# | numbers in a vector | `d_model` | 768 |
# | layers | `n_layers` | 12 |
# | attention heads in a layer | `n_heads` | 12 |
#
# They also say how many parameters it has. Let `d` be the width. A layer has four matrices of `d × d` for attention
# and two of `d × 4d` for the feed-forward, with their biases, and two norms: `12 d² + 13 d`. Then there are the two
# tables, and a last norm.

# %%
from transduce.model.meta import n_parameters

vocab_size, context, d, n_layers = 50257, 1024, 768, 12
parts = {
    "token table": vocab_size * d,
    "positions": context * d,
    "attention": n_layers * (4 * d * d + 4 * d),
    "feed-forward": n_layers * (8 * d * d + 5 * d),
    "norms": n_layers * 4 * d + 2 * d,
}
assert sum(parts.values()) == n_parameters(ex.gpt2()) == 124_439_808

figure, axes = plt.subplots(figsize=(5.5, 2.2))
axes.barh(list(parts), [n / 1e6 for n in parts.values()], color=BLUE)
axes.invert_yaxis()
axes.set(xlabel="million parameters, 124.4 in all", title="GPT-2 small")

# %% [markdown]
# ## 5.2 A vector for every token
#
# The text we train on ships with `transduce`: 12,000 English commands to a computer. As GPT-2 does, we cut it into
# pieces by *byte pair encoding* (BPE): it begins with single bytes, and joins the pair that is most frequent, again and
# again, until there are as many pieces as we want, here 500. Frequent words end up as one piece, rare ones are spelled.
# The Ġ below stands for a space.
#
# A token comes in as a number that means nothing: token 300 is not more than token 100. So the first step is a table with
# a row of `d` numbers for every token. They are drawn at random, and training improves them like any other parameter.

# %%
folder = DATA / "commands"
language = ex.TextFiles(train=(folder / "train.en",), valid=(folder / "valid.en",)).read(
    "byte_bpe", 500
)
tokenizer = language.tokenizer
(ids,) = tokenizer.encode(["Print the list with the recipes."])
pieces = tokenizer.tokens(ids)
table = nn.Embedding(tokenizer.vocab_size, 16)
vectors = table(torch.tensor(ids))
first, second = (i for i, piece in enumerate(pieces) if piece == "Ġthe")
assert vectors.shape == (len(pieces), 16) and torch.equal(vectors[first], vectors[second])
print(
    f"{tokenizer.vocab_size} pieces, a text of {len(language.train):,} tokens\n{pieces}\n{ids}"
)

# %% [markdown]
# ## 5.3 A vector for every place
#
# The same row stands for a token wherever it is. But "dog bites man" is not "man bites dog". Attention itself cannot tell
# them apart: if its inputs change places, its outputs change places, and nothing else happens.
#
# GPT-2 learns a second table, a row for place 0, one for place 1, and so on, and adds it. That is all; and it is the reason
# why such a model has a longest text.

# %%
places = nn.Embedding(32, 16)
dog, bites, man = 300, 301, 302  # any three tokens
tokens = table(torch.tensor([[dog, bites, man], [man, bites, dog]]))
mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
torch.testing.assert_close(mixed[0], mixed[1].flip(0))  # without places: the same three vectors
placed = tokens + places(torch.arange(3))
mixed = F.scaled_dot_product_attention(placed, placed, placed)
assert not torch.allclose(mixed[0], mixed[1].flip(0), atol=0.01)  # with places: another text

# %% [markdown]
# ## 5.4 What attention is for
#
# Take the word *seal*. In "the seal dives" it is an animal, in "the seal on the letter" it is made of wax. The table has
# one row for both. So a model needs a way to move the vector of a word, depending on its company.
#
# Let vectors have two numbers, "how much of an animal" and "how much of office". For *seal* they are 1 and 1: undecided.
# Attention takes three steps:
#
# 1. compare: multiply the vector of *seal* with that of each word, which gives a score for each;
# 2. turn the scores into weights that sum to 1 (softmax);
# 3. take the mean of all vectors with these weights.
#
# Nobody has to know the right reading in advance. The company decides.

# %%
meaning = {
    "seal": (1.0, 1.0),
    "dives": (2.0, 0.0),
    "fish": (1.8, 0.1),
    "letter": (0.0, 2.0),
    "signed": (0.2, 1.7),
}
figure, axes = plt.subplots(figsize=(4, 3.4))
for company, colour in ((("dives", "fish"), BLUE), (("letter", "signed"), ORANGE)):
    points = torch.tensor([meaning[word] for word in ("seal", *company)])
    weights = (points[0] @ points.T / math.sqrt(2)).softmax(dim=-1)
    moved = weights @ points
    assert (
        (moved[0] > 1.2 > 0.8 > moved[1])
        if company[0] == "dives"
        else (moved[0] < 0.8 < 1.2 < moved[1])
    )
    axes.annotate(
        "", moved, (1, 1), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.5}
    )
    for word in company:
        axes.plot(*meaning[word], "o", color=colour)
        axes.annotate(
            word, meaning[word], xytext=(6, 4), textcoords="offset points", color=colour
        )
axes.plot(1, 1, "o", color="black")
axes.annotate("seal", (1, 1), xytext=(6, 4), textcoords="offset points")
axes.set(xlabel="animal", ylabel="office", xlim=(-0.2, 2.5), ylim=(-0.2, 2.4))
axes.set_title("attention moves a vector")

# %% [markdown]
# ## 5.5 Queries, keys and values
#
# Among vectors of one length, none has a larger dot product with a vector than the vector itself: compared as they are,
# tokens would mostly look at themselves. A model should be able to look for what is *different*: a verb for its subject, a
# pronoun for its noun. So every vector is turned into three by learned matrices: a **query**, what
# it looks for; a **key**, what it is found by; and a **value**, what it gives. A query and a key must be of one width, as
# they are multiplied; a value may have another.
#
#     softmax(Q Kᵀ / √d) V
#
# With `T` tokens, `Q Kᵀ` is a square of `T × T` scores. Here it is first in loops, as it is meant, and then as
# two products of matrices.


# %%
def attend_in_loops(query, key, value):
    mixed = []
    for q in query.tolist():
        scores = [
            math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)))
            for k in key.tolist()
        ]
        rows = [
            [s / sum(scores) * number for number in v]
            for s, v in zip(scores, value.tolist(), strict=True)
        ]
        mixed.append([sum(column) for column in zip(*rows, strict=True)])
    return torch.tensor(mixed)


x = torch.randn(6, 16)
to_q, to_k, to_v = (nn.Linear(16, 16, bias=False) for _ in range(3))
with torch.no_grad():
    q, k, v = to_q(x), to_k(x), to_v(x)
    by_matrices = (q @ k.T / math.sqrt(16)).softmax(dim=-1) @ v
    torch.testing.assert_close(by_matrices, attend_in_loops(q, k, v))
    # one matrix of three times the height does the work of three
    q2, k2, v2 = (x @ torch.cat((to_q.weight, to_k.weight, to_v.weight)).T).chunk(3, dim=-1)
    torch.testing.assert_close(torch.cat((q2, k2, v2)), torch.cat((q, k, v)))

# %% [markdown]
# ## 5.6 Do not look ahead
#
# The model shall predict the next token, so it must not see it. Before softmax, the scores of all later places become
# `−∞`, and their weights `exp(−∞) = 0`. That is the *causal mask*.
#
# It has a second advantage. As no place sees what follows, one pass over a text gives a fair prediction at *every* place:
# a text of 1,024 tokens is 1,024 exercises.

# %%
visible = torch.ones(6, 6, dtype=torch.bool).tril()
with torch.no_grad():
    scores = (q @ k.T / math.sqrt(16)).masked_fill(~visible, -math.inf)
    weights = scores.softmax(dim=-1)
assert weights[0].tolist() == [1.0, 0, 0, 0, 0, 0]  # the first token has only itself
torch.testing.assert_close(weights.sum(dim=-1), torch.ones(6))
torch.testing.assert_close(
    weights @ v, F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
)

figure, axes = plt.subplots(1, 2, figsize=(6, 2.9), sharey=True)
for each, picture, title in (
    (axes[0], visible.float(), "may look"),
    (axes[1], weights, "weights"),
):
    image = each.imshow(picture.numpy(), cmap="Blues", vmin=0, vmax=1)
    each.set(xlabel="looked at", title=title, xticks=range(6), yticks=range(6))
    each.spines[:].set_visible(False)
axes[0].set(ylabel="place")
figure.colorbar(image, ax=axes)

# %% [markdown]
# ## 5.7 The whole model
#
# What is left is familiar from tutorial 4. Several **heads** look in several ways at once: the vector of 768 numbers is cut
# into 12 of 64, each part attends by itself, and a matrix mixes the results. The **feed-forward** then works on each place
# alone: four times as wide, GELU, and back. GPT-2 computes GELU by a formula with tanh, which differs from the exact
# `x Φ(x)` of many other programs by less than 0.0005. **Residuals** add what came in, and **layer norms** stand *before* attention
# and feed-forward (pre-norm), and once more at the end.
#
# The logits are products of the last vectors with the *same* table that the tokens came from. So a token that is a good
# answer lies in the direction of the vector that asks for it, and the largest table of the model exists only once.


# %%
class Block(nn.Module):
    """One layer: first look at the other places, then think about what was seen."""

    def __init__(self, d: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.qkv, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm2, self.widen, self.narrow = (
            nn.LayerNorm(d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )

    def look(self, x):
        rows, length, d = x.shape
        q, k, v = (
            self.qkv(x)
            .view(rows, length, 3, self.n_heads, d // self.n_heads)
            .permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.mT / math.sqrt(d // self.n_heads)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        seen = scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v
        return self.mix(seen.transpose(1, 2).reshape(rows, length, d))

    def forward(self, x):
        x = x + self.look(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class TinyGPT2(nn.Module):
    def __init__(
        self, vocab_size: int, context: int, d: int, n_layers: int, n_heads: int
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, d), nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


own = TinyGPT2(vocab_size=tokenizer.vocab_size, context=32, d=64, n_layers=2, n_heads=4)
ids = torch.randint(tokenizer.vocab_size, (2, 20))
with torch.no_grad():
    logits = own(ids)
    later = ids.clone()
    later[:, 12:] = 0
    torch.testing.assert_close(
        own(later)[:, :12], logits[:, :12]
    )  # another future, the same past
assert logits.shape == (2, 20, tokenizer.vocab_size)
line = torch.linspace(-6, 6, 1201)
assert (F.gelu(line) - F.gelu(line, approximate="tanh")).abs().max() < 5e-4

# %% [markdown]
# ## 5.8 The same model in transduce
#
# In `transduce`, GPT-2 is no class of its own: it is a Transformer without an encoder, and `ex.gpt2()` is its
# configuration. Here is a small one. With the weights of the forty lines above it gives the same logits.

# %%
base = ex.gpt2(tokenizer.vocab_size, n_layers=2)
config = replace(
    base, d_model=64, n_heads=4, d_ff=256, max_positions=32, dropout=0.0, attention_dropout=0.0
)
model = td.Transformer(config).eval()

names = {"norm1": "attention_sublayer.norm", "qkv": "attention.qkv", "mix": "attention.output"}
names |= {
    "norm2": "feed_forward_sublayer.norm",
    "widen": "feed_forward.wide",
    "narrow": "feed_forward.narrow",
}
with torch.no_grad():
    model.target_input.weight.copy_(own.tokens.weight)
    model.decoder.positions.learned.copy_(own.places.weight)
    model.decoder.norm.load_state_dict(own.norm.state_dict())
    for layer, block in zip(model.decoder.layers, own.blocks, strict=True):
        for here, there in names.items():
            layer.get_submodule(there).load_state_dict(block.get_submodule(here).state_dict())
    torch.testing.assert_close(model(target_in=ids), own(ids), rtol=1e-4, atol=1e-4)
assert (
    sum(p.numel() for p in model.parameters())
    == sum(p.numel() for p in own.parameters())
    == n_parameters(config)
)

# %% [markdown]
# And is this really GPT-2? The library `transformers` has the original. If it is installed, the next cell makes a small
# model there, with random weights, saves it as any model of theirs is saved, lets `transduce import` read it, and compares.
# The same command reads the real GPT-2, once its files are on your disk.

# %%
if importlib.util.find_spec("transformers") is None:
    print(
        "transformers is not installed, so this comparison is left out: pip install transformers"
    )
else:
    from tokenizers import pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    from transduce.cli.main import main
    from transduce.run import load_model

    with tempfile.TemporaryDirectory() as temporary:
        theirs, run = Path(temporary) / "theirs", Path(temporary) / "run"
        sizes = {"vocab_size": 257, "n_positions": 48, "n_embd": 64, "n_layer": 2, "n_head": 4}
        sizes |= {"bos_token_id": 256, "eos_token_id": 256}
        original = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3)).eval()
        original.save_pretrained(theirs)
        alphabet = {
            byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
        }
        (theirs / "vocab.json").write_text(json.dumps(alphabet | {"<|endoftext|>": 256}))
        (theirs / "merges.txt").write_text("#version: 0.2\n")
        main(["import", str(theirs), str(run)])
        ids = torch.randint(257, (2, 20))
        with torch.no_grad():
            torch.testing.assert_close(
                load_model(run)(target_in=ids), original(ids).logits, rtol=1e-3, atol=1e-3
            )
    print("the same logits as transformers")

# %% [markdown]
# ## 5.9 The loss
#
# The loss is cross-entropy: the mean of `−ln p`, with `p` the probability that the model gave to the token that really
# came. Three figures give it a meaning, for a vocabulary of `V` tokens:
#
# - `ln V` is the loss of somebody who guesses. GPT-2's initial weights are small, so every model begins there.
# - The entropy of single tokens is the loss of a model that knows how frequent each is.
# - That of pairs is the loss of a model that looks at one token before. To be better, one must read.

# %%
text = torch.from_numpy(language.train.read(0, len(language.train))).long()
n = tokenizer.vocab_size
counts = torch.zeros(n, n, dtype=torch.float64).index_put_(
    (text[:-1], text[1:]), torch.ones(()).double(), True
)
share = counts.sum(0) / counts.sum()
single = float(-torch.special.xlogy(share, share).sum())
rows = counts / counts.sum(1, keepdim=True).clamp_min(1)
pairs = float(-torch.special.xlogy(counts, rows).sum() / counts.sum())

torch.manual_seed(1)
model = td.Transformer(config)
objective = ex.CrossEntropy(model, label_smoothing=0.0)
windows = ex.TokenWindows(stream=language.train, context=32, batch_size=12, seed=1)
held_out = ex.HeldOutWindows(language.valid, context=32, batch_size=64)


def validation_loss() -> float:
    model.eval()
    with torch.no_grad():
        found = float(
            sum(objective(b).total for b in held_out) / sum(b.n_tokens for b in held_out)
        )
    model.train()
    return found


untrained = validation_loss()
assert abs(untrained - math.log(n)) < 0.1
print(
    f"guessing {math.log(n):.2f}, this model {untrained:.2f}, frequencies {single:.2f}, pairs {pairs:.2f}"
)

# %% [markdown]
# ## 5.10 Training
#
# A batch is 12 windows of 32 tokens from random places of the text. What goes in is the window, what should come out is
# the window moved by one. Each update asks for the gradient and lets AdamW take a step. The rate rises, and then falls along
# half a cosine. The W of AdamW is *weight decay*, which also draws every weight a little towards 0 at each update, against
# learning by heart; so short a training does without.

# %%
N_UPDATES = 300
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
losses, checks = [], [(0, untrained)]
first = windows.epoch(0)
assert torch.equal(first[0].target_in[:, 1:], first[0].target_out[:, :-1])
for update in range(1, N_UPDATES + 1):
    batch = first[update - 1]
    loss = objective(batch).total / batch.n_tokens
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    warm, cosine = min(1.0, update / 20), (1 + math.cos(math.pi * update / N_UPDATES)) / 2
    optimizer.param_groups[0]["lr"] = 1e-2 * warm * cosine
    optimizer.step()
    losses.append(loss.item())
    if update % 60 == 0:
        checks.append((update, validation_loss()))
model.eval()

figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(range(1, N_UPDATES + 1), losses, color=GREY, label="training")
axes.plot(*zip(*checks, strict=True), color=BLUE, marker="o", markersize=4, label="validation")
for level, name in ((math.log(n), "guessing"), (single, "frequencies"), (pairs, "pairs")):
    axes.axhline(level, color=ORANGE, linestyle="--", linewidth=0.8)
    axes.text(N_UPDATES, level, name, color=ORANGE, ha="right", va="bottom", fontsize=8)
axes.set(xlabel="update", ylabel="loss (nats per token)", ylim=(0, 7))
axes.legend(loc="lower left")
axes.set_title("learning curve")
assert checks[-1][1] < pairs - 0.05  # it reads more than one token
print(f"after {N_UPDATES} updates: {checks[-1][1]:.2f} nats per token")

# %% [markdown]
# ## 5.11 What do the heads look at?
#
# Here are the four heads of both layers, reading a sentence. Each row is a token, dark where it looks. No two heads of a
# layer look alike, and nobody told them where to look: it is what made the loss smaller. Below the first layer there are
# only tokens and places; the second reads what the first has made of them. `ex.self_attention` gives the weights of any
# model, and the cell computes those of the first layer by hand as well.

# %%
(ids,) = tokenizer.encode(["Show me the new photos of your sister."])
pieces = [piece.replace("Ġ", "") for piece in tokenizer.tokens(ids)]
layer, n_tokens = model.decoder.layers[0], len(ids)
with torch.no_grad():
    x = model.decoder.positions(model.target_input(torch.tensor([ids]))[0], 0)
    qkv = layer.attention.qkv(layer.attention_sublayer.norm(x)).view(n_tokens, 3, 4, 16)
    q, k, _ = qkv.permute(1, 2, 0, 3)
    future = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
    looks = (q @ k.mT / math.sqrt(16)).masked_fill(future, -math.inf).softmax(dim=-1)
torch.testing.assert_close(looks.sum(dim=-1), torch.ones(4, n_tokens))
every = ex.self_attention(model, target_in=torch.tensor([ids]))[:, 0]  # (layers, heads, T, T)
torch.testing.assert_close(every[0], looks)
assert all(
    (layer[a] - layer[b]).abs().max() > 0.2
    for layer in every
    for a in range(4)
    for b in range(a)
)  # no two alike

figure, axes = plt.subplots(2, 4, figsize=(7, 4.4), sharex=True, sharey=True)
for row, layer in zip(axes, every, strict=True):
    for head, each in enumerate(row):
        each.imshow(layer[head].numpy(), cmap="Blues", vmin=0, vmax=1)
        each.set_xticks(range(n_tokens), pieces, fontsize=6, rotation=90)
        each.set_yticks(range(n_tokens), pieces, fontsize=6)
        each.tick_params(length=0)
        each.spines[:].set_visible(False)
for head, each in enumerate(axes[0]):
    each.set_title(f"head {head + 1}")
for i, row in enumerate(axes, 1):
    row[0].set(ylabel=f"layer {i}")

# %% [markdown]
# How far do they look? The mean distance from a token to what it looks at, head by head. In large models the heads of low
# layers are mostly near-sighted (the word before, parts of the same phrase), and those further up look farther.

# %%
far = torch.arange(n_tokens)[:, None] - torch.arange(n_tokens)
distance = (every * far).sum(dim=-1).mean(dim=-1)  # (layers, heads)
for i, row in enumerate(distance.tolist(), 1):
    print(
        f"layer {i}: " + ", ".join(f"head {h} {d:.1f} tokens back" for h, d in enumerate(row, 1))
    )
assert distance.min() >= 0 and distance.max() < n_tokens

# %% [markdown]
# ## 5.12 Writing
#
# To write, draw a token from the probabilities, put it behind the text, and ask again. Three settings make it more or less
# daring:
#
# - **temperature** `τ`: the logits are divided by it. Below 1 the likely becomes likelier; at 0 only the likeliest is
#   left, which is greedy search; above 1 rare tokens get their chance.
# - **top-k**: draw among the `k` likeliest tokens only, so that the thousands of bad ones, which together weigh something,
#   never come.
# - **nucleus sampling**, or top-p: draw among the likeliest tokens that together have the probability `p`. Where the model is
#   sure these are few, and where it is not they are many (Holtzman et al. 2020).

# %%
prompt = "Please"
with torch.no_grad():
    logits = model(target_in=torch.tensor(tokenizer.encode([prompt])))[0, -1]
order = logits.argsort(descending=True)[:12]
pieces = [piece.replace("Ġ", "") for piece in tokenizer.tokens(order.tolist())]

figure, axes = plt.subplots(1, 4, figsize=(7, 2.4), sharey=True)
settings = (
    (0.5, 0, 1.0, "temperature 0.5"),
    (1.5, 0, 1.0, "temperature 1.5"),
    (1.5, 4, 1.0, "1.5, top-k 4"),
    (1.5, 0, 0.5, "1.5, top-p 0.5"),
)
for each, (temperature, top_k, top_p, title) in zip(axes, settings, strict=True):
    scores = logits / temperature
    if top_k:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf)
    likeliest, places = scores.softmax(dim=-1).sort(descending=True)
    beyond = (
        likeliest.cumsum(dim=-1) - likeliest >= top_p
    )  # what comes before has enough already
    scores = scores.index_fill(0, places[beyond], -math.inf)
    each.bar(range(12), scores.softmax(dim=-1)[order].numpy(), color=BLUE)
    each.set(title=title, xlabel="next token")
    each.set_xticks(
        range(12), pieces, fontsize=7, rotation=60, ha="right", rotation_mode="anchor"
    )
axes[0].set(ylabel="probability")
cold, warm = ((logits / t).softmax(dim=-1).max() for t in (0.5, 1.5))
assert cold > logits.softmax(dim=-1).max() > warm

# %% [markdown]
# `td.Generator` does the rest. It also keeps the keys and values of what was read (the *cache*), so that a new token costs
# one position and not the whole text again. The numbers are the same, which the last lines check.

# %%
generator = td.Generator(model, tokenizer)
for temperature, top_k in ((0.0, 0), (0.8, 10), (1.5, 0)):
    how = td.GenerationConfig(max_length=24, temperature=temperature, top_k=top_k, seed=3)
    print(
        f"temperature {temperature}, top-k {top_k or 'off'}: {prompt + generator([prompt], how)[0]!r}"
    )

greedy = tokenizer.encode([prompt])[0]
with torch.no_grad():
    for _ in range(24):
        greedy.append(int(model(target_in=torch.tensor([greedy]))[0, -1].argmax()))
    cache, ids = model.new_cache(), torch.tensor([greedy])
    steps = torch.cat(
        [model.decode(ids[:, i : i + 1], cache=cache) for i in range(ids.size(1))], dim=1
    )
    torch.testing.assert_close(steps, model(target_in=ids), rtol=1e-3, atol=1e-3)
assert generator(
    [prompt], td.GenerationConfig(max_length=24, temperature=0.0)
) == tokenizer.decode([greedy[1:]])

# %% [markdown]
# ## 5.13 Larger is better, up to a point
#
# Four models of different widths, trained on the same windows for as many updates each. The loss falls with the number of
# parameters along a line, if both axes are logarithmic: that is a *scaling law* (Kaplan et al. 2020). It holds over many
# orders of magnitude, for parameters, text and compute alike, as long as none of the other two is short. For a given
# compute, parameters and text should grow together, about 20 tokens per parameter (Hoffmann et al. 2022, *Chinchilla*).
#
# Some abilities are hardly there in small models and then are: to answer from two or three examples in the prompt
# (*few-shot*, or in-context learning; Brown et al. 2020), or better after writing the steps first (*chain of thought*; Wei
# et al. 2022). How sudden such an *emergence* is depends on what one measures: the loss itself falls smoothly (Schaeffer et
# al. 2023). *Grokking* is sudden in time, not in size: a small network that has long known its exercises by heart finds,
# after many more updates, the rule behind them (Power et al. 2022). A model of minutes shows none of this. The
# picture goes on with larger models by `python recipes/language_model.py --tokenizer byte_bpe --vocab-size 500
# --model.d-model 256`.

# %%
found = []
for width in (8, 16, 32, 64):
    torch.manual_seed(1)
    other = replace(config, d_model=width, d_ff=4 * width, n_heads=2)
    small = td.Transformer(other)
    objective = ex.CrossEntropy(small, label_smoothing=0.0)
    optimizer = torch.optim.AdamW(small.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    for update in range(1, 121):
        batch = first[update - 1]
        optimizer.zero_grad()
        (objective(batch).total / batch.n_tokens).backward()
        nn.utils.clip_grad_norm_(small.parameters(), 1.0)
        cosine = (1 + math.cos(math.pi * update / 120)) / 2
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, update / 20) * cosine
        optimizer.step()
    small.eval()
    with torch.no_grad():
        total = sum(float(objective(b).total) for b in held_out) / sum(
            b.n_tokens for b in held_out
        )
    found.append((sum(p.numel() for p in small.parameters()), total))
assert all(larger < smaller for (_, smaller), (_, larger) in pairwise(found))

figure, axes = plt.subplots(figsize=(4.4, 2.6))
axes.loglog(*zip(*found, strict=True), color=BLUE, marker="o")
axes.set_yticks([n for _, n in found], [f"{n:.2f}" for _, n in found])
axes.minorticks_off()
axes.set(xlabel="parameters", ylabel="loss (nats per token)", title="as many updates each")

# %% [markdown]
# ## Where to go from here
#
#     transduce train language-model                                   # this text, a larger model, characters
#     transduce generate runs/language --prompt "Please" --temperature 0.8 --top-k 10
#     transduce train language-model text --train a.txt --valid b.txt  # your own text, byte-level BPE
#     transduce import DIRECTORY runs/gpt2                             # GPT-2, Llama, Qwen ... from your disk
#     transduce export runs/language OUT --to ctranslate2              # and out again
#
# [Coming from nanoGPT](../coming_from/nanogpt.md) has the names of its settings beside ours, and
# [fine-tuning](../guides/fine_tuning.md) begins with an imported model.
