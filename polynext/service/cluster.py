"""placeholder"""

from collections.abc import Mapping
from pathlib import Path

from polynext.service.settings import Settings
from polynext.service.workers import LocalWorkers


class RayWorkers(LocalWorkers):
    def __init__(self, networks: Mapping[str, Path], settings: Settings, address: str):
        super().__init__(networks, settings)
