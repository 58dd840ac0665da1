"""Where a line of several sentences can be parted."""

import re

END = re.compile(r"""[.!?…]["'”’»)\]]*\s+|[。！？]["'”’」』）]*\s*""")
"""The end of a sentence, closing quotes and brackets included, and the space behind it."""

OPENING = "\"'“‘«„([¿¡"
"""What may stand before the first letter of a sentence."""


def sentences(line: str) -> list[str]:
    """The sentences of a line, in order. After a full stop, a small letter goes on with the same sentence."""
    found, start = [], 0
    for end in END.finditer(line):
        if not line[end.end() :].lstrip(OPENING)[:1].islower():
            found.append(line[start : end.end()].strip())
            start = end.end()
    return [part for part in (*found, line[start:].strip()) if part]
