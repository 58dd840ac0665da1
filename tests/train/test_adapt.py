"""LoRA against its formula: what is trained, what is saved, and how a training is resumed."""

import signal

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.train import toy
from transduce.files import set_weights
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.config import LoRAConfig
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import add_lora, merge, merged

LORA = LoRAConfig(rank=2, alpha=6.0)


class Stopped(CrossEntropy):
    """An objective that gets a signal when it computes its n-th batch."""

    def __init__(self, at: int) -> None:
        super().__init__(toy.model(dropout=0.3))
        self.left = at

    def forward(self, batch):
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)
        return super().forward(batch)


def trainer(directory, lora=LORA, objective=None, **fields):
    objective = objective or CrossEntropy(toy.model(dropout=0.3))
    return toy.trainer(directory, objective=objective, config=toy.config(lora=lora, **fields))


def parts(model):
    """The matrices A and B of each fused weight, by its name, in the order q, k, v."""
    got = {}
    for name, parameter in model.named_parameters():
        if name.endswith((".a", ".b")):
            got.setdefault(name.split(".parametrizations.")[0], []).append(parameter.detach().clone())
    return {name: list(zip(values[::2], values[1::2], strict=True)) for name, values in got.items()}


def test_initial_lora_does_not_change_outputs(tmp_path):
    plain, model = toy.model(), trainer(tmp_path).model.eval()
    batch = toy.Backwards().epoch(0)[0]
    with torch.no_grad():
        assert torch.equal(CrossEntropy(plain.eval())(batch).total, CrossEntropy(model)(batch).total)
    assert toy.same(toy.weights(plain), {name: weight.detach() for name, weight in merged(model).items()})


def test_saved_weights_are_the_lora_formula(tmp_path):
    """W + alpha / rank * B A in the rows of q and v, in a file that an ordinary model loads."""
    before = toy.weights(toy.model())
    training = trainer(tmp_path, max_updates=10)
    training.run()
    saved = load_file(tmp_path / "checkpoints" / "00000010" / "model.safetensors")
    assert saved.keys() == before.keys()
    width, changed = 16, {}
    for name, pairs in parts(training.model).items():
        weight = before[f"{name}.weight"].double()
        rows = {"qkv": (0, 2), "q": (0,), "kv": (1,)}[name.rsplit(".", 1)[-1]]
        assert len(pairs) == len(rows)
        for row, (a, b) in zip(rows, pairs, strict=True):
            assert a.shape == (2, width) and b.shape == (width, 2) and b.abs().max() > 0
            for i in range(width):
                for j in range(width):
                    weight[row * width + i, j] += 6.0 / 2 * sum(b[i, r].item() * a[r, j].item() for r in range(2))
        changed[f"{name}.weight"] = weight
    assert changed.keys() == {
        "encoder.layers.0.attention.qkv.weight", "decoder.layers.0.attention.qkv.weight",
        "decoder.layers.0.cross.q.weight", "decoder.layers.0.cross.kv.weight",
    }  # fmt: skip
    for name, weight in saved.items():
        if name in changed:
            torch.testing.assert_close(weight.double(), changed[name], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(weight, before[name]), name
    plain = toy.model()
    set_weights(plain, saved, "what was saved")
    batch = toy.Backwards().epoch(0)[0]
    training.model.eval()
    with torch.no_grad():
        want = CrossEntropy(training.model)(batch).total
        assert torch.equal(CrossEntropy(plain.eval())(batch).total, want)
        merge(training.model)
        assert torch.equal(CrossEntropy(training.model)(batch).total, want)
    assert toy.weights(training.model).keys() == before.keys()


def test_resumed_training_is_bitwise_equal(tmp_path):
    short = {"max_updates": 12, "validate_every": 4}
    straight = trainer(tmp_path / "straight", **short)
    straight.run()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "again", objective=Stopped(6), **short).run()
    again = trainer(tmp_path / "again", **short)
    assert again.store.newest().name == "00000006"
    assert again.run().update == 12
    assert toy.same(toy.weights(straight.model), toy.weights(again.model))
    assert any(name.endswith(".b") for name in toy.weights(again.model))
    kept = sorted(path.parent.name for path in (tmp_path / "again").rglob("lora.safetensors"))
    assert kept == ["00000008", "00000012"]


def test_named_parts_are_trained_beside_lora(tmp_path):
    lora = LoRAConfig(rank=1, maps=("decoder.*.narrow", "cross.k"), train=("encoder.layers.0.attention_sublayer",))
    model = trainer(tmp_path, lora, freeze=("decoder.layers.0.cross",)).model
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        "encoder.layers.0.attention_sublayer.norm.weight", "encoder.layers.0.attention_sublayer.norm.bias",
        "decoder.layers.0.feed_forward.narrow.parametrizations.weight.0.a",
        "decoder.layers.0.feed_forward.narrow.parametrizations.weight.0.b",
    }  # fmt: skip


def test_lora_of_grouped_query_values_has_fewer_rows():
    """With one head of keys and values for two of queries, q has 8 rows, k and v have 4."""
    decoder = StackConfig(input=Tokens(vocab_size=7), n_layers=1)
    model = Transformer(TransformerConfig(decoder=decoder, d_model=8, n_heads=2, n_kv_heads=1, d_ff=8, dropout=0.0))
    before = toy.weights(model)
    add_lora(model, LoRAConfig(rank=3, alpha=3.0, maps=("v",)), seed=1)
    (((a, b),),) = parts(model).values()
    assert a.shape == (3, 8) and b.shape == (4, 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".b"):
                parameter.fill_(0.5)
    x = torch.randn(2, 5, 8)
    name = "decoder.layers.0.attention.qkv"
    got = model.get_submodule(name)(x)
    want = F.linear(x, before[f"{name}.weight"], before[f"{name}.bias"])
    want[..., 12:] += F.linear(F.linear(x, a), torch.full_like(b, 0.5))  # x A^T B^T, as in the paper's figure 1
    torch.testing.assert_close(got, want)


def test_lora_of_gated_layers_by_half_or_as_a_whole():
    decoder = StackConfig(input=Tokens(vocab_size=7), n_layers=1)
    config = TransformerConfig(decoder=decoder, d_model=8, n_heads=2, d_ff=5, dropout=0.0, gated=True)
    shapes = {"value": [(5, 2)], "wide": [(5, 2), (5, 2)]}
    for name, of_b in shapes.items():
        model = Transformer(config)
        wide = model.decoder.layers[0].feed_forward.wide
        before = wide.weight.detach().clone()
        add_lora(model, LoRAConfig(rank=2, alpha=2.0, maps=(name,)), seed=1)
        ((parameters, pairs),) = parts(model).items()
        assert parameters == "decoder.layers.0.feed_forward.wide" and [b.shape for _, b in pairs] == of_b
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith(".b"):
                    parameter.fill_(0.5)
        rows = torch.cat([torch.full((5, 2), 0.5) @ a for a, _ in pairs])
        changed = F.pad(rows, (0, 0, 10 - len(rows), 0))  # the value is the second half
        torch.testing.assert_close(wide.weight, before + changed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"maps": ("q", "query")},
            "lora.maps must name linear maps of the model, but 'query' is none; it has k, narrow, output, q, v, wide",
        ),
        (
            {"train": ("embedding",)},
            "lora.train must name parts of the model, but 'embedding' has no weights; it has output, source_input, "
            "encoder, target_input, decoder",
        ),
        (
            {"rank": 17},
            "lora.rank must be at most the rows and columns of every map, but rank=17 and encoder.layers.0.attention.q "
            "has 16 and 16",
        ),
    ],
)
def test_invalid_lora_settings_are_refused(tmp_path, fields, message):
    with pytest.raises(ValueError) as error:
        trainer(tmp_path, LoRAConfig(**({"rank": 2} | fields)))
    assert str(error.value) == message


def test_lora_train_without_rank_and_empty_maps_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"^lora\.train needs low-rank changes, but lora\.rank=0 and lora\.train=output;"
    ):
        LoRAConfig(train=("output",))
    with pytest.raises(
        ValueError, match=r"^a training needs weights to train, but freeze=, or LoRA of no maps, leaves"
    ):
        trainer(tmp_path, LoRAConfig(rank=2, maps=()))
