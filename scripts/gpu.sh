#!/usr/bin/env bash
# All measurements that need a GPU, in parts of less than ten minutes each, which can be resumed; a part prints figures for
# recipes/results.tsv.
#
#   bash scripts/gpu.sh                      every part, one after the other
#   bash scripts/gpu.sh multi30k_en_de_1     these parts; --list prints all names
#   bash scripts/gpu.sh --device cpu --tiny  the same code on a CPU, in minutes, on a part of the corpus in the repository
#
# TRANSDUCE_DATA names the folder of the corpora (multi30k, tinyshakespeare, fsdd, speechocean762), RUNS the folder of the
# runs (default runs/gpu), COMMIT the commit if there is no git.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS="${RUNS:-runs/gpu}"
commit="${COMMIT:-$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)}"
device=cuda tiny="" parts=()
[ ! -d .venv ] || PATH="$PWD/.venv/bin:$PATH"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"  # a machine that has the dependencies need not install the package

corner="$RUNS/corner"  # the data of --tiny
make_corner() {
  mkdir -p "$corner"
  for split in train valid test; do
    for language in en de; do head -n 40 "recipes/data/commands/$split.$language" >"$corner/$split.$language"; done
    head -n 9 "recipes/data/commands/sound/$split.tsv" |
      awk -v folder="$PWD/recipes/data/commands/sound/" 'BEGIN { FS = OFS = "\t" } NR > 1 { $2 = folder $2 } 1' >"$corner/$split.tsv"
  done
  cp "$corner/train.en" "$corner/input.txt"
}
short=(--training.max-updates 2 --training.validate-every 2)
curt=(--decoding.length-ratio 0 --decoding.length-extra 5)  # an untrained model decodes up to the maximum length

run() { # prints a command as one would type it, and runs it
  local words
  printf -v words '%q ' "$@"
  echo "command  ${words% }"
  timeout 590 "$@"
}
train() { # run, command: the run's folder records which commit trains from which update on
  local folder=$RUNS/$1
  mkdir -p "$folder"
  echo "$commit $(newest "$folder")" >>"$folder/commits"
  echo "trains  $folder"
  run "${@:2}" --device "$device" --run "$folder"
}
newest() { # run: the update of its last checkpoint
  local saved=("$1"/checkpoints/[0-9]*)
  local last=${saved[-1]##*/}
  [[ $last =~ ^[0-9]+$ ]] || last=0
  echo $((10#$last))
}
trained_by() { # run: which commit made which updates, without commits that made none
  awk -v last="$(newest "$1")" '
    { commit[NR] = $1; from[NR] = $2 }
    END {
      commit[0] = "an unknown commit"; from[0] = 0; from[NR + 1] = last
      for (i = 0; i <= NR; i++)
        if (from[i + 1] > from[i]) { printf "%supdates %d to %d at %s", comma, from[i] + 1, from[i + 1], commit[i]; comma = ", " }
      print comma ? "" : "no updates"
    }' "$1/commits"
}

multi30k() { # source, target, seed: twice the recipe's batch, which takes a GPU no longer
  local small=()
  [ -z "$tiny" ] || small=(--data "$corner" --valid valid --test test --vocab-size 320 "${short[@]}" "${curt[@]}")
  train "multi30k_$1_$2_$3" python recipes/translation.py multi30k --source "$1" --target "$2" --training.seed "$3" \
    --tokens-per-batch 4096 --training.max-updates 6000 --training.max-minutes 9 "${small[@]}"
}
speech() { # run, setting, minutes of all its starts, more fields; several processes augment, or the GPU would wait
  local small=() workers=4
  [ "$device" != cpu ] || workers=0
  [ -z "$tiny" ] || small=(--data "$corner" --train train.tsv --valid valid.tsv --test test.tsv --vocab-size 290 "${short[@]}" "${curt[@]}")
  train "$1" python recipes/speech_to_text.py "$2" --training.seed 1 --training.max-minutes "$3" \
    --training.data-workers "$workers" "${@:4}" "${small[@]}"
}
shakespeare() { # run, more fields
  local small=()
  [ -z "$tiny" ] || small=(--data "$corner" "${short[@]}" "${tiny_decoder[@]}")
  train "$1" python recipes/language_model.py shakespeare --training.seed 1 "${@:2}" "${small[@]}"
}
tiny_decoder=(
  --model.decoder.n-layers 1 --model.d-model 32 --model.n-heads 2 --model.d-ff 64 --model.max-positions 16 --batch-size 2
  --generation.max-length 5
)
can_compile() { [ -z "$tiny" ] || command -v c++ >/dev/null; }  # not every machine has a compiler
part_multi30k_en_de_1() { multi30k en de 1; }
part_multi30k_en_de_2() { multi30k en de 2; }
part_multi30k_en_de_3() { multi30k en de 3; }
part_multi30k_de_en_1() { multi30k de en 1; }
part_multi30k_de_en_2() { multi30k de en 2; }
part_multi30k_de_en_3() { multi30k de en 3; }
part_training_speed() {
  local compiled=()
  [ "$device" = cpu ] || compiled=(--compile)
  run python scripts/bench training --device "$device" "${compiled[@]}" ${tiny:+--tiny}
  run python scripts/bench speech_training --device "$device" ${tiny:+--tiny}
}
part_decoding_speed() { run python scripts/bench decoding --device "$device" ${tiny:+--tiny}; }
part_generation_speed() { run python scripts/bench generation --device "$device" ${tiny:+--tiny}; }
part_shakespeare() { shakespeare shakespeare --training.max-minutes 9; }
part_precision() { # the same 500 updates in fp32, in bf16, and compiled
  local precision
  for precision in fp32 bf16 fp16; do
    shakespeare "$precision" --training.precision "$precision" --training.max-updates 500 --training.consistency 0
  done
  run python scripts/ops/compare_runs.py "$RUNS/bf16" "$RUNS/fp32" ${tiny:+--within 1}
  run python scripts/ops/compare_runs.py "$RUNS/fp16" "$RUNS/fp32" ${tiny:+--within 1}
  can_compile || return 0
  shakespeare compiled --training.compile --training.max-updates 500 --training.consistency 0
  run python scripts/ops/compare_runs.py "$RUNS/compiled" "$RUNS/bf16" ${tiny:+--within 1}
}
part_nanogpt() { # with nanoGPT's layers, optimizer and number of updates
  shakespeare nanogpt --model.positions learned --model.activation gelu --model.no-gated --model.d-ff 1536 \
    --model.dropout 0.2 --model.attention-dropout 0.2 --training.consistency 0 --training.max-updates 5000 \
    --training.optim.final-rate 1e-4 --training.optim.optimizer adamw --training.max-minutes 8
}
part_data_workers() { # augmentation in sixteen processes, the same updates
  speech data_workers speechocean762 8.0 --training.data-workers "$([ -n "$tiny" ] && echo 1 || echo 16)" "${larger[@]}"
}
part_gpt2() { # all of GPT-2's recipe at its real size: from text to shards, and some updates of half a million tokens
  local text=recipes/data/commands/train.en size=50257 small=() lines
  [ -z "${TRANSDUCE_DATA:-}" ] || text=$TRANSDUCE_DATA/tinyshakespeare/input.txt
  [ -z "$tiny" ] || {
    text=$corner/input.txt size=300
    small=("${short[@]}" "${tiny_decoder[@]}" --training.accumulate 2 --model.decoder.input.multiple 8)
    can_compile || small+=(--training.no-compile)
  }
  lines=$(wc -l <"$text")
  head -n "$((lines * 9 / 10))" "$text" >"$RUNS/gpt2_train.txt"
  tail -n "+$((lines * 9 / 10 + 1))" "$text" >"$RUNS/gpt2_valid.txt"
  run python -m transduce.cli.main data shards --train "$RUNS/gpt2_train.txt" --valid "$RUNS/gpt2_valid.txt" \
    --output "$RUNS/gpt2_shards" --vocab-size "$size" --shard-bytes 300000
  train gpt2 python recipes/language_model.py gpt2 --data "$RUNS/gpt2_shards" --training.seed 1 \
    --model.decoder.input.multiple 50304 \
    --training.max-updates 50 --training.validate-every 25 --training.optim.warmup-steps 10 "${small[@]}"
}
part_gpt2_speed() { run python scripts/bench gpt2 --device "$device" --accumulate 8 --updates 3 --warm-up 1 ${tiny:+--tiny}; }
part_generation_speed() { run python scripts/bench generation --device "$device" ${tiny:+--tiny}; }
part_fsdd() { speech fsdd fsdd 8.5; }
part_digits() {
  local data=()
  [ -n "$tiny" ] || {
    data=(--data "$RUNS/digits_sound")
    run python scripts/corpora/make_digits.py "${TRANSDUCE_DATA:?names the folder of the corpora}/fsdd" "${data[1]}"
  }
  speech digits digits 8.0 "${data[@]}"
}
larger=(--frames-per-batch 24000 --training.max-updates 6000)  # batches that fill a GPU better, four times as many epochs
part_speechocean762_1() { speech speechocean762 speechocean762 8.0 "${larger[@]}"; }
part_speechocean762_2() { speech speechocean762 speechocean762 16.0 "${larger[@]}"; }
ablation() { # run, more fields: the gain of each on speechocean762, in the same short training
  speech "$1" speechocean762 8.0 --training.max-updates 3000 --training.keep-last 3 "${@:2}"
}
part_ablation_base() { ablation ablation_base; }
part_ablation_no_ctc() { ablation ablation_no_ctc --ctc-weight 0 --ctc-consistency 0; }
part_ablation_letters() { ablation ablation_letters --pronunciations None --vocab-size 300; }
part_ablation_one_view() { ablation ablation_one_view --ctc-consistency 0; }
part_ablation_plain() { ablation ablation_plain --model.conformer-kernel 0 --model.d-ff 640; }
part_ablation_no_decay() { ablation ablation_no_decay --training.optim.weight-decay 0; }
part_ablation_adamw() { ablation ablation_adamw --training.optim.optimizer adamw --training.optim.peak-rate 1.5e-3; }
part_ablation_stack_6() { ablation ablation_stack_6 --model.encoder.input.stack 6; }

fail() { echo "transduce: $*" >&2; exit 2; }
mapfile -t all < <(sed -n 's/^part_\(.*\)() .*/\1/p' "scripts/${0##*/}")
while [ "$#" -gt 0 ]; do
  case "$1" in
    --list) printf '%s\n' "${all[@]}"; exit ;;
    --tiny) tiny=1 ;;
    --device) [ "$#" -gt 1 ] || fail "--device must be followed by cpu, cuda or cuda:N"; device=$2; shift ;;
    *)
      declare -F "part_$1" >/dev/null || fail "a part must be one of ${all[*]}, but is '$1'"
      parts+=("$1")
      ;;
  esac
  shift
done
[[ $device =~ ^(cpu|cuda(:[0-9]+)?)$ ]] || fail "--device must be cpu, cuda or cuda:N, but is '$device'"
if [ "$device" != cpu ]; then
  why=$(python -c 'import sys, torch; torch.empty(0, device=sys.argv[1])' "$device" 2>&1) ||
    fail "--device must be one that this machine has, but $device: ${why##*$'\n'}; try --device cpu --tiny"
fi
[ "${#parts[@]}" -gt 0 ] || parts=("${all[@]}")
mkdir -p "$RUNS"
package="$(cd "$RUNS" && pwd)/package"  # where Python finds the version of a package that is not installed
mkdir -p "$package/transduce.dist-info"
sed -n 's/^version = "\(.*\)"/Metadata-Version: 2.1\nName: transduce\nVersion: \1/p' pyproject.toml >"$package/transduce.dist-info/METADATA"
export PYTHONPATH="$PYTHONPATH:$package"
[ -z "$tiny" ] || make_corner

failed=()
for part in "${parts[@]}"; do
  echo "== $part"
  started=$SECONDS log=$RUNS/$part.log
  set +e  # in a condition, a part would continue after a command that fails
  (set -e; "part_$part") >"$log" 2>&1
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    tr '\r' '\n' <"$log" |
      grep -aE "^(command|test|validation|compared)|^  (BLEU|chrF|WER|CER|loss|bigram)|parameters|tokens/s.* ([0-9.]+|-) x|ms a sentence|MiB|memory$" || true
  else
    failed+=("$part")
    grep -a "^command" "$log" | tail -n 1
    tr '\r' '\n' <"$log" | tail -n 3
  fi
  by=", commit $commit"
  while read -r _ folder; do
    echo "   $folder: $(trained_by "$folder")"
    by=""
  done < <(grep -a "^trains  " "$log")
  echo "   $((SECONDS - started)) s on $device$by, log $log"
done
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
