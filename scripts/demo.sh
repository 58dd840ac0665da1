#!/usr/bin/env bash
# Fresh machine: makes .venv, installs, trains on the corpus that ships, translates, scores, draws. RUN names the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh ""
RUN="${RUN:-runs/commands}"

echo; echo "== train: spoken commands, English to German (under three minutes on two cores)"
python recipes/translation.py commands --run "$RUN"

echo; echo "== translate, from the command line"
head -n 5 recipes/data/commands/test.en | tee /dev/stderr | transduce translate "$RUN" --greedy

echo; echo "== score all test sentences: combinations that training never saw"
transduce translate "$RUN" recipes/data/commands/test.en --greedy --output "$RUN/hyp.de"
transduce score bleu "$RUN/hyp.de" recipes/data/commands/test.de

echo; echo "the learning curve is $RUN/learning_curve.png"
