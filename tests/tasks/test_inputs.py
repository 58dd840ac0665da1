"""What a task is called with is checked element by element, before a library sees it."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib.image import imread

import transduce as td
from tests.language_runs import language_run
from tests.runs import ENGLISH, RATE, sound
from tests.tasks.test_fill_mask import encoder_run
from transduce.errors import InputError
from transduce.tasks.base import check_list


@pytest.mark.parametrize(
    "given",
    [[1], [None], [b"a"], ["a", ("b",)], ["a", "\ud800"], [chr(0xDCFF)], None, (x for x in "ab"), 3, {"a": "b"}],
)
def test_errors_of_invalid_lists_name_the_element(given):
    with pytest.raises(InputError, match=r"^translate takes a list of lines, but (element [01] |got )"):
        check_list(given, "translate takes a list of lines", of_text=True)


@pytest.mark.parametrize("given", [[], ["a", ""], ("ä", "\U0001f600 \ufffd")])
def test_lists_of_text_pass(given):
    check_list(given, "translate takes a list of lines", of_text=True)


def test_one_input_gives_one_text_and_a_list_gives_a_list(text_run, transcriber, recordings, tmp_path):
    translator, path = td.load(text_run), Path(recordings[0].audio)
    generator, fill_mask = td.load(language_run(tmp_path / "text")), td.load(encoder_run(tmp_path / "masked"))
    samples = (sound("red blue"), RATE)
    one = (translator, ENGLISH[0]), (transcriber, path), (transcriber, str(path)), (transcriber, samples)
    few = {"max_length": 5}
    for task, given, settings in (
        *((*each, few) for each in one),
        (generator, "All", {}),
        (fill_mask, "Please _ it.", {}),
    ):
        text = task(given, **settings)
        assert isinstance(text, str) and [text] == task([given], **settings)
    with path.open("rb") as file:
        assert transcriber(file, **few) == transcriber([path], **few)[0]
    assert transcriber((path, path), **few) == transcriber([path, path], **few)
    with pytest.raises(InputError, match=r"none\.wav cannot be read"):
        transcriber(tmp_path / "none.wav")


def test_notebooks_show_the_attention_map(text_run, transcriber, recordings, tmp_path):
    """IPython itself makes a picture of it: the one that `draw` writes."""
    translator, show = td.load(text_run), DisplayFormatter().format
    look = td.show(translator, ENGLISH[0], beam_size=2)
    (want,) = translator.align([ENGLISH[0]], [translator(ENGLISH[0], beam_size=2)])
    assert torch.equal(look.weights, want.weights) and look.target == want.target
    want.draw(tmp_path / "look.png")
    assert np.array_equal(imread(BytesIO(show(look)[0]["image/png"])), imread(tmp_path / "look.png"))
    assert td.show(translator, ENGLISH[0], "Mach auf.").target[-1] == "</s>"
    assert td.show(transcriber, recordings[0].audio, "red").seconds == transcriber.position_seconds
    with pytest.raises(InputError) as error:
        td.show(td.load(language_run(tmp_path / "text")), "All")
    assert str(error.value) == (
        "show draws the attention of a translator or a transcriber, but this run is a language model; load another one"
    )
