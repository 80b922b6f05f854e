"""Every error a user of Jitney can see, in one tree.

    JitneyError
    ├── ConfigError          a setting is wrong or does not fit the model or the machine  (ValueError)
    ├── ModelLoadError       the model cannot be found, read or served                    (RuntimeError)
    ├── RequestError         one request is at fault; the others go on                    (ValueError)
    │   ├── DuplicateRequestError   its id is in use
    │   └── StepFailedError         the forward pass that carried it failed, or its logits were NaN
    └── EngineDeadError      the engine has stopped; pending and new calls raise this     (RuntimeError)

Each message names the field, the value, the limit and what to change.
"""


class JitneyError(Exception):
    """Base of all errors raised on purpose by Jitney."""


class ConfigError(JitneyError, ValueError):
    """A setting is wrong, or does not fit the model or the machine."""


class ModelLoadError(JitneyError, RuntimeError):
    """The model cannot be found, read, or served."""


class RequestError(JitneyError, ValueError):
    """One request is at fault. `field` names the offending parameter (None if there is no single one)."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class DuplicateRequestError(RequestError):
    """A request with this id is still unfinished."""


class StepFailedError(RequestError):
    """The step that carried this request failed; `__cause__` holds the reason."""


class EngineDeadError(JitneyError, RuntimeError):
    """The engine has stopped; `__cause__` holds the reason."""
