#!/usr/bin/env bash
# Fresh machine: makes .venv, installs, trains on the corpus that ships, translates, scores, draws; then speech, until a
# recording goes in and its text and translation come out. RUN and SPEECH name the folders.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh ""
RUN="${RUN:-runs/commands}"
SPEECH="${SPEECH:-runs/speech}"
SOUND=recipes/data/commands/sound

echo; echo "== train: spoken commands, English to German (under two minutes on two cores)"
python recipes/translation.py commands --run "$RUN"

echo; echo "== translate, from the command line"
head -n 5 recipes/data/commands/test.en | tee >(cat >&2) | transduce translate "$RUN" --greedy

echo; echo "== score all test sentences: combinations that training never saw"
transduce translate "$RUN" recipes/data/commands/test.en --greedy --output "$RUN/hyp.de"
transduce score bleu "$RUN/hyp.de" recipes/data/commands/test.de

echo; echo "== train: spoken commands, sound to English (five to ten minutes on two cores)"
python recipes/speech_to_text.py commands --run "$SPEECH"

echo; echo "== a recording goes in; text and its translation come out"
# the recognizer writes words; the translator was trained on sentences, so the first letter grows and a full stop is added
transduce transcribe "$SPEECH" "$SOUND"/test/000{0,1,2,3,4}.opus --ctc-weight 0.5 |
  awk '{ print toupper(substr($0, 1, 1)) substr($0, 2) "." }' | tee >(cat >&2) | transduce translate "$RUN" --greedy

echo; echo "the learning curves are $RUN/learning_curve.png and $SPEECH/learning_curve.png"
echo "where the recognizer listened: $(ls "$SPEECH"/samples/*.attention.png | tail -n 1)"
