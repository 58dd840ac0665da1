# %% [markdown]
# # 4. The whole Transformer, piece by piece
#
# A Transformer reads one sequence and writes another: English in, German out; sound in, text out. This chapter builds
# each of its parts in a few lines of PyTorch, checks them against the parts of `transduce`, and then trains a very
# small translator in seconds. You need to know Python, and what a matrix product is. You need to know nothing about
# neural networks.
#
# The journey of a sentence is short enough to keep in mind:
#
# 1. the text is cut into *tokens*, and every token gets a number, its *id*;
# 2. every id becomes a *vector*, a row of a table;
# 3. a vector that tells the *position* is added;
# 4. some *layers* follow: in each, the vectors first look at one another (*attention*), and then each of them is
#    changed by itself (*feed-forward*);
# 5. the last vector is compared with the table of all tokens, which gives a *probability* for every possible next token.
#
# [Figure 1 of the paper](../figure_1.md) shows all of these parts in one picture, each with a link to its code.

# %%
import copy
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import transduce as td
from transduce import experiment as ex

torch.manual_seed(1)
torch.set_num_threads(1)
BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"
plt.rcParams.update(
    {"figure.constrained_layout.use": True, "font.size": 9, "legend.frameon": False}
)

# %% [markdown]
# ## 4.1 Tokens become vectors
#
# A network adds and multiplies, but ids are only names: word 6 is not twice word 3. So each id picks a row of a table,
# the *embedding table*. In the beginning, its numbers are random. Training moves them until words that behave alike lie
# close together.
#
# Picking a row is the same as multiplying by a vector that is 1 at one place and 0 elsewhere. Nobody computes it that
# way, but it shows that the table is an ordinary matrix, through which errors can flow back.

# %%
line = "the old boat sailed past the harbour"
words = sorted(set(line.split()))
table = nn.Embedding(len(words), 8)
ids = torch.tensor([words.index(word) for word in line.split()])
vectors = table(ids)

one_hot = F.one_hot(ids, len(words)).float()
torch.testing.assert_close(one_hot @ table.weight, vectors)
assert torch.equal(vectors[0], vectors[5])  # "the" twice: the same vector, wherever it stands
print(ids.tolist(), "->", tuple(vectors.shape))

# %% [markdown]
# ## 4.2 Positions
#
# Both "the" have the same vector now, and nothing in the vectors tells which came first. Attention, which follows, does
# not know either: it treats its inputs as a set. So the place has to be written into the vector.
#
# The paper does it with waves. Dimension pair `i` of position `p` gets
#
#     sin(p / 10000^(2i/d))   and   cos(p / 10000^(2i/d))
#
# It works like the hands of a clock: the first pair turns quickly and tells neighbours apart, the last one turns slowly
# and tells the beginning from the end. As a step of `k` places is a rotation of every pair, the product of two such
# vectors depends on their *distance* alone, which the right picture shows for three positions. And as the waves are
# computed, not learned, they have no end.


# %%
def waves(n_positions: int, d_model: int) -> torch.Tensor:
    place, pair = torch.arange(n_positions).float()[:, None], torch.arange(d_model // 2)
    angle = place / 10000 ** (2 * pair / d_model)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


from transduce.model.inputs import sinusoidal

positions = waves(60, 64)
torch.testing.assert_close(positions, sinusoidal(0, 60, 64), rtol=0, atol=1e-5)
products = positions @ positions.T
assert torch.allclose(
    products[10, 14], products[40, 44], atol=1e-4
)  # four places apart, here and there

figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.8), width_ratios=(3, 2))
image = left.imshow(positions.T.numpy(), cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
left.set(xlabel="position", ylabel="dimension", title="waves")
figure.colorbar(image, ax=left)
for place, colour in ((10, BLUE), (30, ORANGE), (50, GREY)):
    right.plot(products[place].numpy(), color=colour, label=f"with {place}")
right.set(xlabel="position", ylabel="product", ylim=(13, 42), title="products")
right.legend(loc="upper right", fontsize=8)

# %% [markdown]
# ## 4.3 Self-attention
#
# "Bank" means one thing beside "river" and another beside "money". So the vector of a word must be able to take
# something from the vectors of its neighbours. Attention says how much from which.
#
# From its vector, every word makes three others by three matrices that are learned: a **query** (what am I looking
# for?), a **key** (what can I be found by?) and a **value** (what do I hand over?). The product of a query and a key is
# a score. Softmax turns the scores of a query into weights that sum to 1, and the result is the mean of the values with
# these weights:
#
#     attention(Q, K, V) = softmax(Q Kᵀ / √d) V


# %%
def attention(query, key, value, visible=None):
    """T queries, S keys and S values -> T mixed values, and the weights, T rows of S."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


x = vectors + positions[: len(ids), :8]
to_query, to_key, to_value = (torch.randn(8, 8) for _ in range(3))
mixed, weights = attention(x @ to_query, x @ to_key, x @ to_value)
torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(ids)))
torch.testing.assert_close(
    mixed,
    F.scaled_dot_product_attention(x @ to_query, x @ to_key, x @ to_value),
    rtol=1e-4,
    atol=1e-4,
)


def show_weights(axes, weights, rows, columns, xlabel="looks at", ylabel="word"):
    image = axes.imshow(weights.detach().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(
        range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.spines[:].set_visible(False)
    return image


sentence = [words[i] for i in ids.tolist()]
figure, axes = plt.subplots(figsize=(4.4, 3.6))
figure.colorbar(show_weights(axes, weights, sentence, sentence), label="weight")
axes.set_title("attention, untrained")

# %% [markdown]
# Every row of the picture is one word and sums to 1. The matrices are still random, so what these words look at means
# nothing yet.
#
# **Why divide by `√d`?** A product of two vectors of `d` independent numbers with variance 1 has variance `d`.
# With 512 numbers, scores would be around ±23. Softmax of such scores is 1 at one place and 0 at all others, and where
# it is flat, nothing is learned. The division brings the variance back to 1, whatever `d` is.

# %%
sizes = [4, 16, 64, 256, 1024]
raw = [(torch.randn(2000, d) * torch.randn(2000, d)).sum(dim=-1) for d in sizes]
largest = [s.view(200, 10).softmax(dim=-1).amax(dim=-1).mean() for s in raw]
scaled = [
    (s / math.sqrt(d)).view(200, 10).softmax(dim=-1).amax(dim=-1).mean()
    for s, d in zip(raw, sizes, strict=True)
]
assert all(0.8 < s.var() / d < 1.2 for s, d in zip(raw, sizes, strict=True))
assert largest[-1] > 0.9 and max(scaled) < 0.5

figure, axes = plt.subplots(figsize=(4.4, 2.6))
axes.plot(sizes, largest, marker="o", color=ORANGE, label="as it is")
axes.plot(sizes, scaled, marker="o", color=BLUE, label=r"divided by $\sqrt{d}$")
axes.set(
    xscale="log", xlabel="numbers in a vector, d", ylabel="largest of 10 weights", ylim=(0, 1.05)
)
axes.legend(loc="center right")
axes.set_title("softmax of scores")

# %% [markdown]
# ## 4.4 Several heads
#
# One set of weights can follow one relation at a time. A sentence has many: who acts, which adjective belongs to which
# noun, what stands before. So the vectors are cut into `h` shorter ones, and each part, a *head*, has an attention of its
# own. Their results are put side by side, and a last matrix mixes them. The cost is that of a single wide head. The paper
# makes 8 heads of 64 numbers out of 512.
#
# The layer of `transduce` does just that. Three matrices lie in one there, `qkv`, as one large product is quicker than
# three small ones.

# %%
from transduce.model.attention import SelfAttention

config = td.TransformerConfig(
    decoder=td.StackConfig(input=td.Tokens(vocab_size=10)), d_model=32, n_heads=4, d_ff=128
)
layer = SelfAttention(config, causal=False)
states = torch.randn(2, 7, 32)  # 2 sentences of 7 words


def split(x, n_heads):
    """(B, T, D) -> (B, H, T, D / H)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


query, key, value = (split(part, 4) for part in layer.qkv(states).chunk(3, dim=-1))
heads, _ = attention(query, key, value)
ours = layer.output(heads.transpose(1, 2).flatten(2))
torch.testing.assert_close(ours, layer(states), rtol=1e-4, atol=1e-5)
n_attention = sum(p.numel() for p in layer.parameters())
assert n_attention == 4 * 32 * 32 + 4 * 32  # four matrices of 32 x 32, and four biases
print(f"{n_attention:,} parameters, the same result as transduce")

# %% [markdown]
# ## 4.5 The feed-forward, and why it needs a bend
#
# Attention moves information between positions, but all it does with values is to average them. The second half of a
# layer works on each position by itself: a matrix that makes the vector wider (usually four times), a function that
# bends every number, and a matrix that makes it narrow again.
#
# Without the bend the two matrices would be one, as the product of two matrices is a matrix. With it, a layer that is wide
# enough comes as close as one likes to any continuous function on a bounded region (Cybenko 1989 for sigmoids, Leshno et
# al. 1993 for ReLU). ReLU cuts off what is negative. Its slope is 0 there, so a number that is negative whatever comes in
# never learns again (a *dead* neuron). GELU and SiLU cut smoothly, so that a number slightly below zero still can learn.
#
# How do its matrices learn? With `h = activation(z)`, `z = W₁ x + b₁` and `y = W₂ h + b₂`, the chain rule says
#
#     ∂loss / ∂W₂ = ∂loss/∂y hᵀ,    ∂loss / ∂W₁ = (W₂ᵀ ∂loss/∂y · activation'(z)) xᵀ
#
# that is, the error that arrives times what came in, added up over all positions. The cell below checks both.

# %%
wide, narrow = nn.Linear(32, 128), nn.Linear(128, 32)
change = narrow(F.relu(wide(states)))
torch.testing.assert_close(
    change[:, 3], narrow(F.relu(wide(states[:, 3])))
)  # a position knows no other
straight = narrow.weight @ wide.weight
torch.testing.assert_close(
    narrow(wide(states)),
    states @ straight.T + narrow.weight @ wide.bias + narrow.bias,
    rtol=1e-4,
    atol=1e-5,
)
x, wanted = states[0].detach(), torch.randn(states.size(1), 32)
z = wide(x)
y = narrow(F.relu(z))
(y - wanted).square().sum().backward()
with torch.no_grad():
    error = 2 * (y - wanted)  # ∂loss/∂y, a row per position
    torch.testing.assert_close(narrow.weight.grad, error.T @ F.relu(z), rtol=1e-4, atol=1e-4)
    below = error @ narrow.weight * (z > 0)  # the slope of ReLU is 1 or 0
    torch.testing.assert_close(wide.weight.grad, below.T @ x, rtol=1e-4, atol=1e-4)

n_forward = sum(p.numel() for p in (*wide.parameters(), *narrow.parameters()))
assert (
    0.65 < n_forward / (n_forward + n_attention) < 0.68
)  # two thirds of a layer's parameters are here

figure, (left, right) = plt.subplots(1, 2, figsize=(6, 2.4), sharex=True)
for name, function, colour in (
    ("ReLU", F.relu, GREY),
    ("GELU", F.gelu, BLUE),
    ("SiLU", F.silu, ORANGE),
):
    at = torch.linspace(-4, 4, 200, requires_grad=True)
    (slope,) = torch.autograd.grad(function(at).sum(), at)
    left.plot(at.detach().numpy(), function(at).detach().numpy(), color=colour, label=name)
    right.plot(at.detach().numpy(), slope.numpy(), color=colour)
left.set(xlabel="in", ylabel="out", title="activations")
right.set(xlabel="in", ylabel="slope", title="their slopes")
left.legend()

# %% [markdown]
# ## 4.6 Normalisation and residuals
#
# Two habits make deep networks trainable.
#
# **Layer normalisation** gives each vector mean 0 and variance 1, and then a learned scale and shift per dimension. So
# no layer has to cope with numbers that grow or shrink from layer to layer.
#
# A **residual connection** adds what came in to what goes out: `x + f(x)`. A layer only has to say what should *change*.
# And on the way back, the slope of `x + f(x)` is `1 + f'(x)`: where `f'` is small, the 1 still passes the error on to the
# layers below. The picture shows how much of it arrives below so many layers, of the same loss.

# %%
row = torch.tensor([2.0, 4.0, 6.0, 8.0])
by_hand = (row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt()
torch.testing.assert_close(by_hand, F.layer_norm(row, (4,)))

gradients, direction = {}, torch.randn(64)
for residual in (True, False):
    start = torch.randn(1, 64, requires_grad=True)
    deep, norms = start, []
    for _ in range(24):
        step = torch.tanh(nn.Linear(64, 64)(deep))
        deep = F.layer_norm(deep + step if residual else step, (64,)) if residual else step
        (gradient,) = torch.autograd.grad((deep @ direction).sum(), start, retain_graph=True)
        norms.append(gradient.norm().item())
    gradients[residual] = norms
assert gradients[False][-1] < 1e-4 < 1e-1 < gradients[True][-1]

figure, axes = plt.subplots(figsize=(4.4, 2.6))
axes.semilogy(range(1, 25), gradients[True], color=BLUE, label="residuals and norms")
axes.semilogy(range(1, 25), gradients[False], color=ORANGE, label="neither")
axes.set(xlabel="layers above", ylabel="size of the gradient", title="what arrives below")
axes.legend()

# %% [markdown]
# ## 4.7 A layer
#
# Put together, a layer of the encoder is four lines. The paper normalises after each sum (*post-norm*); many later models
# normalise what goes into attention and feed-forward instead (*pre-norm*), which is easier to train when there are many
# layers. In `transduce` it is a field, `norm_position`.

# %%
from transduce.model.layers import Layer

whole = Layer(config, causal=False, cross=False).eval()


def encoder_layer(x):
    a, f = whole.attention, whole.feed_forward
    query, key, value = (split(part, 4) for part in a.qkv(x).chunk(3, dim=-1))
    looked = a.output(attention(query, key, value)[0].transpose(1, 2).flatten(2))
    x = whole.attention_sublayer.norm(x + looked)
    return whole.feed_forward_sublayer.norm(x + f.narrow(F.relu(f.wide(x))))


torch.testing.assert_close(encoder_layer(states), whole(states), rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## 4.8 Softmax, cross-entropy, and a gradient of one line
#
# At the end there is a score `z_i`, a *logit*, for every token of the vocabulary. Softmax makes probabilities of them,
# `p_i = exp(z_i) / Σ_j exp(z_j)`. The loss is *cross-entropy*: minus the logarithm of the probability that the right
# token got. It is 0 where the model was sure and right, and large where it was sure and wrong.
#
# How should the logits change? Each probability depends on all logits: with `δ_ij = 1` for `i = j` and 0 otherwise,
#
#     ∂p_i / ∂z_j = p_i (δ_ij − p_j)
#
# which is a square matrix, the *Jacobian* of softmax; attention has one in every row of its weights. The loss is
# `−ln p_i` of the right token alone, whose derivative is `−1 / p_i`. Multiplied, most of it cancels, and the derivative is
# as simple as it could be. With `y_i = 1` for the right token and 0 for all others,
#
#     ∂loss / ∂z_i = p_i − y_i
#
# The right logit is pushed up by what its probability lacks to 1, and every other one down by the probability that it
# has wrongly. When the model is right, the push is gone.

# %%
logits = torch.tensor([1.5, 0.2, -0.3, 0.9, -1.0], requires_grad=True)
right_token = 3
loss = F.cross_entropy(logits[None], torch.tensor([right_token]))
loss.backward()
p, y = logits.softmax(dim=-1).detach(), F.one_hot(torch.tensor(right_token), 5)
torch.testing.assert_close(loss, -p[right_token].log())
torch.testing.assert_close(logits.grad, p - y)
jacobian = torch.autograd.functional.jacobian(lambda z: z.softmax(dim=-1), logits.detach())
torch.testing.assert_close(jacobian, p[:, None] * (torch.eye(5) - p))
torch.testing.assert_close(-jacobian[right_token] / p[right_token], p - y)

figure, axes = plt.subplots(figsize=(5.2, 2.6))
for shift, numbers, colour, name in (
    (-0.27, p, BLUE, "probability p"),
    (0, y, GREY, "truth y"),
    (0.27, logits.grad, ORANGE, "gradient"),
):
    axes.bar(
        [i + shift for i in range(5)], numbers.tolist(), width=0.25, color=colour, label=name
    )
axes.axhline(0, color="black", linewidth=0.6)
axes.set(xlabel="token", ylabel="value", title="the gradient is p - y")
axes.legend(ncols=3, loc="lower left", fontsize=8)

# %% [markdown]
# ## 4.9 Encoder and decoder
#
# The **encoder** reads the source. Each of its words may look at every other. What comes out, a vector per word, is
# called *memory*.
#
# The **decoder** writes the target, token by token. Its layers have one part more, *cross-attention*, in which queries
# come from the target, and keys and values from the memory: here a word that is being written looks for its source. And
# its self-attention is *causal*: a position sees itself and what stands before, never what comes later. So all positions
# of a sentence can be trained at once, each asked for its next token without seeing it. What stands before is the right
# text, even where the model would have written something else: this is called **teacher forcing**. When the model writes
# by itself, it reads its own tokens instead.
#
# Which halves a model has decides what it is. There is nothing else to choose:
#
# | encoder | decoder | what it is |
# |---|---|---|
# | tokens | tokens | translation |
# | frames of sound | tokens | speech to text |
# | none | tokens | a language model such as GPT-2 ([tutorial 5](5_gpt2.py)) |
# | tokens | none | fills in hidden words, as BERT does |

# %%
tokens = td.StackConfig(input=td.Tokens(vocab_size=50), n_layers=2)
both = td.Transformer(
    td.TransformerConfig(encoder=tokens, decoder=tokens, d_model=32, n_heads=4, d_ff=64)
).eval()
source, target = torch.randint(50, (1, 6)), torch.randint(50, (1, 5))
with torch.no_grad():
    before = both(source=source, target_in=target)
    changed = target.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 50
    after = both(source=source, target_in=changed)
assert before.shape == (1, 5, 50)  # a logit per target position and token
torch.testing.assert_close(before[:, :3], after[:, :3])  # the past does not know the future
assert not torch.allclose(before[:, 3:], after[:, 3:])

# %% [markdown]
# ## 4.10 A translator in seconds
#
# Time to train one. The task is a real piece of German: numbers in words. "Four hundred forty two" is "vier hundert zwei
# und vierzig", literally "four hundred two and forty": units come before tens, and an "und" has no source at all. So word by
# word does not work. Of the numbers from 1 to 999, a hundred are kept for the test, and sixty more to watch the training.

# %%
ENGLISH = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"""
GERMAN = """null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn
fünfzehn sechzehn siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig
achtzig neunzig"""
ONES, TENS = ENGLISH.split()[:20], ["", "", *ENGLISH.split()[20:]]
EINS, ZEHN = GERMAN.split()[:20], ["", "", *GERMAN.split()[20:]]


def english(n: int) -> str:
    if n >= 100:
        return f"{ONES[n // 100]} hundred {english(n % 100) if n % 100 else ''}".strip()
    return ONES[n] if n < 20 else f"{TENS[n // 10]} {ONES[n % 10] if n % 10 else ''}".strip()


def german(n: int) -> str:
    if n >= 100:
        return f"{EINS[n // 100]} hundert {german(n % 100) if n % 100 else ''}".strip()
    if n >= 20:
        return (f"{EINS[n % 10]} und " if n % 10 else "") + ZEHN[n // 10]
    return "eins" if n == 1 else EINS[n]


def text(numbers: list[int]) -> ex.ParallelText:
    return ex.ParallelText([english(n) for n in numbers], [german(n) for n in numbers])


torch.manual_seed(1)
numbers = (torch.randperm(999) + 1).tolist()
test, valid, train = text(numbers[:100]), text(numbers[100:160]), text(numbers[160:])
source_tokenizer, target_tokenizer = ex.train_tokenizer_pair(
    train.source, train.target, vocab_size=420, joint=False
)
pairs, held_out = (
    ex.TextPairs(each, source_tokenizer, target_tokenizer, tokens_per_batch=260)
    for each in (train, valid)
)
print(english(442), "->", german(442))
print(source_tokenizer.tokens(source_tokenizer.encode([english(442)])[0]))

# %% [markdown]
# The model has two layers of width 64 on each side. Training goes like this, over and over: take a batch, compute the
# loss, ask PyTorch for the gradient, and let the optimizer make a small step against it. Three things are customary:
#
# - **Adam** keeps a running mean `m` of every parameter's gradient and `v` of its square, and steps by `m / √v`. So
#   each parameter has a step of its own size. Both means begin at 0, and so are too small at first: after `t` updates they
#   are divided by `1 − β₁ᵗ` and `1 − β₂ᵗ`, which is the *bias correction*. The cell below writes five steps out.
# - The **learning rate** rises for some updates (*warm-up*), as the first gradients are wild, and falls in the end, so
#   that the model settles.
# - **Label smoothing** asks for 90 % instead of 100 % on the right token, so that the model never has to be infinitely sure.


# %%
def adam(gradients: list[float], lr: float, beta1: float, beta2: float, eps: float) -> float:
    """Where a parameter is that began at 1, after a step for each of these gradients."""
    parameter, m, v = 1.0, 0.0, 0.0
    for t, gradient in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        parameter -= lr * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + eps)
    return parameter


parameter = torch.ones(1, requires_grad=True)
theirs = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.98), eps=1e-9)
slopes = [0.5, -2.0, 0.1, 0.1, 3.0]
for slope in slopes:
    parameter.grad = torch.tensor([slope])
    theirs.step()
assert abs(adam(slopes, 0.1, 0.9, 0.98, 1e-9) - parameter.item()) < 1e-6
assert (
    abs(adam([1e-3], 0.1, 0.9, 0.98, 1e-9) - 0.9) < 1e-6
)  # the first step is lr, however small the gradient


# %% [markdown]
# With Adam, the warm-up, the fall and label smoothing, this is the whole training. A gradient longer than 1 is shortened to
# 1 (it is *clipped*), so that no single batch throws the model far:


# %%
def rate(update: int, n_updates: int, peak: float = 5e-3, warmup: int = 25) -> float:
    return peak * min(update / warmup, 1.0, 2 * (n_updates - update) / n_updates)


def validation_loss(model) -> float:
    objective = ex.CrossEntropy(model, label_smoothing=0.0)
    with torch.no_grad():
        batches = list(held_out.epoch(0))
        return float(sum(objective(b).total for b in batches) / sum(b.n_tokens for b in batches))


sizes = td.transformer_base(source_tokenizer.vocab_size, target_tokenizer.vocab_size, n_layers=2)
small = {"d_model": 64, "d_ff": 128, "n_heads": 2, "dropout": 0.0, "init_gain": 0.5}
model = td.Transformer(
    td.TransformerConfig(encoder=sizes.encoder, decoder=sizes.decoder, **small)
)
objective = ex.CrossEntropy(model, label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)

N_UPDATES, HALF_WAY = 150, 70
losses, checks = [], []
epochs = (batch for n in range(100) for batch in pairs.epoch(n))
for update, batch in zip(range(1, N_UPDATES + 1), epochs, strict=False):
    loss = objective(batch).total / batch.n_tokens
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = rate(update, N_UPDATES)
    optimizer.step()
    losses.append(loss.item())
    if update % 10 == 0:
        model.eval()
        checks.append((update, validation_loss(model)))
        if update == HALF_WAY:
            half_trained = copy.deepcopy(model)  # we come back to it
        model.train()
model.eval()
assert checks[-1][1] < 0.35 < 2.0 < checks[0][1]

# %% [markdown]
# The learning curve is the most useful picture of a training. Here, the dashed line is the entropy of a model that has
# learned nothing but how often each German word occurs. What falls below it has learned to *read*. Where the grey line
# leaps up, a batch had short numbers only. The training loss ends higher than that of validation because label smoothing
# is part of it.

# %% tags=["hide-input"]
rows = [
    token
    for row in target_tokenizer.with_eos(target_tokenizer.encode(train.target))
    for token in row
]
share = torch.bincount(torch.tensor(rows)).double() / len(rows)
frequency_alone = float(-(share[share > 0] * share[share > 0].log()).sum())

figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.8), width_ratios=(3, 2))
left.plot(range(1, N_UPDATES + 1), losses, color=GREY, label="training, smoothed")
left.plot(*zip(*checks, strict=True), color=BLUE, marker="o", markersize=3, label="validation")
left.axhline(
    frequency_alone, color=ORANGE, linestyle="--", linewidth=1, label="word frequencies"
)
left.set(xlabel="update", ylabel="loss (nats per token)", ylim=(0, 7), title="learning curve")
left.legend()
right.plot(range(N_UPDATES), [1000 * rate(u, N_UPDATES) for u in range(N_UPDATES)], color=BLUE)
right.set(xlabel="update", ylabel="learning rate (1/1000)", title="schedule")
assert checks[-1][1] < frequency_alone / 3

# %% [markdown]
# What has it learned? The hundred test numbers were in no training batch. `td.Translator` puts a model and its tokenizers
# together.

# %%
translator = td.Translator(model, source_tokenizer, target_tokenizer)
outputs = translator(test.source, beam_size=1)
n_right = sum(a == b for a, b in zip(outputs, test.target, strict=True))
print(
    f"{n_right} of {len(outputs)} unseen numbers are right; for example {test.source[0]} -> {outputs[0]}"
)
assert n_right >= 90

# %% [markdown]
# ## 4.11 Looking at attention
#
# Nobody told the model which word belongs to which. Still, its cross-attention has found out, as looking at the right
# place is the easiest way to predict the right word. Each row below is one token that was written; it is dark where the
# decoder looked when it predicted that token. The two crossings are German grammar: for the units the decoder jumps to
# the last word, and then it goes back to the tens.

# %%
example = "seven hundred eighty four"
(found,) = translator.align([example], ["sieben hundert vier und achtzig"])
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3), sharey=True)
columns, rows = ([token.strip("▁") for token in side] for side in (found.source, found.target))
for i, each in enumerate(axes):
    show_weights(
        each,
        found.weights[i].mean(dim=0),
        rows,
        columns,
        f"source (layer {i + 1})",
        "" if i else "written",
    )
axes[0].set_title("cross-attention")
looks = {
    row: columns[place]
    for row, place in zip(rows, found.weights.mean(dim=(0, 1)).argmax(dim=-1), strict=True)
}
assert (looks["vier"], looks["achtzig"]) == ("four", "eighty")

# %% [markdown]
# ## 4.12 Beam search
#
# The decoder gives probabilities; something must choose. *Greedy search* takes the likeliest token each time. That may
# lead into a dead end: a good first word after which nothing good can come. *Beam search* keeps the `k` best beginnings
# alive, extends each of them by every token, and keeps the `k` best again.
#
# A well-trained model rarely doubts, so we take the one of update 70, half way, and a number where the two searches
# differ.


# %%
@torch.no_grad()
def beam_search(model, line: str, beam_size: int, longest: int = 12):
    """The best (log-probability, ids), and all that was tried: (parent, ids, log-probability, kept)."""
    tokenizer = target_tokenizer
    source = torch.tensor(source_tokenizer.with_eos(source_tokenizer.encode([line])))
    memory = model.encode(source)
    live, finished, tried = [(0.0, (tokenizer.bos_id,))], [(-math.inf, ())], []
    while live and finished[0][0] < live[0][0] and len(live[0][1]) < longest:
        candidates = []
        for score, past in live:
            log_probs = model.decode(torch.tensor([past]), memory=memory)[0, -1].log_softmax(
                dim=-1
            )
            log_probs[[tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id]] = -math.inf
            best = log_probs.topk(beam_size + 1)
            candidates += [
                (score + s, (*past, i))
                for s, i in zip(*map(torch.Tensor.tolist, best), strict=True)
            ]
        candidates.sort(reverse=True)
        finished = sorted(
            finished + [c for c in candidates if c[1][-1] == tokenizer.eos_id], reverse=True
        )
        live = [c for c in candidates if c[1][-1] != tokenizer.eos_id][:beam_size]
        tried += [
            (ids[:-1], ids, score, (score, ids) in live or (score, ids) in finished)
            for score, ids in candidates
        ]
    return finished[0], tried


half_way = td.Translator(half_trained, source_tokenizer, target_tokenizer)
lines, truth = test.source + train.source[:200], test.target + train.target[:200]
greedy, wide = (half_way.translate(lines, beam_size=k, alpha=0.0) for k in (1, 3))
differ = [i for i in range(len(lines)) if wide[i][0].log_prob > greedy[i][0].log_prob + 0.02]
chosen = min(differ, key=lambda i: (wide[i][0].text != truth[i], len(wide[i][0].tokens)))
line = lines[chosen]
(score, ids), tried = beam_search(half_trained, line, beam_size=3)
assert abs(score - wide[chosen][0].log_prob) < 1e-3  # ours finds what transduce finds
print(f"{line}\n  greedy: {greedy[chosen][0].text}  ({greedy[chosen][0].log_prob:.2f})")
print(f"  beam 3: {wide[chosen][0].text}  ({wide[chosen][0].log_prob:.2f})")

# %% [markdown]
# Here is the tree of that search. What was kept is blue, what was dropped is grey, and the winner is orange. The numbers
# are the log-probabilities of the whole beginnings; `</s>` ends a text.

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(6.8, 3.8))
depth = max(len(each[1]) for each in tried)
place = {(target_tokenizer.bos_id,): (0.0, 0.0)}
for step in range(2, depth + 1):
    kept = [t for t in tried if len(t[1]) == step and t[3]]
    dropped = [t for t in tried if len(t[1]) == step and not t[3]][:2]
    for rank, (parent, path, score, alive) in enumerate([*kept, *dropped]):
        at = (step - 1.0, -float(rank))
        place[path] = at
        colour = ORANGE if path == ids[:step] else BLUE if alive else GREY
        (x0, y0), name = place[parent], target_tokenizer.tokens([path[-1]])[0].strip("▁")
        axes.plot(
            (x0 + 0.28 * (step > 2), at[0] - 0.28),
            (y0, at[1]),
            color=colour,
            linewidth=1,
            alpha=0.7,
        )
        axes.text(
            *at, f"{name}\n{score:.2f}", ha="center", va="center", fontsize=7, color=colour
        )
axes.text(0, 0, "start ", ha="right", va="center", fontsize=7)
axes.set(
    xlabel="token",
    yticks=[],
    xlim=(-0.5, depth - 0.5),
    ylim=(min(y for _, y in place.values()) - 0.6, 0.6),
)
axes.set_xticks(range(1, depth))
axes.spines["left"].set_visible(False)
axes.set_title(f"beam search: {line}")

# %% [markdown]
# Long outputs have lower log-probabilities, as each token adds a negative number. So `transduce` divides by a *length
# penalty* `((5 + n) / 6)^alpha` before it compares; `--alpha 0` switches that off, as above.
#
# ## 4.13 Sound enters the same encoder
#
# Nothing in the encoder asks where its vectors come from. Tokens got theirs from a table. Sound has numbers to begin
# with: 16,000 a second, which is too many, and too far from what the ear hears. So it is turned into *frames*, one
# every 10 ms:
#
# 1. cut out 25 ms and fade its ends with a window;
# 2. take the spectrum: how strong is each frequency?
# 3. sum it up in 80 *mel* bands, narrow for low and wide for high tones, as in the ear, and take the logarithm;
# 4. describe the shape of these 80 numbers by 40 cosines, the *mel-frequency cepstral coefficients* (MFCC). (The recipe
#    takes the first 20, and how fast each of them changes: 40 numbers again.)
#
# The recording below ships with `transduce`; it is a synthetic voice.

# %%
from transduce.data.audio import read_audio
from transduce.data.features import FLOOR, FeatureExtractor
from transduce.recipes import DATA

RATE = 16000
sound = DATA / "commands" / "sound" / "valid" / "0001.opus"
waveform = read_audio(sound, RATE)


def mel(hertz):
    return 2595 * torch.log10(1 + torch.as_tensor(hertz) / 700)


windows = waveform.unfold(0, 400, 160) * torch.hann_window(400)  # 25 ms, every 10 ms
power = torch.fft.rfft(windows, n=512).abs() ** 2
edges = torch.linspace(mel(20.0), mel(RATE / 2), 82)
edges = 700 * (10 ** (edges / 2595) - 1)
hertz = torch.linspace(0, RATE / 2, 257)[:, None]
rise, fall = (
    (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2]),
    (edges[2:] - hertz) / (edges[2:] - edges[1:-1]),
)
log_mel = (power @ torch.minimum(rise, fall).clamp_min(0) + FLOOR).log()
cosines = torch.cos(
    math.pi / 80 * (torch.arange(80)[:, None] + 0.5) * torch.arange(40)
) * math.sqrt(2 / 80)
cosines[:, 0] /= math.sqrt(2)
mfcc = log_mel @ cosines

extractor = FeatureExtractor(ex.FeatureConfig(normalize="none"))
torch.testing.assert_close(mfcc, extractor(waveform), rtol=0, atol=0.02)

seconds = len(waveform) / RATE
figure, axes = plt.subplots(3, 1, figsize=(6, 5), sharex=True)
axes[0].plot(
    torch.arange(len(waveform)).numpy() / RATE, waveform.numpy(), color=BLUE, linewidth=0.4
)
axes[0].set(ylabel="waveform", title="from sound to frames")
axes[1].imshow(
    log_mel.T.numpy(),
    origin="lower",
    aspect="auto",
    cmap="magma",
    extent=(0, seconds, 0, 80),
    vmin=-12,
)
axes[1].set(ylabel="mel band")
axes[2].imshow(
    ((mfcc - mfcc.mean(0)) / mfcc.std(0)).T.numpy(), origin="lower", aspect="auto", cmap="RdBu",
    extent=(0, seconds, 0, 40), vmin=-3, vmax=3,
)  # fmt: skip
axes[2].set(ylabel="coefficient", xlabel="time (s) of “please find four recipes”")

# %% [markdown]
# The last row is what the encoder reads, each coefficient with mean 0 and variance 1. Four frames side by side are
# `4 × 40 = 160` numbers. With `d_model` 160 they are the embeddings, straight in, without a table and without a
# matrix. Then come positions and layers of the same class as for text, and the decoder does not notice the difference.
# `python recipes/speech_to_text.py paper` trains exactly that. The other settings of the recipe put a convolution into each
# layer of the encoder (Conformer), with which a small model learns to listen in fewer updates.

# %%
speech = td.Transformer(ex.speech_tiny(target=100)).eval()
frames = FeatureExtractor(ex.FeatureConfig())(waveform)[None]
with torch.no_grad():
    memory = speech.encode(frames)
    scores = speech.decode(torch.tensor([[2]]), memory=memory)
assert memory.states.shape == (1, math.ceil(frames.size(1) / 4), 160) and scores.shape == (
    1,
    1,
    100,
)
assert speech.source_input is not None and not list(
    speech.source_input.parameters()
)  # no weight before the encoder
print(
    f"{seconds:.2f} s -> {frames.size(1)} frames -> {memory.states.size(1)} positions of {memory.states.size(2)}"
)

# %% [markdown]
# ## 4.14 What large trainings add
#
# A large model is trained as the small one above, with some more habits. Three of them are arithmetic that one can check:
#
# - **Gradient accumulation.** A batch that does not fit into memory is cut in two. The gradients of both halves add up to
#   that of the whole, so nothing changes but the time (`--training.accumulate`).
# - **Mixed precision.** Products of matrices are computed in 16 bits. The weights stay in 32, as steps are small: in bf16,
#   `1 + 0.001` is 1 (`--training.precision auto`).
# - **Dropout.** In training, some numbers are set to 0 at random, and the others are made larger by as much, so that the mean
#   stays. So no part of the model can rely on a single other one, and a small corpus is not learned by heart.
#
# The rate need not fall in a straight line. `--training.optim.schedule` has the paper's inverse square root, half a cosine,
# a polynomial (BERT's straight line is its power 1) and none. And random weights must begin at the right size: `xavier`
# (the default) keeps the variance of what flows forwards and backwards about equal, `he` makes up for the half that ReLU
# cuts off, `gpt2` is what GPT-2 had (`--model.init`).
#
# And an encoder alone learns from plain text, if some of its tokens are hidden and it has to find them again: *masked
# language modelling*. As it sees both sides of the gap, it knows more about a word than a model that only sees the past.
# BERT also learned whether one sentence follows another (*next-sentence prediction*), which later models left out without
# loss (Liu et al. 2019).
#
# The last lines below count how models grow. Twice the width is four times the parameters in every layer.

# %%
batch = pairs.epoch(0)[0]
half = len(batch.target_in) // 2


def gradient(rows: slice) -> torch.Tensor:
    model.zero_grad()
    logits = model(
        source=batch.source[rows],
        source_lengths=batch.source_lengths[rows],
        target_in=batch.target_in[rows],
    )
    F.cross_entropy(
        logits.flatten(0, 1), batch.target_out[rows].flatten(), reduction="sum"
    ).backward()
    return model.output.grad.clone()


in_parts = gradient(slice(None, half)) + gradient(slice(half, None))
torch.testing.assert_close(in_parts, gradient(slice(None)), rtol=1e-3, atol=1e-4)
assert torch.tensor(1.0, dtype=torch.bfloat16) + 0.001 == 1.0 != torch.tensor(1.0) + 0.001
dropped = F.dropout(torch.ones(100_000), p=0.3)
assert (
    set(dropped.unique().tolist()) == {0.0, (torch.ones(()) / 0.7).item()}
    and abs(dropped.mean() - 1) < 0.02
)

from transduce.model.meta import n_parameters

for name, each in (
    ("tiny", td.transformer_tiny()),
    ("base", td.transformer_base()),
    ("big", td.transformer_big()),
):
    print(
        f"{name:>5}: width {each.d_model:>4}, {n_parameters(each) / 1e6:6.1f} million parameters"
    )

# %% [markdown]
# ## Where to go from here
#
# These commands do all of the above on real corpora; the first two use data that ships, and each takes minutes:
#
#     transduce train translation
#     transduce train speech-to-text
#     transduce train translation --help
#
# Later ideas are fields of the same configuration: `--model.norm rms` (RMSNorm), `--model.gated --model.activation silu`
# (SwiGLU), `--model.positions rotary`, `--model.n-kv-heads 2` (grouped-query attention), `--model.n-experts 4`,
# `--model.attention linear`. [Tutorial 5](5_gpt2.py) takes the decoder alone and makes a GPT-2 of it.
