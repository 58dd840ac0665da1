"""What scripts/setup.sh installs, with programs in place of pip and uv that write down how they are called."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("python", "uv"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/bash\necho {name} "$@" >>{tmp_path}/calls\n')
        program.chmod(0o755)

    def source(extra: str, torch: str) -> list[str]:
        """The calls of an installation."""
        (tmp_path / "calls").write_text("")
        # programs of the machine, and none of the environment of the tests
        variables = {"PATH": "/usr/bin:/bin", "VENV": str(tmp_path), "TORCH": torch}
        words = ["bash", "-euo", "pipefail", "-c", f"source scripts/setup.sh '{extra}'; command -v uv"]
        done = subprocess.run(words, cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
        assert done.stdout.endswith(f"{tmp_path}/bin/uv\n")  # VENV's programs come first
        return (tmp_path / "calls").read_text().splitlines()

    return source


@pytest.mark.process
def test_another_build_of_pytorch_replaces_the_one_that_is_there(setup):
    (first,) = setup("[train]", "")
    assert first.startswith("python -m pip install") and first.endswith("--editable .[train]")
    assert setup("[train]", "") == []
    _, replaced = setup("[train]", "cpu")
    assert "--torch-backend cpu" in replaced and "--reinstall-package torch " in replaced
    for torch in ("cpu", ""):
        assert setup("[train]", torch) == []
    _, other = setup("[dev]", "")
    assert "--torch-backend cpu" in other and "--reinstall" not in other
