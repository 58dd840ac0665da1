"""How outputs are written: as JSON; transcripts also as text, TSV, JSON lines, subtitles."""

import json
import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch takes seconds to import, and --help does without
    from transduce.tasks.search import Output
    from transduce.tasks.transcript import Segment, Transcript
    from transduce.tasks.words import TokenScores, Word


def plain_output(output: "Output") -> dict[str, object]:
    """An output as JSON has it: what the search did not compute, or nobody asked for, is left out."""
    found: dict[str, object] = {"text": output.text}
    if not math.isnan(output.score):
        found |= {"score": output.score, "log_prob": output.log_prob}
    if output.no_speech_prob is not None:
        found["no_speech_prob"] = round(output.no_speech_prob, 4)
    if output.token_scores:
        found["tokens"] = plain_tokens(output.token_scores)
    if output.words:
        found["words"] = [_plain_word(word) for word in output.words]
    if output.alignment:
        found["alignment"] = [list(pair) for pair in output.alignment.pairs]
    return found


def plain_tokens(scores: "TokenScores") -> list[dict[str, object]]:
    """Scores of tokens as JSON has them."""
    pairs = zip(scores.tokens, scores.log_probs.tolist(), strict=True)
    return [{"token": token, "log_prob": round(log_prob, 4)} for token, log_prob in pairs]


def _plain_word(word: "Word") -> dict[str, object]:
    times = {"start": word.start, "stop": word.stop}
    rounded = {name: round(seconds, 3) for name, seconds in times.items() if seconds is not None}
    return {"word": word.text, "confidence": round(word.confidence, 4), **rounded}


def _printable(text: object) -> str:
    """As text, even where a file's name holds bytes that are not UTF-8."""
    return str(text).encode(errors="surrogateescape").decode(errors="replace")


def as_line(text: object) -> str:
    """As text of one line."""
    return _printable(text).replace("\n", " ").replace("\r", " ")


def _text(transcript: "Transcript") -> str:
    return transcript.text + "\n"


def _tsv(transcript: "Transcript") -> str:
    name = as_line(transcript.path).replace("\t", " ")
    return "".join(
        f"{name}\t{p.start:.3f}\t{p.stop:.3f}\t{p.outputs[0].score:.4f}\t" + p.outputs[0].text.replace("\t", " ") + "\n"
        for p in transcript.segments
    )


def _json(transcript: "Transcript") -> str:
    segments = [_plain(piece) for piece in transcript.segments]
    plain: dict[str, object] = {"audio": _printable(transcript.path), "text": transcript.text, "segments": segments}
    if transcript.error:
        plain["error"] = _printable(transcript.error)
    return json.dumps(plain, ensure_ascii=False) + "\n"


def _plain(piece: "Segment") -> dict[str, object]:
    """A segment as JSON has it."""
    found = {"start": round(piece.start, 3), "stop": round(piece.stop, 3), **plain_output(piece.outputs[0])}
    several = [plain_output(each) for each in piece.outputs] if len(piece.outputs) > 1 else []
    return {**found, "outputs": several} if several else found


def _json_segments(transcript: "Transcript") -> str:
    plain = ({"audio": _printable(transcript.path), **_plain(piece)} for piece in transcript.segments)
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in plain)


def srt(transcript: "Transcript", before: int = 0) -> str:
    """Subtitles as SubRip has them; so many stand `before` them in the file."""
    said = ((p.start, p.stop, p.outputs[0]) for p in transcript.segments if p.outputs[0].text.strip())
    cues = [cue for start, stop, output in said for cue in _cues(start, stop, output)]
    return "".join(
        f"{number}\n{_moment(start, ',')} --> {_moment(stop, ',')}\n{text}\n\n"
        for number, (start, stop, text) in enumerate(cues, start=before + 1)
    )


def _cues(start: float, stop: float, output: "Output") -> list[tuple[float, float, str]]:
    """A subtitle for every word whose times are known; else one."""
    timed = [(w.start, w.stop, w.text) for w in output.words if w.start is not None and w.stop is not None]
    return timed or [(start, stop, output.text.strip())]


def _vtt(transcript: "Transcript") -> str:
    return "".join(
        f"{_moment(p.start, '.')} --> {_moment(p.stop, '.')}\n{_lit(p.outputs[0])}\n\n"
        for p in transcript.segments
        if p.outputs[0].text.strip()
    )


def _lit(output: "Output") -> str:
    """The text of a WebVTT cue, where every word has the moment at which it lights up, if that is known."""
    if any(word.start is None for word in output.words) or not output.words:
        return escape(output.text.strip(), quote=False)
    return " ".join(f"<{_moment(word.start or 0.0, '.')}>{escape(word.text, quote=False)}" for word in output.words)


def _moment(seconds: float, point: str) -> str:
    """Hours:minutes:seconds and milliseconds behind a point: a comma in SubRip."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


WRITE = {"text": _text, "tsv": _tsv, "json": _json, "srt": srt, "vtt": _vtt}
STREAM = {"json": _json_segments}
"""What a stream writes in another way."""
HEAD = {"tsv": "audio\tstart\tstop\tscore\ttext\n", "vtt": "WEBVTT\n\n"}
"""What the first row stands under."""
