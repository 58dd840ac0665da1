"""scripts/ops/compare_exports.py: the run is the same elsewhere, and it would be told if it were not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.language_runs import language_run
from tests.runs import ENGLISH, LITTLE, random_run

SCRIPT = Path(__file__).parents[3] / "scripts" / "ops" / "compare_exports.py"


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("kind", ["translation", "language"])
def test_outputs_are_the_same_in_all_exports(tmp_path, kind):
    if kind == "translation":
        run, kinds = random_run(tmp_path / "run", model=LITTLE), ["ctranslate2", "onnx", "marian"]
    else:
        run, kinds = (
            language_run(tmp_path / "run", "bytes", positions="learned", max_positions=99),
            ["ctranslate2", "onnx"],
        )
    lines = sorted({*ENGLISH})[:5]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    words = [sys.executable, SCRIPT, run, tmp_path / "lines.txt", "--to", *kinds]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    got = re.findall(r"^(\w+): largest difference (\S+), (\d+) of 5 outputs are the same$", said, flags=re.MULTILINE)
    assert [name for name, *_ in got] == kinds
    assert all(0 < float(difference) < 1e-4 and int(same) == 5 for _, difference, same in got)
