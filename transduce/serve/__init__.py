"""A server, and the bounds of what it accepts, which are read without torch and without FastAPI."""

from dataclasses import dataclass

from transduce.config import Common, at_least, within

PER_CHARACTER, BESIDE = 12, 65_536
"""Bytes of a character at most, as JSON and forms escape it, and of the rest of a body."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Bounds of a server; what is beyond is refused with an error that names the bound."""

    batch: Common[int] = 128
    """Texts that a model computes at once; a segment of sound counts as 4, 128 new tokens as 1."""
    wait_ms: float = 5.0
    """Milliseconds that the first request of a batch waits for others."""
    queue: Common[int] = 4
    """Batches that may wait for each model; further requests get status 429 and a time."""
    deadline: Common[float] = 60.0
    """Seconds after which a request without an answer gets status 503; also the time of an upload,
    and between two pieces of an answer."""
    upload_mb: Common[float] = 25.0
    """Megabytes of an upload."""
    seconds: Common[float] = 600.0
    """Seconds of sound in a request."""
    characters: int = 10_000
    """Characters of text in a request."""
    texts: int = 128
    """Texts of a request, each line of a text being one; also texts to generate."""
    max_tokens: int = 1024
    """Tokens of a generated text."""
    speech_language: str = ""
    """The language, such as en, of runs that transcribe and do not know theirs: Home Assistant
    offers a recognizer only for the languages that it names."""

    @property
    def upload_bytes(self) -> int:
        """Of a body with a file, and all else that it comes with."""
        return round(self.upload_mb * 1e6) + BESIDE

    @property
    def text_bytes(self) -> int:
        """Of a body of text."""
        return PER_CHARACTER * self.characters + BESIDE

    def __post_init__(self) -> None:
        at_least(1, self, "batch", "queue", "characters", "texts", "max_tokens")
        within("[0, 1000]", self, "wait_ms")
        within("(0, 3600]", self, "deadline")
        within("(0, 1024]", self, "upload_mb")
        within("(0, 86400]", self, "seconds")
