"""A small network, its plans, and the folders of a client and a server, for all backends and engines."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polynext.circuit import Circuit, lower
from polynext.encrypted import Client, ClientSpec, Plan, make_plan, save_server
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.clear import ClearEvaluator
from polynext.encrypted.runtime.backends.protocol import Evaluator, SecretKey
from polynext.encrypted.runtime.cost import CostEstimate
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program
from polynext.encrypted.runtime.program_file import load_program, save_program
from polynext.models.network import PolyNeXt
from polynext.preprocessing import Preprocessing
from tests.circuit.conftest import patch_network, small_network

SAME_EVERYWHERE = get_backend("clear").costs


@pytest.fixture(scope="session")
def trained() -> Any:
    torch.manual_seed(1)
    return small_network()


@pytest.fixture(scope="session")
def circuit(trained: Any) -> Circuit:
    return lower(trained)


@pytest.fixture(scope="session")
def examples() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(32, 1, 4, 4))


@pytest.fixture(scope="session")
def patches() -> PolyNeXt:
    return patch_network()


@pytest.fixture(scope="session")
def lowered(patches: PolyNeXt) -> Circuit:
    return lower(patches)


@pytest.fixture(scope="session", params=[1, 4], ids=lambda n: f"{n} images")
def plan(request: pytest.FixtureRequest, circuit: Circuit, examples: np.ndarray) -> Plan:
    return make_plan(circuit, examples, request.param, costs=SAME_EVERYWHERE)


@pytest.fixture(scope="session", params=["clear", "seal", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The clear backend, and the seal backend with each of its engines."""
    if request.param == "clear":
        yield "clear"
        return
    if request.param == "native":
        pytest.importorskip("polynext_native", reason="polynext-native is not installed: it needs a C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYNEXT_ENGINE", request.param)
        yield "seal"


@pytest.fixture(scope="session")
def spec(plan: Plan, backend: str) -> ClientSpec:
    return client_spec_for(replace(plan, backend=backend), Preprocessing(size=4, resize=4), ("a", "b", "c"))


@pytest.fixture(scope="session")
def folders(plan: Plan, spec: ClientSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a server's and a client's folder."""
    root = tmp_path_factory.mktemp("encrypted")
    save_server(plan.program, spec, root / "server")
    Client.keygen(ClientSpec.load(root / "server" / "client_spec.json"), root / "client", allow_unencrypted=True)
    return root


def logits(model: Any, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.double()(torch.from_numpy(images)).numpy()


def promised(cost: CostEstimate) -> float:
    """The allowed error of logits: the predicted one, with a margin, because it depends on the key."""
    return 1.5 * cost.error * cost.largest_logit


def run_clear(program: Program, parameters: Parameters, images: np.ndarray) -> tuple[np.ndarray, ClearEvaluator]:
    """The program's result, and the evaluator with its counts."""
    evaluator = ClearEvaluator(parameters, program.rotations)
    packed = program.layouts[0].pack(images.reshape(len(images), -1))
    result = execute(program, encode_program(program, evaluator), evaluator, evaluator.image(packed))
    return program.layouts[-1].unpack(result.values.real), evaluator


def evaluator_for(program: Program, key: SecretKey) -> Evaluator:
    return key.ring.evaluator(key.evaluation_keys(program.rotations))


def decrypted(value: Any, secret: SecretKey) -> np.ndarray:
    """Saves a ciphertext and lets the ring load it, as a client does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "value"
        value.save(str(path))
        return secret.decrypt(secret.ring.load_ciphertext(path, value.level, value.scale))


def run_encrypted(program: Program, key: SecretKey, images: np.ndarray) -> np.ndarray:
    evaluator = evaluator_for(program, key)
    image = key.encrypt(program.layouts[0].pack(images.reshape(len(images), -1)))
    answer = execute(program, encode_program(program, evaluator), evaluator, image)
    return program.layouts[-1].unpack(decrypted(answer, key))


def saved_and_loaded(program: Program) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        save_program(program, Path(folder) / "program.npz")
        return load_program(Path(folder) / "program.npz")
