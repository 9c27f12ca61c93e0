"""Real data for the disputes over real training."""

from tests.trainer.conftest import folder as folder
from tests.trainer.conftest import tokens as tokens
