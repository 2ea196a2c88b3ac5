"""The command line as ``python -m consumer_coord``."""

import sys

from consumer_coord.cli import main

sys.exit(main())
