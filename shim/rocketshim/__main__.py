"""`python -m rocketshim`: the command line."""

import sys

from rocketshim.cli import main

sys.exit(main())
