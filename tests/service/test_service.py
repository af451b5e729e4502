"""What clients of a service meet: keys, requests, answers, refusals."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.encrypted.conftest import logits
from tests.service.conftest import Running


def test_predictions_are_the_networks(running: Running, trained: Any, examples: np.ndarray, tmp_path: Path) -> None:
    client = running.connect(tmp_path / "keys")
    answer = client.predict(examples[:3])
    wanted = logits(trained, examples[:3])
    np.testing.assert_allclose(answer.logits, wanted, atol=1e-6)
    assert answer.labels == tuple("abc"[i] for i in wanted.argmax(axis=1))
