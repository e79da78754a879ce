"""`python -m preflight`."""

from __future__ import annotations

from preflight.cli import main

main()
