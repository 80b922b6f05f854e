"""What went wrong with one line, in the words of OpenAI's error object. Knows no files and no engine."""

from dataclasses import dataclass
from typing import Any

from jitney.errors import RequestError, StepFailedError

MAX_MESSAGE_LENGTH = 1000
"""Characters. A message quotes the offending value, which may be as long as the line."""


class LineError(RequestError):
    """A line that cannot be served. `code` is a short fixed word, `field` the offending parameter."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message, field)
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a line has no answer."""

    status_code: int
    """As HTTP would say it: 400 the line is at fault, 500 the engine is."""
    code: str
    message: str
    param: str | None

    def as_error(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def failure_of(error: Exception, line_number: int) -> Failure:
    """Sort an exception: what the caller can mend gets 400 and names the parameter, the rest gets 500."""
    message = _shortened(f"line {line_number}: {str(error) or repr(error)}")
    if isinstance(error, LineError):
        return Failure(400, error.code, message, error.field)
    if isinstance(error, StepFailedError):
        return Failure(500, "step_failed", message, None)
    if isinstance(error, RequestError):
        return Failure(400, "invalid_value", message, error.field)
    return Failure(500, "internal_error", message, None)


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    half = MAX_MESSAGE_LENGTH // 2
    return f"{message[:half]} ... {message[-half:]}"
