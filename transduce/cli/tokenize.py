"""`transduce tokenize RUN`: text as its tokens, for tools that count them."""

from transduce.cli.common import STDIN, Files, Flag, OptionalFile, Run, checked_lines
from transduce.cli.output import open_output, progress_bar
from transduce.errors import InputError


def tokenize(
    run: Run,
    files: Files = (),
    *,
    source: Flag = False,
    output: OptionalFile = None,
) -> None:
    """Write lines as the tokens of a run, with a space between: what n-gram models for --lm are
    made of.

    For example: transduce tokenize RUN text.de | lmplz -o 5 > de.arpa

    Args:
        files: Text, plain or .gz, one after the other; - is standard input, as is none.
        source: Take the tokens of what the run reads, not of what it writes.
        output: Where the lines go; standard output if not given.
    """
    from transduce.run import load_run

    contents = load_run(run)
    tokenizer = contents.source_tokenizer if source else contents.target_tokenizer
    if tokenizer is None:
        raise InputError(
            f"tokens need a tokenizer, but {run} has none for its "
            f"{'source' if source else 'target'}"
        )
    lines = checked_lines(*files or [STDIN])
    with open_output(output, files) as out, progress_bar(unit="line", total=None) as bar:
        for line in lines:
            out.write(" ".join(tokenizer.tokens(tokenizer.encode([line])[0])) + "\n")
            bar.update()
