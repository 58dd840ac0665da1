#!/usr/bin/env bash
# All that wants a GPU, in parts of under ten minutes each, resumable; a part prints its rows for recipes/README.md.
#
#   bash scripts/gpu.sh                      every part, one after the other
#   bash scripts/gpu.sh multi30k_en_de_1     these parts; --list names them all
#   bash scripts/gpu.sh --device cpu --tiny  the same path on a CPU, in about a minute
#
# TRANSDUCE_DATA names the folder of the corpora, RUNS the folder of the runs (default runs/gpu).
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

multi30k() { # source, target, seed: enough updates to overfit if nothing held back, batches of 8192 as in the literature
  local small=()
  [ -z "$tiny" ] || small=(--training.max-updates 6 --training.validate-every 3)
  timeout 580 python recipes/translation.py multi30k --source "$1" --target "$2" --training.seed "$3" --device "$device" \
    --run "$RUNS/multi30k_$1_$2_$3" --tokens-per-batch 8192 --model.dropout 0.3 --training.optim.peak-rate 5e-3 \
    --training.optim.warmup-steps 2000 --training.max-updates 8000 --training.max-minutes 9 \
    --training.validate-every 250 "${small[@]}"
}
part_multi30k_en_de_1() { multi30k en de 1; }
part_multi30k_en_de_2() { multi30k en de 2; }
part_multi30k_en_de_3() { multi30k en de 3; }
part_multi30k_de_en_1() { multi30k de en 1; }
part_multi30k_de_en_2() { multi30k de en 2; }
part_multi30k_de_en_3() { multi30k de en 3; }
part_training_speed() { python scripts/bench_training.py --device "$device" ${tiny:+--tiny}; }
part_decoding_speed() { python scripts/bench_decoding.py --device "$device" ${tiny:+--tiny}; }

[ "${#parts[@]}" -gt 0 ] || mapfile -t parts < <("$BASH" "$0" --list)
failed=()
for part in "${parts[@]}"; do
  echo "== $part"
  started=$SECONDS
  if "part_$part" >"$RUNS/$part.log" 2>&1; then
    grep -aE "^(test|  (BLEU|chrF))|tokens/s|MiB" "$RUNS/$part.log" | tr '\r' '\n' | grep -aE "^(test|  (BLEU|chrF))|x  same|MiB|transduce|plain" || true
  else
    failed+=("$part")
    tail -n 3 "$RUNS/$part.log"
  fi
  echo "   $((SECONDS - started)) s on $device, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), log $RUNS/$part.log"
done
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
