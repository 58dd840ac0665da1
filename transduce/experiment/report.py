"""The scores of a finished run on held-out text, printed and kept."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transduce.data.batch import Batch
from transduce.data.speech.manifest import Recording
from transduce.data.text.corpus import ParallelText
from transduce.data.text.masking import MaskedBatches, Neighbours
from transduce.experiment.validation import held_out_accuracy, held_out_loss
from transduce.files import write_file
from transduce.score.bleu import bleu, bleu_lowercase, chrf
from transduce.score.score import Score
from transduce.score.wer import cer, wer
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import Generator
from transduce.tasks.load import load_as
from transduce.tasks.search import SearchConfig
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator


def translation_report(directory: Path, test: ParallelText, decoding: SearchConfig, device: str) -> dict[str, float]:
    """Translate `test` greedily and with the beam, print every score with its signature, keep test.* in the run.

    Returns:
        Scores by name, for example "bleu.lowercase.beam5".
    """
    translator = load_as(Translator, directory, device)
    searches = {"greedy": decoding.greedy()}
    if decoding.beam_size > 1:
        searches[f"beam{decoding.beam_size}"] = replace(decoding, n_best=1)
    return _report(
        directory,
        searches,
        lambda search: translator(test.source, search),
        lambda outputs: {
            "bleu": bleu(outputs, test.target),
            "bleu.lowercase": bleu_lowercase(outputs, test.target),
            "chrf": chrf(outputs, test.target),
        },
        list(zip(test.source, test.target, strict=True)),
    )


def speech_report(
    directory: Path,
    test: Sequence[Recording],
    decoding: SearchConfig,
    device: str,
    *,
    speech_translation: bool = False,
) -> dict[str, float]:
    """Transcribe `test` greedily, with the beam, and with CTC beside it where `decoding` has it; keep every score.

    A recording that cannot be used is named and counts as a blank transcript; one without a text is left out. The sound
    is read once, however many searches there are, and the time of each includes the reading.

    Args:
        test: recordings, of which at least one has a text.
        speech_translation: BLEU and chrF, not WER and CER.
    """
    spoken = [r for r in test if r.text.strip()]
    transcriber = load_as(Transcriber, directory, device)
    plain = replace(decoding, n_best=1, ctc_weight=0.0)
    beam = f"beam{plain.beam_size}" if plain.beam_size > 1 else "greedy"
    searches = {"greedy": plain.greedy(), beam: plain}
    if decoding.ctc_weight:
        searches[f"{beam}.ctc"] = replace(decoding, n_best=1)
    references = [r.text for r in spoken]
    started = time.monotonic()
    sounds = list(transcriber.read([r.audio for r in spoken], decoding.max_seconds))
    reading = time.monotonic() - started
    for error in filter(None, (sound.error for sound in sounds)):
        print(f"  {error}")

    def scores(outputs: list[str]) -> dict[str, Score]:
        if speech_translation:
            return {"bleu": bleu(outputs, references), "chrf": chrf(outputs, references)}
        return {"wer": wer(outputs, references), "cer": cer(outputs, references)}

    return _report(
        directory,
        searches,
        lambda search: [transcript.text for transcript in transcriber.transcripts(sounds, search)],
        scores,
        [(r.id, r.text) for r in spoken],
        sound=sum(r.seconds for r in spoken),
        reading=reading,
    )


def _report(
    directory: Path,
    searches: Mapping[str, SearchConfig],
    transduce: Callable[[SearchConfig], list[str]],
    measure: Callable[[list[str]], Mapping[str, Score]],
    pairs: Sequence[tuple[str, str]],
    *,
    sound: float | None = None,
    reading: float = 0.0,
) -> dict[str, float]:
    """Search in every way, print and keep outputs and scores, and show the first few of the last search.

    Args:
        pairs: what went in and what should come out.
        sound: seconds of it, where sound went in.
        reading: seconds that came before every search.
    """
    values: dict[str, float] = {}
    kept: list[dict[str, object]] = []
    outputs: list[str] = []
    for name, search in searches.items():
        started = time.monotonic()
        outputs = transduce(search)
        seconds = reading + time.monotonic() - started
        write_file(directory / f"test.{name}.txt", "".join(line + "\n" for line in outputs))
        factor = "" if sound is None else f", real-time factor {seconds / sound:.4f}"
        print(f"test, {name}: {len(outputs)} {'lines' if sound is None else 'recordings'} in {seconds:.1f} s{factor}")
        for kind, score in measure(outputs).items():
            print(f"  {score}")
            values[f"{kind}.{name}"] = score.value
            kept.append({"search": name, "score": str(score)})
    for (source, target), output in list(zip(pairs, outputs, strict=True))[:5]:
        print(f"  {source}\n    should be  {target}\n    is         {output}")
    write_file(directory / "test.json", json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    return values


def language_report(directory: Path, held_out: Sequence[Batch], bigram: float, device: str) -> dict[str, float]:
    """The finished model's loss on held-out text, beside that of a bigram; print both, keep them in valid.json.

    Args:
        bigram: nats per token, see data/bigram.py.
    """
    generator = load_as(Generator, directory, device)
    loss = held_out_loss(generator.model, held_out)
    values = {"loss": loss, "perplexity": math.exp(min(loss, 50)), "bigram": bigram}
    n_tokens = sum(batch.n_tokens for batch in held_out)
    print(f"validation: {n_tokens:,} tokens\n  loss {loss:.4f} nats per token, perplexity {values['perplexity']:.3f}")
    print(f"  bigram {bigram:.4f} nats per token, perplexity {math.exp(bigram):.3f}: counts of pairs, no attention")
    write_file(directory / "valid.json", json.dumps({**values, "tokens": n_tokens}, indent=2) + "\n")
    return values


def masked_language_report(
    directory: Path, name: str, held_out: MaskedBatches, neighbours: Neighbours, device: str
) -> dict[str, float]:
    """The finished model's loss and accuracy on corrupted text, beside those of counted pairs; print, keep in NAME.json.

    Returns:
        Nats per chosen token, and per cent of them found again.
    """
    fill_mask = load_as(FillMask, directory, device)
    loss, accuracy = held_out_loss(fill_mask.model, held_out), held_out_accuracy(fill_mask, held_out)
    rival_loss, rival_accuracy = neighbours.scores(held_out)
    n_tokens = sum(batch.n_tokens for batch in held_out)
    print(f"{name}: {n_tokens:,} chosen tokens of {sum(int(b.target_lengths.sum()) for b in held_out):,}")
    print(f"  loss {loss:.4f} nats per chosen token, {100 * accuracy:.2f} % of them found")
    print(
        f"  neighbours {rival_loss:.4f} nats, {100 * rival_accuracy:.2f} %: counts of pairs, given the true token before "
        "and after, no attention"
    )
    values = {
        "loss": loss,
        "accuracy": 100 * accuracy,
        "neighbours.loss": rival_loss,
        "neighbours.accuracy": 100 * rival_accuracy,
    }
    write_file(directory / f"{name}.json", json.dumps({**values, "tokens": n_tokens}, indent=2) + "\n")
    return values
