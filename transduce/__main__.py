"""python -m transduce: the command line, for when its script `transduce` is not on the PATH."""

import sys

from transduce.cli.main import main

sys.exit(main())
