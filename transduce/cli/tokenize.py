"""`transduce tokenize RUN`: text as its tokens, for tools that count them."""

from itertools import chain

from transduce.cli.common import STDIN, Files, Flag, Run, checked, lines_or_errors
from transduce.errors import InputError


def tokenize(
    run: Run,
    files: Files = (),
    *,
    source: Flag = False,
) -> None:
    """Write lines as the tokens of a run, with a space between: what n-gram models for --lm are
    made of.

    For example: transduce tokenize RUN text.de | lmplz -o 5 > de.arpa

    Args:
        files: Text, plain or .gz, one after the other; - is standard input, as is none.
        source: Take the tokens of what the run reads, not of what it writes.
    """
    from transduce.run import load_run

    contents = load_run(run)
    tokenizer = contents.source_tokenizer if source else contents.target_tokenizer
    if tokenizer is None:
        raise InputError(
            f"tokens need a tokenizer, but {run} has none for its "
            f"{'source' if source else 'target'}"
        )
    for line in map(checked, chain.from_iterable(map(lines_or_errors, files or [STDIN]))):
        print(*tokenizer.tokens(tokenizer.encode([line])[0]))
