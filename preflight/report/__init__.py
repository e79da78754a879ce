"""One report, many outputs: each module here writes one of them from `model.Report`."""

from __future__ import annotations
