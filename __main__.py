"""`python -m labelwall` is the command `labelwall`."""

import sys

from .pipeline import main

sys.exit(main())
