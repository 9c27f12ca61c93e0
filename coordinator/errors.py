"""The coordinator's errors. Each message names the value and the way out; the web layer turns them into ``Problem``s.

CottageError
├── NotFoundError            404
├── InvalidError             422   a document, a config, a dataset, a value out of its bounds
│   ├── KeyReusedError             an idempotency key that was another request's
│   ├── PromptTooLongError         more than the model can read
│   ├── NoTemplateError            messages, for a model that has no chat template
│   └── TookTooLongError           it would take more time than there is for it, and as long the next time
├── TooLargeError            413
├── ConflictError            409   not possible in this state: illegal transition, wrong offset, duplicate
│   ├── IllegalTransitionError
│   └── InProgressError            the same request is being worked on
├── GoneError                410   nobody waits for it any more
├── FundsError               402   balance or escrow does not cover it
├── UnauthorisedError        401   nobody is signed in, or what they signed in with is not valid any more
├── ForbiddenError           403
├── ChecksumError            460   bytes of an upload have another digest than their sender said (tus 1.0.0)
├── TooManyError             429   asked too often; ``retry_s``: when to come back
├── FullError                507   no room for more of this, until something else has gone; ``retry_s``: when to come back
├── UnavailableError         503   the ledger or the network cannot do it now
│   └── StoreAwayError             the database does not answer now, for a while; ``retry_s``: when to come back
│       ├── FilesAwayError         nor does the bucket that files lie in
│       └── ReplacedError          it does, and another coordinator works with it by now
│   └── UnableError                it was tried and failed, or can never be: asking again as it is would not help
└── StoreError               500   the database cannot be used until somebody has seen to it
"""

from typing import ClassVar


class ElsewhereError(Exception):
    """Only the coordinator at work can answer this, and this process stands by: the request is led to it.

    No ``CottageError``: nobody is answered with it, and who shows errors on a page must not catch it.
    """


class OtherCellError(ElsewhereError):
    """A job is another cell's: the request is led to whoever carries that one."""

    def __init__(self, job: str, cell: int) -> None:
        super().__init__(f"job {job} is carried by cell {cell}")
        self.cell = cell


class CottageError(Exception):
    """Base of everything that is answered with a clear text instead of a traceback."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


class NotFoundError(CottageError):
    status, code = 404, "not_found"


class InvalidError(CottageError):
    status, code = 422, "invalid"


class PromptTooLongError(InvalidError):
    code = "context_length_exceeded"


class NoTemplateError(InvalidError):
    code = "no_chat_template"


class TookTooLongError(InvalidError):
    code = "took_too_long"


class TooLargeError(CottageError):
    status, code = 413, "too_large"


class ConflictError(CottageError):
    status, code = 409, "conflict"


class IllegalTransitionError(ConflictError):
    code = "illegal_transition"


class GoneError(CottageError):
    status, code = 410, "gone"


class FundsError(CottageError):
    status, code = 402, "funds"


class UnauthorisedError(CottageError):
    status, code = 401, "unauthorised"


class ForbiddenError(CottageError):
    status, code = 403, "forbidden"


class ChecksumError(CottageError):
    status, code = 460, "checksum"


class TooManyError(CottageError):
    status, code = 429, "too_many"

    def __init__(self, detail: str, retry_s: float) -> None:
        super().__init__(detail)
        self.retry_s = retry_s


class FullError(CottageError):
    status, code = 507, "full"

    def __init__(self, detail: str, retry_s: float, field: str = "") -> None:
        super().__init__(detail, field)
        self.retry_s = retry_s


class UnavailableError(CottageError):
    status, code = 503, "unavailable"


class UnableError(UnavailableError):
    """Programs that ask again by themselves are told not to."""

    code = "unable"


class StoreAwayError(UnavailableError):
    """``cause``: what the database or its driver said, for the operator alone."""

    code = "store_away"
    retry_s: ClassVar[float] = 2.0
    what: ClassVar[str] = "database"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the coordinator's {self.what} does not answer now: nothing was changed, try again in a moment"
        )
        self.cause = cause


class StoreBusyError(StoreAwayError):
    """More requests wait for the database than may. ``cause``: how many."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.detail = "the coordinator has too many requests now: nothing was changed, try again in a moment"
        self.args = (self.detail,)


class FilesAwayError(StoreAwayError):
    """``cause``: what the bucket's server or its client said, for the operator alone."""

    what = "store of files"


class ReplacedError(StoreAwayError):
    """Another coordinator has taken over: this one changes nothing any more, and whoever asks again is led to that one."""


class StoreError(CottageError):
    """Met where the coordinator starts: nobody is answered with it."""


class InProgressError(ConflictError):
    code = "in_progress"


class KeyReusedError(InvalidError):
    code = "key_reused"
