"""Collects information on the machine, section by section. Whatever cannot be determined is left out, never an
error."""

from __future__ import annotations

import importlib
import importlib.metadata
import locale
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import quire
from quire.environment.secrets import without_secrets
from quire.processor_name import processor_name
from quire.processors import read_machine

Section = dict[str, str]

_SECONDS = 10
_OS_RELEASE = Path("/etc/os-release")
# Prefixes of variables that affect Quire or a library it uses.
_PREFIXES = (
    "QUIRE_", "VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "HF_", "HUGGINGFACE_",
    "TRANSFORMERS_", "SAFETENSORS_", "MODELSCOPE_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_",
    "ATEN_", "MALLOC_", "GRPC_", "TOKENIZERS_", "UVLOOP_", "PYTHON", "LD_", "OPENAI_", "CXX", "ROCR_", "HIP_",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_",
)  # fmt: skip
_PACKAGES = (
    "torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "grpcio",
    "grpcio-health-checking", "grpcio-reflection", "protobuf", "msgspec", "prometheus-client", "click", "pyyaml",
    "uvloop", "uvicorn", "starlette", "httptools", "jinja2", "llguidance", "xgrammar", "outlines-core",
    "mistral-common", "regex", "tqdm", "httpx", "fastsafetensors", "runai-model-streamer", "tensorizer", "modelscope",
    "compressed-tensors", "bitsandbytes", "gguf", "vllm",
)  # fmt: skip


def collect(secret_names: Collection[str]) -> dict[str, Section]:
    """Section → key → value.

    Args:
        secret_names: environment variables whose values are not shown.
    """
    found = {name: _whatever_comes(look) for name, look in _LOOKS.items()}
    found["Environment variables"] = variables(os.environ, secret_names)
    return {name: {key: text for key, text in section.items() if text} for name, section in found.items()}


def variables(environment: Mapping[str, str], secret_names: Collection[str]) -> Section:
    """The relevant environment variables, without secrets."""
    names = sorted(name for name in environment if name.startswith(_PREFIXES))
    return {name: without_secrets(name, environment[name], secret_names) for name in names}


def _whatever_comes(look: Callable[[], Section]) -> Section:
    """Collects a section; a failure is reported in it, as unusual machines are the very ones that bug reports are
    about."""
    try:
        return look()
    except Exception as error:
        return {"unavailable": f"{type(error).__name__}: {error}"}


def _quire() -> Section:
    folder = Path(quire.__file__).parents[1]
    is_checkout = (folder / ".git").exists()
    commit = _said("git", "-C", str(folder), "rev-parse", "HEAD") if is_checkout else ""
    changes = _said("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no") if is_checkout else ""
    return {
        "version": quire.__version__,
        "folder": str(folder),
        "commit": commit + (" with changes" if commit and changes else ""),
    }


def _python() -> Section:
    return {
        "version": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "virtual environment": sys.prefix if sys.prefix != sys.base_prefix else "none",
        "encoding": f"{sys.getfilesystemencoding()}, {locale.getpreferredencoding(do_setlocale=False)}",
    }


def _system() -> Section:
    return {
        "platform": platform.platform(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", "") if _OS_RELEASE.exists() else "",
        "C library": " ".join(platform.libc_ver()),
        "container": _container(),
        "C++ compiler": _compiler(),
        "open files": _limit(resource.RLIMIT_NOFILE),
        "locked memory": _limit(resource.RLIMIT_MEMLOCK),
        "processes": _limit(resource.RLIMIT_NPROC),
    }


def _processor() -> Section:
    machine = read_machine()
    return {
        "name": processor_name(),
        "architecture": platform.machine(),
        "processors": f"{len(machine.processors)} of {os.cpu_count()}, {len(machine.cores)} cores",
        "NUMA nodes": ", ".join(map(str, machine.nodes)),
        "quota": f"{machine.quota:g} processors" if machine.quota else "",
        "kernels": _kernels(),
        "load average": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _memory() -> Section:
    lines = (line.partition(":") for line in _read("/proc/meminfo").splitlines())
    kibibytes = {name: value.removesuffix(" kB").strip() for name, _, value in lines}
    named = {"total": "MemTotal", "available": "MemAvailable", "swap": "SwapTotal", "huge pages": "Hugetlb"}
    found = {name: _gibibytes(int(kibibytes[key]) * 1024) for name, key in named.items() if key in kibibytes}
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    shared = Path("/dev", "shm")
    return {
        **found,
        "control group limit": _gibibytes(int(limit)) if limit.isdigit() else limit,
        str(shared): f"{_gibibytes(shutil.disk_usage(shared).free)} free" if shared.exists() else "",
    }


def _gpus() -> Section:
    fields = "name,memory.total,driver_version,compute_cap,pci.bus_id,mig.mode.current"
    listed = _said("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    nvidia = {str(number): line for number, line in enumerate(listed)}
    topology = _said("nvidia-smi", "topo", "-m") if len(listed) > 1 else ""
    amd = _said("rocm-smi", "--showproductname", "--csv")
    return {**nvidia, "topology": topology, "AMD": amd, "found": "" if nvidia or amd else "none"}


def _packages() -> Section:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _torch() -> Section:
    """The build of torch, as torch itself reports it."""
    torch: Any = importlib.import_module("torch")
    return {
        "CUDA": str(torch.version.cuda or "none"),
        "ROCm": str(torch.version.hip or ""),
        "cuDNN": str(torch.backends.cudnn.version() or ""),
        "GPUs seen": str(torch.cuda.device_count()),
        "CPU instructions": str(torch.backends.cpu.get_cpu_capability()),
        "threads": str(torch.get_num_threads()),
    }


_LOOKS: Mapping[str, Callable[[], Section]] = MappingProxyType(
    {
        "Quire": _quire,
        "Python": _python,
        "System": _system,
        "Processor": _processor,
        "Memory": _memory,
        "GPUs": _gpus,
        "Packages": _packages,
        "Torch": _torch,
    }
)


def _kernels() -> str:
    """Available levels of the engine's C++ kernels; the engine is imported by name, as it need not be installed."""
    try:
        levels = importlib.import_module("engine_svc.native.levels").available_levels()
    except ImportError:
        return "the engine is not installed"
    return ", ".join(levels) or "none: torch's are used"


def _container() -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    return "yes" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else ""


def _compiler() -> str:
    named = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    return (_said(named, "--version").splitlines() or [f"{named} does not run"])[0] if named else "none"


def _limit(which: int) -> str:
    soft, hard = ("unlimited" if value == resource.RLIM_INFINITY else str(value) for value in resource.getrlimit(which))
    return f"{soft} of {hard}"


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _said(*command: str) -> str:
    """The output of a program; empty if it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
