"""preflight: can these nodes train together? Sent to nodes: stdlib only, Python 3.8."""

from __future__ import annotations

__version__ = "0.1.0"
