"""The shape of the code: which package may import which, proved on the sources and on running interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("gateway", "router", "tokenizer_svc", "engine_svc")
PACKAGES = (*SERVICES, "quire")
CONTROL_SIDE = ("engine_svc.plan", "engine_svc.kv_cache", "engine_svc.requests", "engine_svc.scheduler",
                "engine_svc.core")  # fmt: skip
# Rooms of a service: each imports those before it, and none after it.
ROOMS = {
    "gateway": ("protocol", "answers", "reasoning_parsers", "tool_parsers", "requests", "services", "metrics",
                "middleware", "endpoints"),
    "engine_svc": ("kv_cache", "requests", "scheduler", "executor", "core", "service"),
}  # fmt: skip
COMPUTE_SIDE = (
    "kernels", "native", "ops", "quantization", "attention", "layers", "models", "loader", "sampling", "parallel",
    "runner",
)  # fmt: skip
# Of the compute side, from what products are made of to what runs a step: none imports one further on.
COMPUTE_ORDER = ("kernels", "native", "ops", "quantization", "layers", "models", "loader", "runner")


def modules() -> dict[str, Path]:
    """Dotted name → file of every module of ours, generated code left out."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(ROOT / "quire" / "v1"):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> set[str]:
    """Absolute names that the module imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


IMPORTS = {module: imports_of(module, path) for module, path in modules().items()}


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_service_but_itself(package: str) -> None:
    others = tuple(service for service in SERVICES if service != package)
    for module in (name for name in IMPORTS if under(name, package)):
        assert not [name for name in IMPORTS[module] if under(name, *others)], module


def test_no_import_cycle() -> None:
    graph = {module: {name for name in names if name in IMPORTS} - {module} for module, names in IMPORTS.items()}
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
        for module in (name for name in IMPORTS if under(name, f"{service}.{room}")):
            assert not [name for name in IMPORTS[module] if under(name, *later)], module


def test_the_control_side_does_not_reach_the_compute_side() -> None:
    compute = tuple(f"engine_svc.{name}" for name in COMPUTE_SIDE)
    for module in (name for name in IMPORTS if under(name, *CONTROL_SIDE)):
        assert not [name for name in IMPORTS[module] if under(name, "torch", "triton", *compute)], module


def test_the_compute_side_does_not_reach_back() -> None:
    control = tuple(f"engine_svc.{room}" for room in ROOMS["engine_svc"] if room != "executor")
    for module in (name for name in IMPORTS if under(name, *(f"engine_svc.{part}" for part in COMPUTE_SIDE))):
        assert not [name for name in IMPORTS[module] if under(name, *control)], module


def test_a_sequence_alone_writes_its_tokens_and_counters() -> None:
    owned = {"token_ids", "num_computed_tokens", "num_pending_tokens"}
    for module, path in modules().items():
        if not under(module, "engine_svc") or under(module, "engine_svc.requests.sequence"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in owned:
                assert isinstance(node.value, ast.Name), f"{module}:{node.lineno}"
                assert node.value.id == "self", f"{module}:{node.lineno}"


def test_the_compute_side_is_built_from_the_kernels_up() -> None:
    for index, part in enumerate(COMPUTE_ORDER):
        later = tuple(f"engine_svc.{name}" for name in COMPUTE_ORDER[index + 1 :])
        for module in (name for name in IMPORTS if under(name, f"engine_svc.{part}")):
            assert not [name for name in IMPORTS[module] if later and under(name, *later)], module


def test_protobuf_stays_at_the_wire() -> None:
    allowed = ("engine_svc.service", "engine_svc.model_info", "engine_svc.main")
    for module in (name for name in IMPORTS if under(name, "engine_svc") and not under(name, *allowed)):
        assert not [name for name in IMPORTS[module] if under(name, "quire.v1", "google.protobuf")], module


@pytest.mark.parametrize(
    "module", ["gateway.main", "router.main", "tokenizer_svc.main", "quire.cli", "engine_svc.core.engine"]
)
def test_no_torch_is_loaded(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'triton'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_nothing_received_is_unpickled() -> None:
    for module, names in IMPORTS.items():
        assert not [name for name in names if under(name, "pickle", "cloudpickle", "marshal", "dill", "shelve")], module


def test_functions_and_files_stay_small() -> None:
    for module, path in modules().items():
        text = path.read_text(encoding="utf-8")
        if under(module, "engine_svc.kernels"):
            continue
        assert text.count("\n") <= 500, module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 80, f"{module}:{node.name}"
