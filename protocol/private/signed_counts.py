"""How the client of a private session signs what its node is to be paid for."""

from collections.abc import Iterable

from common.errors import BadSignatureError, IdentityError
from protocol.identity import NodeKey, verify
from protocol.private.sessions import SignedCounts

CONTEXT = "cottage/private-counts/1"


def sign_counts(key: NodeKey, session: str, node: str, answers: int, prompt: int, tokens: int) -> SignedCounts:
    """Counts of a session, signed with its key for one node."""
    signature = key.sign(CONTEXT, *_parts(session, node, answers, prompt, tokens))
    return SignedCounts(answers, prompt, tokens, signature)


def check_counts(counts: SignedCounts, client: str, session: str, node: str) -> None:
    """Raise BadSignatureError where the session's ``client`` did not sign this for this node."""
    parts = _parts(session, node, counts.answers, counts.prompt, counts.tokens)
    try:
        verify(client, counts.signature, CONTEXT, *parts)
    except IdentityError as error:
        raise BadSignatureError(f"counts of session {session} are not its client's: {error}") from None


def _parts(session: str, node: str, *counts: int) -> Iterable[bytes]:
    return session.encode(), node.encode(), *(str(count).encode() for count in counts)
