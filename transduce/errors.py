"""Mistakes of a user, as opposed to faults of this package."""

from importlib.util import find_spec


class InputError(ValueError):
    """An argument, a setting or a file that cannot be used; the message gives rule, value and way
    out.

    Commands and recipes print it as one line and end with 2. Any other exception is a fault of this
    package, with a traceback.
    """


def require(library: str, feature: str, extra: str, way_out: str = "") -> None:
    """Raise InputError unless a library is installed that a feature needs.

    Args:
        library: the name of its module.
        extra: the extra in pyproject.toml that brings it.
        way_out: what else helps, behind the command that installs it.
    """
    if find_spec(library) is None:
        raise InputError(
            f"{feature} needs the library {library}, but it is not installed; in a clone of "
            "transduce: "
            f"pip install '.[{extra}]'{way_out}"
        )
