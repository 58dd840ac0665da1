"""The kernels are compiled, or found, before a test begins: that starts a process, which a test may not."""

from transduce import kernels

kernels.library()
