"""What can go wrong here; every text is shown to the owner as it is.

GuiError
  AnswerError   the agent's answer cannot be understood
    RefusalError  it understands, and says why it cannot
  StartError    the agent cannot be started
  StopError     the agent cannot be asked to stop
"""


class GuiError(Exception):
    """Base of all errors of the window; its text is a sentence for the owner."""


class AnswerError(GuiError):
    """The agent's answer cannot be understood."""


class RefusalError(AnswerError):
    """The agent understands the question and cannot do what it asks."""


class StartError(GuiError):
    """The agent cannot be started."""


class StopError(GuiError):
    """The agent cannot be asked to stop."""
