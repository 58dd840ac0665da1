"""Small run directories for tests: real tokenizers, a Transformer with random weights."""

from pathlib import Path

import torch

from transduce.checkpoint import Run, save_run, save_weights
from transduce.data.tokenizer import tokenizers
from transduce.experiment import with_vocabularies
from transduce.model.presets import transformer_tiny
from transduce.model.transformer import Transformer

ENGLISH = [
    "Open the old letter.",
    "Show me the photos from last week.",
    "Did my sister delete the report?",
    "Send the long list to Anna.",
    "Close the green folder, please.",
    "Print it.",
] * 5
GERMAN = [
    "Mach den alten Brief auf.",
    "Zeig mir die Fotos von letzter Woche.",
    "Hat meine Schwester den Bericht gelöscht?",
    "Schick Anna die lange Liste.",
    "Mach bitte den grünen Ordner zu.",
    "Druck es aus.",
] * 5


def random_run(directory: Path, *, joint: bool = True, seed: int = 3) -> Path:
    """A translator that has learned nothing, but whose every part is there."""
    source, target = tokenizers(ENGLISH, GERMAN, vocab_size=330, joint=joint)
    config = with_vocabularies(transformer_tiny(), source.vocab_size, target.vocab_size, joint=joint)
    torch.manual_seed(seed)
    save_run(directory, Run(config, {"seed": seed}, source, target))
    save_weights(directory / "model.safetensors", Transformer(config))
    return directory
