"""python -m transduce: the command line, where the script of that name is not on the PATH."""

import sys

from transduce.cli.main import main

sys.exit(main())
