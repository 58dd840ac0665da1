#!/usr/bin/env bash
# What a new user does, on the real corpora: own parallel text, own recordings, own plain text, going on from a run, long
# input, and every door. Prints a table: what was done, in how many seconds, what came out.
#
#   TRANSDUCE_DATA=DIR bash scripts/newcomer.sh [--tiny] [FOLDER]     FOLDER: where runs and the log go, runs/newcomer
#
# --tiny: a few updates each, to see that every step works; otherwise it takes about half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "[train]"
tiny=""
if [ "${1:-}" = --tiny ]; then tiny=yes && shift; fi
OUT="${1:-runs/newcomer}"
MULTI30K="${TRANSDUCE_DATA:?names the folder of the corpora}/multi30k"
FSDD="$TRANSDUCE_DATA/fsdd" SHAKESPEARE="$TRANSDUCE_DATA/tinyshakespeare/input.txt"
mkdir -p "$OUT"
LOG="$OUT/newcomer.log" TABLE="$OUT/newcomer.md"
n() { if [ "$tiny" ]; then echo "$2"; else echo "$1"; fi; } # n FULL TINY
printf '| what | seconds | what came out |\n|---|---|---|\n' >"$TABLE"

step() { # step WHAT FUNCTION: the function's last line is what came out
  local started=$SECONDS said
  echo "== $1" | tee -a "$LOG" >&2
  said=$("$2" 2>>"$LOG" | tee -a "$LOG" | tail -n 1) || said="FAILED: see $LOG"
  printf '| %s | %s | %s |\n' "$1" $((SECONDS - started)) "${said//|/ }" | tee -a "$TABLE"
}

scores() { transduce describe "$1" | grep -E "^test.*: (BLEU|WER) .*case:mixed" | tail -n 1 | sed 's/^test, //; s/ bs:.*//; s/ nrefs:.*//'; }
finished() { grep -a "^finished model" | tail -n 1; } # of a training's output

parallel_text() {
  transduce train translation files --run "$OUT/cs-en" --hold-out "$(n 1000 50)" \
    --train-source "$(corpus train cs)" --train-target "$(corpus train en)" \
    --test-source "$(corpus test_2016_flickr cs)" --test-target "$(corpus test_2016_flickr en)" \
    --training.max-updates "$(n 620 4)" --training.validate-every "$(n 62 2)" | tee "$OUT/cs-en.out"
  echo "$(scores "$OUT/cs-en"); $(finished <"$OUT/cs-en.out")"
}

corpus() { # corpus SPLIT LANGUAGE: the file, or its first lines
  if [ "$tiny" ]; then
    gzip -dc "$MULTI30K/$1.$2.gz" 2>>"$LOG" | head -n 300 >"$OUT/$1.$2" || true
    echo "$OUT/$1.$2"
  else
    echo "$MULTI30K/$1.$2.gz"
  fi
}

recordings() { # a folder with x.wav and x.txt
  python - "$FSDD" "$OUT/digits" "$(n 3000 150)" <<'PYTHON'
import csv, sys
from pathlib import Path

import soundfile

source, folder, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for split in ("train", "test"):
    (folder / split).mkdir(parents=True, exist_ok=True)
    with (source / f"{split}.tsv").open() as file:
        for row in list(csv.DictReader(file, delimiter="\t"))[: n if split == "train" else n // 10]:
            samples, rate = soundfile.read(source / row["audio"])
            soundfile.write(folder / split / f"{row['id']}.wav", samples, rate)
            (folder / split / f"{row['id']}.txt").write_text(row["text"] + "\n")
PYTHON
  for split in train test; do
    transduce data manifest "$OUT/digits/$split" "$OUT/digits/$split.tsv"
  done
  transduce train speech-to-text manifest --run "$OUT/speech" --train "$OUT/digits/train.tsv" --test "$OUT/digits/test.tsv" \
    --hold-out recordings --features.sample-rate 8000 --features.n-mels 40 --cache "$OUT/features" --vocab-size 290 \
    --features.normalize global --training.optim.peak-rate 3e-3 --frames-per-batch 8000 --training.max-updates "$(n 300 4)" \
    --training.validate-every "$(n 50 2)" --training.optim.warmup-steps 100 | tee "$OUT/speech.out"
  echo "$(scores "$OUT/speech"); $(finished <"$OUT/speech.out")"
}

long_recordings() {
  python scripts/bench long_recordings "$OUT/speech" "$OUT/digits/test.tsv" --n "$(n 64 8)" --joined 8 | tee "$OUT/long.out"
  sed 's/ case:.*//' "$OUT/long.out" | paste -sd ';'
}

long_lines() { # three test lines in one
  for side in cs en; do paste -d ' ' - - - <"$(plain "$side")" >"$OUT/long.$side"; done
  for split in 0 "$(n 28 20)"; do
    transduce translate "$OUT/cs-en" "$OUT/long.cs" --split-length "$split" --output "$OUT/long.$split"
    transduce score bleu "$OUT/long.$split" "$OUT/long.en" --resamples 0 | head -n 1 | sed 's/ nrefs:.*//' >"$OUT/long.$split.score"
  done
  echo "three lines in one: as a whole $(cat "$OUT/long.0.score"); by its sentences where likelier $(cat "$OUT/long.$split.score")"
}

plain() { # the first test lines of a language
  gzip -dc "$MULTI30K/test_2016_flickr.$1.gz" 2>>"$LOG" | head -n "$(n 300 12)" >"$OUT/first.$1" || true
  echo "$OUT/first.$1"
}

plain_text() {
  head -c "$(n 1000000 60000)" "$SHAKESPEARE" >"$OUT/train.txt"
  tail -c 50000 "$SHAKESPEARE" >"$OUT/valid.txt"
  transduce train language-model text --train "$OUT/train.txt" --valid "$OUT/valid.txt" --run "$OUT/text" --vocab-size 1000 \
    --model.d-model 128 --model.d-ff 512 --model.n-heads 4 --model.decoder.n-layers 4 --model.max-positions 128 \
    --batch-size 16 --training.max-updates "$(n 200 4)" --training.validate-every "$(n 50 2)" --training.optim.warmup-steps 50
  transduce generate "$OUT/text" --prompt "ROMEO:" --max-length 20
  transduce score perplexity "$OUT/text" "$OUT/valid.txt" | head -n 1
}

go_on() { # German to English from Czech to English, and from nothing
  local start
  for start in from scratch; do
    transduce train translation files --run "$OUT/de-en-$start" $([ $start = from ] && echo "--start-from $OUT/cs-en") \
      --train-source "$(corpus train de)" --train-target "$(corpus train en)" --hold-out "$(n 1000 50)" \
      --test-source "$(corpus test_2016_flickr de)" --test-target "$(corpus test_2016_flickr en)" \
      --training.max-updates "$(n 186 4)" --training.validate-every "$(n 62 2)" --training.optim.warmup-steps 100
  done
  echo "start from cs-en: $(scores "$OUT/de-en-from"); from scratch: $(scores "$OUT/de-en-scratch")"
}

low_rank() {
  transduce train translation files --run "$OUT/de-en-lora" --start-from "$OUT/cs-en" --training.lora.rank 8 \
    --train-source "$(corpus train de)" --train-target "$(corpus train en)" --hold-out "$(n 1000 50)" \
    --test-source "$(corpus test_2016_flickr de)" --test-target "$(corpus test_2016_flickr en)" \
    --training.max-updates "$(n 186 4)" --training.validate-every "$(n 62 2)" --training.optim.warmup-steps 100
  scores "$OUT/de-en-lora"
}

doors() {
  local right
  right=$(each_door)
  echo "$(wc -w <<<"$right") of 12: $right"
}

each_door() { # one word for each that is right
  local file="$OUT/digits/test/$(ls "$OUT/digits/test" | grep wav | head -n 1)" line
  line=$(transduce transcribe "$OUT/speech" "$file")
  [ "$(transduce transcribe "$OUT/speech" - <"$file")" = "$line" ] && echo -n "sound-piped-in "
  [ "$(echo "$file" | transduce transcribe "$OUT/speech" -)" = "$line" ] && echo -n "names-piped-in "
  [ "$(transduce transcribe "$OUT/speech" "$OUT/digits/test.tsv" | wc -l)" = "$(tail -n +2 "$OUT/digits/test.tsv" | wc -l)" ] &&
    echo -n "manifest "
  [ "$(printf 'Muž spí.\n\nPes běží.\n' | transduce translate "$OUT/cs-en" --interactive --greedy | wc -l)" = 3 ] && echo -n "interactive "
  [ "$(printf 'To be\nOr not\n' | transduce generate "$OUT/text" - --format json --max-length 5 | wc -l)" = 2 ] && echo -n "prompts-piped-in "
  transduce train translation files --print-config >"$OUT/my.yaml" &&
    transduce train translation files --config "$OUT/my.yaml" --print-config | cmp -s - "$OUT/my.yaml" && echo -n "config-file "
  [ "$(transduce describe "$OUT/cs-en" | wc -l)" -le 40 ] && echo -n "describe "
  refused "unknown flag" transduce translate "$OUT/cs-en" --beam 3
  refused "wrong path" transduce translate "$OUT/nowhere"
  refused "empty sound" transduce transcribe "$OUT/speech" /dev/null
  refused "noise" sh -c "head -c 4000 /dev/urandom | transduce transcribe $OUT/speech -"
  refused "no such setting" transduce train translation multi3k
  true
}

refused() { # refused NAME COMMAND: a message and exit code 1 or 2, and no traceback
  local code=0 said
  said=$("${@:2}" 2>&1 >/dev/null) || code=$?
  if [ "$code" -ge 1 ] && [ "$code" -le 2 ] && [ -n "$said" ] && ! grep -q Traceback <<<"$said"; then
    echo -n "refused:${1// /-} "
  fi
}

help_at_once() {
  local started
  started=$(date +%s%N)
  transduce translate --help >>"$LOG"
  echo "transduce translate --help in $((($(date +%s%N) - started) / 1000000)) ms"
}

step "own parallel text: Czech to English" parallel_text
step "lines longer than any of the training" long_lines
step "a folder of digits, x.wav and x.txt" recordings
step "recordings longer than any of the training" long_recordings
step "own plain text" plain_text
step "going on: German to English" go_on
step "going on with low-rank changes" low_rank
step "doors" doors
step "help" help_at_once
echo
cat "$TABLE"
