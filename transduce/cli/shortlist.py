"""`transduce shortlist RUN SOURCE TARGET`: the table of a run for translate --shortlist."""

from itertools import islice
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import OwnRun
from transduce.errors import InputError
from transduce.hub import PREFIX

Text = Annotated[Path, arg(metavar="FILE")]


def shortlist(
    run: OwnRun,
    source: Positional[Text],
    target: Positional[Text],
    *,
    n: int = 20,
    frequent: int = 200,
    lines: int = 500_000,
) -> None:
    """Learn which target tokens may translate a source token, for transduce translate --shortlist,
    which is faster.

    Args:
        source: The source side of what the run was trained on, plain or .gz.
        target: The target side, line by line.
        n: Target tokens per source token, the likeliest by IBM model 1.
        frequent: So many most frequent target tokens may always come out.
        lines: Read so many lines at most.
    """
    from transduce.config import at_least, within
    from transduce.data.text.parallel_text import each_line_pair
    from transduce.decode.shortlist import FILE, learn_shortlist, save_shortlist
    from transduce.run import load_run

    within("[1, 10000]", n=n)
    at_least(1, lines=lines)
    if str(run).startswith(PREFIX):
        raise InputError(
            f"a shortlist is written into a run directory, but {run} is on the hub; make it before "
            "transduce publish"
        )
    at_least(0, frequent=frequent)
    contents = load_run(run)
    if contents.source_tokenizer is None or contents.target_tokenizer is None:
        raise InputError(
            f"a shortlist belongs to a run of text to text, but {run} is of another kind"
        )
    sides = [*zip(*islice(each_line_pair(source, target), lines), strict=True)]
    if not sides:
        raise InputError(
            f"a table of translations is learned from parallel text, but {source} is empty"
        )
    table = learn_shortlist(
        contents.source_tokenizer, contents.target_tokenizer, *sides, n=n, frequent=frequent
    )
    save_shortlist(run, table)
    print(
        f"{run / FILE}: {n} target tokens for each of {len(table.table):,} source tokens, "
        f"{len(table.always)} for all"
    )
