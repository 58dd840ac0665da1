#!/usr/bin/env bash
# Makes .venv and installs into it, unless that is done; then lint, types and the quick tests. Arguments go to pytest, such as
# -k beam.
#   --all      also what must pass before a merge: processes, trainings, long tests, and checked shapes
#   --nightly  only the nightly tests: many random cases, soak tests and faults, which take an hour or two
# Tests on the real corpora need TRANSDUCE_DATA, the folder of the corpora, and their mark: -m data.
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
