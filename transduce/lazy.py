"""Packages whose public names are imported at first use, so that --help does not wait for torch."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's __getattr__ and __dir__ (PEP 562) from its imports under `if TYPE_CHECKING`.

    So every name stands in one place, where type checkers and editors read it too.

    Args:
        file: the package's __file__.
    """
    (block,) = (
        node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.If)
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module for node in imports for alias in node.names}

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return get, lambda: sorted(modules)
