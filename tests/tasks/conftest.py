"""The kernels are loaded before a test asks for them, since one of the default tier may start no compiler."""

from transduce import kernels

kernels.library()
