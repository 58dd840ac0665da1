"""The kernels in C++ compute what PyTorch computes, which replaces them where they are not available."""

import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.kernels import needs_cpp
from transduce import kernels
from transduce.decode.scorer import log_sum_exp, top_k
from transduce.engine.stack import Matrix, constant

SHAPES = [(1, 1, 1), (1, 16, 24), (5, 7, 33), (6, 40, 24), (13, 1000, 96), (64, 256, 256), (200, 512, 1030), (0, 8, 8)]
"""Rows, outputs and inputs; of most, none is a multiple of what a tile has."""

PRODUCTS = [(shape, 1) for shape in SHAPES] + [((5, 7, 33), 2), ((71, 509, 241), 2)]
"""A shape, and by how many threads it is computed; the kernels divide the last one alone among them."""

COMPILED = kernels.library()
"""Loaded when the tests are collected, as compiling starts a process."""


@contextmanager
def use_threads(n: int) -> Iterator[None]:
    """Use so many threads for what is computed inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@needs_cpp
@pytest.mark.parametrize(("shape", "n_threads"), PRODUCTS)
def test_matrix_product_equals_pytorch(shape, n_threads, rng):
    n, n_out, n_in = shape
    x, weight, bias = (torch.randn(*size, generator=rng) for size in ((n, n_in), (n_out, n_in), (n_out,)))
    product, biased = Matrix(weight), Matrix(weight, bias)
    want = x.double() @ weight.double().T
    folded = torch.randn(2, 3, n_in, generator=rng).transpose(0, 1)  # more dimensions, and not contiguous
    with use_threads(n_threads):
        ours = product(x), biased(x)
        products = product(folded), product(folded.reshape(6, n_in))
    for got, wanted in zip(ours, (want, want + bias), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5 * math.sqrt(n_in))
    assert torch.equal(products[0], products[1].view(3, 2, n_out))


def powers_of_two(n: int, rng: torch.Generator) -> Tensor:
    return 2.0 ** torch.randint(-9, 9, (n, 1), generator=rng)


def weights(n_out: int, n_in: int, largest: int, rng: torch.Generator) -> Tensor:
    """Rows of integers up to `largest`. Each row contains 127, the first row as often as possible."""
    rows = torch.randint(-largest, largest + 1, (n_out, n_in), generator=rng)
    rows[:1] = largest
    rows[..., :2] = torch.tensor([127, 127 if largest == 127 else 0])[:n_in]
    return rows


def inputs(n: int, n_in: int, rng: torch.Generator) -> Tensor:
    """Rows of integers, of which each has its least number of -254 to 0, and one that is larger by 254; the first row has as
    many 254 as may be."""
    least = torch.randint(-254, 1, (n, 1), generator=rng)
    least[:1] = 0
    rows = least + torch.randint(255, (n, n_in), generator=rng)
    rows[:1] = 254
    rows[:, :2] = torch.cat((least, least + 254), dim=1)[:, :n_in]
    return rows


@needs_cpp
@pytest.mark.parametrize(("shape", "n_threads"), PRODUCTS)
def test_int8_equals_the_product_of_integers(shape, n_threads, rng):
    n, n_out, n_in = shape
    largest = 63 if constant("saturates") else 127  # pairs of weights are then at most 127
    x_int, w_int = inputs(n, n_in, rng), weights(n_out, n_in, largest, rng)
    x_scale, w_scale = powers_of_two(n, rng), powers_of_two(n_out, rng)
    bias = torch.randn(n_out, generator=rng)
    exact = (x_int.double() @ w_int.double().T) * x_scale * w_scale.T
    product, biased = (Matrix(w_int * w_scale, each, int8=True) for each in (None, bias))
    x = x_int * x_scale
    near = {"rtol": 1e-6, "atol": 1e-6 * float(exact.abs().max()) if n else 0.0}
    with use_threads(n_threads):
        ours, zeros = (product(x), biased(x)), product(torch.zeros(2, n_in))
    for got, want in zip(ours, (exact, exact + bias), strict=True):
        torch.testing.assert_close(got.double(), want, **near)
    assert torch.equal(zeros, torch.zeros(2, n_out))


@needs_cpp
def test_int8_of_the_largest_numbers_does_not_overflow():
    """Sums of two products, which some CPUs form in 16 bits, of weights and inputs that are all as large as they can be."""
    for signs in ((1, 1), (1, -1), (-1, -1)):
        weight, x = torch.tensor(signs).repeat(30, 33) * 0.7, torch.tensor([[3.0], [-3.0]]).expand(2, 66)
        got = Matrix(weight, int8=True)(x)
        torch.testing.assert_close(got, x @ weight.T, rtol=0.01, atol=1e-4)


@needs_cpp
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_does_not_depend_on_the_others(int8, rng):
    product = Matrix(torch.randn(50, 64, generator=rng), int8=int8)
    x = torch.randn(200, 64, generator=rng) * torch.logspace(-3, 3, 200)[:, None]
    whole = product(x)
    assert all(torch.equal(product(x[i : i + n]), whole[i : i + n]) for n in (1, 3, 64) for i in range(0, 136, 17))


@needs_cpp
@pytest.mark.parametrize("vocab_size", [1, 3, 15, 16, 17, 1000, 8001])
def test_top_k_equals_a_stable_sort(vocab_size, rng):
    """Equal ones stay in their order, as in a stable sort."""
    for n_threads, n_sentences, n_rows, n in ((1, 1, 1, 1), (1, 3, 5, 10), (2, 20, 4, 8), (1, 20, 4, 8), (2, 2, 1, 7)):
        scores = torch.randint(-4, 4, (n_sentences * n_rows, vocab_size), generator=rng) / 4
        scores[torch.rand(scores.shape, generator=rng) < 0.2] = -math.inf
        offset = torch.randint(0, 3, (n_sentences, n_rows), generator=rng) / 2
        total = (scores.view(n_sentences, n_rows, vocab_size) + offset[:, :, None]).flatten(1)
        with use_threads(n_threads):
            values, token, row = top_k(scores, offset, n)
        want, index = (each[:, :n] for each in total.sort(dim=1, descending=True, stable=True))
        k, real = want.size(1), want > -math.inf
        assert torch.equal(values[:, :k], want) and (values[:, k:] == -math.inf).all()
        assert torch.equal((row * vocab_size + token)[:, :k][real], index[real])
        assert ((token >= 0) & (token < vocab_size) & (row >= 0) & (row < n_rows)).all()


@needs_cpp
def test_log_sum_exp(rng):
    for shape in ((1, 5), (3, 700), (30, 9000), (2, 1), (0, 4)):
        for spread in (0.1, 30.0, 1000.0):
            logits = spread * torch.randn(shape, generator=rng)
            if shape[1] > 1:
                logits[:, 1] = -math.inf
            want = logits.double().logsumexp(-1)
            for n_threads in (1, 2):
                with use_threads(n_threads):
                    got = log_sum_exp(logits)
                torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path, caplog):
    """A user without anything compiled; what is loaded in this process stays loaded for others."""
    caplog.set_level("INFO", logger="transduce")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "loaded", cache(kernels.loaded.__wrapped__))
    return tmp_path / "transduce"


@needs_cpp
def test_compiled_libraries_are_cached_per_compiler(empty_cache, monkeypatch):
    """By a stand-in, which copies what is compiled already."""
    commands = []

    def run(command, **_):
        commands.append(command)
        if "-o" in command:
            shutil.copy(COMPILED._name, command[-1])
        return SimpleNamespace(stdout=f"version {len(versions)}")

    versions = [1]
    monkeypatch.setattr(kernels.subprocess, "run", run)
    for n_made in (1, 1, 2):
        kernels.loaded.cache_clear()
        assert kernels.library() is not None and len(list(empty_cache.iterdir())) == n_made
        if len(commands) > 2:
            versions.append(2)  # another compiler makes another library
    assert [command[1] == "--version" for command in commands] == [True, False, True, True, False]
    assert all({*kernels.FLAGS, str(kernels.SOURCE)} <= {*command} for command in commands if "-o" in command)


@needs_cpp
def test_compiler_errors_are_logged(empty_cache, monkeypatch, caplog):
    def run(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="so many errors")

    monkeypatch.setattr(kernels.subprocess, "run", run)
    assert kernels.library() is None and "so many errors" in caplog.text


@needs_cpp
@pytest.mark.process
def test_kernels_are_compiled_once(empty_cache, caplog):
    assert kernels.library() is not None and caplog.text.count("compiling kernels.cpp for this CPU, once") == 1
    (made,) = empty_cache.iterdir()
    kernels.loaded.cache_clear()
    assert (
        kernels.library() is not None and caplog.text.count("compiling") == 1 and list(empty_cache.iterdir()) == [made]
    )


@needs_cpp
@pytest.mark.process
def test_errors_of_a_real_compiler_are_logged(empty_cache, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "FLAGS", ("--no-such-flag",))
    assert kernels.library() is None
    assert "cannot be used" in caplog.text and "no-such-flag" in caplog.text


def test_a_missing_compiler_is_logged(empty_cache, monkeypatch, caplog):
    monkeypatch.setattr(kernels.shutil, "which", lambda *_: None)
    assert kernels.library() is None and "no C++ compiler" in caplog.text


def test_kernels_can_be_switched_off(empty_cache, monkeypatch):
    monkeypatch.setenv("TRANSDUCE_KERNELS", "0")
    assert kernels.library() is None and not empty_cache.exists()


@pytest.mark.parametrize("named", ["", "/caches"])
def test_cache_folder_follows_xdg_cache_home(monkeypatch, named):
    """An empty name is none, as the XDG specification has it; a home is asked for where it is needed alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    if named:
        monkeypatch.setattr(Path, "home", lambda: 1 / 0)
    else:
        monkeypatch.setenv("HOME", "/home/x")
    assert kernels.cache_folder() == Path(named or "/home/x/.cache") / "transduce"
