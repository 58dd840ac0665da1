"""What a task is called with is checked element by element, before a library sees it."""

import pytest

from transduce.errors import InputError
from transduce.tasks.base import check_list


@pytest.mark.parametrize(
    "given", [[1], [None], [b"a"], ["a", ("b",)], ["a", "\ud800"], [chr(0xDCFF)], None, (x for x in "ab"), 3]
)
def test_what_is_no_list_of_texts_is_refused_by_its_element(given):
    with pytest.raises(InputError, match=r"^translate takes a list of lines, but (element [01] |got )"):
        check_list(given, "translate takes a list of lines", of_text=True)


@pytest.mark.parametrize("given", [[], ["a", ""], ("ä", "\U0001f600 \ufffd")])
def test_lists_of_text_pass(given):
    check_list(given, "translate takes a list of lines", of_text=True)
