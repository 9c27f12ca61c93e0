"""The window's executable."""

import sys

from desktop.gui.app import main

sys.exit(main())
