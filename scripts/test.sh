#!/usr/bin/env bash
# Fresh machine: makes .venv, installs, then lint, types and tests. Arguments go to pytest, for example -k beam.
# Tests that need the real corpora run where TRANSDUCE_DATA names their folder.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "[dev]"
ruff check .
ruff format --check .
mypy
export OMP_NUM_THREADS=1 # a process per core, each of one thread
python -m pytest --numprocesses auto --dist loadfile "$@"
