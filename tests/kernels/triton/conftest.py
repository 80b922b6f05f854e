"""Triton's interpreter made to work with numpy 2.4, which no longer turns arrays of one element into integers.

Triton 3.6 holds every scalar in such an array, and asks for the integer where a loop's bound is not a constant.
"""

import pytest
from triton.runtime import interpreter


@pytest.fixture(autouse=True)
def scalars_can_bound_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
