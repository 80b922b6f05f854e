"""One line for each thing that is compared: what, how far off, how far off it may be, and the verdict."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from gpu.running import Part
from jitney.errors import JitneyError

OK, WRONG, ABSENT, LEFT_OUT = "ok", "WRONG", "absent", "left out"


class Checks:
    """Counts and keeps the verdicts of one part."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.counts = {OK: 0, WRONG: 0, ABSENT: 0, LEFT_OUT: 0}

    def error(self, what: str, case: str, measured: Callable[[], float], limit: float) -> None:
        """`measured` gives a relative error; one that raises is wrong, unless it says that it does not serve this."""
        try:
            found = measured()
        except Exception as error:
            self._keep(LEFT_OUT if _is_refusal(error) else WRONG, what, case, f"{type(error).__name__}: {error}")
            if _is_fatal(error):
                raise
            return
        self._keep(OK if found <= limit else WRONG, what, case, f"error {found:.2e}, limit {limit:.0e}")

    def equal(self, what: str, case: str, found: Any, expected: Any, difference: str) -> None:
        self._keep(OK if found == expected else WRONG, what, case, "equal" if found == expected else difference)

    def left_out(self, what: str, why: str, case: str = "") -> None:
        self._keep(LEFT_OUT, what, case, why)

    def absent(self, what: str, why: str) -> None:
        self._keep(ABSENT, what, "", why)

    def _keep(self, verdict: str, what: str, case: str, detail: str) -> None:
        self.counts[verdict] += 1
        self.part.add(verdict=verdict, what=what, case=case, detail=" ".join(detail.split())[:300])


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, JitneyError | ValueError | NotImplementedError) or "support" in str(error)


def _is_fatal(error: Exception) -> bool:
    """Whether the process can compute nothing more on the device."""
    text = str(error)
    return "CUDA error" in text or "device-side assert" in text or "illegal memory access" in text


def find(module: str, name: str) -> Any | None:
    """A class that may not be there (not written, or a library is missing)."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
