"""Errors of several tasks at once, as the one that says most."""


def main_error(errors: BaseExceptionGroup[BaseException], *last: type[BaseException]) -> BaseException:
    """The first single error within ``errors``; those of the kinds ``last`` only where there is no other.

    When one end of a socket breaks, several tasks fail: what broke it matters, the closed socket is a consequence.
    """
    flat: list[BaseException] = []
    pending: list[BaseException] = [errors]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            flat.append(error)
    return min(flat, key=lambda error: isinstance(error, last))
