"""`python -m bayesgeom` is the command line."""

import sys

from bayesgeom.cli import main

sys.exit(main())
