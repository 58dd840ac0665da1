#!/usr/bin/env bash
# Measures a figure of recipes/results.tsv again: runs its command, and prints the result beside the stated figure.
#
#   bash scripts/reproduce.sh                       # the figures, their minutes and their commands
#   bash scripts/reproduce.sh commands [OPTIONS]    # one of them, in runs/reproduced; TRANSDUCE_DATA names the corpora
#
# OPTIONS go to the command, such as --training.seed 2. The same command again continues where it was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# != 0 ] || exec python3 scripts/ops/results.py list
command="$(python3 scripts/ops/results.py command "$@")"
extra="[train]"
[[ $command != *scripts/bench* ]] || extra="[dev]" # with the libraries that benchmarks compare
source scripts/setup.sh "$extra"
echo "$command"
eval "$command"
python scripts/ops/results.py compare "$1"
