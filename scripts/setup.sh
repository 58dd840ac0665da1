# Sourced by demo.sh and test.sh: a virtual environment in .venv with the pinned versions of constraints.txt.
# $1 is an extra of pyproject.toml to install, or empty. PYTHON is another interpreter, VENV another folder, and TORCH another
# build of PyTorch than PyPI's: cpu (1 GB instead of 5.6 on Linux), cu128 ... (uv's --torch-backend). The build is kept until
# another one is given.
VENV="${VENV:-.venv}"
wanted="$(cat constraints.txt pyproject.toml | cksum)"
installed="$(cat "$VENV/torch" 2>/dev/null || true)"
torch="${TORCH:-$installed}"
if ! grep -qsxF "$wanted" "$VENV/installed$1" || [ "$torch" != "$installed" ]; then
  echo "installing into $VENV (a few minutes the first time: torch is large) ..."
  [ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
  pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
  install=("${pip[@]}")
  if [ -n "$torch" ]; then
    "${pip[@]}" uv
    install=("$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --torch-backend "$torch")
    [ "$torch" = "$installed" ] || install+=(--reinstall-package torch --reinstall-package torchaudio)
  fi
  "${install[@]}" --constraint constraints.txt --editable ".$1" || {
    echo "the installation failed, for the reason above; if an earlier one was interrupted, remove $VENV and repeat the command" >&2
    exit 1
  }
  echo "$torch" >"$VENV/torch"
  echo "$wanted" >"$VENV/installed"
  echo "$wanted" >"$VENV/installed$1"
fi
PATH="$(cd "$VENV/bin" && pwd):$PATH"
