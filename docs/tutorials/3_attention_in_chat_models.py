# %% [markdown]
# # 3. Attention in today's chat models
#
# The attention of 2017 is still at work in the chat models of today, with four changes: positions are *rotations*,
# queries and keys are *normalized*, heads of queries *share* their keys and values, and what was computed once is kept in
# a *cache*. This chapter shows why attention is worth having at all, then builds each change in a few lines. All of them
# are fields of `td.TransformerConfig`, and at the end we check that ours gives the same numbers.
#
# It follows a Korean series about Andrej Karpathy's small chat model *nanochat*, part 3 and what it promises for part 4;
# code, examples and measurements are ours. Attention itself is in [chapter 2](2_attention_step_by_step.py).

# %%
import math
import time
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import transduce as td
from pictures import BLUE, GREEN, GREY, ORANGE, PINK, heatmap
from transduce.recipes import DATA

# %% [markdown]
# ## A model without attention
#
# The simplest model of text looks at one word and guesses the next: a table with a row and a column for each word, a
# **bigram** model. Here it is for the 12,000 commands that ship with `transduce`; 400 other commands test it.
#
# How good is a guess? A model gives each word a probability. The *loss* is the mean of −log(probability) of the words
# that really came. 0 is perfect, and a smaller loss is a better model.

# %%
folder = DATA / "commands"


def read(name):
    lines = (folder / name).read_text().splitlines()
    return [["<s>", *line.lower().rstrip(".?!").split(), "</s>"] for line in lines]


train, test = read("train.en"), read("test.en")
words = ["<pad>", *sorted({word for line in train for word in line})]
number = {word: i for i, word in enumerate(words)}
test = [line for line in test if all(word in number for word in line)]


def pairs(lines):
    found = [(number[left], number[right]) for line in lines for left, right in pairwise(line)]
    return torch.tensor(found).T


left, right = pairs(train)
counts = torch.bincount(left * len(words) + right, minlength=len(words) ** 2)
counts = counts.view(len(words), len(words)) + 0.01  # a little for what was never seen
bigram = (counts / counts.sum(dim=1, keepdim=True)).log()
alone = (counts.sum(dim=0) / counts.sum()).log()  # whatever stood before
left, right = pairs(test)
losses = {
    "no word": -alone[right].mean().item(),
    "one word (bigram)": -bigram[left, right].mean().item(),
}
print({name: round(loss, 2) for name, loss in losses.items()})

# %% [markdown]
# One word of context helps a lot. But the bigram model has forgotten all that came before: who is asked, which letters,
# in what number. Attention lets it look back at everything. Here is the smallest decoder of `transduce`, one layer,
# with one head and with four, trained for a few seconds. It has all that this chapter explains.


# %%
def ids_of(lines):
    longest = max(map(len, lines))
    return torch.tensor(
        [[number[w] for w in line] + [0] * (longest - len(line)) for line in lines]
    )


def loss_of(model, ids):
    logits = model(target_in=ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def chat_config(n_heads, n_kv_heads, n_layers=1, d_model=64):
    return td.TransformerConfig(
        decoder=td.StackConfig(input=td.Tokens(vocab_size=len(words)), n_layers=n_layers),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=2 * d_model,
        dropout=0.0,
        bias=False,
        norm="rms",
        norm_position="pre",
        positions="rotary",
        qk_norm=True,
        scale_embeddings=False,
    )


def trained(config, updates=150):
    torch.manual_seed(0)
    model = td.Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(updates):
        chosen = [train[i] for i in torch.randint(len(train), (32,)).tolist()]
        optimizer.zero_grad()
        loss_of(model, ids_of(chosen)).backward()
        optimizer.step()
    return model.eval()


models = {
    "all words, one head": trained(chat_config(1, 1)),
    "all words, four heads": trained(chat_config(4, 2)),
}
with torch.no_grad():
    losses |= {name: loss_of(model, ids_of(test)).item() for name, model in models.items()}
print({name: round(loss, 2) for name, loss in losses.items()})
assert list(losses.values()) == sorted(losses.values(), reverse=True)

# %% tags=["hide-input"]
axes = plt.figure(figsize=(6, 2.2)).subplots()
bars = axes.barh(
    list(losses)[::-1], list(losses.values())[::-1], color=[BLUE, BLUE, ORANGE, GREY]
)
axes.bar_label(bars, fmt="%.2f", padding=3)
axes.set(xlabel="loss on held-out commands (nats per word)")
axes.set_title("What a guess of the next word sees")

# %% [markdown]
# ## Attention in six steps
#
# Think of a market. Each word comes with a shopping list, its **query**: what do I look for? Each has a sign over its
# stall, its **key**: what is there to get? And each has goods, its **value**. A word compares its list with all
# signs, and takes home a mixture of goods, most of it from where list and sign match best.
#
# 1. Queries, keys and values are made of the word's vector by three learned matrices.
# 2. The dot product of a query and a key is their *score*.
# 3. Scores are divided by √E, where E is the width of a key.
# 4. Scores of later words become −∞: a model that writes must not see what comes.
# 5. Softmax makes shares of the scores.
# 6. The shares mix the values.


# %%
def attention(q, k, v):
    """Causal attention, (..., T, E) -> (..., T, E), and its shares (..., T, T)."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    future = torch.ones(scores.shape[-2:]).triu(1) == 1
    shares = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    return shares @ v, shares


# %% [markdown]
# Step 3 in numbers: keys of 64 ones have a dot product of 64 with each other. Beside scores of 5 and 10, softmax would
# give everything to the 64; divided by √64 = 8, something is left for the others, and there is something to learn from.

# %%
scores = torch.tensor([64.0, 5.0, 10.0])
assert (torch.ones(64) @ torch.ones(64)).item() == 64
print("as they are: ", [round(share, 4) for share in scores.softmax(0).tolist()])
print("divided by 8:", [round(share, 4) for share in (scores / 8).softmax(0).tolist()])

# %% [markdown]
# ### One matrix for all three
#
# The three maps read the same vectors. So their matrices are stacked into one, multiplied once, and the result is cut
# into three parts. It is the same arithmetic, but one large product keeps a processor busier than three small ones.

# %%
torch.manual_seed(1)
x = torch.randn(5, 64)
separate = [torch.randn(16, 64) for _ in range(3)]
together = x @ torch.cat(separate).T
for part, matrix in zip(together.split(16, dim=-1), separate, strict=True):
    assert torch.allclose(part, x @ matrix.T, atol=1e-5)

# %% [markdown]
# ## Positions as rotations
#
# Dot products know nothing of order. The paper of 2017 added a vector for the position to each word. Today's models
# *rotate* queries and keys instead (RoPE, Su et al. 2021). Take the numbers of a head two by two. Each pair is a point in the
# plane, an arrow from the origin. At position 7 it is turned by seven times some angle. The first pair turns fast, the
# others slower and slower.
#
# Why does that help? The dot product of two arrows depends on their lengths and the angle between them. Turn both by one angle,
# and it stays. So the score of a query at position 7 and a key at position 4 is that of positions 107 and 104: only the
# *distance* counts. That is what grammar needs: "the word before" is the same everywhere in a text.


# %%
def angles(positions, width, theta=10000.0):
    """(T, width / 2): how far each pair is turned at each position, in radians."""
    return positions[:, None] * theta ** (-torch.arange(0, width, 2) / width)


def turn(x, angle):
    """Turn the pairs (i, i + E/2) of (..., T, E), as complex numbers: a rotation is a multiplication."""
    first, second = x.double().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


width = 16
query, key = torch.randn(2, width)
places = torch.arange(200, dtype=torch.float64)
queries, keys = (turn(each.expand(200, width), angles(places, width)) for each in (query, key))
scores = queries @ keys.T
print(
    f"7 and 4: {scores[7, 4]:.4f}   107 and 104: {scores[107, 104]:.4f}   107 and 4: {scores[107, 4]:.4f}"
)
assert torch.allclose(scores[7, 4], scores[107, 104], atol=1e-4)
assert torch.allclose(queries.norm(dim=-1), query.norm())  # no arrow becomes longer or shorter

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.3))
for axes, pair in zip(figure.subplots(1, 3), (0, 1, 2), strict=True):
    axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.5))
    for position, color in ((0, GREY), (1, BLUE), (2, ORANGE), (3, GREEN)):
        angle = angles(torch.tensor([float(position)]), width)[0, pair].item()
        axes.annotate(
            "",
            (math.cos(angle), math.sin(angle)),
            (0, 0),
            arrowprops={"color": color, "width": 1.5, "headwidth": 6, "headlength": 6},
        )
        said = (1.25 * math.cos(angle), 1.25 * math.sin(angle))
        if pair < 2 or position in (0, 3):
            axes.annotate(position, said, ha="center", va="center", color=color)
    axes.set(aspect="equal", xlim=(-1.45, 1.45), ylim=(-1.45, 1.45))
    axes.axis("off")
    axes.set_title(f"pair {pair}")
figure.suptitle("One arrow at positions 0 to 3")

axes = plt.figure(figsize=(6, 2.6)).subplots()
distances = torch.arange(100)
same = turn(query.expand(200, width), angles(places, width))
for start, color, style in ((0, BLUE, "-"), (100, ORANGE, ":")):
    values = (same[start] @ same[start : start + 100].T) / (query @ query)
    axes.plot(distances, values, color=color, linestyle=style, label=f"from position {start}")
axes.set(xlabel="distance in words", ylabel="share of the score")
axes.set_title("The score of two equal arrows depends on their distance only")
axes.legend()

# %% [markdown]
# The functions of `transduce` do the same with cosines and sines:

# %%
from transduce.model.inputs import rotary, rotate

rotation = rotary(0, 200, width, theta=10000.0)
ours = rotate(query.expand(1, 1, 200, width), rotation)[0, 0]
assert torch.allclose(ours, queries, atol=1e-5)

# %% [markdown]
# ## Normalized queries and keys
#
# While a model learns, its vectors may grow, and with them the scores. Then softmax gives everything to one word, and
# training stops or breaks down. **QK norm** brings each query and key to the same length first: divide by the root of the mean
# of the squares (Henry et al. 2020, with the norm of Zhang and Sennrich 2019). Then no score can exceed √E. What is
# sharp and what is soft is up to one learned factor per number, which begins as 1.


# %%
def qk_normalized(x):
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)


x = torch.randn(6, width)
assert torch.allclose(qk_normalized(x), nn.RMSNorm(width, eps=1e-5)(x), atol=1e-6)
most = qk_normalized(1000 * x) @ qk_normalized(1000 * x).T / math.sqrt(width)
assert most.max() < math.sqrt(width) + 1e-4

# %% tags=["hide-input"]
factors = torch.logspace(-1, 2, 25)
q, k, v = torch.randn(3, 2000, 8, width)
largest = {}
for name, norm in (("as they are", lambda x: x), ("with QK norm", qk_normalized)):
    largest[name] = [
        attention(norm(q * factor), norm(k * factor), v)[1][:, -1]
        .max(dim=-1)
        .values.mean()
        .item()
        for factor in factors.sqrt()
    ]
axes = plt.figure(figsize=(6, 2.6)).subplots()
for (name, values), color in zip(largest.items(), (ORANGE, BLUE), strict=True):
    axes.semilogx(factors, values, color=color, label=name)
axes.axhline(1 / 8, color=GREY, linestyle=":", label="all eight words alike")
axes.set(xlabel="queries times keys grow by", ylabel="largest share", ylim=(0, 1.02))
axes.set_title("QK norm keeps attention as soft as it is meant to be")
axes.legend()
assert (
    max(largest["with QK norm"]) - min(largest["with QK norm"])
    < 0.1
    < largest["as they are"][-1] - 0.8
)

# %% [markdown]
# ## Heads that share
#
# Several heads look for several things at once. Do they all need stalls of their own? Today's models let some heads of
# queries *share* one head of keys and values: **grouped-query attention** (Ainslie et al. 2023). Quality hardly suffers, and
# there are fewer keys and values to compute and, as we shall see, to remember. With one head of keys for all it is
# called multi-query attention (Shazeer 2019).

# %%
from transduce.model.attention import attend
from transduce.model.cache import Context

n_heads, n_kv_heads, length = 4, 2, 6
q = torch.randn(1, n_heads, length, width)
k, v = torch.randn(2, 1, n_kv_heads, length, width)
copied = [each.repeat_interleave(n_heads // n_kv_heads, dim=1) for each in (k, v)]
by_hand, shares = attention(q, *copied)
assert torch.allclose(attend(q, k, v, causal=True), by_hand, atol=1e-6)  # ours copies nothing
assert torch.allclose(
    F.scaled_dot_product_attention(q, *copied, is_causal=True), by_hand, atol=1e-6
)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.4))
kinds = (("each its own", 4), ("grouped", 2), ("one for all", 1))
for axes, (title, kept) in zip(figure.subplots(1, 3), kinds, strict=True):
    for head in range(4):
        group = head * kept // 4
        below = (group + 0.5) * 4 / kept - 0.5
        color = (BLUE, ORANGE, GREEN, PINK)[group]
        axes.plot([head, below], [1, 0], color=color, linewidth=1.5, zorder=0)
        axes.scatter(head, 1, s=330, color=color)
        axes.scatter(below, 0, s=330, marker="s", color=color)
        axes.text(head, 1, "q", color="white", ha="center", va="center")
        axes.text(below, 0, "k v", color="white", ha="center", va="center", fontsize=8)
    axes.set(xlim=(-0.6, 3.6), ylim=(-0.4, 1.4))
    axes.axis("off")
    axes.set_title(f"{title}\nn_kv_heads={kept}")

# %% [markdown]
# ## The fused kernel
#
# The table of scores has a row and a column for each word. For 8,000 words, 32 heads and two bytes for a number it
# would take 4 gigabytes in each layer. Nobody needs the table, only the mixtures. *FlashAttention* (Dao et al. 2022)
# computes them block by block, with a running maximum and a running sum for the softmax, and never stores the table. In
# PyTorch it stands behind `scaled_dot_product_attention`, which `transduce` calls. The trick in a few lines, for one
# query:

# %%
q, k, v = torch.randn(1, width), torch.randn(1000, width), torch.randn(1000, width)
most, total, mixture = torch.tensor(-torch.inf), torch.tensor(0.0), torch.zeros(width)
for keys, values in zip(k.split(100), v.split(100), strict=True):
    scores = (keys @ q[0]) / math.sqrt(width)
    higher = torch.maximum(most, scores.max())
    shrink, powers = (most - higher).exp(), (scores - higher).exp()
    total, mixture, most = (
        total * shrink + powers.sum(),
        mixture * shrink + powers @ values,
        higher,
    )
whole = (q @ k.T / math.sqrt(width)).softmax(dim=-1) @ v
assert torch.allclose(mixture / total, whole[0], atol=1e-6)
print(f"the table of scores: {8000**2 * 32 * 2 / 1e9:.1f} GB; a block of it: {100 * 4} bytes")

# %% [markdown]
# ## All of it, by hand and in `transduce`
#
# Now rotation, norm and sharing together. Each is a field of the configuration: `positions="rotary"`, `qk_norm=True`,
# `n_kv_heads=2`; the stacked matrix is always there. We take the four-headed model that was trained above and compute its attention by
# hand.

# %%
model = models["all words, four heads"]
block = model.decoder.layers[0].attention


def by_hand(block, x):
    """(T, D) -> (T, D), and the shares."""
    heads = block.qkv(x).unflatten(-1, (-1, block.d_head)).transpose(0, 1)  # (H + K + K, T, E)
    q, k, v = heads.split([4, 2, 2])
    q, k = qk_normalized(q) * block.norm.query.weight, qk_normalized(k) * block.norm.key.weight
    angle = angles(torch.arange(len(x), dtype=torch.float64), block.d_head)
    q, k = turn(q, angle), turn(k, angle)
    found, shares = attention(q, k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0))
    return block.output(found.transpose(0, 1).flatten(1)), shares


line = max(test, key=len)
with torch.no_grad():
    x = model.target_input(ids_of([line]))[0][0]
    x = model.decoder.layers[0].attention_sublayer.norm(x)
    mine, shares = by_hand(block, x)
    context = Context(distances=model.decoder.positions.distances(0, len(line)))
    ours = block(x[None], context)[0]
print(f"largest difference: {(mine - ours).abs().max():.1e}")
assert torch.allclose(mine, ours, atol=1e-5)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 5.6))
for head, axes in enumerate(figure.subplots(2, 2, sharex=True, sharey=True).flat):
    heatmap(axes, shares[head], line, line, f"head {head + 1}", vmin=0, vmax=1)
    axes.tick_params(labelsize=7)
figure.supxlabel("looks at")

# %% [markdown]
# After a few seconds of training, the heads already differ in where they look.
#
# ## The cache
#
# A chat model writes one word, reads everything again, and writes the next. But the keys and values of the words before have
# not changed: nothing that comes later can touch them, for attention is causal. So they are kept, in the **KV cache**, and
# each step computes the new word alone.


# %%
def write(model, start, n_words, cached):
    """Greedy words, and how many positions went through the model."""
    ids, cache, computed = list(start), model.new_cache(), 0
    for _ in range(n_words):
        if cached:
            new = ids[cache.length :]
            logits = model.decode(torch.tensor([new]), cache=cache)
        else:
            new = ids
            logits = model.decode(torch.tensor([ids]))
        computed += len(new)
        ids.append(logits[0, -1].argmax().item())
    return ids, computed


start = [number[word] for word in ("<s>", "please", "read")]
with torch.no_grad():
    slow, slowly = write(model, start, 40, cached=False)
    fast, quickly = write(model, start, 40, cached=True)
assert slow == fast
assert slowly == sum(range(3, 43)) and quickly == 42
print(" ".join(words[i] for i in fast[: fast.index(number["</s>"])]))
print(f"40 words: {slowly} positions without a cache, {quickly} with it")

# %% [markdown]
# The words are the same, and so are the numbers, up to rounding:

# %%
with torch.no_grad():
    whole, cache = model.decode(torch.tensor([fast])), model.new_cache()
    steps = [model.decode(torch.tensor([[each]]), cache=cache) for each in fast]
difference = (whole - torch.cat(steps, dim=1)).abs().max().item()
print(f"largest difference: {difference:.1e}")
assert difference < 1e-4

# %% tags=["hide-input"]
written, past = range(1, 201), [50, 200, 400, 800]
torch.manual_seed(1)
larger = td.Transformer(chat_config(4, 2, n_layers=2, d_model=128)).eval()
milliseconds = {False: [], True: []}
with torch.no_grad():
    for length in past:
        ids, cache = torch.randint(len(words), (1, length)), larger.new_cache()
        larger.decode(ids[:, :-1], cache=cache)
        for cached, spent in milliseconds.items():
            begun = time.perf_counter()
            for _ in range(5):  # with the cache, five words one after the other
                larger.decode(ids[:, -1:], cache=cache) if cached else larger.decode(ids)
            spent.append((time.perf_counter() - begun) / 5 * 1000)
figure = plt.figure(figsize=(6, 2.8))
left, right = figure.subplots(1, 2)
for cached, color, label in ((False, ORANGE, "without"), (True, BLUE, "with a cache")):
    total = [n + 2 if cached else n * (n + 5) / 2 for n in written]
    left.plot(written, total, color=color, label=label)
    right.plot(past, milliseconds[cached], color=color, marker="o", label=label)
left.set(xlabel="words written", ylabel="positions computed in all")
left.legend()
right.set(xlabel="words before", ylabel="milliseconds for one word", ylim=(0, None))
figure.suptitle("What a cache saves")

# %% [markdown]
# The cache costs memory: two vectors (key and value) per word, layer and head. Here sharing pays, as a cache with a
# quarter of the heads takes a quarter of the memory. For a model of 32 layers, 32 heads of 128 numbers, two bytes each, and a
# conversation of 8,000 words:

# %%
for n_kv_heads in (32, 8, 1):
    size = 2 * 8000 * 32 * n_kv_heads * 128 * 2
    print(f"n_kv_heads={n_kv_heads:2}: {size / 1e9:.2f} GB for each conversation")

kept = [td.Transformer(chat_config(4, n)).eval() for n in (4, 2, 1)]
sizes = []
with torch.no_grad():
    for each in kept:
        cache = each.new_cache()
        each.decode(torch.tensor([fast]), cache=cache)
        sizes.append(sum(buffer.numel() for buffer in cache.layers[0].buffers))
assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]

# %% [markdown]
# ## In your own model
#
# Every recipe takes these fields, for example
#
#     python recipes/language_model.py --model.positions rotary --model.n-kv-heads 2 --model.qk-norm \
#         --model.norm rms --model.norm-position pre --model.gated --model.activation silu
#
# and generation, beam search and translation use the cache by themselves. The [table of
# models](../models_in_and_out.md) says which published models have these parts, and can be read in.
