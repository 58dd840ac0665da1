"""What every Transformer keeps, whatever its configuration: properties, not values.

Whole = step by step; padding invisible; a row alone = the row in its batch; the future invisible; beams fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from transduce.model.config import Frames, TransformerConfig
from transduce.model.transformer import Memory, Transformer

ROWS, SOURCE, TARGET, BEAMS = 3, 23, 19, 5
"""Rows of a batch, source and target positions, beams: different primes, so that no two axes can be confused.

Long enough for PyTorch's attention kernel, where attend() has another way for few queries; the pieces take that one.
"""

GARBAGE = 1e4
"""What stands in padded frames. Not NaN: 0 * NaN is NaN, and leaks through any boolean mask."""


def random_model(config: TransformerConfig, rng: Generator) -> Transformer:
    """A float64 model that computes alike in training and evaluation, without zeros and ones that hide mistakes."""
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64) * 0.3)
    return model


@dataclass(frozen=True)
class Example:
    """A batch; a half that the model does not have is None."""

    source: Tensor | None
    source_lengths: Tensor | None
    target: Tensor | None
    target_lengths: Tensor | None

    def logits(self, model: Transformer) -> Tensor:
        return model(source=self.source, source_lengths=self.source_lengths, target_in=self.target)

    def memory(self, model: Transformer) -> Memory | None:
        return None if self.source is None else model.encode(self.source, self.source_lengths)


def random_example(config: TransformerConfig, rng: Generator, rows: int = ROWS) -> Example:
    """Rows of different lengths, the first the longest; what lies beyond a row's length is as random as the rest."""
    source = source_lengths = target = target_lengths = None
    if config.encoder is not None:
        source = _source(config, rng, rows, SOURCE)
        source_lengths = torch.tensor([SOURCE - 2 * row for row in range(rows)])
    if config.decoder is not None:
        target = torch.randint(config.decoder.input.vocab_size, (rows, TARGET), generator=rng)
        target_lengths = torch.tensor([TARGET - 3 * row for row in range(rows)])
    return Example(source, source_lengths, target, target_lengths)


def _source(config: TransformerConfig, rng: Generator, rows: int, steps: int) -> Tensor:
    assert config.encoder is not None
    flow = config.encoder.input
    if isinstance(flow, Frames):
        return torch.randn(rows, steps, flow.n_features, generator=rng, dtype=torch.float64)
    return torch.randint(flow.vocab_size, (rows, steps), generator=rng)


def output_lengths(config: TransformerConfig, example: Example) -> list[int]:
    """How many positions of each row's logits are real."""
    if example.target_lengths is not None:
        return example.target_lengths.tolist()
    assert config.encoder is not None
    assert example.source_lengths is not None
    per_position = config.encoder.input.per_position if isinstance(config.encoder.input, Frames) else 1
    return [-(-length // per_position) for length in example.source_lengths.tolist()]


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def decode(model: Transformer, target: Tensor, **more: object) -> Tensor:
    """Logits at every position of `target`; an engine has no such method."""
    return model.project(model.decoder_states(target, **more))


def in_pieces(model: Transformer, target: Tensor, memory: Memory | None, pieces: Sequence[int]) -> Tensor:
    """Logits of `target` decoded with a cache, pieces[i] positions at a time."""
    assert sum(pieces) == target.size(1)
    cache, logits, done = model.new_cache(), [], 0
    for piece in pieces:
        piece_of_target = target[:, done : done + piece]
        logits.append(decode(model, piece_of_target, memory=memory if done == 0 else None, cache=cache))
        done += piece
        assert cache.length == done
    return torch.cat(logits, dim=1)


def whole_equals_step_by_step(model: Transformer, rng: Generator) -> None:
    """Decoding with a cache, one token or some tokens at a time, is decoding everything at once."""
    example = random_example(model.config, rng)
    assert example.target is not None
    whole, memory = example.logits(model), example.memory(model)
    for pieces in ((1,) * 9 + (8, 1, 1), (5, 1, 11, 2), (18, 1)):
        same(in_pieces(model, example.target, memory, pieces), whole)


def padding_is_invisible(model: Transformer, rng: Generator) -> None:
    """However much garbage follows a row, on whichever side, its logits stay."""
    config, example = model.config, random_example(model.config, rng)
    want = example.logits(model)
    for more_source, more_target in ((0, 0), (7, 2)):
        padded = Example(
            _with_garbage(example.source, example.source_lengths, more_source, rng),
            example.source_lengths,
            _with_garbage(example.target, example.target_lengths, more_target, rng),
            example.target_lengths,
        )
        got = padded.logits(model)
        for row, length in enumerate(output_lengths(config, example)):
            same(got[row, :length], want[row, :length])


def _with_garbage(x: Tensor | None, lengths: Tensor | None, more: int, rng: Generator) -> Tensor | None:
    """A copy, `more` positions longer, with other ids (or 1e4) wherever no row is."""
    if x is None or lengths is None:
        return None
    shape = (x.size(0), x.size(1) + more, *x.shape[2:])
    padded = torch.randint(11, shape, generator=rng) if x.dim() == 2 else torch.full(shape, GARBAGE, dtype=x.dtype)
    for row, length in enumerate(lengths.tolist()):
        padded[row, :length] = x[row, :length]
    return padded


def a_row_alone_equals_the_row_in_its_batch(model: Transformer, rng: Generator) -> None:
    """Neighbours, and being the shorter one, change nothing."""
    config, example = model.config, random_example(model.config, rng)
    batch = example.logits(model)
    for row, length in enumerate(output_lengths(config, example)):
        alone = Example(_cut(example.source, example.source_lengths, row), None, _cut(example.target, None, row), None)
        same(alone.logits(model)[0, :length], batch[row, :length])


def _cut(x: Tensor | None, lengths: Tensor | None, row: int) -> Tensor | None:
    if x is None:
        return None
    return x[row : row + 1] if lengths is None else x[row : row + 1, : int(lengths[row])]


def the_future_is_invisible(model: Transformer, rng: Generator) -> None:
    """d logits[t] / d input[s] is zero to the last bit where s > t, and not zero where s <= t, as far as windows reach.

    Row t of a batch of equal rows is asked about its position t, so that one backward pass answers for all.
    """
    example = random_example(model.config, rng, rows=1)
    assert model.decoder is not None
    assert model.target_input is not None
    vectors = model.target_input(example.target)[0].detach().repeat(TARGET, 1, 1).requires_grad_()
    logits = model.project(model.decoder(vectors, memory=example.memory(model)))
    gradients = _gradient(logits.diagonal().T, vectors, rng)
    assert model.config.decoder is not None
    reach = _reach(model.config, model.config.decoder.n_layers)
    for t, gradient in enumerate(gradients):
        first = max(0, t - reach)
        assert torch.all(gradient[t + 1 :] == 0), f"position {t} sees its future"
        assert torch.all(gradient[first : t + 1].norm(dim=-1) > 0), f"position {t} does not see all of its past"
        assert torch.all(gradient[:first] == 0), f"position {t} sees beyond its windows"


def _reach(config: TransformerConfig, n_layers: int) -> int:
    """How many positions away the furthest can be that a state of the last layer depends on."""
    return 10**6 if config.window is None else n_layers * (config.window - 1)


def padding_gets_no_gradient(model: Transformer, rng: Generator) -> None:
    """d memory / d input is zero to the last bit where the input is padding, and not zero where it is real.

    Every row of a batch is repeated, and each copy is asked about another position; then the rows about each other.
    """
    example = random_example(model.config, rng)
    assert model.encoder is not None
    assert model.source_input is not None
    vectors, lengths = model.source_input(example.source, example.source_lengths)
    asked = [(row, t) for row, length in enumerate(lengths.tolist()) for t in range(length)]
    rows, positions = torch.tensor(asked).T
    copies = vectors.detach()[rows].requires_grad_()
    states = model.encoder(copies, lengths=lengths[rows])
    assert model.config.encoder is not None
    reach = _reach(model.config, model.config.encoder.n_layers)
    gradients = _gradient(states[torch.arange(len(rows)), positions], copies, rng)
    for (row, t), gradient in zip(asked, gradients, strict=True):
        first, end = max(0, t - reach), min(int(lengths[row]), t + reach + 1)
        assert torch.all(gradient[:first] == 0) and torch.all(gradient[end:] == 0)
        assert torch.all(gradient[first:end].norm(dim=-1) > 0)

    vectors = vectors.detach().requires_grad_()
    states = model.encoder(vectors, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        gradient = _gradient(states[row, :length], vectors, rng)
        assert torch.all(gradient[[other for other in range(ROWS) if other != row]] == 0)


def _gradient(y: Tensor, x: Tensor, rng: Generator) -> Tensor:
    """The sum over y's vectors, each in a random direction: along (1, ..., 1) a normalized vector does not change."""
    direction = torch.randn(y.shape, generator=rng, dtype=y.dtype)
    return torch.autograd.grad((y * direction).sum(), x, retain_graph=True)[0]


@torch.no_grad()  # a search takes no gradients
def beams_fold(model: Transformer, rng: Generator) -> None:
    """Rows = sentences * beams over one memory are the rows over the memory repeated; so they stay when reordered."""
    config, example = model.config, random_example(model.config, rng)
    assert config.decoder is not None
    rows = ROWS * BEAMS
    target = torch.randint(config.decoder.input.vocab_size, (rows, TARGET), generator=rng)
    memory = example.memory(model)
    repeated = None if memory is None else Memory(*(part.repeat_interleave(BEAMS, dim=0) for part in memory))
    want = model.decode(target, memory=repeated)
    same(model.decode(target, memory=memory), want)
    same(in_pieces(model, target, memory, (3, 1, 14, 1)), want)

    # A search begins with one row per sentence, and widens to its beams.
    cache, start = model.new_cache(), target[::BEAMS, :7]
    model.decode(start, memory=memory, cache=cache)
    cache.reorder(torch.arange(ROWS).repeat_interleave(BEAMS))
    whole = torch.cat((start.repeat_interleave(BEAMS, dim=0), target[:, 7:]), dim=1)
    same(model.decode(target[:, 7:], cache=cache), model.decode(whole, memory=repeated)[:, 7:])

    # A search step: every sentence keeps some of its beams, some of them twice. Then the first sentence is finished.
    kept = torch.cat([torch.randint(BEAMS, (BEAMS,), generator=rng) + sentence * BEAMS for sentence in range(ROWS)])
    for chosen, sentences in ((kept, None), (kept[BEAMS:], torch.arange(1, ROWS))):
        cache = model.new_cache()
        model.decode(target[:, :7], memory=memory, cache=cache)
        cache.reorder(chosen)
        if sentences is not None:
            cache.keep(sentences)
        rest = torch.randint(config.decoder.input.vocab_size, (len(chosen), TARGET - 7), generator=rng)
        got = model.decode(rest, cache=cache)
        whole = torch.cat((target[chosen, :7], rest), dim=1)
        own = None if repeated is None else Memory(*(part[chosen] for part in repeated))
        same(got, model.decode(whole, memory=own)[:, 7:])


def encodes_alike(model: Transformer, rng: Generator) -> None:
    """What concerns the rows of a batch, and their padding."""
    padding_is_invisible(model, rng)
    a_row_alone_equals_the_row_in_its_batch(model, rng)
    if model.config.encoder is not None:
        padding_gets_no_gradient(model, rng)


def keeps_it(model: Transformer, rng: Generator) -> None:
    """All that a model of this shape must keep."""
    encodes_alike(model, rng)
    if model.config.decoder is not None:
        whole_equals_step_by_step(model, rng)
        the_future_is_invisible(model, rng)
        beams_fold(model, rng)
