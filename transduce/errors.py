"""What a user did wrong, as opposed to a fault of this package."""

from importlib.util import find_spec


class InputError(ValueError):
    """An argument, a setting or a file that cannot be used: the message gives the rule, the value and the way out.

    Commands and recipes print it as one line and end with 2. Any other exception is a fault of this package, with a traceback.
    """


def require(library: str, what: str, extra: str, way_out: str = "") -> None:
    """Raise InputError unless a library is installed that `what` needs.

    Args:
        library: the name of its module.
        extra: which of the extras in pyproject.toml brings it.
        way_out: what else helps, behind the command that installs it.
    """
    if find_spec(library) is None:
        raise InputError(
            f"{what} needs the library {library}, but it is not installed; in a clone of transduce: pip install "
            f"'.[{extra}]'{way_out}"
        )
