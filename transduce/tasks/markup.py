"""Translation of HTML and subtitles: finds the text to translate, and carries tags over by word
alignment."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import chain, takewhile
from typing import Any

from transduce.data.glossary import LETTER
from transduce.data.lines import is_blank
from transduce.errors import InputError
from transduce.tasks.outputs import Output, joined_texts
from transduce.tasks.translate import Translator

INLINE = re.compile(
    "a|abbr|b|bdi|bdo|c|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|lang|mark|q|ruby|s|samp"
    "|small|span|strike|strong|sub|sup|time|tt|u|v|var|wbr|!--"
)
"""Elements inside of a sentence, and comments; any other element ends a sentence."""

RUBY = re.compile("/?(rb|rp|rt|ruby)")
"""Ruby annotations, which tell how characters of the source are read; translations drop them."""

OPAQUE = "code|kbd|pre|rp|rt|samp|script|style|textarea|var"
"""Elements whose text is not translated, in addition to those with translate="no"."""

ATTRIBUTES = r"""(?:[^<>=]|=(?!\s*["'])|=\s*(?:"[^"]*"|'[^']*'))*"""
"""As in HTML, quotes around a value follow =; others, as in class="a"", are letters like any."""

MARKUP = re.compile(
    rf"<({OPAQUE})\b{ATTRIBUTES}>.*?</\1\s*>"
    rf"|<([a-z][\w:-]*)(?={ATTRIBUTES}\stranslate\s*=\s*[\"']?no\b){ATTRIBUTES}>"
    rf"|<(!--).*?-->|<(/?[a-z][\w:-]*){ATTRIBUTES}>|<([!?]){ATTRIBUTES}>",
    re.DOTALL | re.IGNORECASE,
)

PUNCTUATION = (
    rf"(?!{LETTER}|[\u0e31-\u0e4e\u0eb1-\u0ecd\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3])[^\w\s]"
)
"""A mark that is neither a letter nor a combining vowel or accent, which \\w does not match."""

MARKS = re.compile(rf"(?:(?<!&lt)(?<!&gt)(?<!&amp)(?!>){PUNCTUATION})*$")
"""Punctuation at the end of a word, without the end of an entity or of a tag before it."""

TIME = r"[\d:]*:\d[\d.,]*[ \t]*-->"

CUE = rf"(?=(?:\d+[ \t\r]*\n)?{TIME})"
"""The beginning of a cue: its number, if it has one, and its time."""

BETWEEN_CUES = {
    "srt": re.compile(rf"(?<=\S)([^\S\n]*\n\s*{CUE}|[^\S\n]*\n\s*\n(?=\d+[^\S\n]*\n\s*{TIME}))"),
    "vtt": re.compile(rf"(\n[ \t\r]*\n\s*|\n{CUE})"),
}
"""What ends a cue: the next cue, and in WebVTT also a blank line."""

PLACE = re.compile(r"^(?:[\u200e\u200f\u202a-\u202e\u2066-\u2069]*\{\\[^{}]*\}\s*)+")
"""The position and style of a SubRip cue, such as {\\an8}, before its text; marks of direction may
stand there, too."""

TIME_TAG = re.compile(r"<[\d:.]+>")
"""The time of a word in a WebVTT cue; translations drop it."""


@dataclass(eq=False)
class Tag:
    """Markup at characters of a source: around those from `start` to `stop`, or at one place."""

    opening: str
    start: int
    stop: int = -1
    closing: str = ""


@dataclass
class Fragment:
    """A text to translate, with its tags, outer ones first."""

    text: str = ""
    tags: list[Tag] = field(default_factory=list)
    escaped: bool = True
    """Whether special characters of the translation become entities."""

    @property
    def source(self) -> str:
        """The text as one line."""
        return " ".join(self.text.split())

    def translated(self, output: Output) -> str:
        """The translation, with each tag around the words that are aligned to those that it wraps.
        A tag without words stands before the word that is aligned to the nearest source word, or at
        the beginning or end, if it is there in the source."""
        spans = [word.span() for word in re.finditer(r"\S+", self.text)]
        words = output.text.split()
        origin = {n: place for place, n in output.alignment.pairs} if output.alignment else {}
        sources = [origin.get(n, 0) for n in range(len(words))]
        starts, stops = zip(*spans, strict=True)
        inside: list[list[Tag]] = [[] for _ in spans]
        for tag in self.tags:
            for i in range(bisect_right(stops, tag.start), bisect_left(starts, tag.stop)):
                inside[i].append(tag)
        around = [inside[i] for i in sources]
        alone = [""] * (len(words) + 1)
        wrapping = set(chain.from_iterable(around))
        tail, end = "", len(self.text.rstrip())
        for tag in self.tags:
            if tag in wrapping:
                continue
            behind = bisect_right(stops, tag.start)
            if behind == len(spans):
                tail += self.text[end : tag.start] + tag.opening + tag.closing
                end = tag.start
            else:
                near = 0
                if behind:  # a tag before all words stays there
                    near = min(range(len(words)), key=lambda n: abs(sources[n] - behind), default=0)
                gap = self.text[tag.start : tag.start + 1].isspace()
                alone[near] += tag.opening + tag.closing + " " * gap
        parts = [""]
        opened = list[Tag]()
        for n, tags in enumerate([*around, []]):
            pairs = zip(opened, tags, strict=False)
            same = len([*takewhile(lambda pair: pair[0] is pair[1], pairs)])
            parts[-1] = self._closed(parts[-1], opened[same:])
            word = "".join(words[n : n + 1])
            opening = "".join(tag.opening for tag in tags[same:])
            parts.append(alone[n] + opening + (escape(word, quote=False) if self.escaped else word))
            opened = tags
        left = self.text[: len(self.text) - len(self.text.lstrip())]
        return left + " ".join(parts[1:-1]) + parts[-1] + tail + self.text[end:]

    def _closed(self, word: str, tags: Sequence[Tag]) -> str:
        """The word with closing tags, before its punctuation if they were there in the source."""
        inside = any(re.match(PUNCTUATION, self.text[tag.stop :]) for tag in tags)
        cut = len(MARKS.sub("", word)) if inside else len(word)
        return word[:cut] + "".join(tag.closing for tag in reversed(tags)) + word[cut:]


def _end_of_element(text: str, opening: re.Match[str]) -> int:
    """The index where the element ends, after nested elements of its name; after its opening tag if
    it has no end."""
    tags = re.compile(rf"<(/?){opening[2]}(?![\w:-]){ATTRIBUTES}>", re.IGNORECASE)
    depth = 0
    for tag in tags.finditer(text, opening.start()):
        depth += -1 if tag[1] else 1
        if not depth:
            return tag.end()
    return opening.end()


def parse_html(text: str, *, escaped: bool = True) -> list[str | Fragment]:
    """Split HTML into fragments to translate and the markup between them."""
    pieces: list[str | Fragment] = []
    fragment = Fragment(escaped=escaped)
    opened = defaultdict[str, list[Tag]](list)
    begin = at = 0
    for match in MARKUP.finditer(f"{text}<!>"):
        if match.start() < at:  # inside of an element that is not translated
            continue
        fragment.text += unescape(text[at : match.start()])
        hidden, untranslated, *others = match.groups()
        at = _end_of_element(text, match) if untranslated else match.end()
        markup = text[match.start() : at]
        name = (hidden or untranslated or next(filter(None, others))).lower()
        if RUBY.fullmatch(name) and not untranslated:
            continue
        if not INLINE.fullmatch(name.removeprefix("/")):
            between = text[begin : match.start()]
            pieces += [between if is_blank(fragment.text) else fragment, markup]
            fragment, begin = Fragment(escaped=escaped), at
            opened.clear()
            continue
        place = len(fragment.text)
        if opened[name]:
            tag = opened[name].pop()
            tag.stop, tag.closing = place, markup
        else:
            fragment.tags.append(Tag(markup, place))
            if not (hidden or untranslated):
                opened[f"/{name}"].append(fragment.tags[-1])
    return pieces[:-1]


def parse_subtitles(text: str, *, escaped: bool) -> list[str | Fragment]:
    """Split SubRip or WebVTT into the texts of its cues, each in one line, and what is between
    them.

    Raises:
        InputError: there is text, but no time; or it is WebVTT although not `escaped`, or the
            reverse.
    """
    is_vtt = text.lstrip("\ufeff \t\r\n").upper().startswith("WEBVTT")
    if is_vtt != escaped and "-->" in text:
        other = "vtt" if is_vtt else "srt"
        raise InputError(
            "subtitles keep their format, and WebVTT begins with WEBVTT, but this text begins with "
            f"{text[:20]!r}; name the format {other}"
        )
    has_times = re.search(r"\d\s*-->", text)
    if text.strip() and not has_times and not is_vtt:
        raise InputError(
            "subtitles have times such as 00:00:01,000 --> 00:00:02,500 before their texts, but "
            f"there are none after {text[:40]!r}; leave out --format for plain text"
        )
    pieces = list[str | Fragment]()
    for block in BETWEEN_CUES["vtt" if escaped else "srt"].split(text):
        head, arrow, rest = block.partition("-->")
        times, end, cue = rest.partition("\n")
        rows = (" ".join(row.split()) for row in cue.splitlines())
        line = TIME_TAG.sub("", joined_texts(rows))
        place = "".join(PLACE.findall(line))
        inner = [place, *parse_html(line[len(place) :], escaped=escaped)] if arrow else []
        tail = cue[len(cue.rstrip()) :] if arrow else ""
        pieces += [head + arrow + times + end, *inner, tail]
    return pieces


def parse(text: str, format: str) -> list[str | Fragment]:
    """Split a text with markup into fragments to translate and what is between them."""
    return parse_html(text) if format == "html" else parse_subtitles(text, escaped=format == "vtt")


def joined(pieces: Sequence[str | Fragment], outputs: Iterator[Output]) -> str:
    """The text with its fragments translated."""
    return "".join(
        piece if isinstance(piece, str) else piece.translated(next(outputs)) for piece in pieces
    )


def translate_markup(translator: Translator, text: str, format: str, **settings: Any) -> str:
    """Translate HTML or subtitles, with their tags and times.

    Raises:
        InputError: the text is not in this format.
    """
    pieces = parse(text, format)
    sources = [piece.source for piece in pieces if isinstance(piece, Fragment)]
    best = translator.translate(sources, alignments=True, **settings)
    return joined(pieces, (outputs[0] for outputs in best))
