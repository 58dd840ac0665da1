"""Every setting that is given counts, or is refused."""

import json
import math

import pytest
import torch

from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.cli.translate import TranslationSearch, TranslationSettings
from transduce.decode.config import SamplingConfig
from transduce.decode.sample import probabilities
from transduce.tasks.config import GenerationConfig, SearchConfig
from transduce.tasks.load import load

LINES = ["Open the old letter.", "Print it."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = random_run(tmp_path_factory.mktemp("run"), model=LITTLE)
    plain = json.loads((folder / "config.json").read_text())
    plain["experiment"]["decoding"] = {"early_stopping": True, "sample": True, "temperature": 0.7, "top_k": 9}
    plain["experiment"]["decoding"] |= {"beam_size": 2, "max_length": 5}
    (folder / "config.json").write_text(json.dumps(plain))
    return folder


def test_settings_of_a_run_can_be_switched_off(run, tmp_path, capsys):
    own = load(run).decoding
    assert own.early_stopping and own.sample
    (tmp_path / "in").write_text("".join(line + "\n" for line in LINES))
    want = load(run)(LINES, SearchConfig(beam_size=2, max_length=5))
    assert main(["translate", str(run), str(tmp_path / "in"), "--no-sample", "--no-early-stopping"]) == 0
    assert capsys.readouterr().out.splitlines() == want
    assert main(["translate", str(run), str(tmp_path / "in"), "--greedy"]) == 0
    assert capsys.readouterr().out.splitlines() == load(run)(LINES, SearchConfig(beam_size=1, max_length=5))


@pytest.mark.parametrize("options", [{"n_best": 3}, {"beam_size": 8}, {"sample": True}])
def test_greedy_refuses_beam_and_sampling_settings(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"--greedy .*--{name.replace('_', '-')}"):
        TranslationSearch(greedy=True, settings=TranslationSettings(options)).overrides()
    single = TranslationSettings(n_best=1, beam_size=1)
    one = SearchConfig().changed(**TranslationSearch(greedy=True, settings=single).overrides())
    assert (one.beam_size, one.n_best) == (1, 1)


@pytest.mark.parametrize("kind", [SearchConfig, GenerationConfig])
def test_contradictory_bounds_are_refused(kind):
    with pytest.raises(ValueError, match="min_length=5 and max_length=4"):
        kind(min_length=5, max_length=4)
    kind(min_length=4, max_length=4)
    SearchConfig(min_length=4, max_length=0)
    with pytest.raises(ValueError, match=r"min_seconds=3\.0 and max_seconds=2\.0"):
        SearchConfig(min_seconds=3.0, max_seconds=2.0)
    assert SearchConfig(min_seconds=3.0).changed(max_seconds=2.0).min_seconds == 2.0


@pytest.mark.parametrize("temperature", [1e-38, 1e-300, 5e-324, 1e-7])
def test_tiny_temperatures_select_the_most_probable_token(temperature):
    logits = torch.tensor([[1.0, 3.0, 2.999, -math.inf], [-50.0, -60.0, -60.0, -60.0]])
    probs = probabilities(logits, SamplingConfig(temperature=temperature))
    torch.testing.assert_close(probs, torch.tensor([[0.0, 1, 0, 0], [1, 0, 0, 0]]))


def test_ctc_weight_without_a_trained_head_is_refused(run):
    with pytest.raises(ValueError, match=r"^ctc_weight needs a CTC head .* but ctc_weight=0\.3 and the run, or one"):
        load(run)(LINES, sample=False, ctc_weight=0.3)


@pytest.mark.parametrize("kind", [SearchConfig, GenerationConfig])
def test_huge_temperatures_are_refused(kind):
    with pytest.raises(ValueError, match=r"temperature must lie in .0, 100\], but temperature=1e\+300"):
        kind(temperature=1e300)


@pytest.mark.parametrize("alpha", [1e9, -0.1, math.inf, math.nan])
@pytest.mark.parametrize("kind", [SearchConfig, GenerationConfig])
def test_invalid_length_penalty_exponents_are_refused(kind, alpha):
    with pytest.raises(ValueError, match=rf"alpha must lie in \[0, 10\.0\], but alpha={alpha}"):
        kind(alpha=alpha)
