"""The digest by which a job's document is written on the ledger: of what it says, and not of what it leaves to its defaults.

A field that a later version adds is at its default in every earlier document: it changes no digest that is on a ledger already.
"""

import hashlib
from typing import Any

import msgspec

from protocol.codec import encode_json
from protocol.job.job import JobSpec


def document_digest(spec: JobSpec) -> str:
    """SHA-256 of the canonical JSON of everything that differs from its default, in hexadecimal."""
    return hashlib.sha256(encode_json(_said(spec))).hexdigest()


def _said(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(type(value))
        return {one.name: _said(said) for one in fields if (said := getattr(value, one.name)) != _default(one)}
    if isinstance(value, tuple | list):
        return [_said(one) for one in value]
    return {key: _said(one) for key, one in value.items()} if isinstance(value, dict) else value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
