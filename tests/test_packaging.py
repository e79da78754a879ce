"""The wheel holds the checks, and the tree works without being installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from preflight import catalog

ROOT = Path(__file__).parent.parent


def listed(cwd: Path, path: Path) -> list[str]:
    """Return the ids that `preflight checks` lists when this folder comes first on the path."""
    code = (
        "import preflight, sys; print(preflight.__file__); from preflight.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "checks"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    file, *lines = done.stdout.splitlines()
    assert Path(file).parent.parent == path
    return [line.split()[0] for line in lines]


def test_the_wheel(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)], check=True, timeout=120
    )
    (wheel,) = wheels.glob("preflight_cluster-*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(installed), str(wheel)],
        check=True,
        timeout=120,
    )
    assert {path.name for path in installed.iterdir()} >= {"preflight"}
    assert not (installed / "checks").exists()
    assert (installed / "preflight" / "demo" / "healthy.json").exists()
    assert listed(tmp_path, installed) == list(catalog.load())


def test_a_bare_checkout(tmp_path: Path) -> None:
    assert listed(tmp_path, ROOT) == list(catalog.load())
