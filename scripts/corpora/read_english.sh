#!/usr/bin/env bash
# English read by learners (speechocean762): trains a recognizer with each seed, estimates n-grams of its tokens from the
# transcripts of the training and from Multi30k's English, and prints the WER on the test with them, of each recognizer
# and, if there are several, of their ensemble.
#
#   TRANSDUCE_DATA=DIR bash scripts/corpora/read_english.sh [--tiny] [FOLDER]
#
# FOLDER: the folder of the runs, runs/read_english. SEEDS: the seeds, 1; "1 2 3" for an ensemble of three.
# --tiny: two updates each, to test that every step works; otherwise a training takes an hour of one core with bf16
# instructions. The same command again continues where it was stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
tiny=()
if [ "${1:-}" = --tiny ]; then
  tiny=(--training.max-updates 2 --training.validate-every 2 --decoding.length-ratio 0 --decoding.length-extra 5) && shift
fi
[ "$#" -le 1 ] || { echo "the arguments must be [--tiny] [FOLDER], but '${*:2}' comes after FOLDER" >&2 && exit 2; }
source scripts/setup.sh "[train]"
OUT="${1:-runs/read_english}"
CORPUS="${TRANSDUCE_DATA:?names the folder of the corpora}/speechocean762"
mkdir -p "$OUT"

awk -F '\t' 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next } { print $column["text"] }' \
  "$CORPUS/train/manifest.tsv" >"$OUT/read.txt"
gzip -dc "$TRANSDUCE_DATA/multi30k/train.en.gz" | tr a-z A-Z | tr -c "A-Z'\n" ' ' >"$OUT/captions.txt" # written like transcripts

runs=() tokens=()
for seed in ${SEEDS:-1}; do
  run="$OUT/seed_$seed"
  transduce train speech-to-text speechocean762 --run "$run" --data "$CORPUS" --training.seed "$seed" "${tokens[@]}" \
    --model.encoder.input.stack 3 --features.n-coefficients 24 --model.encoder.input.n-features 48 --model.d-model 144 \
    --model.ctc-layers 2 4 --training.optim.weight-decay 0.25 "${tiny[@]}"
  runs+=("$run")
  tokens=(--tokenizer "${runs[0]}/target.pronunciations.json" --pronunciations None) # an ensemble has the same tokens
done

for text in read captions; do transduce tokenize "${runs[0]}" "$OUT/$text.txt" >"$OUT/$text.tok"; done
texts=("$OUT"/read.tok "$OUT"/read.tok "$OUT"/read.tok "$OUT"/read.tok "$OUT"/read.tok) # count five times
python scripts/corpora/ngrams.py "$OUT/lm.arpa" "${texts[@]}" "$OUT/captions.tok"
if [ "${#runs[@]}" != 1 ]; then runs+=("$(IFS=, && echo "${runs[*]}")"); fi # RUN,RUN is an ensemble
for run in "${runs[@]}"; do
  echo "test with n-grams, $run"
  transduce transcribe "$run" "$CORPUS/test/manifest.tsv" --beam-size 20 --ctc-weight 0.3 --lm "$OUT/lm.arpa" --lm-weight 0.3 |
    transduce score wer - "$CORPUS/test/manifest.tsv"
done
