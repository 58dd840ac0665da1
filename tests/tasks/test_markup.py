"""HTML and subtitles: what is translated, where tags come, and what stays as it is."""

import random
from html.parser import HTMLParser

import pytest

import transduce as td
from transduce.cli.main import main
from transduce.tasks.markup import Fragment, joined, parse, parse_subtitles, translate_markup
from transduce.tasks.outputs import Output, WordAlignment

HTML = """<!DOCTYPE html>
<p class="x" title="a > b">Print <b>it</b>, please &amp; now.</p>
<style>p > a {}</style><p>Open the <a href="/x?a=1&amp;b=2">old <i>letter</i></a>.</p>
<li translate="no">Keep <b>me</b> &amp; him</li><p>Use <code>a &lt; b</code> here<br/>and <img src=x> there<!-- c --></p>
"""


def upper_case_output(fragment: Fragment, order: list[int] | None = None) -> Output:
    """Its words in capitals, in another order."""
    words = fragment.source.split()
    order = order or [*range(len(words))]
    alignment = WordAlignment(words, words, [(place, n) for n, place in enumerate(order)])
    return Output(" ".join(words[i].upper() for i in order), alignment=alignment)


def translated(text: str, format: str = "html", order: list[int] | None = None) -> str:
    pieces = parse(text, format)
    return joined(pieces, (upper_case_output(piece, order) for piece in pieces if isinstance(piece, Fragment)))


def test_long_paragraphs_with_many_tags_are_parsed_fast():
    """Each tag was compared with all others, and with all words: 15 s; conftest.py bounds a test's time."""
    paragraph = "<p>" + "<b>OPEN</b> <img> THE " * 4_000 + "</p>"
    assert [len(each.tags) for each in parse(paragraph, "html") if isinstance(each, Fragment)] == [8_000]
    paragraph = "<p>" + "<b>OPEN</b> THE. " * 5_000 + "</p>"
    assert translated(paragraph) == paragraph


def test_invisible_characters_are_not_translated():
    """A space without width and a soft hyphen stay where they are, and nothing is translated there."""
    text = "<p>&#8203;</p><p>&shy;</p><p>a</p>"
    pieces = parse(text, "html")
    assert [each.text for each in pieces if isinstance(each, Fragment)] == ["a"]
    assert joined(pieces, iter([Output("b")])) == text.replace(">a<", ">b<")


def test_only_words_are_changed():
    want = """<!DOCTYPE html>
<p class="x" title="a > b">PRINT <b>IT</b>, PLEASE &amp; NOW.</p>
<style>p > a {}</style><p>OPEN THE <a href="/x?a=1&amp;b=2">OLD <i>LETTER</i></a>.</p>
<li translate="no">Keep <b>me</b> &amp; him</li><p>USE <code>a &lt; b</code> HERE<br/>AND <img src=x> THERE<!-- c --></p>
"""
    assert translated(HTML) == want
    for text in ("", " \n", "<p></p>", "1", "<b></b>", "1 &lt; 2", "<!-- a -->", "<p>\n  <b> </b>\n</p>"):
        assert translated(text) == text
    for text in (  # capitals already, so all stays as it is
        "<p>RUN <code>make</code></p><p><kbd>x</kbd>, <kbd>y</kbd></p>SEE <img src=x><p>SEE<img></p>",
        'ASK <b translate="no">Ann</b>',
        "<b>LIST&lt;INT&gt;</b>, A <b>B &amp;</b>. <i>C&lt;</i>;",
    ):
        assert translated(text) == text
    assert translated("<p>WAIT <b>...</b>!</p>") == "<p>WAIT <b></b>...!</p>"  # no tag is cut


@pytest.mark.parametrize(
    ("text", "order", "want"),
    [
        ("<b>a b</b> c d.", [2, 3, 0, 1], "C D. <b>A B</b>"),
        ("<b>a b</b> c d", [2, 0, 3, 1], "C <b>A</b> D <b>B</b>"),
        ("a <b>b <i>c</i></b> d", [3, 2, 1, 0], "D <b><i>C</i> B</b> A"),
        ("see <a>b</a>.", [1, 0], "<a>B</a>. SEE"),
        ("<b>किताबें</b>।", [0], "<b>किताबें</b>।"),  # vowels and accents are no punctuation
        ("<b>سيارةٌ</b>؟", [0], "<b>سيارةٌ</b>؟"),
        ("<b>รถดี</b>!", [0], "<b>รถดี</b>!"),
        ("<b>cafe\u0301</b>.", [0], "<b>CAFE\u0301</b>."),
        ("a <img> b", [1, 0], "<img> B A"),
        ("a <b></b> b", [0, 1], "A <b></b> B"),
        ("a</b> b", [1, 0], "</b> B A"),
        ("<b>a b c", [1, 2, 0], "<b>B C A"),  # as in <b>a b c<br>d</b>, where all words are bold
        ("<b><i>a</b> b</i>", [0, 1], "<b><i>A</i></b> <i>B</i>"),
    ],
)
def test_tags_follow_the_aligned_words(text, order, want):
    assert translated(text, order=order) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('<div translate="no">a <div>b</div> c</div> d', '<div translate="no">a <div>b</div> c</div> D'),
        ("a <b translate=no>b <B>c</b> d</b> e", "A <b translate=no>b <B>c</b> d</b> E"),
        ('<p title="a > b" translate = "no">c</p>d', '<p title="a > b" translate = "no">c</p>D'),
        ("<p title='never translate=no'>a</p>", "<p title='never translate=no'>A</p>"),
        ('<p translate="yes">a</p>', '<p translate="yes">A</p>'),
        ("<x-y translate=no>a<x-z>b</x-z></x-y>c", "<x-y translate=no>a<x-z>b</x-z></x-y>C"),
        ("a<br translate=no>b", "A<br translate=no>B"),
        ("<p>a <b><ruby>b<rp>(</rp><RT>x</RT><rp>)</rp>c<rt>y</rt></ruby></b> d</p>", "<p>A <b>BC</b> D</p>"),
        ("a <ruby translate=no>b</ruby> c", "A <ruby translate=no>b</ruby> C"),
        ("<pre><ruby>b<rt>x</rt></ruby></pre>a", "<pre><ruby>b<rt>x</rt></ruby></pre>A"),
    ],
)
def test_untranslated_elements_end_as_in_html(text, want):
    assert translated(text) == want


class Nesting(HTMLParser):
    """Fails where an element ends that is not the innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(str(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("seed", range(20))
def test_tags_stay_nested_and_complete_for_any_alignment(seed):
    """Python's own parser reads the translation: its words in their order, every element at least once."""
    rng = random.Random(seed)
    numbers = iter(range(99))

    def tree(depth: int) -> str:
        parts = []
        for _ in range(rng.randint(1, 4)):
            inner = tree(depth - 1) if depth and rng.random() < 0.6 else f"w{next(numbers)}"
            name = rng.choice(["a", "b", "span"])
            parts.append(inner if rng.random() < 0.5 else f'<{name} id="{next(numbers)}">{inner}</{name}>')
        return " ".join(parts)

    text = tree(3)
    (fragment,) = (piece for piece in parse(text, "html") if isinstance(piece, Fragment))
    # words may be missing, or come twice
    order = rng.choices(range(len(fragment.source.split())), k=rng.randint(1, 12))
    before, after = Nesting(), Nesting()
    before.feed(text)
    after.feed(fragment.translated(upper_case_output(fragment, order)))
    assert before.open == after.open == [] and before.seen == after.seen
    assert after.text.split() == [fragment.source.split()[i].upper() for i in order]


SRT = "1\r\n00:00:01,000 --> 00:00:02,500\r\nPrint\r\n<i>it</i> & go\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n\r\n3\r\n00:00:05,000 --> 00:00:06,000\r\nBye\r\n"


def test_lines_of_a_cue_are_joined_according_to_their_script():
    cues = "1\n00:01,000 --> 00:02,000\n今天天气\r\n很好 对吧\n\n2\n00:03,000 --> 00:04,000\nOpen the\nletter.\n"
    fragments = [piece for piece in parse_subtitles(cues, escaped=False) if isinstance(piece, Fragment)]
    assert [fragment.source for fragment in fragments] == ["今天天气很好 对吧", "Open the letter."]


@pytest.mark.parametrize(("given", "format"), [("1\n00:00:01,000", "vtt"), ("WEBVTT\n\n00:01.000", "srt")])
def test_subtitles_of_another_format_are_refused(given, format):
    with pytest.raises(ValueError, match=r"^subtitles keep their format, and WebVTT begins with WEBVTT, but .*; name"):
        parse(f"{given} --> 00:00:02,000\nBye\n", format)


VTT = "WEBVTT\n\nNOTE a b\n\nx\n00:01.000 --> 00:02.000 align:start\n<v Ann>a <c.red.big>b <00:01.500></c> & c\nd\n\n\n00:03.000 --> 00:04.000\nBye"


@pytest.mark.parametrize("start", ["\nWEBVTT", "\ufeff\r\nwebvtt - of a film"])
def test_webvtt_may_begin_with_a_blank_line_or_lower_case(start):
    vtt = f"{start}\n\n00:01.000 --> 00:02.000\na &lt; b\n"
    assert translated(vtt, "vtt") == vtt.replace("a &lt; b", "A &lt; B")


def test_subtitles_keep_their_times_and_a_cue_is_one_text():
    assert translated(SRT, "srt") == SRT.replace("Print\r\n<i>it</i> & go", "PRINT <i>IT</i> & GO").replace(
        "Bye", "BYE"
    )
    unspaced = SRT.replace("\r\n\r\n2", "\r\n2").replace("Print\r\n", "Print ")
    assert translated(unspaced, "srt") == unspaced.replace("Print <i>it", "PRINT <i>IT").replace(" go", " GO").replace(
        "Bye", "BYE"
    )
    assert translated(SRT.replace("Bye", "{\\an8}{\\b1} Bye {you}"), "srt").endswith("\r\n{\\an8}{\\b1} BYE {YOU}\r\n")
    hebrew = SRT.replace("Bye", "\u202b{\\an8}שלום\u202c")  # with marks of direction around it
    assert [each for each in parse(hebrew, "srt") if isinstance(each, Fragment)][-1].source == "שלום\u202c"
    want = VTT.replace("a <c.red.big>b <00:01.500></c> & c\nd", "A <c.red.big>B</c> &amp; C D").replace("Bye", "BYE")
    assert translated(VTT, "vtt") == want
    assert translated("", "srt") == translated("", "vtt") == ""
    with pytest.raises(ValueError, match=r"^subtitles have times .* none after 'Hello'; leave out --format"):
        translated("Hello", "srt")


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n"])
def test_a_blank_line_in_a_subrip_cue_does_not_end_it(between):
    """Players show all text before the next time; what followed a blank line was not translated. Tools that mistake
    line ends put a blank line after every line."""
    first, second = "00:00:01,000 --> 00:00:02,000", "00:00:03,000 --> 00:00:04,000"
    rows = ["1", first, "", "Print", "", "it", "", "2", second, "Bye", ""]
    given = translated(between.join(rows), "srt").split()
    assert given == ["1", *first.split(), "PRINT", "IT", "2", *second.split(), "BYE"]


@pytest.mark.parametrize(("start", "format"), [("", "srt"), ("WEBVTT\n\n", "vtt")])
def test_a_number_at_the_end_of_a_cue_belongs_to_it(start, format):
    """Where cues have no numbers."""
    cues = "00:00:01.000 --> 00:00:02.000\nIn\n1984\n\n00:00:03.000 --> 00:00:04.000\nBye\n"
    fragments = [each for each in parse(start + cues, format) if isinstance(each, Fragment)]
    assert [fragment.source for fragment in fragments] == ["In 1984", "Bye"]


def test_quotes_in_a_tag_are_read_as_html_reads_them():
    """A tag with a stray quote was translated, and its < became an entity; Python's own parser finds the same tags."""
    text = """<p class="x"" id='5">'>Hello <b class=it's>you</b>, "there" <i title = "a > b">it's</i></p>"""
    before, after = Nesting(), Nesting()
    before.feed(text)
    after.feed(translated(text))
    assert len(before.seen) == 3 and before.seen == after.seen
    assert after.text == before.text.upper()


def test_the_command_line_translates_markup(text_run, tmp_path, capsys):
    (tmp_path / "in.html").write_text(HTML, "utf-8")
    (tmp_path / "in.srt").write_bytes(SRT.encode())
    translator = td.load(text_run)
    for name, text in (("html", HTML), ("srt", SRT)):
        command = ["translate", str(text_run), str(tmp_path / f"in.{name}"), "--format", name, "--device", "cpu"]
        assert main(command) == 0
        assert capsys.readouterr().out == translate_markup(translator, text.replace("\r\n", "\n"), name)
        for more in (["--n-best", "2"], ["--alignments"], ["--output", str(tmp_path / "out")], ["--prefix"]):
            assert main([*command, *more]) == 2
            assert f"a text in {name} is translated in one piece" in capsys.readouterr().err
    assert main(["translate", str(text_run), str(tmp_path / "in.html"), "--format", "srt"]) == 2
    assert f"{tmp_path / 'in.html'}: subtitles have times" in capsys.readouterr().err
