"""With and without the kernels in C++."""

import pytest

from transduce import kernels

needs_cpp = pytest.mark.skipif(kernels.library() is None, reason="needs a C++ compiler")
