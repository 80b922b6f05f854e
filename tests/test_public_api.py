import subprocess
import sys

import pytest

import jitney
from jitney import errors


def test_every_public_name_can_be_imported() -> None:
    """Whatever `__all__` promises is there, under the name it was defined with."""
    for name in jitney.__all__:
        assert getattr(jitney, name).__name__ == name


def test_every_public_error_is_exported() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(jitney.__all__)


def test_dir_lists_the_names_that_are_not_loaded_yet() -> None:
    assert set(jitney.__all__) <= set(dir(jitney))


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jitney.no_such_name
    with pytest.raises(ImportError):
        exec("from jitney import no_such_name")


def test_importing_the_package_loads_none_of_its_parts() -> None:
    check = "import sys, jitney; print([name for name in sys.modules if name.startswith('jitney.')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
