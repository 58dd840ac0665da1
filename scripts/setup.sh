# Sourced by demo.sh and test.sh: a virtual environment in .venv with the pinned versions of constraints.txt.
# PYTHON names another interpreter; VENV another folder.
VENV="${VENV:-.venv}"
stamp="$VENV/installed"
wanted="$(cat constraints.txt pyproject.toml | cksum) $1"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "installing into $VENV (a few minutes the first time: torch is large) ..."
  [ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".$1"
  echo "$wanted" >"$stamp"
fi
PATH="$PWD/$VENV/bin:$PATH"
