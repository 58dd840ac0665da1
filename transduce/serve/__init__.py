"""A server over HTTP, and the limits of its requests, which need neither torch nor FastAPI."""

from dataclasses import dataclass

from transduce.config import Common, at_least, within

PER_CHARACTER, BESIDE = 12, 65_536
"""Maximum bytes of a character, as JSON and forms escape it, and bytes for the rest of a body."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Limits of a server; requests beyond them are refused with an error that names the limit."""

    batch: Common[int] = 128
    """Maximum texts in a batch of a model; a segment of sound counts as 4, 128 new tokens as 1."""
    wait_ms: float = 5.0
    """Milliseconds that the first request of a batch waits for others."""
    queue: Common[int] = 4
    """Batches that may wait for each model; further requests get status 429 and Retry-After."""
    deadline: Common[float] = 60.0
    """Seconds after which a request without an answer gets status 503; also the limit for an
    upload, and between two pieces of an answer."""
    upload_mb: Common[float] = 25.0
    """Maximum megabytes of an upload."""
    seconds: Common[float] = 600.0
    """Maximum seconds of sound in a request."""
    characters: int = 10_000
    """Maximum characters of text in a request."""
    texts: int = 128
    """Maximum texts of a request, where each line of a text counts; also of texts to generate."""
    max_tokens: int = 1024
    """Maximum tokens of a generated text."""
    speech_language: str = ""
    """The language, such as en, of speech runs whose configuration has none: Home Assistant offers
    a recognizer only for the languages that it names."""

    @property
    def upload_bytes(self) -> int:
        """Maximum bytes of a body with a file and other fields."""
        return round(self.upload_mb * 1e6) + BESIDE

    @property
    def text_bytes(self) -> int:
        """Maximum bytes of a body of text."""
        return PER_CHARACTER * self.characters + BESIDE

    def __post_init__(self) -> None:
        at_least(1, self, "batch", "queue", "characters", "texts", "max_tokens")
        within("[0, 1000]", self, "wait_ms")
        within("(0, 3600]", self, "deadline")
        within("(0, 1024]", self, "upload_mb")
        within("(0, 86400]", self, "seconds")
