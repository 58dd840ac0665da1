"""Start a run: tokenizers from a run or from files, features, and weights from another run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import FeatureConfig
from transduce.data.features import FeatureCache, Features
from transduce.data.frame_reader import FrameReader, make_feature_extractor
from transduce.data.manifest import Recording
from transduce.data.pronunciations import PronunciationTokenizer, read_dictionary
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.data.speech_batches import SpeechPairs, SpeechPairsConfig, cells
from transduce.data.tokenizer_files import load_tokenizer
from transduce.errors import InputError, errors_of
from transduce.experiment.config import SpeechExperiment
from transduce.files import weights_of
from transduce.model.transformer import Transformer
from transduce.run import CONFIG, load_run, read_model

TABLES = {
    "source_input.weight": "source",
    "target_input.weight": "target",
    "output": "target",
    "output_bias": "target",
    "ctc.weight": "target",
    "ctc.bias": "target",
    "ctc_condition.weight": "target",
}
"""The weights with a row per token (ctc_condition: a column), and the side whose vocabulary they
use."""


def saved_tokenizers(
    directory: Path,
    start_from: Path | None = None,
    named: Path | str | Sequence[Path] = (),
    symbols: str = "",
    *,
    needs: Sequence[str] = (),
    lowercase: bool | None = None,
) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of the run in `directory` if it has begun, else those of files or of another
    run.

    Args:
        start_from: the run whose weights are used.
        named: a tokenizer file for both sides, or one for each; a string such as "byte_bpe" is not
            a file.
        symbols: words that become one token each in tokenizers from files or another run.
        needs: the special ids that the recipe needs, such as "bos_id" and "eos_id".
        lowercase: whether the target tokenizer must lower-case text; None: either is allowed.

    Returns:
        None if there are none; the same tokenizer twice if one side has none, or both share it.

    Raises:
        InputError: start_from is not a run, a file is not a tokenizer, or a tokenizer lacks what is
            needed.
    """
    files = [named] if isinstance(named, Path) else [] if isinstance(named, str) else list(named)
    if len(files) > 2:
        raise InputError(
            f"tokenizer is one file for both sides, or one for each, but there are {len(files)}"
        )
    begun = (directory / CONFIG).exists()
    origin = directory if begun else None if files else start_from
    if origin is None:
        tokenizers = {load_tokenizer(path): path for path in files}
    else:
        run = load_run(origin)
        sides = (run.source_tokenizer, run.target_tokenizer)
        tokenizers = {each: origin for each in sides if each is not None}
    if not tokenizers:
        return None
    if symbols and not begun:
        tokenizers = {each.with_symbols(symbols.split()): path for each, path in tokenizers.items()}
    first, *rest = tokenizers
    last = (rest or [first])[0]
    for tokenizer, path in tokenizers.items():
        is_scored = tokenizer is last and not begun
        _check_tokenizer(tokenizer, path, needs, lowercase if is_scored else None)
    return first, last


def _check_tokenizer(
    tokenizer: Tokenizer, path: Path, needs: Sequence[str], lowercase: bool | None
) -> None:
    """Raise InputError if a tokenizer lacks what is needed."""
    with errors_of(path):
        tokenizer.required(*needs)
    if lowercase is None:
        return
    folds = folds_case(tokenizer)
    if lowercase and not folds:
        raise InputError(
            f"lowercase needs a tokenizer without capitals, but {path} keeps them; leave out "
            "--lowercase, or train a tokenizer with it"
        )
    if folds and not lowercase:
        raise InputError(
            f"the tokenizer of {path} has no capitals, so validation must not count those of the "
            "references; add --lowercase, or name another --tokenizer"
        )


def folds_case(tokenizer: Tokenizer) -> bool:
    """Whether texts lose their capitals."""
    return tokenizer.decode(tokenizer.encode(["A"])) == ["a"]


def speech_tokenizer(x: SpeechExperiment, recordings: Sequence[Recording]) -> Tokenizer:
    """The tokenizer of a speech experiment, which may have to be trained.

    Raises:
        InputError: see `saved_tokenizers`; or recordings lack the column that CTC learns.
    """
    assert x.run is not None  # it is resolved
    needs = ("bos_id", "eos_id", *["pad_id"] * bool(x.ctc_weight))  # padding is CTC's blank
    begun_by = None if x.pronunciations else x.start_from  # its tokens may not be phones
    if saved := saved_tokenizers(x.run, begun_by, x.tokenizer or (), x.symbols, needs=needs):
        return saved[1]
    texts = [recording.text for recording in recordings]
    if x.pronunciations:
        return PronunciationTokenizer.train(texts, read_dictionary(x.pronunciations))
    texts += cells(recordings, x.ctc_text) if x.ctc_text else []
    symbols = x.symbols.split()
    return SentencePieceTokenizer.train(texts, vocab_size=x.vocab_size, symbols=symbols)


def speech_features(
    x: SpeechExperiment, recordings: Sequence[Recording], cache: FeatureCache
) -> Features:
    """The feature extractor of a speech experiment.

    Mean and deviation are those with which the weights were trained: of the run in the experiment's
    directory, or of the one that it starts from. Otherwise they are computed from the recordings.

    Raises:
        InputError: see `make_feature_extractor`; or start_from is not a run.
    """
    assert x.run is not None  # it is resolved
    origin = x.run if (x.run / CONFIG).exists() else x.start_from
    if origin and isinstance(x.features, FeatureConfig) and x.features.has_statistics:
        known = load_run(origin).feature_extractor
        if known is not None and known.config == x.features:
            return known
        if known is not None:
            print(f"features: other than in {origin}, so mean and deviation are computed again")
    return make_feature_extractor(
        x.features, recordings, cache, x.workers, max_seconds=x.max_seconds
    )


def speech_pairs(
    x: SpeechExperiment,
    recordings: Sequence[Recording],
    reader: FrameReader,
    tokenizer: Tokenizer,
    *,
    training: bool,
) -> SpeechPairs:
    """Recordings as data of a speech experiment, augmented for training.

    Raises:
        InputError: see `SpeechPairs`.
    """
    config = SpeechPairsConfig(
        frames_per_batch=x.frames_per_batch,
        max_seconds=x.max_seconds,
        workers=x.workers,
        seed=x.training.seed,
        ctc_column=x.ctc_text,
    )
    if not training:
        return SpeechPairs(recordings, reader, tokenizer, config)
    two_views = max(x.training.consistency, x.ctc_consistency) > 0
    config = replace(config, augmentation=x.augmentation, two_views=two_views)
    return SpeechPairs(recordings, reader, tokenizer, config, x.model.frames.out_lengths)


def take_weights(
    model: Transformer,
    directory: Path,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
) -> None:
    """Copy the weights of a run into a model where names and shapes agree, and print the others.

    If a tokenizer differs from the run's, only rows of tokens that both have are copied.

    Raises:
        InputError: the directory is not a run with weights, or none of them fits.
    """
    run = load_run(directory)
    other = read_model(run, "cpu")
    old_weights: dict[str, Tensor] = other.state_dict()  # shared weights under all their names
    weights = weights_of(model)
    tokenizers = {
        "source": (run.source_tokenizer, source_tokenizer),
        "target": (run.target_tokenizer, target_tokenizer),
    }
    # an encoder-only model has the mask symbol after its tokens
    n_behind = int(model.config.decoder is None and run.model.decoder is None)
    taken: dict[str, str] = {}
    """For each weight that was copied, a note on the rows that were not, or ""."""
    for name, new in weights.items():
        old = old_weights.get(name)
        side = tokenizers.get(TABLES.get(name, ""), (None, None))
        note = None if old is None else _take(name, new, old, side, n_behind)
        if note is not None:
            taken[name] = note
    untaken = ", ".join(
        f"{name} {tuple(new.shape)}" for name, new in weights.items() if name not in taken
    )
    if not taken:
        raise InputError(
            "a model that starts from a run must have weights of the same names and shapes, but "
            f"{directory} has none that fit; transduce describe {directory} says what it is; new "
            f"are {untaken[:200]}{', ...' * (len(untaken) > 200)}"
        )
    print(
        f"starts from {directory}: {len(taken)} of {len(weights)} tensors; new: {untaken or 'none'}"
    )
    for note in dict.fromkeys(filter(None, taken.values())):
        print(note)
    if unused := [name for name in weights_of(other) if name not in taken]:
        print(f"not taken from {directory}: {', '.join(unused)}")


@torch.no_grad()
def _take(
    name: str,
    new: Tensor,
    old: Tensor,
    tokenizers: tuple[Tokenizer | None, Tokenizer | None],
    n_behind: int,
) -> str | None:
    """Copy the matching part of a weight into another; return a note on the rest, or None if
    nothing fits."""
    if name == "ctc_condition.weight":
        new, old = new.T, old.T  # views
    if new.shape[1:] != old.shape[1:]:
        return None
    before, now = tokenizers
    if before and now and (before.model != now.model or new.shape != old.shape):
        ids = before.token_ids
        pairs = [(ids[token], i) for i, token in enumerate(now.all_tokens) if token in ids]
        note = f"{TABLES[name]}: {len(pairs):,} of {now.vocab_size:,} pieces keep their vectors"
        pairs += [(before.vocab_size + i, now.vocab_size + i) for i in range(n_behind)]
        new[[i for _, i in pairs]] = old[[i for i, _ in pairs]].to(new.device)
        return note
    if new.shape == old.shape:
        new.copy_(old)
        return ""
    if name.endswith("positions.learned"):  # positions begin at 0 in both
        n = min(len(new), len(old))
        new[:n] = old[:n]
        return f"{name}: {n:,} of {len(new):,} positions keep their vectors"
    return None
