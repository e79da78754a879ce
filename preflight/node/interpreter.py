"""Says what the training interpreter would load. Runs in that interpreter, not in the agent.

Its text is handed over by `software.training`. Nothing of what it describes is imported: torch
takes seconds, and a broken one would end it.
It does without `json` and `re`: to import them takes as long as the start of an interpreter.
Sent to nodes: stdlib only, Python 3.7, since older environments still train.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

from preflight.node.linker import library, sections

PACKAGES = ("torch", "ray", "numpy", "triton", "deepspeed")
WHEELS = ("nvidia-nccl-cu", "nvidia-cuda-runtime")
"""How names of others begin."""
DIGITS = "0123456789."
LINE_ENDS = (*range(32), 0x85, 0x2028, 0x2029)
ESCAPES = {34: '\\"', 92: "\\\\", **{code: f"\\u{code:04x}" for code in LINE_ENDS}}
"""What stands otherwise in a string of JSON, which is to be on one line."""
TORCH_NCCL = ("libtorch_cuda.so", "libtorch_cuda_cpp.so")
"""The library of torch that calls NCCL; it was split in 1.10 to 1.12."""
LONGEST_ARCHITECTURES = 1024
"""Far more than the list of any build has, in bytes."""
WHEEL = "nvidia/nccl/lib/libnccl.so.2"
SAYS = b"NCCL version "
"""Begins a string literal of the library, with which it says its version: NCCL's src/init.cc."""
SEARCHED = 64 << 20
"""Bytes of the library that are looked through for it. The 2.21.5 of NVIDIA's wheel has it at
1.4 MB; the code for GPUs goes behind, 240 MB of it."""


def main(mark: str) -> None:
    """Print the answer, behind a mark that tells it from what else is printed."""
    sys.stdout.flush()
    os.write(1, f"\n{mark}{encoded(answer())}\n".encode("utf-8", "replace"))
    os._exit(0)  # tidying up an interpreter costs milliseconds


def answer() -> dict[str, object]:
    """Return what `software.Inside` describes."""
    found = packages()
    framework = torch(found.get("torch"))
    driver = library("libcuda.so.1")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "packages": found,
        "torch": framework,
        "nccl": nccl(framework),
        "system_nccl": (library("libnccl.so.2") or {}).get("path"),
        "net_plugin": net_plugin(os.environ.get("NCCL_NET_PLUGIN", "")),
        "driver_cuda": driver_cuda(driver["path"]) if driver else None,
        "toolkit": toolkit(os.environ.get("CUDA_HOME") or "/usr/local/cuda"),
    }


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    if isinstance(value, str):
        return f'"{value.translate(ESCAPES)}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(encoded, value)) + "]"
    if isinstance(value, dict):
        pairs = (f"{encoded(key)}: {encoded(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    return "null" if value is None else str(value)


def packages() -> dict[str, str]:
    """Return versions by normalised name; the folder that is first on sys.path counts."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for name in names_in(folder):
            package, version = told(name)
            if version and (package in PACKAGES or package.startswith(WHEELS)):
                found.setdefault(package, version)
    return found


def told(name: str) -> tuple[str, str]:
    """Return package, normalised, and version that the name of a metadata folder or file tells."""
    stem, _, end = name.rpartition(".")
    if end.lower() not in ("dist-info", "egg-info"):
        return "", ""
    package, _, version = stem.rpartition("-")
    if version.startswith("py"):  # of an egg: torch-1.4.0-py3.7.egg-info
        package, _, version = package.rpartition("-")
    return package.lower().replace("_", "-").replace(".", "-"), version


def names_in(folder: str) -> list[str]:
    """Return the sorted names in a folder; a zip file has none, and neither has what is gone."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def on_path(name: str) -> str | None:
    """Return the first such file below sys.path."""
    places = (os.path.join(folder, name) for folder in sys.path)
    return next((place for place in places if os.path.exists(place)), None)


def text_of(path: str) -> str:
    """Return a file's text, empty where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""


def torch(version: str | None) -> dict[str, Any] | None:
    """Return what torch/version.py assigns; without it, the version of the metadata."""
    path = on_path("torch/version.py")
    if path is None and version is None:
        return None
    text, folder = text_of(path or ""), path and os.path.dirname(path)
    cuda = assigned(text, "cuda")
    return {
        "version": assigned(text, "__version__") or version,
        "cuda": cuda,
        "hip": assigned(text, "hip"),
        "path": folder,
        "archs": architectures(folder) if folder and cuda else [],
    }


def architectures(folder: str) -> list[str]:
    """Return what torch.cuda.get_arch_list() would, empty where it cannot be told.

    The list is one string literal of torch's library, CUDA_ARCH_FLAGS in
    torch/csrc/cuda/Module.cpp; where several look like it, none is believed.
    """
    try:
        with open(os.path.join(folder, "lib", "libtorch_python.so"), "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return []
    found = set()
    with data:
        at = data.find(b"sm_")
        while at >= 0:
            begin = data.rfind(b"\0", max(0, at - LONGEST_ARCHITECTURES), at) + 1
            end = data.find(b"\0", at, at + LONGEST_ARCHITECTURES)
            if begin and end > 0 and all(map(is_architecture, data[begin:end].split(b" "))):
                found.add(data[begin:end])
            at = data.find(b"sm_", at + 1)
    return found.pop().decode().split() if len(found) == 1 else []


def is_architecture(word: bytes) -> bool:
    """Whether a word is one such as sm_90a or compute_90."""
    kind, _, number = word.partition(b"_")
    return kind in (b"sm", b"compute") and number.rstrip(b"af").isdigit()


def assigned(text: str, name: str) -> str | None:
    """Return a string that a module assigns to a name, with or without an annotation."""
    for line in text.splitlines():
        target, _, value = line.partition("=")
        quote, string = value.strip()[:1], value.strip()[1:]
        if target.partition(":")[0].rstrip() == name and quote in ("'", '"'):
            return string.partition(quote)[0] or None
    return None


def nccl(torch: dict[str, Any] | None) -> dict[str, str | None] | None:
    """Return the NCCL that training would load, by what rule, and its version."""
    found = loaded(torch)
    if found is None:
        return None
    known = found["by"] != "built in"  # a search of torch's gigabytes would take seconds
    return {**found, "version": version_of(found["path"]) if known else None}


def loaded(torch: dict[str, Any] | None) -> dict[str, str] | None:
    """Return the NCCL that training would load, and by what rule.

    A torch that needs no libnccl has it built in; one without CUDA has none. Without torch, and
    where its library is not in its place, it is that of the wheel, which JAX and CuPy look for
    themselves, else the system's.
    """
    file = on_path(WHEEL)
    wheel = {"path": file, "by": "wheel"} if file else None
    folder = torch and torch["path"]
    if torch and folder and not torch["cuda"]:
        return None
    places = [os.path.join(folder, "lib", name) for name in TORCH_NCCL] if folder else []
    users = {place: sections(place)["NEEDED"] for place in places if os.path.exists(place)}
    for user, needed in users.items():
        if "libnccl.so.2" in needed:
            # what the linker would not find, torch/__init__.py loads from the wheel
            return library("libnccl.so.2", [user, *extensions(folder or "")]) or wheel
    if users:  # one that needs nothing at all is damaged
        whole = [user for user, needed in users.items() if needed]
        return {"path": whole[0], "by": "built in"} if whole else None
    return wheel or library("libnccl.so.2")


def extensions(folder: str) -> list[str]:
    """Return torch's extension module, which loads all of its libraries."""
    names = names_in(folder)
    return [os.path.join(folder, n) for n in names if n.startswith("_C.") and n.endswith("so")]


def version_of(path: str) -> str | None:
    """Return the version of a libnccl: by its own word, else by its name, else by its wheel's.

    The wheels for two versions of CUDA put the same file: then it is one version or another.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(SAYS, 0, SEARCHED)
            said = data[at : at + 64].decode("ascii", "replace") if at >= 0 else ""
    except (OSError, ValueError):  # an empty file cannot be mapped
        said = ""
    version = leading(said[len(SAYS) :]) or leading(path.rpartition(".so.")[2])
    if version:
        return version
    own = [path[: -len(WHEEL)]] if path.endswith("/" + WHEEL) else []
    for site in [*own, *sys.path]:  # which may have but a link to the file
        if os.path.realpath(os.path.join(site, WHEEL)) == path:
            found = map(told, names_in(site))
            wheels = [version for package, version in found if package.startswith(WHEELS[0])]
            if wheels:
                return " or ".join(wheels)
    return None


def net_plugin(name: str) -> dict[str, object] | None:
    """Return the NCCL net plugin that is found: its file's name without links, and its bytes.

    NCCL_NET_PLUGIN has one or several: a path, a library, or the end of libnccl-net-<name>.so; of
    several NCCL tries one after the other, and the first that is found is told. `none` is none.
    Source: initPluginLibsOnceFunc and openPluginLib of NCCL 2.30's src/plugin.
    """
    if name.lower() == "none":
        return None
    for one in (part for part in name.split(",") if part) if name else ["libnccl-net.so"]:
        is_word = "/" not in one and not (one.startswith("lib") and one.endswith(".so"))
        for file in [one, f"libnccl-net-{one}.so"] if is_word else [one]:
            own = "/" in file and os.path.isfile(file)
            found = {"path": os.path.realpath(file)} if own else library(file)
            if found:
                return {"path": found["path"], "bytes": os.stat(found["path"]).st_size}
    return None


def driver_cuda(path: str) -> int | None:
    """Return the CUDA version that libcuda supports, 12040 for 12.4.

    cuDriverGetVersion returns a constant of the library; it needs no cuInit and opens no device.
    It is the libcuda of the job: one of a forward compatibility package, if that is found first.
    """
    import ctypes

    version = ctypes.c_int()
    try:
        code = ctypes.CDLL(path).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if code else version.value


def toolkit(home: str) -> str | None:
    """Return the version of the CUDA toolkit, 12.4 or 12.4.1, by its files, else by nvcc."""
    files = {name: text_of(os.path.join(home, name)) for name in ("version.json", "version.txt")}
    cuda = files["version.json"].partition('"cuda"')[2].partition("}")[0]
    found = cuda.partition('"version"')[2].partition('"')[2]
    return leading(found or files["version.txt"].partition("CUDA Version ")[2]) or nvcc()


def nvcc() -> str | None:
    """Return the version that nvcc says, if it is on PATH."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    places = (os.path.join(folder, "nvcc") for folder in folders)
    program = next((one for one in places if os.path.isfile(one) and os.access(one, os.X_OK)), None)
    if program is None:
        return None
    return leading(said_by(program, "--version").partition(", V")[2]) or None


def leading(text: str) -> str:
    """Return the version that a text begins with, such as 12.4; empty where it is none."""
    version = text[: len(text) - len(text.lstrip(DIGITS))].rstrip(".")
    return version if "." in version else ""


def said_by(*argv: str) -> str:
    """Return what a program writes; `subprocess` would take twice as long to import as it runs."""
    come, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(tell, 1)
            os.execv(argv[0], argv)
        finally:
            os._exit(127)
    os.close(tell)
    with os.fdopen(come, "rb") as output:
        said = output.read()
    os.waitpid(pid, 0)
    return said.decode("utf-8", "replace")
