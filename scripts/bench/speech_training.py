"""Speed of training on speech against a plain PyTorch loop with torchaudio's Conformer: the same sizes, the same run.

The spoken commands that ship, as MFCC: 4 frames of 40 features to a position, 4 Conformer layers and 2 of the decoder,
d_model 160, batches of at most 5,000 frames; the loss is half CTC and half cross-entropy, label smoothing 0.1, Adam.

    plain loop     torchaudio.models.conformer.ConformerLayer, torch.nn.TransformerDecoder, F.ctc_loss, F.cross_entropy
                   and torch.optim.Adam, on our batches, which are bucketed by length
    transduce ...  Trainer.run, with all a user gets: clipping, skipping, progress bar and metrics

Making batches counts, log-mels are in the cache. torchaudio's layers tell no positions and have no CTC inside, so neither do
ours here; its BatchNorm is over time as well, our norm over channels. As in the benchmark training the systems take turns.

    python scripts/bench speech_training
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from bench.training_turns import SMOOTHING, Ours, Plain, add_turns, check_sizes, take_turns
from torch import Tensor, nn
from torchaudio.models.conformer import ConformerLayer

import transduce as td
from transduce.data.batch import Batch, Epoch
from transduce.data.config import FeatureConfig
from transduce.data.features import FeatureCache, FeatureExtractor
from transduce.data.frame_reader import FrameReader
from transduce.data.manifest import read_manifest
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.data.speech_batches import SpeechPairs, SpeechPairsConfig
from transduce.model.inputs import sinusoidal
from transduce.model.presets import conformer_tiny
from transduce.train.config import LossConfig
from transduce.train.objectives import HybridCTC

SOUND = Path(__file__).parents[2] / "recipes" / "data" / "commands" / "sound"
VOCABULARY, CTC = 320, 0.5


class PlainSpeech(nn.Module):
    """torchaudio's Conformer layers and torch.nn's decoder as a hybrid of CTC and attention; gives the loss of a batch."""

    def __init__(self, config: td.TransformerConfig) -> None:
        super().__init__()
        d, heads, p = config.d_model, config.n_heads, config.dropout
        self.stack, self.out_lengths = config.encoder.input.stack, config.encoder.input.out_lengths
        layers = (
            ConformerLayer(d, config.d_ff, heads, config.conformer_kernel, dropout=p)
            for _ in range(config.encoder.n_layers)
        )
        self.encoder = nn.ModuleList(layers)
        self.encoder_norm = nn.LayerNorm(d)
        layer = nn.TransformerDecoderLayer(d, heads, config.d_ff, p, F.silu, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, config.decoder.n_layers, nn.LayerNorm(d))
        self.embedding, self.ctc = nn.Embedding(VOCABULARY, d), nn.Linear(d, VOCABULARY)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.dropout = nn.Dropout(p)
        self.register_buffer("positions", sinusoidal(0, 512, d))

    def forward(self, batch: Batch) -> Tensor:
        frames, lengths = batch.source, self.out_lengths(batch.source_lengths)
        frames = F.pad(frames, (0, 0, 0, -frames.size(1) % self.stack))
        memory = self.dropout(frames.unflatten(1, (-1, self.stack)).flatten(2)).transpose(0, 1)
        hidden = torch.arange(len(memory), device=lengths.device) >= lengths[:, None]
        for layer in self.encoder:
            memory = layer(memory, hidden)
        memory = self.encoder_norm(memory)
        n_target = batch.target_in.size(1)
        embedded = self.embedding(batch.target_in) * self.embedding.embedding_dim**0.5 + self.positions[:n_target]
        future = torch.ones(n_target, n_target, dtype=torch.bool, device=embedded.device).triu(1)
        states = self.decoder(
            self.dropout(embedded), memory.transpose(0, 1), tgt_mask=future,
            memory_key_padding_mask=hidden, tgt_is_causal=True,
        )  # fmt: skip
        logits = (states @ self.embedding.weight.T).flatten(0, 1)
        entropy = F.cross_entropy(logits, batch.target_out.flatten(), label_smoothing=SMOOTHING)
        ctc = F.ctc_loss(
            self.ctc(memory).log_softmax(-1), batch.target_out, lengths, batch.target_lengths - 1, reduction="sum",
            zero_infinity=True,
        )  # fmt: skip
        return (1 - CTC) * entropy + CTC * ctc / batch.n_tokens


def read_sound(folder: Path, x: argparse.Namespace) -> tuple[Callable[[int], Epoch], int]:
    """The epochs of the training recordings, and how many recordings there are."""
    recordings = read_manifest(SOUND / "train.tsv")
    tokenizer = SentencePieceTokenizer.train([r.text for r in recordings], vocab_size=VOCABULARY)
    recordings = recordings[: 40 if x.tiny else None]
    reader = FrameReader(FeatureExtractor(FeatureConfig(n_coefficients=20, deltas=1)), FeatureCache(folder))
    settings = SpeechPairsConfig(frames_per_batch=1000 if x.tiny else 5000, workers=x.threads)
    pairs = SpeechPairs(recordings, reader, tokenizer, settings)
    return pairs.epoch, len(pairs.recordings)


PLAIN, FP32, BF16 = NAMES = ("plain loop", "transduce fp32", "transduce bf16")


def system(name: str, epoch: Callable[[int], Epoch], x: argparse.Namespace) -> Plain | Ours:
    """One of NAMES, with new weights."""
    config = conformer_tiny(target=VOCABULARY)
    stack = replace(config.encoder, n_layers=1 if x.tiny else config.encoder.n_layers, positions="none")
    config = replace(config, encoder=stack, ctc_layers=(), ctc_conditioning=False)
    torch.manual_seed(1)
    ours, plain = td.Transformer(config), PlainSpeech(config)
    check_sizes(ours, plain)
    if name == PLAIN:
        return Plain(plain.to(x.device), epoch, x)
    objective = HybridCTC(ours.to(x.device), LossConfig(ctc_weight=CTC, label_smoothing=SMOOTHING))
    return Ours(objective, epoch, x, precision=name.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_turns(parser)
    parser.add_argument("--systems", nargs="+", choices=NAMES, default=NAMES, help="ratios are to the first")
    x = parser.parse_args()
    torch.set_num_threads(x.threads)
    with tempfile.TemporaryDirectory() as folder:
        epoch, n = read_sound(Path(folder), x)
        systems = {name: system(name, epoch, x) for name in x.systems}
        size = sum(p.numel() for p in systems[x.systems[0]].model.parameters())
        print(f"{n} recordings, {size:,} parameters, {x.threads} threads, {x.device}, torch {torch.__version__}")
        take_turns(systems, x)


if __name__ == "__main__":
    main()
