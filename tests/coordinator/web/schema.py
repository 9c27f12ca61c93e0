"""Requests made from the OpenAPI document by schemathesis, and what every answer must be. Used by a test."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)


@schemathesis.serializer("application/offset+octet-stream")
def _raw(_context: schemathesis.SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


CHECKS = [status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]


def ask(url: str, cases: int, token: str | None = None, known: Mapping[str, str] | None = None) -> Counter[int]:
    """Ask every operation of the document but the streams, until ``cases`` requests have been answered as it says.

    Args:
        known: parameter -> an id that is somebody's. A third of the requests name them wherever they can be named, in the path or
            in the query, and a third name ids of nobody.
    Returns:
        how often each status was answered.
    Raises:
        an error of schemathesis, with the request: a 5xx other than 503 and 507, or an answer that the document does not have.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found = [one.ok() for one in schema.get_all_operations()]
    operations = [one for one in found if not one.path.endswith(("/stream", "/generate"))]
    nobody = {name: id_[:-1] + ("2" if id_[-1] == "1" else "1") for name, id_ in (known or {}).items()}
    told: Counter[int] = Counter()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    ids = [{}, known, nobody] if known else [{}]
    each = max(1, cases // len(operations) // len(ids) + 1)
    for operation in operations:
        for names in ids:
            _ask_one(operation, each, headers, names, told)
    return told


def _ask_one(
    operation: Any, cases: int, headers: Mapping[str, str], names: Mapping[str, str], told: Counter[int]
) -> None:
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: schemathesis.Case) -> None:
        case.path_parameters.update({p.name: names[p.name] for p in operation.path_parameters if p.name in names})
        case.query.update({p.name: names[p.name] for p in operation.query if p.name in names})
        response = case.call(headers=headers)
        told[response.status_code] += 1
        assert response.status_code < 500 or response.status_code in (503, 507), response.text
        case.validate_response(response, checks=CHECKS)

    one()
