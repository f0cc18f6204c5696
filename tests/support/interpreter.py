"""Makes Triton's interpreter faster by avoiding repeated work, and makes products independent of a row's position.

The interpreter runs the compiler's front end for each operation of each program. Most of its time goes into creating
and comparing types, shapes and numbers that are the same as for the previous operation; here they are created once. For
each kernel, and each function call within it, it searches the whole language for what to replace. The language does not
change, so this is done once, and replacements stay until the kernel ends. Products of single rows are computed by few
programs with large tiles, because an operation takes nearly the same time whatever its size.

Its products are numpy's, whose library sums the rows of a matrix in different orders if it has no AVX-512 kernels. A
GPU, and einsum, treat all rows alike.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

# How many numbers are kept as tensors, and of how many elements at most.
MOST_NUMBERS, MOST_ELEMENTS = 4096, 4096


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # ARM's tests run where there is no Triton.
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
            replace_language_once(patch)
            make_types_once(patch)
            match_operands_once(patch)
            multiply_rows_alike(patch)
            look_for_no_overflows(patch)
            take_larger_tiles(patch)
        yield


def replace_language_once(patch: pytest.MonkeyPatch) -> None:
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    replace, execute = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: dict[int, Any] = {}  # of the kernel that runs, by the namespaces of its functions

    semantic = TritonSemantic(interpreter.interpreter_builder)

    def interpreted(builtin: Any) -> Any:
        call = inspect.unwrap(builtin)

        def called(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return call(*given, **named)

        return called

    @cache
    def builtins(place: Any) -> list[tuple[str, Any]]:
        members = inspect.getmembers(place, interpreter.tl.core.is_builtin)
        return [(name, interpreted(builtin)) for name, builtin in members]

    def replace_builtins(place: Any, _: Any, scope: Any) -> None:
        for name, called in builtins(place):
            scope.set_attr(place, name, called)

    def replace_once(function: Any) -> Any:
        namespace = id(function.__globals__)
        if namespace not in replaced:
            replaced[namespace] = replace(function)
        return replaced[namespace]

    def execute_anew(*given: Any, **named: Any) -> None:
        replaced.clear()
        execute(*given, **named)

    patch.setattr(interpreter, "_patch_builtin", replace_builtins)
    patch.setattr(interpreter, "_patch_lang", replace_once)
    patch.setattr(interpreter.GridExecutor, "__call__", execute_anew)


def make_types_once(patch: pytest.MonkeyPatch) -> None:
    """Makes blocks of the same shape and type share one type object, and tensors the properties derived from it."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    unwrap, is_same = core._unwrap_if_constexpr, core.dtype.__eq__
    begin_block, begin_tensor = core.block_type.__init__, core.tensor.__init__
    numpy_type, computed_as = interpreter._get_np_dtype, cache(TritonSemantic.computation_type_impl)
    blocks: dict[tuple[Any, ...], core.block_type] = {}
    shapes: dict[tuple[int, ...], Any] = {}
    numpy_types: dict[str, np.dtype[Any]] = {}

    def unwrap_quickly(value: Any) -> Any:
        if type(value) is core.constexpr:
            return value.value
        return unwrap(value) if isinstance(value, (list, tuple, core.tuple)) else value

    def begin_known_block(block: core.block_type, element: core.dtype, shape: Any) -> None:
        key = (element.name, *(unwrap_quickly(size) for size in shape))
        if key in blocks:
            block.__dict__ = blocks[key].__dict__
        else:
            begin_block(block, element, shape)
            blocks[key] = block

    def begin_known_tensor(tensor: core.tensor, handle: Any, kind: core.dtype) -> None:
        if (told := kind.__dict__.get("told")) is None:
            begin_tensor(tensor, handle, kind)
            shape = shapes.setdefault(tuple(unwrap_quickly(size) for size in tensor.shape), tensor.shape)
            kind.__dict__["told"] = shape, tensor.numel, tensor.dtype
            tensor.shape = shape
        else:
            tensor.handle, tensor.type = handle, kind
            tensor.shape, tensor.numel, tensor.dtype = told

    def known_numpy_type(kind: core.dtype) -> np.dtype[Any]:
        name = kind.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(kind)
        return numpy_types[name]

    patch.setattr(core, "_unwrap_if_constexpr", unwrap_quickly)
    patch.setattr(core.dtype, "__eq__", lambda kind, other: kind is other or is_same(kind, other))
    patch.setattr(core.block_type, "__init__", begin_known_block)
    patch.setattr(core.tensor, "__init__", begin_known_tensor)
    patch.setattr(TritonSemantic, "computation_type_impl", computed_as)
    patch.setattr(interpreter, "_get_np_dtype", known_numpy_type)


def match_operands_once(patch: pytest.MonkeyPatch) -> None:
    """Finds out once for each pair of types and shapes how operands are cast and broadcast: half of the time. Numbers
    that operands are combined with become tensors once.

    Depends on make_types_once, by which equal shapes are the same object.
    """
    from triton.language import core, semantic
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    broadcast, check = TritonSemantic.broadcast_impl_value, TritonSemantic.binary_op_type_checking_impl
    broadcasts: dict[tuple[Any, ...], tuple[Any, core.dtype, core.dtype]] = {}  # the shape, and both types
    need_no_cast: set[tuple[Any, ...]] = set()
    numbers: dict[tuple[Any, ...], Any] = {}  # as the tensors that they become beside others

    def broadcast_as_before(semantic: TritonSemantic, left: Any, right: Any) -> tuple[Any, Any]:
        if left.shape is right.shape:
            return left, right
        key = (id(left.shape), left.dtype.name, id(right.shape), right.dtype.name)
        if key not in broadcasts:
            found: tuple[Any, Any] = broadcast(semantic, left, right)
            broadcasts[key] = (found[0].shape, found[0].type, found[1].type)
            return found
        shape, left_kind, right_kind = broadcasts[key]
        return spread(left, shape, left_kind), spread(right, shape, right_kind)

    def spread(tensor: Any, shape: Any, kind: core.dtype) -> Any:
        if tensor.shape is shape:
            return tensor
        data = np.empty(kind.shape, tensor.handle.data.dtype)
        data[...] = tensor.handle.data
        return core.tensor(interpreter.TensorHandle(data, tensor.dtype), kind)

    def check_as_before(
        semantic: TritonSemantic, left: Any, right: Any, *rules: bool, **named: bool
    ) -> tuple[Any, Any]:
        are_tensors = type(left) is core.tensor and type(right) is core.tensor
        if not are_tensors and not named:
            return check_number(semantic, left, right, rules)
        key = (left.dtype.name, right.dtype.name, *rules, *named.items()) if are_tensors else ()
        if key in need_no_cast:
            return broadcast_as_before(semantic, left, right)
        found: tuple[Any, Any] = check(semantic, left, right, *rules, **named)
        if are_tensors and (found[0].dtype, found[1].dtype) == (left.dtype, right.dtype):
            need_no_cast.add(key)
        return found

    def check_number(semantic: TritonSemantic, left: Any, right: Any, rules: tuple[bool, ...]) -> tuple[Any, Any]:
        is_right = type(left) is core.tensor
        tensor, number = (left, right) if is_right else (right, left)
        if type(tensor) is not core.tensor:
            return check(semantic, left, right, *rules)
        # Text tells zeros apart, which are equal.
        key = (id(tensor.shape), tensor.dtype.name, is_right, type(number), number or str(number), rules)
        if (same := numbers.get(key)) is not None:
            return (tensor, same) if is_right else (same, tensor)
        found: tuple[Any, Any] = check(semantic, left, right, *rules)
        if found[not is_right] is tensor and tensor.handle.data.size <= MOST_ELEMENTS:
            if len(numbers) >= MOST_NUMBERS:
                numbers.clear()
            numbers[key] = found[is_right]
        return found

    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_as_before)
    patch.setattr(TritonSemantic, "binary_op_type_checking_impl", check_as_before)
    patch.setattr(semantic, "numbers", SimpleNamespace(Number=(int, float)))  # abstract classes are slow to check


def multiply_rows_alike(patch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    def product(_: Any, left: Any, right: Any, total: Any, *how: Any) -> Any:
        assert not left.dtype.is_fp8() and not right.dtype.is_fp8()
        found = np.einsum("mk,kn->mn", left.data, right.data, dtype=total.data.dtype)
        return interpreter.TensorHandle(found + total.data, total.dtype.scalar)

    patch.setattr(interpreter.InterpreterBuilder, "create_dot", product)


def look_for_no_overflows(patch: pytest.MonkeyPatch) -> None:
    """Turns off integer overflow checks, which are computed but not reported without the debug option."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    patch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))


def take_larger_tiles(patch: pytest.MonkeyPatch) -> None:
    """Has products of single rows computed in tiles of 64 outputs, not 4; the kernels' own tests name their tiles."""
    from engine_svc.kernels import single_row, single_row_experts

    tiles = single_row.MatrixTiles(64, 128, 1)
    for module in (single_row, single_row_experts):
        patch.setattr(module, "single_row_tiles", lambda size: tiles)
    patch.setattr(single_row_experts, "DOWN", tiles)
