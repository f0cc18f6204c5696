"""The names that checkpoints, and so adapters, have for the layers that adapters can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from engine_svc.lora.matrices import MatrixForm

# A module of a checkpoint → (path of our layer, name of its matrix); "" for all of the layer's matrices.
Find = Callable[[str], tuple[str, str]]
# The reverse; see `names_in_checkpoints`.
NamesOf = Callable[[str, str], tuple[str, ...]]


def module_shapes(forms: Mapping[str, MatrixForm], find: Find, names: NamesOf) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of all modules that adapters can change, by every name that they may have."""
    return {
        module: shape
        for path, form in forms.items()
        for module, wanted, shape in _modules(path, form, names)
        if find(module) == (path, wanted)
    }


def _modules(path: str, form: MatrixForm, names: NamesOf) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yields possible names of a layer's matrices, with the matrix that each would be and its shape."""
    parent = path.rpartition(".")[0] if form.count > 1 else path
    for name, part in form.outputs.items():
        for module in names(parent, name):
            for index in range(form.count):
                wanted = f"{index}.{name}" if form.count > 1 else name
                yield module.replace(".experts.0.", f".experts.{index}."), wanted, form.shape(part.total)
    if len(form.outputs) > 1 and form.count == 1:
        total = sum(part.total for part in form.outputs.values())
        for module in names(path, ""):
            yield module, "", form.shape(total)
