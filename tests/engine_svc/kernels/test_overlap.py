"""Kernels launched before earlier ones end must not touch their data until then, which is checked in their source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from engine_svc import kernels

MODULES = sorted(Path(kernels.__file__).parent.glob("*.py"))
# Never written by a kernel: weights, and what was copied to the device before the first kernel of a step.
CONSTANTS = {"weight_ptr", "norm_ptr", "query_norm_ptr", "key_norm_ptr", "slopes_ptr"}
INPUTS = {"sequences_ptr", "query_start_ptr", "seq_lens_ptr"}


def early_kernels(tree: ast.Module) -> set[str]:
    """Returns the names of kernels launched with programmatic dependent launch."""
    return {
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and isinstance(node.func.value, ast.Name)
        and any(keyword.arg == "launch_pdl" for keyword in node.keywords)
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_early_kernels_wait_first(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    tree = ast.parse(source)
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in early_kernels(tree):
        ahead, waits = [], False
        for statement in found[name].body[1:]:  # after the docstring
            if ast.unparse(statement) == "await_inputs()":
                waits = True
                break
            ahead.append(ast.unparse(statement))
        assert waits, f"{name} never waits"
        text = "\n".join(ahead)
        assert not re.search(r"\b(return|store|atomic_\w+)\b", text), f"{name} does more than read before it waits"
        read = set(re.findall(r"\b\w+_ptr\b", text))
        assert read <= CONSTANTS | INPUTS, f"{name} reads what others write before it waits"


def test_most_kernels_begin_early() -> None:
    early = set[str]().union(*(early_kernels(ast.parse(module.read_text(encoding="utf-8"))) for module in MODULES))
    assert {"_norm_kernel", "_rotate_kernel", "_decode_kernel", "_combine_kernel", "_single_row_kernel"} <= early
