"""Networks that are prepared for Python clients: hybrid keys, from the plan to the answer, and their limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polynext.circuit import Circuit
from polynext.encrypted import Client, ClientSpec, Limits, Plan, Server, get_backend, make_plan, save_server
from polynext.encrypted.client import EVALUATION, SECRET
from polynext.encrypted.compiler.parameter_choice import choose_parameters, choose_special_primes
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.files import header_for, write_parts
from polynext.encrypted.runtime.backends.protocol import STANDARD_SECURITY
from polynext.encrypted.runtime.levels import StepOutline
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Preprocessing
from polynext.service import load_networks
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, promised


@pytest.fixture(scope="module")
def hybrid_plan(circuit: Circuit, examples: np.ndarray) -> Plan:
    return make_plan(circuit, examples, limits=Limits(clients="python"), costs=SAME_EVERYWHERE)


@pytest.fixture(scope="module")
def hybrid_spec(hybrid_plan: Plan) -> ClientSpec:
    return client_spec_for(hybrid_plan, Preprocessing(size=4, resize=4), ("a", "b", "c"))


def test_plans_say_which_keys_they_use(hybrid_plan: Plan, plan: Plan) -> None:
    parameters, cost = hybrid_plan.parameters, hybrid_plan.cost
    assert parameters.hybrid_keys and not plan.parameters.hybrid_keys
    assert parameters.modulus_bits <= STANDARD_SECURITY.longest_hybrid_modulus[parameters.ring_degree]
    assert cost.key_bytes == (cost.rotation_keys + 1) * parameters.key_bytes
    assert parameters.key_bytes < plan.parameters.key_bytes
    with pytest.raises(PolyNeXtError, match="`clients` is 'cobol': choose any or python"):
        Limits(clients="cobol")  # type: ignore[arg-type]


def test_files_go_from_client_to_server_and_back(
    hybrid_plan: Plan, hybrid_spec: ClientSpec, trained: Any, examples: np.ndarray, tmp_path: Path
) -> None:
    pytest.importorskip("polynext_native", reason="polynext-native is not installed: it needs a C++ compiler")
    save_server(hybrid_plan.program, hybrid_spec, tmp_path / "server")
    Client.keygen(ClientSpec.load(tmp_path / "server" / "client_spec.json"), tmp_path / "client")
    keys = tmp_path / "client" / EVALUATION
    assert keys.stat().st_size < 0.51 * hybrid_spec.cost.key_bytes
    client, server = Client.load(tmp_path / "client"), Server.load(tmp_path / "server", keys)
    client.write_request(examples[:2], tmp_path / "request.enc")
    server.answer_request(tmp_path / "request.enc", tmp_path / "answer.enc")
    result = client.read_answer(tmp_path / "answer.enc")
    assert np.abs(result - logits(trained, examples[:2])).max() < promised(hybrid_spec.cost)


def test_a_service_without_the_extension_does_not_start(
    hybrid_plan: Plan, hybrid_spec: ClientSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYNEXT_ENGINE", "seal")
    save_server(hybrid_plan.program, hybrid_spec, tmp_path / "small")
    with pytest.raises(PolyNeXtError, match=r"hybrid keys, and SEAL cannot.*install polynext-native.*`--clients any`"):
        load_networks([tmp_path / "small"])


def test_client_and_server_refuse_a_longer_modulus(hybrid_plan: Plan, hybrid_spec: ClientSpec, tmp_path: Path) -> None:
    """Each for itself: the other side chose the parameters."""
    parameters = hybrid_spec.parameters
    too_long = replace(
        parameters, prime_bits=(*parameters.prime_bits, 60), special_primes=parameters.special_primes + 1
    )
    longest = STANDARD_SECURITY.longest_hybrid_modulus[parameters.ring_degree]
    assert too_long.modulus_bits > longest
    spec, message = replace(hybrid_spec, parameters=too_long), f"less than 128 bits of security, which allow {longest}"
    with pytest.raises(PolyNeXtError, match=message):
        Client.keygen(spec, tmp_path / "client")
    assert not (tmp_path / "client" / SECRET).exists()
    save_server(hybrid_plan.program, spec, tmp_path / "server")
    write_parts(tmp_path / "keys", "evaluation", header_for(spec, "key"), {})
    with pytest.raises(PolyNeXtError, match=message):
        Server.load(tmp_path / "server", tmp_path / "keys")


def chain(levels: int) -> list[StepOutline]:
    """A product of two linear combinations at each level."""
    return [StepOutline(((k,),), multiplies=True, rescales=False, level=k) for k in range(levels)]


@pytest.mark.parametrize(
    ("ring_degree", "levels"), [(2**13, 2), (2**14, 4), (2**15, 8), (2**15, 12), (2**16, 12), (2**16, 26)]
)
def test_special_primes_fit_and_cost_no_precision(ring_degree: int, levels: int) -> None:
    def chosen(special_primes: int) -> Parameters:
        return choose_parameters(chain(levels), ring_degree, 8.0, STANDARD_SECURITY, special_primes)

    found, fewest = choose_special_primes(chosen), chosen(2)
    get_backend("seal").security.check(found)
    assert found.special_primes >= 2
    assert (found.scale_bits, found.plain_bits) == (fewest.scale_bits, fewest.plain_bits)
    special = found.prime_bits[found.depth + 1 :]
    assert len(special) == found.special_primes and min(special) >= max(found.prime_bits)


def test_a_network_too_deep_for_32768_fits_65536() -> None:
    def chosen(ring_degree: int) -> Parameters:
        return choose_parameters(chain(26), ring_degree, 8.0, STANDARD_SECURITY, special_primes=2)

    with pytest.raises(PolyNeXtError, match=r"26 levels need a modulus of at least .* security allows 868"):
        chosen(2**15)
    assert 868 < chosen(2**16).modulus_bits <= 1747
