"""What a recipe is written with: data, models, objectives, training, validation and reports.

With `import transduce as td` and `from transduce import experiment as ex`, a recipe needs nothing else.
"""

from transduce.data.speech.augment import Augmentation
from transduce.data.speech.feature_cache import FeatureCache
from transduce.data.speech.features import FeatureConfig
from transduce.data.speech.manifest import Manifests, recordings_fingerprint
from transduce.data.speech.pairs import FrameReader, SpeechPairs, make_feature_extractor
from transduce.data.speech.vectors import VectorConfig
from transduce.data.text.corpus import Files, Folder, ParallelText, corpus_folder, read_lines
from transduce.data.text.language import OneText, Shards, TextFiles, encode_text, read_text
from transduce.data.text.masking import MaskedBatches, MaskedWindows, MaskingConfig, mask_id
from transduce.data.text.pairs import TextPairs, fingerprint
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer, tokenizers
from transduce.data.text.stream import HeldOut, Stream, Windows
from transduce.data.text.tokenizers import TokenizerKind, train_tokenizer
from transduce.device import default_device
from transduce.experiment.command import main
from transduce.experiment.report import held_out_report, speech_report, translation_report
from transduce.experiment.run import new_model, saved_tokenizers, train, with_frames, with_vocabularies
from transduce.experiment.validation import (
    Validator,
    language_validator,
    masked_language_validator,
    speech_validator,
    translation_validator,
)
from transduce.model.presets import gpt2, speech_small, speech_tiny
from transduce.score.measures import MEASURES
from transduce.score.score import Measure
from transduce.train.flops import flops_per_token
from transduce.train.objectives import CrossEntropy, HybridCTC, Loss, Objective
from transduce.train.optim import OptimConfig
from transduce.train.trainer import TrainingConfig

__all__ = [
    "MEASURES",
    "Augmentation",
    "CrossEntropy",
    "FeatureCache",
    "FeatureConfig",
    "Files",
    "Folder",
    "FrameReader",
    "HeldOut",
    "HybridCTC",
    "Loss",
    "Manifests",
    "MaskedBatches",
    "MaskedWindows",
    "MaskingConfig",
    "Measure",
    "Objective",
    "OneText",
    "OptimConfig",
    "ParallelText",
    "SentencePieceTokenizer",
    "Shards",
    "SpeechPairs",
    "Stream",
    "TextFiles",
    "TextPairs",
    "TokenizerKind",
    "TrainingConfig",
    "Validator",
    "VectorConfig",
    "Windows",
    "corpus_folder",
    "default_device",
    "encode_text",
    "fingerprint",
    "flops_per_token",
    "gpt2",
    "held_out_report",
    "language_validator",
    "main",
    "make_feature_extractor",
    "mask_id",
    "masked_language_validator",
    "new_model",
    "read_lines",
    "read_text",
    "recordings_fingerprint",
    "saved_tokenizers",
    "speech_report",
    "speech_small",
    "speech_tiny",
    "speech_validator",
    "tokenizers",
    "train",
    "train_tokenizer",
    "translation_report",
    "translation_validator",
    "with_frames",
    "with_vocabularies",
]
