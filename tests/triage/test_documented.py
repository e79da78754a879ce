"""docs/triage.md names every cause."""

from __future__ import annotations

import re

from tests.documents import ROOT
from tests.triage import cases
from tests.triage.test_cases import FAMILIES

DOCUMENT = (ROOT / "docs" / "triage.md").read_text()


def test_every_cause_is_in_the_table() -> None:
    told = {cause for case in cases.found() for cause in case.words("cause") + case.words("among")}
    told |= {rule.cause for family in FAMILIES for rule in family.rules if "{" not in rule.cause}
    named = {*re.findall(r"`([a-z]+\.[a-z0-9_]+)`", DOCUMENT)}
    assert told - named <= {"none", ""}
