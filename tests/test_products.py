"""Products of oneDNN have the values and gradients of float64, in one block of rows and in several."""

import pytest
import torch

from transduce import products
from transduce.products import linear


@pytest.fixture
def by_onednn(monkeypatch):
    """Products as on AMD's CPUs, and how many oneDNN has computed."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("needs a PyTorch with oneDNN")
    made, ours = [], products._OneDNNLinear

    class Counted(ours):
        @staticmethod
        def forward(*inputs):
            made.append(inputs)
            return ours.forward(*inputs)

    monkeypatch.setattr(products, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_OneDNNLinear", Counted)
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(100, 24), (5, 20, 24), (2, 3, 17, 24), (2048, 24), (3, 1500, 24)])
@pytest.mark.parametrize("frozen", ["", "x", "weight", "bias"])
def test_onednn_products_equal_float64_values_and_gradients(by_onednn, shape, bias, frozen):
    torch.manual_seed(0)
    tensors = {"x": torch.randn(shape), "weight": torch.randn(40, 24), "bias": torch.randn(40) if bias else None}
    tensors = {name: each for name, each in tensors.items() if each is not None}
    exact = {name: each.double().requires_grad_(name != frozen) for name, each in tensors.items()}
    ours = {name: each.clone().requires_grad_(name != frozen) for name, each in tensors.items()}
    outputs = linear(**ours)
    expected = torch.nn.functional.linear(exact["x"], exact["weight"], exact.get("bias"))
    assert len(by_onednn) == 1
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-5, atol=1e-5)
    change = torch.randn_like(outputs)
    outputs.backward(change)
    expected.backward(change.double())
    for name, each in ours.items():
        assert (each.grad is None) == (name == frozen)
        if name != frozen:
            torch.testing.assert_close(each.grad.double(), exact[name].grad, rtol=1e-5, atol=1e-4)


def test_onednn_computes_only_large_float32_products(by_onednn):
    weight = torch.randn(40, 24)
    linear(torch.randn(63, 24), weight)
    linear(torch.randn(100, 24).double(), weight.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.randn(100, 24), weight).dtype == torch.bfloat16
    assert not by_onednn
    with torch.inference_mode():
        linear(torch.randn(64, 24), weight)
    assert len(by_onednn) == 1


def test_onednn_products_have_second_gradients(by_onednn):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(100, 24), torch.randn(40, 24), torch.randn(40)

    def second(product, dtype):
        inputs = [each.to(dtype).requires_grad_() for each in (x, weight, bias)]
        first = torch.autograd.grad(product(*inputs).tanh().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), inputs)

    ours, expected = second(linear, torch.float32), second(torch.nn.functional.linear, torch.float64)
    assert len(by_onednn) > 1
    for own, exact in zip(ours, expected, strict=True):
        assert float((own - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_onednn_products_under_vmap(by_onednn):
    """Gradients of every example by itself, as torch.vmap gives them."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 100, 24), torch.randn(40, 24)

    def gradient(product):
        return torch.vmap(torch.func.grad(lambda w, row: product(row, w).tanh().sum()), in_dims=(None, 0))(weight, x)

    torch.testing.assert_close(gradient(linear), gradient(torch.nn.functional.linear), rtol=1e-4, atol=1e-4)
    assert by_onednn
