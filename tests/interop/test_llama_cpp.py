"""Language models in llama.cpp: exported, converted by its own converter, and held against ours there.

LLAMA_CPP names a folder of llama.cpp's source, as the source distribution of llama-cpp-python holds it in vendor.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import transduce as td
from tests.language_runs import TEXT, language_run
from transduce.cli.main import main
from transduce.tasks.config import GenerationConfig

pytestmark = pytest.mark.long

LIKE_LLAMA = {"norm": "rms", "gated": True, "activation": "silu", "positions": "rotary", "d_model": 32, "d_ff": 64}
PAGE = Path(__file__).parents[2] / "docs" / "models_in_and_out.md"


def converter() -> str:
    """The program that the manual shows."""
    return PAGE.read_text("utf-8").split("## llama.cpp\n")[1].split("```python\n")[1].split("```")[0]


@pytest.mark.process
@pytest.mark.parametrize(
    "parts",
    [
        {"bias": False},
        {"bias": False, "qkv_bias": True, "n_kv_heads": 1},
        {"bias": False, "qk_norm": True, "n_kv_heads": 1, "rotary_theta": 500.0},
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_logits_tokens_and_greedy_outputs_equal_ours(tmp_path, parts, capsys):
    llama_cpp = pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python")
    if "LLAMA_CPP" not in os.environ:
        pytest.skip("LLAMA_CPP must name llama.cpp's source, which has the converter")
    run = language_run(tmp_path / "RUN", "bytes", **LIKE_LLAMA, **parts)
    assert main(["export", str(run), str(tmp_path / "exported"), "--to", "llama"]) == 0
    (tmp_path / "llama.cpp").symlink_to(os.environ["LLAMA_CPP"])
    text = converter().replace("q8_0", "f32")
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True)
    theirs = llama_cpp.Llama(
        str(tmp_path / "model.gguf"), logits_all=True, n_ctx=40, n_threads=1, type_k=0, type_v=0, verbose=False
    )
    generator = td.load_generator(run)
    for line in TEXT[:3]:
        (ids,) = generator.tokenizer.encode([line])
        assert theirs.tokenize(line.encode(), add_bos=False, special=False) == ids
        ids = ids[:20]
        theirs.reset()
        theirs.eval(ids)
        with torch.no_grad():
            want = generator.model(target_in=torch.tensor([ids]))[0].numpy()
        assert want.std() > 0.5
        np.testing.assert_allclose(theirs.scores[: len(ids)], want, rtol=0, atol=1e-4)
        (output,) = generator.generate([line[:9]], GenerationConfig(max_length=12, temperature=0.0))[0]
        prompt, greedy = generator.encode(line[:9]), []
        for token in theirs.generate(prompt, temp=0.0, repeat_penalty=1.0):
            if token == theirs.token_eos() or len(greedy) == 12:
                break
            greedy.append(token)
        assert output.tokens == greedy
