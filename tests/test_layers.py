"""What import-linter cannot see: names of device things outside device/, and what an import really loads."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import jitney

PACKAGE = Path(jitney.__file__).parent
DEVICE_MODULES = ("torch.cuda", "torch.xpu", "torch.mps", "torch.accelerator", "torch.Stream", "torch.Event")
DEVICE_NAMES = {
    "CUDAGraph",
    "pin_memory",
    "set_num_threads",
    "get_num_threads",
    "set_num_interop_threads",
    "OMP_NUM_THREADS",
}
PURE = ("scheduler", "kv", "engine")


def device_names(source: str) -> set[str]:
    """The streams, events, graphs, pinning and thread counts that some source code names (comments do not count)."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.keyword) and node.arg is not None:
            names = [node.arg]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value in DEVICE_NAMES else []
        else:
            continue
        for name in names:
            belongs_to_device = any(name == module or name.startswith(f"{module}.") for module in DEVICE_MODULES)
            if belongs_to_device or name.split(".")[-1] in DEVICE_NAMES:
                found.add(name)
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "device"],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_only_the_device_layer_names_streams_events_graphs_pinning_and_thread_counts(path: Path) -> None:
    assert device_names(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import torch.cuda",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "torch.cuda.synchronize()",
        "with torch.cuda.stream(side): pass",
        "torch.set_num_threads(2)",
        "from torch import set_num_threads",
        "torch.empty(3, pin_memory=True)",
        "buffer.pin_memory()",
        "os.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_the_check_sees_device_names(source: str) -> None:
    assert device_names(source)


@pytest.mark.parametrize("source", ["threading.Event()", "# torch.cuda", "'''torch.cuda'''", "x.device.type == 'cuda'"])
def test_the_check_leaves_other_code_alone(source: str) -> None:
    assert not device_names(source)


def test_the_pure_layers_load_neither_torch_nor_transformers() -> None:
    """Every module of theirs is imported in a fresh process; import-linter checks the same by reading."""
    modules = [f"jitney.{layer}" for layer in PURE]
    for layer in PURE:
        modules += [info.name for info in pkgutil.walk_packages([str(PACKAGE / layer)], f"jitney.{layer}.")]
    check = f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    check += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
