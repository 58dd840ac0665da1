#!/usr/bin/env bash
# Fresh machine: makes .venv, installs, then lint, types and the quick tests. Arguments go to pytest, for example -k beam.
#   --all      then what must pass before anything lands, too: processes, trainings, long tests, and shapes checked
#   --nightly  instead: many drawn cases, soaks and faults, which take an hour or two
# Tests that need the real corpora run where TRANSDUCE_DATA names their folder and the mark is asked for: -m data.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "[dev]"
export OMP_NUM_THREADS=1 # a process per core, each of one thread

tests() {
  python -m pytest --numprocesses auto --dist worksteal "$@"
}

case "${1:-}" in
  --nightly) shift; tests -m nightly "$@"; exit ;;
  --all) shift; all=yes ;;
esac

ruff check .
ruff format --check .
types="$(mktemp)"
trap 'rm -f "$types"' EXIT
mypy >"$types" 2>&1 & # beside the tests
tests "$@"
wait $! || { cat "$types" >&2 && exit 1; }
cat "$types"
if [ -n "${all:-}" ]; then
  tests -m "(process or train or long or data or gpu) and not nightly" "$@"
  SHAPES=1 tests tests/model tests/decode tests/train tests/data "$@"
fi
