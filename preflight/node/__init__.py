"""All of this package is sent to nodes. Sent to nodes: stdlib only, Python 3.8."""

from __future__ import annotations
