#!/usr/bin/env bash
# Fresh machine: makes .venv, installs, then `transduce demo --speech`: trains a translator and a recognizer of spoken commands,
# scores and draws them, shows examples, and translates what is typed. Arguments go to the command, such as --serve.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "[train]"
transduce demo --speech "$@"
