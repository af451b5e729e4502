"""Start several Ray nodes and kill one in the middle of a job: python ray_nodes.py SERVER_FOLDER WORK_FOLDER.

This is a script because Ray needs the main thread, and leaves threads and processes behind.
"""

import asyncio
import shutil
import sys
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

from polynext.encrypted import Client, ClientSpec
from polynext.encrypted.files import unpacked
from polynext.encrypted.runtime.backends.protocol import Part
from polynext.service import Settings
from polynext.service.cluster import RayWorkers
from polynext.service.inference import Assignment
from polynext.service.workers import WorkerDied


async def nodes(workers: RayWorkers, count: int) -> None:
    for _ in range(3000):
        if len(workers.nodes) >= count:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"there are {len(workers.nodes)} nodes")


async def main(folder: Path, work: Path, cluster: Cluster) -> None:
    client = Client.keygen(ClientSpec.load(folder / "client_spec.json"), work / "client")
    with unpacked(work / "client" / "evaluation.keys", [p.name for p in Part.keys(client.spec.rotations)]) as parts:
        shutil.copytree(next(iter(parts.values())).parent, work / "keys")
    workers = RayWorkers({"small": folder}, Settings(workers=1), "auto")
    await workers.start()
    await nodes(workers, 3)
    deaths: list[str] = []
    working = asyncio.Event()

    async def answer(number: int) -> np.ndarray:
        place = work / f"job{number}"
        place.mkdir()
        client.encrypt(np.full((1, 1, 4, 4), number / 10))[0].save(str(place / "request"))
        network = client.secret.ring
        dialect = network.receive(place / "request", place / "plain", Part("ciphertext"))
        assignment = Assignment("small", "keys", work / "keys", place / "plain", place / "answer", dialect)
        for _ in range(3):
            try:
                await workers.run(assignment, lambda share: working.set() if share else None)
                break
            except WorkerDied as death:
                deaths.append(str(death))
        parameters = client.spec.parameters
        loaded = network.load_ciphertext(place / "answer", parameters.depth, parameters.result_scale)
        return client.decrypt([loaded], 1)

    jobs = [asyncio.create_task(answer(number)) for number in range(3)]
    await asyncio.wait_for(working.wait(), 300)
    busy = next(node for node in cluster.worker_nodes if workers.busy[node.node_id])
    cluster.remove_node(busy, allow_graceful=False)
    answers = await asyncio.gather(*jobs)
    assert len(deaths) >= 1 and len(answers) == 3, deaths
    cluster.add_node(num_cpus=1)
    await nodes(workers, 3)
    await workers.stop()
    np.save(work / "answers.npy", np.concatenate(answers))


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), cluster))
    finally:
        ray.shutdown()
        cluster.shutdown()
