"""Which bucket it is, and what is wrong with it: in one sentence with the way out, as ``coordinator.store.faults`` has it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from coordinator.errors import CottageError, FilesAwayError, NotFoundError, UnavailableError

SCHEME: Final = "s3://"
MAX_SAID: Final = 300  # Characters of what a server says.
MAX_PREFIX: Final = 200
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._=/-]*")

# What a server's answer means, by its code or status; what ``{where}`` is, and what to do about it.
_WORDS: Final = {
    "NoSuchBucket": "has no bucket of this name: make it, or correct the name",
    "InvalidAccessKeyId": "does not know the access key: correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "refuses the secret key: correct AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "says that the session has expired: renew AWS_SESSION_TOKEN",
    "InvalidToken": "does not know the session: correct AWS_SESSION_TOKEN, or leave it out",
    "AccessDenied": "refuses this key: let it list the bucket, and read, write and delete in it",
    "RequestTimeTooSkewed": "has another time than this machine: set the clock of the one that is wrong",
    "PermanentRedirect": "has this bucket in another region: name that one in AWS_DEFAULT_REGION",
    "AuthorizationHeaderMalformed": "has this bucket in another region: name that one in AWS_DEFAULT_REGION",
    "NotImplemented": "cannot do what is asked of it: it needs multipart uploads and ranges, as S3 has them",
}
_ALIASES: Final = {"403": "AccessDenied", "301": "PermanentRedirect", "RequestExpired": "RequestTimeTooSkewed"}
_FULL: Final = frozenset(
    {"507", "QuotaExceeded", "InsufficientStorage", "InsufficientCapacity", "XMinioStorageFull", "StorageFull"}
)
_MISSING: Final = frozenset({"404", "NoSuchKey", "NoSuchUpload"})
FULL: Final = "the coordinator's store of files is full: try again later, or ask its operator to make room"


@dataclass(frozen=True)
class BucketAddress:
    """``prefix``: what the names of all objects begin with, "" or with a slash at its end."""

    bucket: str
    prefix: str = ""

    def __str__(self) -> str:
        """As it is written."""
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def parse_bucket(text: str) -> BucketAddress:
    """The address that ``s3://BUCKET/PREFIX`` names.

    Raises:
        ValueError: it names none.
    """
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not text.startswith(SCHEME) or _BUCKET.fullmatch(bucket) is None:
        raise ValueError(f"{text[:100]!r} names no bucket: write it as s3://BUCKET or s3://BUCKET/PREFIX")
    if _PREFIX.fullmatch(prefix) is None or len(prefix) > MAX_PREFIX or ".." in prefix.split("/"):
        raise ValueError(f"{text[:100]!r}: a prefix has letters, digits, . _ = - and /, {MAX_PREFIX} at most")
    return BucketAddress(bucket, f"{prefix}/" if prefix else "")


class GoneFromBucketError(NotFoundError):
    """An object, or an upload that had begun, is not in the bucket."""


@contextmanager
def answering(address: BucketAddress) -> Iterator[None]:
    """What is asked of the bucket within.

    Raises:
        GoneFromBucketError: it is not there. UnavailableError: the bucket is full.
        FilesAwayError: anything else, which passes by itself or once the operator has seen to it.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _fault(address, error.response) from error
    except (TimeoutError, BotoCoreError, aiohttp.ClientError, ConnectionError, ValueError) as error:
        raise FilesAwayError(f"{address} {_unreached(error)}") from error


def _fault(address: BucketAddress, response: dict[str, dict[str, object]]) -> CottageError:
    said = response.get("Error", {})
    code = str(said.get("Code", ""))
    status = str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    if code in _MISSING:
        return GoneFromBucketError(f"{address}: it is not there")
    if code in _FULL or status in _FULL:
        return UnavailableError(FULL)
    words = _WORDS.get(_ALIASES.get(code, code)) or _WORDS.get(_ALIASES.get(status, ""))
    told = " ".join(f"{code} {said.get('Message', '')}".split())[:MAX_SAID]
    return FilesAwayError(f"{address}: the server {words}" if words else f"{address}: the server says {told}")


def _unreached(error: BaseException) -> str:
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return "needs a key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials"
    if name == "ProfileNotFound":
        return f"needs a key: {error}"
    told = " ".join(str(error).split())[:MAX_SAID] or "no answer in time"
    return f"cannot be reached ({told}): start its server, or correct AWS_ENDPOINT_URL"
