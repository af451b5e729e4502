"""Workers on several machines, with Ray.

Every node runs one actor with an inference process (`workers.py`), and receives each program and each key set once. The
jobs of a node that dies run again on another one. Nodes that join get an actor within seconds.
"""

import asyncio
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polynext.errors import PolyNeXtError
from polynext.service.inference import Assignment
from polynext.service.settings import Settings
from polynext.service.workers import LocalWorkers, ReportProgress, WorkerDied, Workers

WATCH_SECONDS = 2.0
PROGRESS_SECONDS = 0.5
STOP_SECONDS = 10.0

Files = dict[str, bytes]


class NodeActor:
    """The actor on a node: an inference process and the files that it needs."""

    def __init__(self, networks: dict[str, Files], settings: Settings):
        self.folder = Path(tempfile.mkdtemp(prefix="polynext-node-"))
        folders = {name: write_files(self.folder / "networks" / name, files) for name, files in networks.items()}
        self.workers = LocalWorkers(folders, settings)
        self.settings = settings
        self.progress: dict[str, float] = {}
        self.keys: OrderedDict[str, int] = OrderedDict()  # bytes of each key set, least recently used first
        self.using: Counter[str] = Counter()  # running jobs of each key set

    async def start(self) -> None:
        await self.workers.start()

    async def stop(self) -> None:
        """Stop the inference process, and delete all keys and programs on this node."""
        await self.workers.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def has_keys(self, keys: str) -> bool:
        return keys in self.keys

    def receive_keys(self, keys: str, files: Files) -> None:
        if not self.has_keys(keys):
            write_files(self.folder / "arriving" / keys, files)
            (self.folder / "keys").mkdir(exist_ok=True)
            (self.folder / "arriving" / keys).replace(self.folder / "keys" / keys)
            self.keys[keys] = sum(map(len, files.values()))
            for unused in [each for each in self.keys if each != keys and not self.using[each]]:
                if sum(self.keys.values()) > self.settings.key_disk:
                    self.forget_keys(unused)

    def forget_keys(self, keys: str) -> None:
        self.workers.forget_keys(keys)
        self.keys.pop(keys, None)
        shutil.rmtree(self.folder / "keys" / keys, ignore_errors=True)

    async def run(self, job: str, network: str, keys: str, request: bytes, dialect: str) -> bytes | str:
        """The answer, or a message if the job fails."""
        folder = write_files(self.folder / "jobs" / job, {"request": request})
        assignment = Assignment(
            network, keys, self.folder / "keys" / keys, folder / "request", folder / "answer", dialect
        )
        self.using[keys] += 1
        try:
            self.keys.move_to_end(keys)
            await self.workers.run(assignment, lambda share: self.progress.update({job: share}))
            return (folder / "answer").read_bytes()
        except PolyNeXtError as error:
            return str(error)
        except KeyError:
            raise WorkerDied("the node deleted these keys") from None
        finally:
            self.using[keys] -= 1
            self.progress.pop(job, None)
            shutil.rmtree(folder, ignore_errors=True)

    def progress_of(self, job: str) -> float:
        return self.progress.get(job, 0.0)


class RayWorkers(Workers):
    """An inference process on every node of a Ray cluster. `settings.workers` is the number of jobs per node."""

    def __init__(self, networks: Mapping[str, Path], settings: Settings, address: str):
        self.networks = {name: read_files(folder) for name, folder in networks.items()}
        self.settings, self.address = settings, address
        self.nodes: dict[str, Any] = {}
        self.busy: Counter[str] = Counter()
        self.watching: asyncio.Task[None] | None = None

    @property
    def slots(self) -> int:
        return self.settings.workers * len(self.nodes)

    @property
    def ready(self) -> bool:
        return bool(self.nodes)

    async def start(self) -> None:
        if not ray.is_initialized():
            address = None if self.address == "local" else self.address
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise PolyNeXtError(
                    f"there is no Ray cluster at {self.address!r} ({error}): start one with `ray start --head`."
                ) from error
        self.shared_networks = ray.put(self.networks)  # sent to every node once
        self.watching = asyncio.create_task(self.watch_nodes())
        while not self.nodes:
            if self.watching.done():
                self.watching.result()
            await asyncio.sleep(0.05)

    async def watch_nodes(self) -> None:
        """Start actors on new nodes and remove dead ones."""
        while True:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
            for node in set(self.nodes) - alive:
                self.remove_node(node)
            await asyncio.gather(*(self.add_node(node) for node in alive - set(self.nodes)))
            await asyncio.sleep(WATCH_SECONDS)

    async def add_node(self, node: str) -> None:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        actor_class = ray.remote(NodeActor).options(scheduling_strategy=on_node, num_cpus=0, max_concurrency=64)
        actor = actor_class.remote(self.shared_networks, self.settings)
        try:
            await actor.start.remote()
            self.nodes[node] = actor
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PolyNeXtError):
                raise PolyNeXtError(str(error.cause)) from error
            raise
        except ray.exceptions.RayError:
            pass  # the node died; `watch_nodes` looks again

    def remove_node(self, node: str) -> None:
        self.nodes.pop(node, None)
        self.busy.pop(node, None)

    async def stop(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.gather(self.watching, return_exceptions=True)
        stopping = [actor.stop.remote() for actor in self.nodes.values()]
        with suppress(TimeoutError, ray.exceptions.RayError):
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*stopping)
        for actor in self.nodes.values():
            ray.kill(actor)
        self.nodes.clear()

    async def run(self, assignment: Assignment, progress: ReportProgress) -> None:
        while not self.nodes:
            await asyncio.sleep(0.1)
        node = min(self.nodes, key=lambda name: (self.busy[name], name))
        actor, job = self.nodes[node], assignment.request.parent.name
        self.busy[node] += 1
        reporting = None
        try:
            if not await actor.has_keys.remote(assignment.keys):
                await actor.receive_keys.remote(assignment.keys, ray.put(read_files(assignment.key_folder)))
            answer = actor.run.remote(
                job, assignment.network, assignment.keys, assignment.request.read_bytes(), assignment.dialect
            )
            reporting = asyncio.create_task(self.report(actor, job, progress))
            result = await answer
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self.remove_node(node)
            raise WorkerDied(f"node {node[:8]}") from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WorkerDied):
                raise WorkerDied(str(error.cause)) from error
            raise
        finally:
            if node in self.busy:
                self.busy[node] -= 1
            if reporting is not None:
                reporting.cancel()
        if isinstance(result, str):
            raise PolyNeXtError(result)
        ready = assignment.answer.with_suffix(".ready")
        ready.write_bytes(result)
        assignment.publish(ready)

    async def report(self, actor: Any, job: str, progress: ReportProgress) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            try:
                progress(await actor.progress_of.remote(job))
            except ray.exceptions.RayError:
                return

    def forget_keys(self, keys: str) -> None:
        for actor in self.nodes.values():
            actor.forget_keys.remote(keys)


def read_files(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_files(folder: Path, files: Files) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
