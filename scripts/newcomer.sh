#!/usr/bin/env bash
# What a new user does, on the real corpora: the demo, own parallel text, own recordings, own plain text, every supported format
# of data, training that starts from a run, long input, flags of other tools, Python, and every way to give input and to get
# output. Prints a table: the step, its seconds and its result.
#
#   TRANSDUCE_DATA=DIR bash scripts/newcomer.sh [--tiny] [FOLDER]     FOLDER: runs and log, runs/newcomer
#
# --tiny: a few updates each, to test that every step works; otherwise it takes about half an hour.
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
printf '| step | seconds | result |\n|---|---|---|\n' >"$TABLE"

step() { # step NAME FUNCTION: the last line that the function prints is the result
  local started=$SECONDS result
  echo "== $1" | tee -a "$LOG" >&2
  result=$("$2" 2>>"$LOG" | tee -a "$LOG" | tail -n 1) || result="FAILED: see $LOG"
  printf '| %s | %s | %s |\n' "$1" $((SECONDS - started)) "${result//|/ }" | tee -a "$TABLE"
}

scores() { transduce describe "$1" | grep -E "^test.*: (BLEU|WER) .*case:mixed" | tail -n 1 | sed 's/^test, //; s/ bs:.*//; s/ nrefs:.*//'; }
finished() { grep -a "^finished model" | tail -n 1; } # of a training's output

demo() { # and a line at its prompt
  printf 'Please open the old photos.\n' | transduce demo "$OUT/demo" | tee "$OUT/demo.out"
  echo "$(scores "$OUT/demo/translation"); Please open the old photos. -> $(grep -a -i -m 1 "fotos" <(tail -n 20 "$OUT/demo.out") || echo NOTHING)" | tr -s " "
}

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
  echo "three lines in one: as a whole $(cat "$OUT/long.0.score"); by its sentences where they are likelier $(cat "$OUT/long.$split.score")"
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

start_from() { # German to English, starting from Czech to English and from scratch
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

formats_of_text() { # the same pairs in each format: a training of one update
  local right="" form
  python - "$(corpus train cs)" "$(corpus train en)" "$OUT/formats" <<'PYTHON'
import csv, gzip, json, sys, zipfile
from itertools import islice
from pathlib import Path
from xml.sax.saxutils import escape

sides = [[line.rstrip("\n") for line in islice(gzip.open(name, "rt", encoding="utf-8") if name.endswith(".gz") else open(name, encoding="utf-8"), 250)] for name in sys.argv[1:3]]
folder, pairs = Path(sys.argv[3]), list(zip(*sides, strict=True))
folder.mkdir(parents=True, exist_ok=True)
with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("cs", "en"), *pairs])
(folder / "pairs.jsonl").write_text("".join(json.dumps({"cs": a, "en": b}) + "\n" for a, b in pairs), "utf-8")
(folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
units = "".join(
    f'<tu><tuv xml:lang="cs"><seg>{escape(a)}</seg></tuv><tuv xml:lang="en"><seg>{escape(b)}</seg></tuv></tu>\n' for a, b in pairs
)
(folder / "pairs.tmx").write_text(f'<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n{units}</body></tmx>\n', "utf-8")
with zipfile.ZipFile(folder / "pairs.zip", "w") as moses:
    for number, language in enumerate(("cs", "en")):
        moses.writestr(f"Corpus.cs-en.{language}", "".join(pair[number] + "\n" for pair in pairs))
PYTHON
  for form in csv jsonl tmx zip tsv; do
    if [ $form = tsv ]; then
      set -- --train-tsv "$OUT/formats/pairs.tsv"
    else
      set -- --train-table "$OUT/formats/pairs.$form" --source-column cs --target-column en
    fi
    transduce train translation files --run "$OUT/form-$form" "$@" --hold-out 20 --vocab-size 500 \
      --training.max-updates 1 --training.validate-every 1 --decoding.length-ratio 0 | tee "$OUT/form.out"
    grep -q "^valid: 20 pairs" "$OUT/form.out" && right="$right $form"
  done
  transduce data clean "$OUT/formats/pairs.zip" --source cs --target en --output "$OUT/formats/clean" && [ -s "$OUT/formats/clean.cs" ] &&
    right="$right clean"
  echo "$(wc -w <<<"$right") of 6:$right"
}

formats_of_sound() { # the same recordings in each format: a manifest of as many lines
  local right="" form n
  n=$(($(wc -l <"$OUT/digits/test.tsv") - 1))
  python - "$OUT/digits/test.tsv" "$OUT/formats" <<'PYTHON'
import csv, json, os, sys
from pathlib import Path

manifest, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
with manifest.open(encoding="utf-8") as file:
    rows = [(manifest.parent / row["audio"], row["text"]) for row in csv.DictReader(file, delimiter="\t")]
for name in ("kaldi", "hub/audio"):
    (folder / name).mkdir(parents=True, exist_ok=True)
with (folder / "two_columns.tsv").open("w") as file:
    file.writelines(["audio\ttext\n", *(f"{audio}\t{text}\n" for audio, text in rows)])
with (folder / "list.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("audio", "text"), *rows])
(folder / "nemo.jsonl").write_text("".join(json.dumps({"audio_filepath": str(a), "text": t}) + "\n" for a, t in rows))
(folder / "kaldi" / "wav.scp").write_text("".join(f"{a.stem} {a}\n" for a, _ in rows))
(folder / "kaldi" / "text").write_text("".join(f"{a.stem} {t}\n" for a, t in rows))
with (folder / "hub" / "metadata.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("file_name", "transcription"), *((f"audio/{a.name}", t) for a, t in rows)])
for audio, _ in rows:
    (folder / "hub" / "audio" / audio.name).unlink(missing_ok=True)
    os.symlink(audio, folder / "hub" / "audio" / audio.name)
PYTHON
  for form in two_columns.tsv list.csv nemo.jsonl kaldi hub; do
    transduce data manifest "$OUT/formats/$form" "$OUT/formats/made.tsv" && [ "$(tail -n +2 "$OUT/formats/made.tsv" | wc -l)" = "$n" ] &&
      right="$right $form"
  done
  echo "$(wc -w <<<"$right") of 5:$right"
}

flags_of_others() { # the error for a flag of another tool names ours
  local right="" pair
  for pair in lr=peak-rate learning-rate=peak-rate epochs=max-updates batch-size=tokens-per-batch hidden-size=d-model warmup=warmup-steps; do
    names "$pair" transduce train translation files
  done
  for pair in num-beams=beam-size length-penalty=alpha; do names "$pair" transduce translate "$OUT/cs-en"; done
  echo "$(wc -w <<<"$right") of 8:$right"
}

names() { # names THEIRS=OURS COMMAND
  local answer
  answer=$("${@:2}" "--${1%=*}" 1 2>&1 </dev/null) || true
  if grep -q -e "--[a-z.]*${1#*=}" <<<"$answer"; then right="$right ${1%=*}"; fi
}

in_python() { # a run, called with a line, a recording, a prompt
  python - "$OUT" "$OUT/digits/test/$(ls "$OUT/digits/test" | grep wav | head -n 1)" <<'PYTHON'
import subprocess, sys

import transduce as td

out, sound = sys.argv[1:]


def command(*words, line=""):
    return subprocess.run(["transduce", *words], input=line, capture_output=True, text=True, check=True).stdout.rstrip("\n")


right = []
if td.load(f"{out}/cs-en")("Muž spí.") == command("translate", f"{out}/cs-en", line="Muž spí.\n"):
    right.append("line")
if td.load(f"{out}/cs-en")(["Muž spí.", ""])[1] == "":
    right.append("lines")
if td.load(f"{out}/speech")(sound) == command("transcribe", f"{out}/speech", sound):
    right.append("sound")
if isinstance(td.load(f"{out}/text")("To be"), str):
    right.append("prompt")
print(len(right), "of 4:", *right)
PYTHON
}

ways() {
  local right
  right=$(each_way)
  echo "$(wc -w <<<"$right") of 13: $right"
}

each_way() { # of giving input and getting output: a word for each that works
  local file="$OUT/digits/test/$(ls "$OUT/digits/test" | grep wav | head -n 1)" line
  line=$(transduce transcribe "$OUT/speech" "$file")
  [ "$(transduce transcribe "$OUT/speech" - <"$file")" = "$line" ] && echo -n "sound-piped-in "
  [ "$(echo "$file" | transduce transcribe "$OUT/speech" -)" = "$line" ] && echo -n "names-piped-in "
  [ "$(transduce transcribe "$OUT/speech" "$OUT/digits/test.tsv" | wc -l)" = "$(tail -n +2 "$OUT/digits/test.tsv" | wc -l)" ] &&
    echo -n "manifest "
  transduce transcribe "$OUT/speech" "$OUT/digits/test" --output-dir "$OUT/subtitles" --format srt --format json &&
    [ "$(ls "$OUT/subtitles" | wc -l)" = "$((2 * $(ls "$OUT/digits/test" | grep -c wav)))" ] && echo -n "folder-to-subtitles "
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
  local code=0 message
  message=$("${@:2}" 2>&1 >/dev/null) || code=$?
  if [ "$code" -ge 1 ] && [ "$code" -le 2 ] && [ -n "$message" ] && ! grep -q Traceback <<<"$message"; then
    echo -n "refused:${1// /-} "
  fi
}

time_of_help() {
  local started
  started=$(date +%s%N)
  transduce translate --help >>"$LOG"
  echo "transduce translate --help in $((($(date +%s%N) - started) / 1000000)) ms"
}

step "the demo, and a line at its prompt" demo
step "own parallel text: Czech to English" parallel_text
step "parallel text in each format" formats_of_text
step "lines longer than any in training" long_lines
step "a folder of digits, x.wav and x.txt" recordings
step "recordings in each format" formats_of_sound
step "recordings longer than any in training" long_recordings
step "own plain text" plain_text
step "German to English, starting from that run" start_from
step "the same with LoRA" low_rank
step "flags of other tools" flags_of_others
step "in Python" in_python
step "input and output" ways
step "help" time_of_help
echo
cat "$TABLE"
