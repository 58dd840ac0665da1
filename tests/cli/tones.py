"""A run that transcribes the tones of tests/runs.py, recordings of them of every kind, and the command for both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import torch
import torch.nn.functional as F

from tests.runs import FEATURES, RATE, SPEECH, TONES, sentences, sound
from transduce.cli.main import main
from transduce.data.features import FeatureExtractor
from transduce.data.sentencepiece_bpe import PAD, SentencePieceTokenizer
from transduce.experiment.config import with_frames
from transduce.files import save_weights
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run


def tone_run(directory: Path) -> None:
    """A transcriber. It knows the tones by CTC alone.

    The layers pass on what flows in, position by position; the head was shown which of them are loud, and the words.
    """
    feature_extractor = FeatureExtractor(replace(FEATURES, normalize="none"))
    texts = [*TONES, *sentences(24, seed=7)]
    tokenizer = SentencePieceTokenizer.train(texts, vocab_size=290)
    config = with_frames(replace(SPEECH, positions="rotary"), FEATURES.n_features, tokenizer.vocab_size)
    torch.manual_seed(1)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.encoder.layers.parameters():
            parameter.zero_()
    states, targets = [], []
    for seed, (text, ids) in enumerate(zip(texts, tokenizer.encode(texts), strict=True)):
        waveform = torch.from_numpy(sound(text, seed=seed)).float()
        middles = waveform[60:].unfold(0, 160, 160)  # of every position's 0.035 s
        with torch.no_grad():
            states.append(model.encode(feature_extractor(waveform)[None]).states[0, : len(middles)])
        loud = (middles[: len(states[-1])].square().mean(dim=1) > 0.025).long()
        nth = (loud.diff(prepend=torch.zeros(1).long()) > 0).cumsum(0)
        assert len(ids) == nth[-1]
        targets.append(torch.tensor([PAD, *ids])[nth * loud])
    known, wanted = torch.cat(states), F.one_hot(torch.cat(targets), tokenizer.vocab_size).float()
    known = torch.cat([known, torch.ones(len(known), 1)], dim=1)
    fitted = torch.linalg.lstsq(known, 40 * wanted - 20).solution  # of logits that are far apart
    with torch.no_grad():
        model.ctc.weight.copy_(fitted[:-1].T)
        model.ctc.bias.copy_(fitted[-1])
    save_run(directory, Run(config, {"decoding": {"ctc_weight": 1.0}}, None, tokenizer, feature_extractor))
    save_weights(directory / "model.safetensors", model)


def any_sound(folder: Path) -> None:
    """Whatever people call a recording."""
    folder.mkdir()
    for rate in (8000, 44100, 48000, 96000):
        soundfile.write(folder / f"{rate}.wav", sound("red blue", rate=rate), rate)
    soundfile.write(folder / "8bit.wav", sound("green red"), RATE, subtype="PCM_U8")
    soundfile.write(folder / "stereo.flac", np.stack([sound("black"), sound("black")], axis=1), RATE)
    (folder / "cut.wav").write_bytes((folder / "8000.wav").read_bytes()[:-2000])
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("this is no sound\n" * 40)
    soundfile.write(folder / "no_samples.wav", np.zeros(0), RATE)
    broken = sound("red")
    broken[700] = np.nan
    soundfile.write(folder / "nan.wav", broken, RATE, subtype="FLOAT")
    soundfile.write(folder / "short.wav", sound("red")[:150], RATE)
    (folder / "header.flac").write_bytes((folder / "stereo.flac").read_bytes()[:60])


GOOD = {
    "8000.wav": "red blue",
    "44100.wav": "red blue",
    "48000.wav": "red blue",
    "96000.wav": "red blue",
    "8bit.wav": "green red",
    "stereo.flac": "black",
    "cut.wav": "red blue",
}
BAD = ["none.wav", "empty.wav", "text.wav", "no_samples.wav", "nan.wav", "short.wav", "header.flac"]
CPU = ["--device", "cpu"]


def transcribe(run: Path, paths: list[Path], *options: str) -> int:
    return main(["transcribe", str(run), *map(str, paths), *CPU, "--greedy", *options])


def lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")
