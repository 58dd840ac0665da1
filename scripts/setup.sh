# Sourced by demo.sh and test.sh: a virtual environment in .venv with the pinned versions of constraints.txt.
# $1 is the extra to install besides, or nothing. PYTHON names another interpreter, VENV another folder, and TORCH another
# build of PyTorch than PyPI's: cpu (1 GB in place of 5.6 on Linux), cu128 ... (uv's --torch-backend).
VENV="${VENV:-.venv}"
wanted="$(cat constraints.txt pyproject.toml | cksum)"
if ! grep -qsxF "$wanted" "$VENV/installed$1"; then
  echo "installing into $VENV (a few minutes the first time: torch is large) ..."
  [ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
  pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
  install=("${pip[@]}")
  if [ -n "${TORCH:-}" ]; then
    "${pip[@]}" uv
    install=("$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --torch-backend "$TORCH")
  fi
  "${install[@]}" --constraint constraints.txt --editable ".$1" || {
    echo "the installation failed, as is said above; if an earlier one was broken off, remove $VENV and give the command again" >&2
    exit 1
  }
  echo "$wanted" >"$VENV/installed"
  echo "$wanted" >"$VENV/installed$1"
fi
PATH="$PWD/$VENV/bin:$PATH"
