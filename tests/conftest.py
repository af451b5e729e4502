import os
from typing import Any

# The suite runs one process per core, so each should use one; set before torch is imported, for subprocesses too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_start() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()  # dynamo counts compilations over all models of a process


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tests of the page need a browser: where there is none, nobody should believe that it was tested."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {report.longrepr[2] for report in skipped if "tests/service/test_page.py" in report.nodeid}
    for reason in sorted(reasons):
        terminalreporter.section("THE PAGE WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(reason.removeprefix("Skipped: "), red=True, bold=True)
