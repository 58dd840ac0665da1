"""Formats of outputs: JSON; of transcripts also text, TSV, JSON lines and subtitles."""

import json
import math
from html import escape
from typing import TYPE_CHECKING

from transduce.config import Json

if TYPE_CHECKING:  # torch takes seconds to import, and --help does without
    from transduce.tasks.outputs import Output, Segment, TokenScores, Transcript, Word


def plain_output(output: "Output") -> Json:
    """An output as a JSON object, without what was not computed or not requested."""
    plain: Json = {"text": output.text}
    if not math.isnan(output.score):
        plain |= {"score": output.score, "log_prob": output.log_prob}
    if output.language:
        plain["language"] = output.language
    if output.no_speech_prob is not None:
        plain["no_speech_prob"] = round(output.no_speech_prob, 4)
    if output.token_scores:
        plain["tokens"] = plain_tokens(output.token_scores)
    if output.words:
        plain["words"] = [_plain_word(word) for word in output.words]
    if output.alignment:
        plain["alignment"] = [list(pair) for pair in output.alignment.pairs]
    return plain


def json_line(plain: object) -> str:
    """An object as a line of JSON, in which non-ASCII letters are not escaped."""
    return json.dumps(plain, ensure_ascii=False) + "\n"


def plain_tokens(scores: "TokenScores") -> list[Json]:
    """Scores of tokens as JSON objects."""
    pairs = zip(scores.tokens, scores.log_probs.tolist(), strict=True)
    return [{"token": token, "log_prob": round(log_prob, 4)} for token, log_prob in pairs]


def _plain_word(word: "Word") -> Json:
    times = {"start": word.start, "end": word.stop}
    rounded = {name: round(seconds, 3) for name, seconds in times.items() if seconds is not None}
    return {"word": word.text, "confidence": round(word.confidence, 4), **rounded}


def _printable(text: object) -> str:
    """Convert to text, even if the name of a file has bytes that are not UTF-8."""
    return str(text).encode(errors="surrogateescape").decode(errors="replace")


def one_line(text: str) -> str:
    """The text without line breaks, which byte tokens could spell."""
    return text.replace("\n", " ").replace("\r", " ")


def as_line(text: object) -> str:
    """Convert to text of one line."""
    return one_line(_printable(text))


def _text(transcript: "Transcript") -> str:
    return transcript.text + "\n"


def _tsv(transcript: "Transcript") -> str:
    name = as_line(transcript.path).replace("\t", " ")
    rows = []
    for segment in transcript.segments:
        best = segment.best
        text = best.text.replace("\t", " ")
        rows.append(f"{name}\t{segment.start:.3f}\t{segment.stop:.3f}\t{best.score:.4f}\t{text}\n")
    return "".join(rows)


def _json(transcript: "Transcript") -> str:
    plain: Json = {
        "audio": _printable(transcript.path),
        "text": transcript.text,
        "segments": [_plain_segment(segment) for segment in transcript.segments],
    }
    if transcript.error:
        plain["error"] = _printable(transcript.error)
    return json_line(plain)


def _plain_segment(segment: "Segment") -> Json:
    outputs = [plain_output(output) for output in segment.outputs]
    plain = {"start": round(segment.start, 3), "end": round(segment.stop, 3), **outputs[0]}
    return {**plain, "outputs": outputs} if len(outputs) > 1 else plain


def _json_segments(transcript: "Transcript") -> str:
    audio = _printable(transcript.path)
    plain = ({"audio": audio, **_plain_segment(segment)} for segment in transcript.segments)
    return "".join(map(json_line, plain))


def srt(transcript: "Transcript", before: int = 0) -> str:
    """Subtitles as SubRip has them, numbered from `before` + 1."""
    cues = [cue for segment in _with_text(transcript) for cue in _cues(segment)]
    return "".join(
        f"{number}\n{_moment(start, ',')} --> {_moment(stop, ',')}\n{text}\n\n"
        for number, (start, stop, text) in enumerate(cues, start=before + 1)
    )


def _with_text(transcript: "Transcript") -> "list[Segment]":
    """The segments with a text."""
    return [segment for segment in transcript.segments if segment.best.text.strip()]


def _cues(segment: "Segment") -> list[tuple[float, float, str]]:
    """A subtitle for every word with known times; without any, one for the segment."""
    best = segment.best
    timed = [
        (w.start, w.stop, w.text) for w in best.words if w.start is not None and w.stop is not None
    ]
    return timed or [(segment.start, segment.stop, best.text.strip())]


def _vtt(transcript: "Transcript") -> str:
    return "".join(
        f"{_moment(segment.start, '.')} --> "
        f"{_moment(segment.stop, '.')}\n{_cue_text(segment.best)}\n\n"
        for segment in _with_text(transcript)
    )


def _cue_text(output: "Output") -> str:
    """The text of a WebVTT cue, in which every word has its start time, if all are known."""
    if any(word.start is None for word in output.words) or not output.words:
        return escape(output.text.strip(), quote=False)
    return " ".join(
        f"<{_moment(word.start or 0.0, '.')}>{escape(word.text, quote=False)}"
        for word in output.words
    )


def _moment(seconds: float, point: str) -> str:
    """Hours:minutes:seconds, the decimal mark (a comma in SubRip) and milliseconds."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


ENDINGS = {"text": ".txt", "tsv": ".tsv", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
"""The endings of file names, by format."""

WRITE = {"text": _text, "tsv": _tsv, "json": _json, "srt": srt, "vtt": _vtt}
STREAM = {"json": _json_segments}
"""Formats that are written in another way in a stream."""
HEAD = {"tsv": "audio\tstart\tend\tscore\ttext\n", "vtt": "WEBVTT\n\n"}
"""The text before the first row."""
