#!/usr/bin/env bash
# Training on the outputs of models, on Multi30k English to German, compared with the same training without them:
# back-translation (Sennrich et al. 2016): 5,000 pairs, and 24,000 German lines whose English a model writes;
# distillation (Hinton et al. 2015; Kim and Rush 2016): a small student learns, from the sources of 6,000 pairs, the predictions
# for every token of a teacher that was trained on all pairs, or the teacher's translations instead of the references, or both;
# diversification (Nguyen et al. 2020): two models of this direction, one of the opposite direction and one from French; then a
# model of twice the width, trained on all pairs, on the translations of the sources by the first two, and on the English of
# the others, translated from the targets and from the same captions in French; without capitals, with rotary positions.
# Prints a table of BLEU, lower-cased, on the test split.
#
#   TRANSDUCE_DATA=DIR bash scripts/corpora/synthetic_data.sh back-translation|distillation|diversification [--tiny] [FOLDER]
#
# FOLDER: the folder of the runs, runs/synthetic_data. --tiny: a few updates each, to test that every step works; otherwise each
# takes half an hour to an hour on one core, diversification about ten minutes on a GPU and, as the sum of its parts, three hours
# on two cores. AT_ONCE: how many of its first four models are trained at the same time, 2; take 4 on a GPU, which has room for
# them. The same command again continues where it was stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
what="${1:?back-translation, distillation or diversification}" && shift
[[ $what =~ ^(back-translation|distillation|diversification)$ ]] || {
  echo "the first word must be back-translation, distillation or diversification, but it is $what" >&2 && exit 2
}
tiny=""
if [ "${1:-}" = --tiny ]; then tiny=yes && shift; fi
[ "$#" -le 1 ] || { echo "the arguments must be [--tiny] [FOLDER], but '${*:2}' comes after FOLDER" >&2 && exit 2; }
source scripts/setup.sh "[train]"
OUT="${1:-runs/synthetic_data}"
MULTI30K="${TRANSDUCE_DATA:?names the folder of the corpora}/multi30k"
mkdir -p "$OUT"
n() { if [ "$tiny" ]; then echo "$2"; else echo "$1"; fi; } # n FULL TINY

lines() { gzip -dc "$MULTI30K/$1.gz" | sed -n "$2,$3p"; } # lines SPLIT.LANGUAGE FIRST LAST

for split in val test_2016_flickr; do
  for side in en de; do lines $split.$side 1 "$(n 1014 20)" >"$OUT/$split.$side"; done
done

set_command() { # set_command RUN SOURCE TARGET OPTIONS: the names of the files in $OUT, SOURCE and TARGET, end in their languages
  local run="$1" source="$2" target="$3" from="${2##*.}" to="${3##*.}"
  command=(transduce train translation files --run "$OUT/$run"
    --train-source "$OUT/$source" --train-target "$OUT/$target"
    --valid-source "$OUT/val.$from" --valid-target "$OUT/val.$to"
    --test-source "$OUT/test_2016_flickr.$from" --test-target "$OUT/test_2016_flickr.$to"
    --training.max-updates "$(n 1000 4)" --training.validate-every "$(n 250 2)" --training.optim.warmup-steps "$(n 300 2)"
    --training.optim.cooldown 0.3 "${@:4}")
  case " ${*:4} " in
    *" --tokenizer "* | *" --vocab-size "*) ;;
    *) command+=(--vocab-size "$(n 4000 500)") ;;
  esac
}

train() { # train RUN SOURCE TARGET OPTIONS
  set_command "$@"
  "${command[@]}" | tee "$OUT/$1.out"
}

at_once() { # at_once "RUN SOURCE TARGET OPTIONS"... -- OPTIONS of all: trains AT_ONCE at the same time, each with its share of the cores
  local trainings=() lot words each pid share code
  while [ "$1" != -- ]; do trainings+=("$1") && shift; done
  local of_all=("${@:2}")
  share=${OMP_NUM_THREADS:-$(python -c 'import os, sys; print(max(1, (os.cpu_count() or 1) // int(sys.argv[1])))' "$AT_ONCE")}
  while [ "${#trainings[@]}" -gt 0 ]; do
    lot=("${trainings[@]:0:AT_ONCE}") trainings=("${trainings[@]:AT_ONCE}")
    for each in "${lot[@]:1}"; do
      read -ra words <<<"$each"
      echo "${words[0]} is trained beside ${lot[0]%% *}; its output is in $OUT/${words[0]}.out"
      set_command "${words[@]}" "${of_all[@]}"
      set -m # a process group of its own: Ctrl-C reaches the first of the lot, and the trap below stops this one, once
      OMP_NUM_THREADS="$share" "${command[@]}" >"$OUT/${words[0]}.out" 2>&1 &
      set +m
      beside[$!]=${words[0]}
    done
    read -ra words <<<"${lot[0]}"
    OMP_NUM_THREADS="$share" train "${words[@]}" "${of_all[@]}"
    for pid in "${!beside[@]}"; do
      wait "$pid" || { code=$? && tail -n 3 "$OUT/${beside[pid]}.out" >&2 && unset "beside[pid]" && exit "$code"; }
      unset "beside[pid]"
    done
  done
}
AT_ONCE="${AT_ONCE:-2}"
[[ $AT_ONCE =~ ^[1-9][0-9]*$ ]] || { echo "AT_ONCE must be a number of trainings from 1 on, but is '$AT_ONCE'" >&2 && exit 2; }
beside=() # process id to name, of the others of a lot; they save their state when they are stopped
trap 'for pid in "${!beside[@]}"; do kill "$pid" 2>/dev/null || true; done; wait' EXIT

written() { # written RUN SOURCE OUTPUT OPTIONS: translates a file with the run, unless the output is there
  if [ ! -e "$OUT/$3" ]; then
    transduce translate "$OUT/$1" "$OUT/$2" "${@:4}" --output "$OUT/$3"
  fi
}

row() { # row WHAT RUN
  local greedy beam
  greedy=$(score "$2" greedy) beam=$(score "$2" beam)
  echo "| $1 | $greedy | $beam |" >>"$TABLE"
}

score() { transduce describe "$OUT/$1" | grep -E "^test, $2.*: BLEU .*case:lc" | sed 's/.*: BLEU //; s/ nrefs:.*//'; }

TABLE="$OUT/$what.md"
case "$what" in
back-translation)
  pairs=$(n 5000 300) last=$(n 29000 500)
  for side in en de; do lines train.$side 1 "$pairs" >"$OUT/pairs.$side"; done
  lines train.de $((pairs + 1)) "$last" >"$OUT/alone.de"

  shorter=(--training.max-updates "$(n 600 4)" --training.validate-every "$(n 150 2)"
    --training.optim.warmup-steps "$(n 200 2)")
  train back pairs.de pairs.en
  written back alone.de written.en --greedy
  cat "$OUT"/pairs.en "$OUT"/written.en >"$OUT/both.en"
  cat "$OUT"/pairs.de "$OUT"/alone.de >"$OUT/both.de"
  train without pairs.en pairs.de "${shorter[@]}"
  train with both.en both.de "${shorter[@]}"

  printf '| en→de | greedy | beam 5 |\n|---|---|---|\n' >"$TABLE"
  row "$pairs pairs" without
  row "and $((last - pairs)) German lines with English by a model" with
  ;;
distillation)
  last=$(n 29000 300) few=$(n 6000 100)
  small=(--model.d-model "$(n 96 32)" --model.n-heads 4 --model.d-ff "$(n 384 64)" --model.encoder.n-layers 3
    --model.decoder.n-layers 1 --model.dropout 0.1 --training.max-updates "$(n 2000 4)"
    --training.validate-every "$(n 500 2)" --training.optim.warmup-steps "$(n 400 2)")
  for side in en de; do lines train.$side 1 "$last" >"$OUT/all.$side"; done

  for side in en de; do lines train.$side 1 "$few" >"$OUT/few.$side"; done

  train teacher all.en all.de
  written teacher few.en taught.de
  small+=(--tokenizer "$OUT/teacher/tokenizer.model") # the tokens that the teacher predicts
  with_teacher=("${small[@]}" --training.teachers "$OUT/teacher")
  train references few.en few.de "${small[@]}"
  train predictions few.en few.de "${with_teacher[@]}"
  train outputs few.en taught.de "${small[@]}"
  train both few.en taught.de "${with_teacher[@]}"

  printf '| en→de | greedy | beam 5 |\n|---|---|---|\n' >"$TABLE"
  row "teacher, $last pairs" teacher
  row "student, $few references" references
  row "student, references and the teacher's predictions of their tokens" predictions
  row "student, the teacher's translations instead of the references" outputs
  row "student, the teacher's translations and its predictions of their tokens" both
  ;;
diversification)
  last=$(n 29000 100)
  for side in en de fr; do lines train.$side 1 "$last" >"$OUT/all.$side"; done
  for split in val test_2016_flickr; do lines $split.fr 1 "$(n 1014 20)" >"$OUT/$split.fr"; done
  full=(--lowercase --model.positions rotary --model.dropout 0.3
    --training.optim.optimizer muon --training.validate-every "$(n 500 2)" --training.optim.warmup-steps "$(n 1000 2)")
  student=("${full[@]}" --training.max-updates "$(n 3400 4)" --tokens-per-batch 4096 --training.optim.peak-rate 3e-3
    --model.d-model "$(n 256 32)" --model.n-heads 8 --model.d-ff "$(n 1024 64)")

  at_once "backward all.de all.en" "forward1 all.en all.de" "french all.fr all.en" \
    "forward2 all.en all.de --training.seed 2" -- "${full[@]}" --vocab-size "$(n 8000 500)" --training.max-updates "$(n 3500 4)"
  written forward1 all.en forward1.de --beam-size 2
  written forward2 all.en forward2.de --beam-size 2
  written backward all.de backward.en --beam-size 2
  written french all.fr french.en --beam-size 2
  cat "$OUT"/all.en "$OUT"/all.en "$OUT"/all.en "$OUT"/backward.en "$OUT"/french.en >"$OUT/five.en"
  cat "$OUT"/all.de "$OUT"/forward1.de "$OUT"/forward2.de "$OUT"/all.de "$OUT"/all.de >"$OUT/five.de"
  # one vocabulary for all, because an ensemble needs that
  train five five.en five.de "${student[@]}" --tokenizer "$OUT/forward1/tokenizer.model"
  transduce translate "$OUT/forward1,$OUT/five" "$OUT/test_2016_flickr.en" --output "$OUT/both.de"

  printf '| en→de | greedy | beam 5 |\n|---|---|---|\n' >"$TABLE"
  row "$last pairs" forward1
  row "the same five times, in four of them one side by a model" five
  both=$(transduce score bleu "$OUT/both.de" "$OUT/test_2016_flickr.de" --lowercase | sed -n 's/^BLEU //; 1s/ nrefs:.*//p')
  echo "| both as an ensemble | | $both |" >>"$TABLE"
  ;;
esac
cat "$TABLE"
