"""The agent's executable: ``cottage node`` without the first word."""

import sys

from desktop.agent.cli.cli import main

sys.exit(main())
