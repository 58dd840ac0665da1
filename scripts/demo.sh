#!/usr/bin/env bash
# Makes .venv and installs into it, unless that is done; then `transduce demo --speech`: trains a translator and a recognizer of
# spoken commands, prints scores and examples, draws plots, and translates typed lines. Arguments go to the command, such as --serve.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "[train]"
transduce demo --speech "$@"
