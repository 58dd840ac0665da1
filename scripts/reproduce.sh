#!/usr/bin/env bash
# Measures a figure of recipes/README.md again: trains by its command, and prints what comes out beside what is stated there.
#
#   bash scripts/reproduce.sh                       # the figures, and how long each takes
#   bash scripts/reproduce.sh commands [OPTIONS]    # one of them, in runs/reproduced/commands; TRANSDUCE_DATA names the corpora
#
# OPTIONS go to the recipe, such as --training.seed 2. The same command again goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."

SPEECH="beam5.ctc wer"
# name; what is stated; the file in the run that has it, search and measure there; minutes on one core, or on a GPU where the name
# says so; the recipe's command, or that of a script with several trainings
figures="
commands           96.11  test greedy bleu                  4  translation.py
multi30k_en_de     40.71  test beam5 bleu.lowercase        59  translation.py multi30k
multi30k_hour      41.57  test beam5 bleu.lowercase        59  translation.py multi30k --lowercase
multi30k_diversified 41.94  five/test beam5 bleu.lowercase  300  scripts/corpora/synthetic_data.sh diversification
multi30k_de_en     43.92  test beam5 bleu.lowercase        59  translation.py multi30k --source de --target en
speech              1.07  test $SPEECH                     13  speech_to_text.py
speech_german      81.45  test beam5 bleu                  25  speech_to_text.py commands_german
$(for name in george:29.4 jackson:15.2 lucas:17.8 nicolas:10.6 theo:5.8 yweweler:8.8; do
  echo "fsdd_${name%:*} ${name#*:} test $SPEECH 5 speech_to_text.py fsdd --leave-out ${name%:*}"
done)
speechocean762     43.81  test beam10.ctc wer              59  speech_to_text.py speechocean762
fsdd                0.67  test $SPEECH                      4  speech_to_text.py fsdd
digits              0.12  test $SPEECH                     31  speech_to_text.py digits
language            0.600 validation - loss                 2  language_model.py
shakespeare         1.564 validation - loss                11  language_model.py shakespeare_cpu
shakespeare_gpu     1.434 validation - loss                 2  language_model.py shakespeare
shakespeare_gpt2    1.770 validation - loss                 5  language_model.py shakespeare_cpu --model.positions learned --model.activation gelu --model.no-gated --model.d-ff 512 --training.optim.optimizer adamw
masked_language     1.341 test - loss                       3  masked_language_model.py
"

if [ $# = 0 ]; then
  echo "name stated measure minutes command" | cat - <(awk 'NF { $3 = $4 = ""; print }' <<<"$figures") |
    awk '{ printf "%-20s %7s  %-15s %7s  ", $1, $2, $3, $4; for (i = 5; i <= NF; i++) printf "%s ", $i; print "" }'
  exit
fi
name="$1" && shift
read -r _ stated file search measure _ command < <(awk -v name="$name" '$1 == name' <<<"$figures") || {
  echo "reproduce.sh: a figure must be one of those that bash scripts/reproduce.sh lists, but it is '$name'" >&2
  exit 2
}
source scripts/setup.sh ""
run="runs/reproduced/$name"
# shellcheck disable=SC2086
case "$command" in
scripts/*) bash $command "$@" "$run" ;;
*) python recipes/$command --run "$run" "$@" ;;
esac
python - "$run" "$stated" "$file" "$search" "$measure" <<'PYTHON'
import json
import sys
from pathlib import Path

run, stated, name, search, measure = sys.argv[1:]
paths = [Path(run) / f"{name}.json"] if search != "-" else sorted(Path(run).glob(f"{name}*.json"))
plain = json.loads(paths[0].read_text())
if search == "-":
    found = f"{plain[measure]:.3f}"
else:
    (row,) = (row for row in plain if (row["search"], row["measure"]) == (search, measure))
    found = f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
print(f"{Path(run).name}, {measure}: stated {stated}, found {found}")
PYTHON
