"""Small run directories for tests: real tokenizers, a Transformer with random weights; and tones that stand for words."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import torch
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import FeatureConfig, FeatureExtractor, VectorReader
from transduce.data.manifest import Recording, write_manifest
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer, train_tokenizer_pair
from transduce.experiment.config import with_frames, with_vocabularies
from transduce.files import save_weights
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.presets import transformer_tiny
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run

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


SPECIAL = ("<unk>", "</s>", "<mask>", "<pad>", "<s>")
"""The special tokens of `library_tokenizer`, none of which has the id that SentencePiece gives it here."""


def library_tokenizer(kind: str, texts: Sequence[str], *, special: Sequence[str] = SPECIAL) -> Library:
    """What the library `tokenizers` learns of these texts: unigram or BPE, written as SentencePiece writes spaces."""
    unigram = kind == "unigram"
    library = Library(models.Unigram() if unigram else models.BPE(unk_token=special[0]))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    settings = {"vocab_size": 120, "special_tokens": list(special), "show_progress": False}
    trainer = trainers.UnigramTrainer(unk_token=special[0], **settings) if unigram else trainers.BpeTrainer(**settings)
    library.train_from_iterator(texts, trainer)
    return library


TINY = transformer_tiny()

LITTLE = replace(
    TINY,
    encoder=replace(TINY.encoder, n_layers=2),
    decoder=replace(TINY.decoder, n_layers=2),
    d_model=32,
    d_ff=48,
    n_heads=2,
    init_gain=1.0,
)
"""A quicker one, where the same line is searched many times."""


def random_run(directory: Path, *, joint: bool = True, seed: int = 3, model: TransformerConfig = TINY) -> Path:
    """A translator that has learned nothing, but whose every part is there."""
    source, target = train_tokenizer_pair(ENGLISH, GERMAN, vocab_size=330, joint=joint)
    config = with_vocabularies(model, source.vocab_size, target.vocab_size, joint=joint)
    torch.manual_seed(seed)
    save_run(directory, Run(config, {"seed": seed}, source, target))
    save_weights(directory / "model.safetensors", Transformer(config))
    return directory


RATE = 8000
"""Hz of the tones."""

TONES = {"red": (300, "rot"), "green": (700, "grün"), "blue": (1500, "blau"), "black": (2800, "schwarz")}
"""A word's pitch in hertz, and its translation."""

FEATURES = FeatureConfig(sample_rate=RATE, n_mels=20, n_coefficients=10)

SPEECH = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=10, stack=2), n_layers=2),
    decoder=StackConfig(input=Tokens(vocab_size=1), n_layers=2),
    d_model=20,
    n_heads=2,
    d_ff=32,
    norm_position="pre",
    ctc=True,
)
"""The frames of FEATURES go straight in."""


def sound(text: str, *, seed: int = 0, rate: int = RATE) -> np.ndarray:
    """A tone of 0.15 s for every word, a little out of tune, with noise and pauses."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(0.15 * rate)) / rate
    parts = [np.zeros(round(0.05 * rate))]
    for word in text.split():
        hertz = TONES[word][0] * rng.uniform(0.95, 1.05)
        parts += [0.3 * np.sin(2 * np.pi * hertz * time), np.zeros(round(rng.uniform(0.03, 0.08) * rate))]
    waveform = np.concatenate(parts)
    return waveform + 0.003 * rng.standard_normal(len(waveform))


def sentences(n: int, *, seed: int = 0) -> list[str]:
    """Two to four words each."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(list(TONES), size=rng.integers(2, 5))) for _ in range(n)]


def record(folder: Path, texts: Sequence[str], *, name: str = "a", rate: int = RATE) -> list[Recording]:
    """These texts as WAV files, by two speakers in turn, and in a manifest NAME.tsv with a column `german`."""
    folder.mkdir(parents=True, exist_ok=True)
    recordings = []
    for i, text in enumerate(texts):
        waveform = sound(text, seed=i, rate=rate)
        path = folder / f"{name}{i:02d}.wav"
        soundfile.write(path, waveform, rate)
        german = " ".join(TONES[word][1] for word in text.split())
        recordings.append(Recording(path.stem, path, len(waveform) / rate, "AB"[i % 2], text, {"german": german}))
    write_manifest(folder / f"{name}.tsv", recordings)
    return recordings


def random_speech_run(
    directory: Path,
    feature_extractor: FeatureExtractor | VectorReader | None = None,
    tokenizer: Tokenizer | None = None,
    *,
    seed: int = 3,
) -> Path:
    """A transcriber that has learned nothing; its weights are large, so that what it says depends on what it hears."""
    feature_extractor = feature_extractor or FeatureExtractor(FEATURES)
    tokenizer = tokenizer or SentencePieceTokenizer.train(sentences(30), vocab_size=290)
    n_features = feature_extractor.config.n_features
    stacked = replace(SPEECH.encoder, input=Frames(n_features=n_features, stack=20 // n_features))
    config = with_frames(replace(SPEECH, encoder=stacked), n_features, tokenizer.vocab_size)
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
    save_run(directory, Run(config, {"seed": seed}, None, tokenizer, feature_extractor))
    save_weights(directory / "model.safetensors", model)
    return directory
