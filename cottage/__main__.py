"""``python -m cottage`` is the command ``cottage``."""

import sys

from cottage.cli import main

sys.exit(main())
