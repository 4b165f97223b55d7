"""Builds the C++ libraries, if it can; everything else is in pyproject.toml.

One holds the CPU kernels, the other the operators' schemas for programs without Python.
MXFP4_BUILD_CPP=auto (default) builds them when torch and a compiler are there and otherwise
installs without them, on the reference; 1 fails if they cannot be built; 0 never builds them.
"""

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SCHEMA_SOURCE = str(Path("csrc_stubs", "schema_stub.cpp"))
CPU_SOURCES = sorted({str(path) for path in Path("csrc_stubs").glob("*.cpp")} - {SCHEMA_SOURCE})
HEADERS = sorted(str(path) for path in Path("csrc_stubs").glob("*.h"))

# The oldest torch whose stable ABI the kernels need; the library then loads into any newer one.
OLDEST_TORCH = (2, 11)


def extensions(required: bool) -> list[Extension]:
    """The libraries, or none (with a warning) if the torch to build against is missing."""
    try:
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError:
        problem = "torch is not installed in the environment that builds (use --no-build-isolation)"
    else:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if version >= OLDEST_TORCH:
            major, minor = OLDEST_TORCH
            return [
                Extension(
                    f"mxfp4_ops.{name}",
                    sources=sources,
                    depends=HEADERS,
                    include_dirs=include_paths(),
                    library_dirs=library_paths(),
                    libraries=["torch", "torch_cpu"],
                    define_macros=[
                        ("TORCH_TARGET_VERSION", f"0x{major:02x}{minor:02x}000000000000")
                    ],
                    extra_compile_args=["/O2", "/std:c++17"]
                    if os.name == "nt"
                    else ["-O3", "-std=c++17", "-fvisibility=hidden", "-ffp-contract=off"],
                    py_limited_api=True,
                    optional=not required,
                )
                for name, sources in (("_cpu", CPU_SOURCES), ("_schema", [SCHEMA_SOURCE]))
            ]
        problem = f"torch {torch.__version__} is too old, 2.11 is needed"
    if required:
        sys.exit(f"MXFP4_BUILD_CPP=1, but {problem}")
    warnings.warn(f"mxfp4-ops is installed without its C++ kernels: {problem}", stacklevel=1)
    return []


class BuildLibrary(build_ext):
    """A library that torch loads, not a module that Python imports: it exports no PyInit."""

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        """With all cores: setuptools itself compiles one source after the other."""
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                each = threads.map(lambda source: compile_some([source], **options), sources)
                return [name for names in each for name in names]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_some


def arguments() -> dict[str, Any]:
    mode = os.environ.get("MXFP4_BUILD_CPP", "auto")
    if mode not in ("auto", "0", "1"):
        sys.exit(f"MXFP4_BUILD_CPP must be auto, 0 or 1, not {mode!r}")
    libraries = [] if mode == "0" else extensions(required=mode == "1")
    if not libraries:
        return {}
    return {
        "ext_modules": libraries,
        "cmdclass": {"build_ext": BuildLibrary},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }


setup(**arguments())
