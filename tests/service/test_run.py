"""What a service prints when it starts."""

from dataclasses import replace
from pathlib import Path

from polynext.service.networks import load_networks
from polynext.service.run import offered


def test_the_first_screen_lists_networks_with_their_costs(folder: Path) -> None:
    ((name, network),) = load_networks([folder], allow_unencrypted=True).items()
    cost = replace(network.spec.cost, seconds=1.25, key_bytes=98 * 2**20)
    line = offered({name: replace(network, spec=replace(network.spec, cost=cost))}).splitlines()[2]
    assert line.split()[:3] == [name, "1.25", "s"]
    assert "98 MB" in line
