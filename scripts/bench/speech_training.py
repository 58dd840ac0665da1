"""Speed of training on speech against a plain PyTorch loop with torchaudio's Conformer.

The bundled spoken commands, as MFCC: 4 frames of 40 features per position, 4 Conformer layers and 2
decoder layers, d_model 160, batches of at most 5,000 frames; the loss is half CTC and half
cross-entropy, label smoothing 0.1, Adam.

    plain loop     torchaudio.models.conformer.ConformerLayer, torch.nn.TransformerDecoder,
                   F.ctc_loss, F.cross_entropy and torch.optim.Adam, on our batches, which are
                   bucketed by length
    transduce ...  Trainer.run, with clipping, skipping, progress bar and metrics

Times include making batches; log-mels are cached. torchaudio's layers have no positions and no
intermediate CTC, so ours have neither here; its BatchNorm also normalizes over time, our norm over
channels only. The systems take turns as in the benchmark training.

    python scripts/bench speech_training
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from bench.training_turns import (
    SMOOTHING,
    Epochs,
    Ours,
    Plain,
    TurnOptions,
    check_sizes,
    compare_training,
)
from torch import Tensor, nn
from torchaudio.models.conformer import ConformerLayer

import transduce as td
from transduce.arguments import Group
from transduce.data.batch import Batch
from transduce.data.config import FeatureConfig
from transduce.data.features import FeatureCache, FeatureExtractor
from transduce.data.frame_reader import FrameReader
from transduce.data.manifest import read_manifest
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.data.speech_batches import SpeechPairs, SpeechPairsConfig
from transduce.model.inputs import sinusoidal
from transduce.model.presets import conformer_tiny
from transduce.train.config import LossConfig
from transduce.train.objectives import CrossEntropy

SOUND = Path(__file__).parents[2] / "recipes" / "data" / "commands" / "sound"
VOCABULARY = 320
CTC = 0.5
"""Weight of the CTC loss."""

PLAIN, FP32, BF16 = NAMES = ("plain loop", "transduce fp32", "transduce bf16")


@dataclass(frozen=True, kw_only=True)
class Options(TurnOptions):
    """Options of this benchmark."""

    systems: tuple[Literal[NAMES], ...] = NAMES
    """What is measured; ratios are to the first."""


class PlainSpeech(nn.Module):
    """torchaudio's Conformer and torch.nn's decoder with a hybrid CTC/attention loss."""

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        d = config.d_model
        heads = config.n_heads
        p = config.dropout
        self.stack = config.encoder.input.stack
        self.out_lengths = config.encoder.input.out_lengths
        self.encoder = nn.ModuleList(
            ConformerLayer(d, config.d_ff, heads, config.conformer_kernel, dropout=p)
            for _ in range(config.encoder.n_layers)
        )
        self.encoder_norm = nn.LayerNorm(d)
        layer = nn.TransformerDecoderLayer(
            d, heads, config.d_ff, p, F.silu, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, config.decoder.n_layers, nn.LayerNorm(d))
        self.embedding = nn.Embedding(VOCABULARY, d)
        self.ctc = nn.Linear(d, VOCABULARY)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.dropout = nn.Dropout(p)
        self.register_buffer("positions", sinusoidal(0, 512, d))

    def forward(self, batch: Batch) -> Tensor:
        lengths = self.out_lengths(batch.source_lengths)
        frames = F.pad(batch.source, (0, 0, 0, -batch.source.size(1) % self.stack))
        memory = self.dropout(frames.unflatten(1, (-1, self.stack)).flatten(2)).transpose(0, 1)
        hidden = torch.arange(len(memory), device=lengths.device) >= lengths[:, None]
        for layer in self.encoder:
            memory = layer(memory, hidden)
        memory = self.encoder_norm(memory)
        n_target = batch.target_in.size(1)
        embedded = self.embedding(batch.target_in) * self.embedding.embedding_dim**0.5
        future = torch.ones(n_target, n_target, dtype=torch.bool, device=embedded.device).triu(1)
        states = self.decoder(
            self.dropout(embedded + self.positions[:n_target]),
            memory.transpose(0, 1),
            tgt_mask=future,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        logits = (states @ self.embedding.weight.T).flatten(0, 1)
        entropy = F.cross_entropy(logits, batch.target_out.flatten(), label_smoothing=SMOOTHING)
        ctc = F.ctc_loss(
            self.ctc(memory).log_softmax(-1),
            batch.target_out,
            lengths,
            batch.target_lengths - 1,
            reduction="sum",
            zero_infinity=True,
        )
        return (1 - CTC) * entropy + CTC * ctc / batch.n_tokens


def read_sound(folder: Path, x: Options) -> SpeechPairs:
    """The training recordings; `folder` becomes the cache of their features."""
    recordings = read_manifest(SOUND / "train.tsv")
    tokenizer = SentencePieceTokenizer.train([r.text for r in recordings], vocab_size=VOCABULARY)
    extractor = FeatureExtractor(FeatureConfig(n_coefficients=20, deltas=1))
    reader = FrameReader(extractor, FeatureCache(folder))
    settings = SpeechPairsConfig(frames_per_batch=1000 if x.tiny else 5000, workers=x.threads)
    return SpeechPairs(recordings[: 40 if x.tiny else None], reader, tokenizer, settings)


def system(name: str, epochs: Epochs, x: Options) -> Plain | Ours:
    """The system of this name, with new weights."""
    config = conformer_tiny(target=VOCABULARY)
    n_layers = 1 if x.tiny else config.encoder.n_layers
    stack = replace(config.encoder, n_layers=n_layers, positions="none")
    config = replace(config, encoder=stack, ctc_layers=(), ctc_conditioning=False)
    torch.manual_seed(1)
    ours = td.Transformer(config)
    plain = PlainSpeech(config)
    check_sizes(ours, plain)
    if name == PLAIN:
        return Plain(plain.to(x.device), epochs, x)
    loss = LossConfig(ctc_weight=CTC, label_smoothing=SMOOTHING)
    return Ours(CrossEntropy(ours.to(x.device), loss), epochs, x, precision=name.split()[1])


def main(x: Group[Options]) -> None:
    torch.set_num_threads(x.threads)
    with tempfile.TemporaryDirectory() as folder:
        pairs = read_sound(Path(folder), x)
        systems = {name: system(name, pairs.epoch, x) for name in x.systems}
        size = sum(p.numel() for p in systems[x.systems[0]].model.parameters())
        print(
            f"{len(pairs.recordings)} recordings, {size:,} parameters, {x.threads} threads, "
            f"{x.device}, torch {torch.__version__}"
        )
        compare_training(systems, x)
