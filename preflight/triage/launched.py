"""Rules about how a job was launched, as several families write them."""

from __future__ import annotations

import functools

from preflight.triage import rule

cause = functools.partial(rule.cause, stage="launch")
