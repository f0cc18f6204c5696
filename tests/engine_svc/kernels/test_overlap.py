"""Kernels launched before earlier ones end must not touch their data until then, which is checked in their source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from engine_svc import kernels, recurrence

MODULES = sorted(Path(kernels.__file__).parent.glob("*.py"))
CALLERS = [Path(recurrence.__file__).parent / "triton.py"]  # modules elsewhere that launch kernels
# Never written by a kernel: weights, and what was copied to the device before the first kernel of a step.
CONSTANTS = {"weight_ptr", "norm_ptr", "query_norm_ptr", "key_norm_ptr", "slopes_ptr"}
INPUTS = {"sequences_ptr", "query_start_ptr", "seq_lens_ptr"}


def launched(tree: ast.Module, early: bool) -> set[str]:
    """Returns the names of kernels launched with programmatic dependent launch, or without it."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            kernel, is_early = node.func.value, any(keyword.arg == "launch_pdl" for keyword in node.keywords)
            if isinstance(kernel, ast.Name | ast.Attribute) and is_early == early:
                found.add(kernel.id if isinstance(kernel, ast.Name) else kernel.attr)
    return found


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


EARLY = set[str]().union(*(launched(parsed(module), early=True) for module in [*MODULES, *CALLERS]))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_early_kernels_wait_first(module: Path) -> None:
    found = {node.name: node for node in parsed(module).body if isinstance(node, ast.FunctionDef)}
    for name in EARLY & set(found):
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
    assert {"_norm_kernel", "_rotate_kernel", "_decode_kernel", "_combine_kernel", "_single_row_kernel"} <= EARLY
    for module in CALLERS:
        assert len(launched(parsed(module), early=True)) > 5
        assert not launched(parsed(module), early=False)
