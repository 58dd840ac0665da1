"""A small experiment of a recipe as a command, for torchrun: RECIPE RUN DATA, and flags."""

import sys
from pathlib import Path

from recipes import language_model, masked_language_model, speech_to_text, translation
from tests.recipes import small
from transduce import experiment as ex

RECIPES = {
    "translation": (translation.run, small.translator),
    "speech": (speech_to_text.run, small.transcriber),
    "language": (language_model.run, small.generator),
    "masked": (masked_language_model.run, small.fill_mask),
}

if __name__ == "__main__":
    name, run, data = sys.argv[1:4]
    sys.argv[1:4] = []
    recipe, experiment = RECIPES[name]
    x = experiment(Path(run), Path(data))
    sys.exit(ex.main(recipe, {"small": ("", x)}, default="small", description=None))
