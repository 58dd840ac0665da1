# %% [markdown]
# # 2. Attention, one step at a time
#
# Attention lets every word of a sentence collect information from the other words. This chapter builds it in six small
# steps: weights from plain similarity, then trained maps, then a mask over the future, then dropout, then several heads,
# and at last the fast form that real models use. Each step is a few lines of PyTorch. In the end, `SelfAttention` of
# `transduce` gets the same weights and gives the same numbers.
#
# The order of the steps, the six words and the random seeds follow chapter 3 of Sebastian Raschka's *Build a Large
# Language Model (From Scratch)*. So its printed figures can be checked here: `printed` compares with them to the last
# digit.
#
# What was there before? Translating word by word fails, as languages differ in the order of words and in their number. So
# a translator was two *recurrent* networks (Sutskever et al. 2014). The encoder read one word after the other and kept one
# vector, its hidden state, which every word changed a little. The last state was all that the decoder got. A long
# sentence had to fit into as many numbers as a short one, and what was read first was mostly overwritten in the end.
# Bahdanau et al. (2015) kept the states of *all* words, and let the decoder choose among them anew for each word that it
# writes: that was attention. Vaswani et al. (2017) found that attention does not need the recurrent networks around it. A
# sentence may then also look at *itself*, which is self-attention, and all its words can be computed at once.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from pictures import BLUE, GREY, ORANGE, Matrix, equation, heatmap

torch.set_printoptions(precision=4, sci_mode=False)
words = ["Your", "journey", "starts", "with", "one", "step"]
x = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)


def printed(got, figures, digits=4):
    error = (got.detach() - torch.tensor(figures)).abs().max()
    assert error < 0.51 * 10**-digits, got


# %% [markdown]
# Six words, and three numbers for each. Such a list of numbers is a *vector*. Real models have hundreds of numbers per
# word, and learn them; how words become vectors is told in [chapter 1](1_from_words_to_transformers.py). Three numbers
# are few enough to look at.
#
# The aim is a new vector for each word, its *context vector*: what the word means in this sentence. It will be a
# mixture of the vectors of all words. The only question is how much of each.
#
# ## 1. Similar words get more weight
#
# How much should "journey" take from "starts"? As a first answer, let us say: the more alike the two vectors are, the
# more. The *dot product* measures that. It multiplies number by number and adds up.

# %%
query = x[1]  # "journey" asks
scores = torch.tensor([sum(a * b for a, b in zip(word, query, strict=True)) for word in x])
print(scores)
printed(scores, [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])

# %% [markdown]
# These are *scores*. A mixture needs shares: numbers that are not negative and have the sum 1. Dividing by the sum is
# one way, but it fails as soon as a score is negative. *Softmax* is the usual way: take e to the power of each score,
# then divide by the sum of these.

# %%
weights = scores.exp() / scores.exp().sum()
print(weights, "sum:", round(weights.sum().item(), 4))
printed(weights, [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])

context = sum(weight * word for weight, word in zip(weights, x, strict=True))
print(context)
printed(context, [0.4419, 0.6515, 0.5683])

# %% [markdown]
# `torch.softmax` computes the same. It first subtracts the largest score, which changes no share and keeps e^score from
# growing beyond what the computer can store:

# %%
large = torch.tensor([1000.0, 999.0])
naive = large.exp() / large.exp().sum()
print("written out:", naive, "torch:", torch.softmax(large, dim=0))
assert naive.isnan().all()
assert torch.allclose(torch.softmax(scores, dim=0), weights)

# %% tags=["hide-input"]
equation(
    Matrix([weights.tolist()], ["weights"], words, digits=2),
    "×",
    Matrix(x, words, ["x₁", "x₂", "x₃"], digits=2),
    "=",
    Matrix([context.tolist()], (), ["z₁", "z₂", "z₃"], digits=2),
    title="The context vector of “journey” is a mixture of six vectors",
)

# %% [markdown]
# ### All words at once
#
# Every word may ask. That makes six times six scores. A *matrix product* is the same thing as all these dot products:
# row i of the first matrix with column j of the second gives the number in row i and column j. So two products and a
# softmax do the whole step.

# %%
scores = x @ x.T  # (6, 6)
weights = torch.softmax(scores, dim=-1)  # every row has the sum 1
contexts = weights @ x  # (6, 3)
print(contexts)
printed(scores[1], [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])
printed(weights[0], [0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452])
printed(contexts[1], [0.4419, 0.6515, 0.5683])
printed(contexts[5], [0.4177, 0.6503, 0.5645])
assert torch.allclose(weights.sum(dim=-1), torch.ones(6))

# %% tags=["hide-input"]
equation(
    Matrix(scores, words, words, "scores x xᵀ", 2),
    "→",
    Matrix(weights, (), words, "softmax of each row", 2),
    title="A row for each word that asks, a column for each word that is asked",
)

# %% [markdown]
# ## 2. Queries, keys and values
#
# So far nothing is learned: alike is alike. But "starts" may need its *subject*, which is not a similar word at all. So
# each word gets three new vectors, each by a matrix of its own:
#
# - its **query** q = x W_q: what this word looks for,
# - its **key** k = x W_k: what this word offers to those who look,
# - its **value** v = x W_v: what it hands over to those who chose it.
#
# Scores are dot products of queries and keys; mixtures are made of values. Training changes the three matrices. Here
# they are random, two numbers wide.

# %%
torch.manual_seed(123)
W_q, W_k, W_v = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)
q, k, v = x @ W_q, x @ W_k, x @ W_v
scores = q @ k.T
print(scores[1])
printed(q[1], [0.4306, 1.4551])
printed(scores[1], [1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440])

# %% [markdown]
# Before the softmax, scores are divided by the square root of the width of the keys, here √2. Wider keys make larger dot
# products, and softmax of large numbers gives nearly everything to one word. Then there is hardly anything to learn
# from. The next picture shows how the largest of six weights grows with the width, with division and without.

# %%
weights = torch.softmax(scores / math.sqrt(k.size(-1)), dim=-1)
contexts = weights @ v
printed(weights[1], [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820])
printed(contexts[1], [0.3061, 0.8210])
printed(contexts[0], [0.2996, 0.8053])

# %% tags=["hide-input"]
torch.manual_seed(0)
widths = [2, 4, 8, 16, 32, 64, 128, 256, 512]
largest = {True: [], False: []}
for width in widths:
    products = (torch.randn(2000, 1, width) @ torch.randn(2000, width, 6))[
        :, 0
    ]  # 2000 queries, 6 keys each
    for scaled in largest:
        shares = torch.softmax(products / math.sqrt(width) if scaled else products, dim=-1)
        largest[scaled].append(shares.max(dim=-1).values.mean().item())
axes = plt.figure().subplots()
axes.plot(widths, largest[False], color=ORANGE, marker="o", label="scores as they are")
axes.plot(widths, largest[True], color=BLUE, marker="o", label="scores divided by √width")
axes.axhline(1 / 6, color=GREY, linestyle=":", label="all six words alike")
axes.set_xscale("log", base=2)
axes.set_xticks(widths, widths)
axes.set(xlabel="width of queries and keys", ylabel="largest of six weights", ylim=(0, 1.02))
axes.set_title("Division keeps attention from choosing too early")
axes.legend(loc="center right", bbox_to_anchor=(1, 0.63))
assert largest[False][-1] > 0.95 and abs(largest[True][-1] - largest[True][2]) < 0.05

# %% [markdown]
# The maps are usually an `nn.Linear` each. It computes x Wᵀ and starts with smaller random numbers, which suits
# training.

# %%


class SelfAttention(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.query = nn.Linear(width_in, width_out, bias=False)
        self.key = nn.Linear(width_in, width_out, bias=False)
        self.value = nn.Linear(width_in, width_out, bias=False)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return torch.softmax(q @ k.T / math.sqrt(k.size(-1)), dim=-1) @ v


torch.manual_seed(789)
attention = SelfAttention(3, 2)
print(attention(x).detach())
printed(attention(x)[0], [-0.0739, 0.0713])
printed(attention(x)[5], [-0.0754, 0.0693])

# %% [markdown]
# ## 3. No look at the future
#
# A model that writes text makes one word after the other. While it learns, the whole sentence lies before it, and it must
# not peek: word t may look at the words up to t, and at no later one. This is *causal* attention, and what hides the
# rest is a *mask*.
#
# One could set the hidden weights to zero, and divide each row by what is left of its sum:

# %%
q, k = attention.query(x), attention.key(x)
scores = q @ k.T / math.sqrt(2)
visible = torch.ones(6, 6).tril()  # 1 on the diagonal and below it
weights = torch.softmax(scores, dim=-1) * visible
after = weights / weights.sum(dim=-1, keepdim=True)
printed(after[1], [0.5517, 0.4483, 0, 0, 0, 0])

# %% [markdown]
# It is simpler to hide the *scores*: e to the power of −∞ is 0, and softmax does the division by itself.

# %%
masked = scores.masked_fill(visible == 0, -torch.inf)
weights = torch.softmax(masked, dim=-1)
printed(weights[3], [0.2758, 0.2460, 0.2462, 0.2319, 0, 0])
printed(weights[5], [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529])
assert torch.allclose(weights, after)

# %% tags=["hide-input"]
equation(
    Matrix(masked.detach(), words, words, "scores, the future hidden", 2),
    "→",
    Matrix(weights.detach(), (), words, "softmax of each row", 2),
    title="Causal attention: each row ends at its own word",
)

# %% [markdown]
# ## 4. Dropout
#
# A model can lean on single weights too much, and learn sentences by heart. *Dropout* removes random weights while it
# trains: here each with probability ½. Those that stay are multiplied by 1 / (1 − ½) = 2, so that the sums stay the same
# on average. When the model is used, nothing is dropped. Rates of 0.1 are more usual than ½.

# %%
torch.manual_seed(123)
dropped = nn.Dropout(0.5)(weights)
assert torch.equal(nn.Dropout(0.5).eval()(weights), weights)
kept = dropped > 0
assert torch.allclose(dropped[kept], 2 * weights[kept])

# %% tags=["hide-input"]
equation(
    Matrix(weights.detach(), words, words, "weights", 2),
    "→",
    Matrix(dropped.detach(), (), words, "half of them dropped", 2),
    title="Dropout, while the model learns",
)

# %% [markdown]
# ## 5. Several heads
#
# One set of weights has one opinion about where to look. A word often needs several: its subject, its object, the word
# just before it. So attention runs several times side by side, each time with its own three maps. These are the
# *heads*, and their context vectors are put one behind the other.
#
# From now on `x` has one more axis in front, as several sentences go through a model at once. A row of two:

# %%
batch = torch.stack((x, x))
print(tuple(batch.shape), "= sentences, words, numbers")


class CausalAttention(SelfAttention):
    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(k.size(-1))
        hidden = torch.ones(x.size(-2), x.size(-2)).triu(1) == 1
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


torch.manual_seed(123)
heads = [CausalAttention(3, 2), CausalAttention(3, 2)]
side_by_side = torch.cat([head(batch) for head in heads], dim=-1)
print(side_by_side[0].detach())
printed(side_by_side[1, 0], [-0.4519, 0.2216, 0.4772, 0.1063])
printed(side_by_side[1, 5], [-0.5299, -0.1081, 0.5077, 0.3493])

# %% [markdown]
# ### One product for all heads
#
# Many small products are slower than one large product. So the maps of all heads are stacked into one matrix, x is
# multiplied once, and the result is *split*: the last axis becomes (heads, width of a head). Moving the axis of the heads
# to the front lets every head multiply its own matrices, because `@` works on the last two axes and repeats for the
# others. At the end the heads are joined, and one more map, the *output*, mixes what they found.

# %%


class MultiHeadAttention(nn.Module):
    def __init__(self, width_in, width_out, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(width_in, width_out, bias=False)
        self.key = nn.Linear(width_in, width_out, bias=False)
        self.value = nn.Linear(width_in, width_out, bias=False)
        self.output = nn.Linear(width_out, width_out)

    def split(self, x):  # (B, T, H * E) -> (B, H, T, E)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def weights(self, x):  # (B, H, T, T)
        q, k = self.split(self.query(x)), self.split(self.key(x))
        hidden = torch.ones(x.size(1), x.size(1)).triu(1) == 1
        return torch.softmax(
            (q @ k.mT / math.sqrt(k.size(-1))).masked_fill(hidden, -torch.inf), dim=-1
        )

    def forward(self, x):
        heads = self.weights(x) @ self.split(self.value(x))
        return self.output(heads.transpose(1, 2).flatten(2))


torch.manual_seed(123)
small = MultiHeadAttention(3, 2, n_heads=2)
print(small(batch)[0].detach())
printed(small(batch)[0, 0], [0.3190, 0.4858])
printed(small(batch)[1, 5], [0.2575, 0.4028])

# %% [markdown]
# Splitting the one matrix by rows gives back the matrices of the heads, so nothing but the speed has changed:

# %%
stacked = MultiHeadAttention(3, 4, n_heads=2)
with torch.no_grad():
    for name in ("query", "key", "value"):
        getattr(stacked, name).weight.copy_(
            torch.cat([getattr(head, name).weight for head in heads])
        )
    stacked.output.weight.copy_(torch.eye(4))
    stacked.output.bias.zero_()
assert torch.allclose(stacked(batch), side_by_side, atol=1e-6)

# %% [markdown]
# ## 6. The same in `transduce`
#
# The package has one class for this, in
# [transduce/model/attention.py](../../transduce/model/attention.py). It stacks queries, keys *and* values into one
# matrix, and leaves scores, mask, softmax and mixture to PyTorch's fused kernel. To compare, we make a wider model, give
# ours the weights of the class above, and look at the largest difference.

# %%
import transduce as td
from transduce.model.attention import SelfAttention as Attention

n_heads, width = 4, 32
config = td.TransformerConfig(
    decoder=td.StackConfig(input=td.Tokens(vocab_size=6)),
    d_model=width,
    n_heads=n_heads,
    dropout=0.0,
)
ours, by_hand = Attention(config, causal=True), MultiHeadAttention(width, width, n_heads)
with torch.no_grad():
    ours.qkv.weight.copy_(
        torch.cat((by_hand.query.weight, by_hand.key.weight, by_hand.value.weight))
    )
    ours.qkv.bias.zero_()
    ours.output.load_state_dict(by_hand.output.state_dict())
    sentences = torch.randn(2, 6, width)
    difference = (ours(sentences) - by_hand(sentences)).abs().max().item()
print(f"largest difference: {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# PyTorch has a class of its own, `nn.MultiheadAttention`. With the same weights it agrees, too. Mind its mask: there True
# means "hidden", while the function `scaled_dot_product_attention` takes True for "may look".

# %%
theirs = nn.MultiheadAttention(width, n_heads, batch_first=True)
with torch.no_grad():
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.zero_()
    theirs.out_proj.load_state_dict(by_hand.output.state_dict())
    hidden = torch.ones(6, 6).triu(1) == 1
    found, their_weights = theirs(
        sentences, sentences, sentences, attn_mask=hidden, average_attn_weights=False
    )
assert torch.allclose(found, ours(sentences), atol=1e-6)
assert torch.allclose(their_weights, by_hand.weights(sentences), atol=1e-6)

# %% tags=["hide-input"]
figure = plt.figure(figsize=(6, 2.2))
for head, axes in enumerate(figure.subplots(1, n_heads, sharey=True)):
    heatmap(axes, their_weights[0, head], words, words, f"head {head + 1}", vmin=0, vmax=1)
figure.supxlabel("looks at")

# %% [markdown]
# Four heads, four opinions, and all of them random: nobody has trained them. [Chapter 1](1_from_words_to_transformers.py)
# trains a head, and shows where it learns to look. [Chapter 3](3_attention_in_chat_models.py) shows what today's chat
# models have changed about attention.
