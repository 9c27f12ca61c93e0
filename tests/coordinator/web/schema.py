"""Requests made from the OpenAPI document by schemathesis, and what every answer must be. Used by a test."""

from collections import Counter

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)


@schemathesis.serializer("application/offset+octet-stream")
def _raw(_context: schemathesis.SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def ask(url: str, cases: int, token: str | None = None) -> Counter[int]:
    """Ask every operation of the document but the streams, until ``cases`` requests have been answered as it says.

    Returns:
        how often each status was answered.
    Raises:
        an error of schemathesis, with the request: a 5xx other than 503, or an answer that the document does not have.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found = [one.ok() for one in schema.get_all_operations()]
    operations = [one for one in found if not one.path.endswith(("/stream", "/generate"))]
    told: Counter[int] = Counter()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    each = max(1, cases // len(operations) + 1)
    for operation in operations:

        @settings(
            max_examples=each, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def one(case: schemathesis.Case) -> None:
            response = case.call(headers=headers)
            told[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        one()
    return told
