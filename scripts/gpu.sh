#!/usr/bin/env bash
# All that wants a GPU, in parts of under ten minutes each, resumable; a part prints its rows for recipes/README.md.
#
#   bash scripts/gpu.sh                      every part, one after the other
#   bash scripts/gpu.sh multi30k_en_de_1     these parts; --list names them all
#   bash scripts/gpu.sh --device cpu --tiny  the same path on a CPU, in minutes, on a corner of the corpus that ships
#
# TRANSDUCE_DATA names the folder of the corpora (multi30k, tinyshakespeare, fsdd, speechocean762), RUNS the folder of the runs (default runs/gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
device=cuda tiny="" parts=()
for word in "$@"; do
  case "$word" in
    --list) sed -n 's/^part_\(.*\)() .*/\1/p' "$0"; exit ;;
    --tiny) tiny=1 ;;
    --device | cpu | cuda*) [ "$word" = --device ] || device=$word ;;
    *) parts+=("$word") ;;
  esac
done
RUNS="${RUNS:-runs/gpu}"
mkdir -p "$RUNS"
[ ! -d .venv ] || PATH="$PWD/.venv/bin:$PATH"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"  # a machine that has the dependencies need not install the package

corner="$RUNS/corner"  # what --tiny reads
if [ -n "$tiny" ]; then
  mkdir -p "$corner"
  for split in train valid test; do
    for language in en de; do head -n 40 "recipes/data/commands/$split.$language" >"$corner/$split.$language"; done
    head -n 9 "recipes/data/commands/sound/$split.tsv" |
      awk -v folder="$PWD/recipes/data/commands/sound/" 'BEGIN { FS = OFS = "\t" } NR > 1 { $2 = folder $2 } 1' >"$corner/$split.tsv"
  done
  cp "$corner/train.en" "$corner/input.txt"
fi
short=(--training.max-updates 2 --training.validate-every 2)
curt=(--decoding.length-ratio 0 --decoding.length-extra 5)  # an untrained model decodes to its bound

multi30k() { # source, target, seed: enough updates to overfit if nothing held back, batches of 8192 as in the literature
  local small=()
  [ -z "$tiny" ] || small=(--data "$corner" --valid valid --test test --vocab-size 320 "${short[@]}" "${curt[@]}")
  timeout 580 python recipes/translation.py multi30k --source "$1" --target "$2" --training.seed "$3" --device "$device" \
    --run "$RUNS/multi30k_$1_$2_$3" --tokens-per-batch 8192 --model.dropout 0.3 --training.optim.peak-rate 5e-3 \
    --training.optim.warmup-steps 2000 --training.max-updates 8000 --training.max-minutes 9 \
    --training.validate-every 250 "${small[@]}"
}
speech() { # setting, minutes from its very beginning, more fields
  local setting=$1 minutes=$2 small=()
  shift 2
  [ -z "$tiny" ] || small=(--data "$corner" --train train.tsv --valid valid.tsv --test test.tsv --vocab-size 290 "${short[@]}" "${curt[@]}")
  timeout 590 python recipes/speech_to_text.py "$setting" --device "$device" --run "$RUNS/$setting" \
    --training.max-minutes "$minutes" "$@" "${small[@]}"
}
shakespeare() { # run, more fields
  local run=$1 small=() data=()
  shift
  [ -z "$tiny" ] || data=(--data "$corner") small=("${short[@]}" --rows 2 --generation.max-length 5)
  timeout 590 python recipes/language_model.py shakespeare "${data[@]}" --device "$device" --run "$RUNS/$run" "$@" \
    "${small[@]}"
}
part_multi30k_en_de_1() { multi30k en de 1; }
part_multi30k_en_de_2() { multi30k en de 2; }
part_multi30k_en_de_3() { multi30k en de 3; }
part_multi30k_de_en_1() { multi30k de en 1; }
part_multi30k_de_en_2() { multi30k de en 2; }
part_multi30k_de_en_3() { multi30k de en 3; }
part_training_speed() { python scripts/bench_training.py --device "$device" ${tiny:+--tiny}; }
part_decoding_speed() { python scripts/bench_decoding.py --device "$device" ${tiny:+--tiny}; }
part_shakespeare() { shakespeare shakespeare --training.max-minutes 9; }
part_precision() { # the same 500 updates in fp32, in bf16, and compiled
  local precision
  for precision in fp32 bf16; do
    shakespeare "$precision" --training.precision "$precision" --training.max-updates 500
  done
  python scripts/compare_runs.py "$RUNS/bf16" "$RUNS/fp32" ${tiny:+--within 1}
  [ -z "$tiny" ] || return 0  # a CPU may have no compiler
  shakespeare compiled --training.compile --training.max-updates 500
  python scripts/compare_runs.py "$RUNS/compiled" "$RUNS/bf16"
}
part_gpt2_speed() { python scripts/bench_gpt2.py --device "$device" ${tiny:+--tiny}; }
part_generation_speed() { python scripts/bench_generation.py --device "$device" ${tiny:+--tiny}; }
part_fsdd() { speech fsdd 8.5; }
part_digits() {
  local data=()
  [ -n "$tiny" ] || {
    data=(--data "$RUNS/digits_sound")
    python scripts/make_digits.py "${TRANSDUCE_DATA:?names the folder of the corpora}/fsdd" "${data[1]}"
  }
  speech digits 8.0 "${data[@]}"
}
part_speechocean762_1() { speech speechocean762 8.0; }
part_speechocean762_2() { speech speechocean762 16.0; }

[ "${#parts[@]}" -gt 0 ] || mapfile -t parts < <("$BASH" "$0" --list)
failed=()
for part in "${parts[@]}"; do
  echo "== $part"
  started=$SECONDS
  if "part_$part" >"$RUNS/$part.log" 2>&1; then
    tr '\r' '\n' <"$RUNS/$part.log" |
      grep -aE "^(test|validation|compared)|^  (BLEU|chrF|WER|CER|loss|bigram)|tokens/s +[0-9.]+ x|MiB|memory$" || true
  else
    failed+=("$part")
    tail -n 3 "$RUNS/$part.log"
  fi
  echo "   $((SECONDS - started)) s on $device, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), log $RUNS/$part.log"
done
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
