"""One line of an OpenAI batch file to a request, or a clear refusal. Knows no engine and no files.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], ...}}
"""

import json
from typing import Any, NoReturn

from jitney.batch.body import BatchRequest, parse_body
from jitney.batch.failure import LineError

FIELDS = ("custom_id", "method", "url", "body")


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises LineError: no UTF-8, no JSON, not an object."""
    try:
        value = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise LineError("invalid_json", f"the line is not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also numbers with thousands of digits
        raise LineError("invalid_json", f"the line is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("invalid_type", f"the line must be a JSON object, got {type(value).__name__}")
    if rb"\ud" in line.lower():
        _refuse_lone_surrogates(value)
    return value


def custom_id_of(fields: dict[str, Any]) -> str:
    """The line's name for itself. Raises LineError: there is none."""
    custom_id = fields.get("custom_id")
    if custom_id is None:
        raise LineError("missing_field", "custom_id is missing; give each line one of its own", "custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError("invalid_type", f"custom_id must be a non-empty string, got {custom_id!r}", "custom_id")
    return custom_id


def parse_request(fields: dict[str, Any]) -> BatchRequest:
    """The request that a line's fields describe. Raises RequestError, naming the field."""
    for name in fields:
        if name not in FIELDS:
            raise LineError(
                "unknown_parameter", f"{name!r} is not a field of a batch line; parameters go in body", name
            )
    for name in FIELDS:
        if fields.get(name) is None:
            raise LineError("missing_field", f"{name} is missing", name)
    if fields["method"] != "POST":
        raise LineError("invalid_value", f"method must be POST, got {fields['method']!r}", "method")
    if not isinstance(fields["body"], dict):
        raise LineError("invalid_type", f"body must be a JSON object, got {type(fields['body']).__name__}", "body")
    return parse_body(fields["url"], fields["body"])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_lone_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise LineError("invalid_json", f"the line holds half a character: {error}") from error
