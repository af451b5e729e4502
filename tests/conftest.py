import os

# The suite runs one process per core, so each should use one; set before torch is imported, for subprocesses too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_start() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()  # dynamo counts compilations over all models of a process
