"""Tests of the C++ kernels run where the processor has their instructions and there is a compiler."""

from __future__ import annotations

import pytest

from engine_svc.native.build import NativeUnavailable, library


def _why_not() -> str | None:
    try:
        library()
    except NativeUnavailable as error:
        return str(error)
    return None


_reason = _why_not()
needs_native = pytest.mark.skipif(_reason is not None, reason=f"native kernels: {_reason}")
