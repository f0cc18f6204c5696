"""The shape of the code: which package may import which, proved on the sources and on running interpreters."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("gateway", "router", "tokenizer_svc", "engine_svc")
PACKAGES = (*SERVICES, "quire")
CONTROL_SIDE = ("engine_svc.plan", "engine_svc.adapters", "engine_svc.kv_cache", "engine_svc.structured",
                "engine_svc.requests", "engine_svc.scheduler", "engine_svc.core", "engine_svc.pooling_form",
                "engine_svc.pooling_plan")  # fmt: skip
# Subpackages of a service in order: each may import those before it, none after it.
ROOMS = {
    "gateway": ("protocol", "media", "answers", "reasoning_parsers", "tool_parsers", "requests", "services", "metrics",
                "response_store", "middleware", "endpoints", "admin"),
    "router": ("index", "workers", "placement", "requests"),
    "engine_svc": ("kv_cache", "structured", "requests", "scheduler", "executor", "core", "service"),
}  # fmt: skip
# Where protobuf messages are made and written. Other code may read the few that pass through it, and names their types
# for mypy only.
WIRE = (
    "gateway.services",
    "router.app", "router.adapters", "router.administration",
    "router.service", "router.convert", "router.heartbeat", "router.requests.dispatch",
    "router.requests.sessions", "router.index.feed", "router.workers.remote", "router.workers.health",
    "router.workers.convert",
    "tokenizer_svc.main", "tokenizer_svc.service", "tokenizer_svc.session", "tokenizer_svc.metrics",
    "engine_svc.main", "engine_svc.service",
)  # fmt: skip
PROTOBUF = ("quire.v1", "google.protobuf")
COMPUTE_SIDE = (
    "kernels", "native", "ops", "quantization", "attention", "block_stores", "images", "layers", "lora", "models",
    "loader", "sampling", "parallel", "pooling", "recurrence", "runner",
)  # fmt: skip
# Packages of the compute side, from kernels to what runs a step: none imports a later one.
COMPUTE_ORDER = ("kernels", "native", "ops", "recurrence", "quantization", "images", "layers", "lora", "models",
                 "loader", "runner")  # fmt: skip


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name → file of each of our modules, without generated code."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(ROOT / "quire" / "v1"):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All AST nodes of a file, the module first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Clears the cache of syntax trees, which are large, after the tests."""
    yield
    nodes_of.cache_clear()


def imports_of(module: str, path: Path) -> set[str]:
    """Absolute names that the module imports anywhere, also inside functions."""
    nodes = nodes_of(path)
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level], f"{module}: relative import"
    return imports_in(nodes)


def imports_in(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """The imports of each of our modules."""
    return {module: imports_of(module, path) for module, path in modules().items()}


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def under_any(names: set[str], *prefixes: str) -> bool:
    return any(under(name, *prefixes) for name in names)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_service_but_itself(package: str) -> None:
    others = tuple(service for service in SERVICES if service != package)
    for module in (name for name in all_imports() if under(name, package)):
        assert not [name for name in all_imports()[module] if under(name, *others)], module


def test_no_import_cycle() -> None:
    graph = {
        module: {name for name in names if name in all_imports()} - {module} for module, names in all_imports().items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("service", ROOMS)
def test_the_rooms_of_a_service_import_one_way(service: str) -> None:
    for number, room in enumerate(ROOMS[service]):
        later = tuple(f"{service}.{name}" for name in ROOMS[service][number + 1 :])
        for module in (name for name in all_imports() if under(name, f"{service}.{room}")):
            assert not [name for name in all_imports()[module] if under(name, *later)], module


def test_the_control_side_does_not_reach_the_compute_side() -> None:
    compute = tuple(f"engine_svc.{name}" for name in COMPUTE_SIDE)
    for module in (name for name in all_imports() if under(name, *CONTROL_SIDE)):
        assert not [name for name in all_imports()[module] if under(name, "torch", "triton", *compute)], module


def test_the_compute_side_does_not_reach_back() -> None:
    control = tuple(f"engine_svc.{room}" for room in ROOMS["engine_svc"] if room != "executor")
    for module in (name for name in all_imports() if under(name, *(f"engine_svc.{part}" for part in COMPUTE_SIDE))):
        assert not [name for name in all_imports()[module] if under(name, *control)], module


def test_a_sequence_alone_writes_its_tokens_and_counters() -> None:
    owned = {"token_ids", "num_computed_tokens", "num_pending_tokens"}
    for module, path in modules().items():
        if not under(module, "engine_svc") or under(module, "engine_svc.requests.sequence"):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in owned:
                assert isinstance(node.value, ast.Name), f"{module}:{node.lineno}"
                assert node.value.id == "self", f"{module}:{node.lineno}"


def test_the_compute_side_is_built_from_the_kernels_up() -> None:
    for index, part in enumerate(COMPUTE_ORDER):
        later = tuple(f"engine_svc.{name}" for name in COMPUTE_ORDER[index + 1 :])
        for module in (name for name in all_imports() if under(name, f"engine_svc.{part}")):
            assert not [name for name in all_imports()[module] if later and under(name, *later)], module


@functools.cache
def imports_when_run(path: Path) -> set[str]:
    """Like `imports_of`, without imports that only a type checker sees."""
    (top, *nodes) = nodes_of(path)
    assert isinstance(top, ast.Module)
    typing_only = [node for node in top.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    left_out = {node for block in typing_only for node in ast.walk(block)}
    return imports_in(node for node in nodes if node not in left_out)


def writes_in(path: Path) -> list[str]:
    """Calls of methods that only protobuf messages have and that modify one."""
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    names = [call.attr for call in calls if isinstance(call, ast.Attribute)]
    return [name for name in names if name in ("CopyFrom", "MergeFrom", "MergeFromString", "ClearField")]


@pytest.mark.parametrize("service", SERVICES)
def test_messages_are_made_and_written_at_the_wire(service: str) -> None:
    for module, path in modules().items():
        if under(module, service) and not under(module, *WIRE):
            assert not [name for name in imports_when_run(path) if under(name, *PROTOBUF)], module
            assert not writes_in(path), module


def test_whoever_stands_at_the_wire_needs_to() -> None:
    at_the_wire = [name for name, path in modules().items() if under_any(imports_when_run(path), *PROTOBUF)]
    for module in WIRE:
        assert [name for name in at_the_wire if under(name, module)], f"{module} is listed for nothing"


def test_no_torch_is_loaded() -> None:
    """By any of these, one after the other in one process, which names the first that loads it."""
    started = ("quire.cli", "gateway.main", "router.main", "tokenizer_svc.main", "engine_svc.main",
               "engine_svc.executor.uniproc")  # fmt: skip
    code = f"""
import importlib, sys
for module in {started}:
    importlib.import_module(module)
    if {{"torch", "transformers", "triton"}} & set(sys.modules):
        sys.exit(module)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_gateway_starts_without_numpy() -> None:
    code = "import sys, gateway.main; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_services_start_before_what_calls_them_is_loaded() -> None:
    slow = {"grpc", "google.protobuf", "yaml"}
    code = f"import sys, quire.cli, quire.serve.stack; sys.exit(bool({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_nothing_received_is_unpickled() -> None:
    for module, names in all_imports().items():
        assert not [name for name in names if under(name, "pickle", "cloudpickle", "marshal", "dill", "shelve")], module


def test_functions_and_files_stay_small() -> None:
    for module, path in modules().items():
        if under(module, "engine_svc.kernels"):
            continue
        assert path.read_text(encoding="utf-8").count("\n") <= 500, module
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 80, f"{module}:{node.name}"


def test_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    of_their_own = {Path(), *map(Path, ("clients", "conformance", "fuzzing", "gpu", "integration"))}
    assert not [folder for folder in folders - of_their_own if not (ROOT / folder).is_dir()]


def test_every_interface_has_its_suite() -> None:
    """Each `base.py` with an abstract class has a suite in `tests/conformance` that imports from its package."""
    files = (ROOT / "tests" / "conformance").glob("test_*.py")
    suites = [imports_in(nodes_of(path)) for path in files]
    for module, path in modules().items():
        if path.name == "base.py" and "ABC" in path.read_text(encoding="utf-8"):
            assert any(under_any(names, module.removesuffix(".base")) for names in suites), module
