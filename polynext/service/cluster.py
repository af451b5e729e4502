"""Workers on several machines, by Ray. Every node has one actor, which keeps an answerer as a single machine would
(`workers.py`) and fetches each program and each client's keys once. A node that dies has its jobs done again elsewhere;
nodes that join get an actor within seconds.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polynext.errors import PolyNeXtError
from polynext.service.answering import Assignment
from polynext.service.settings import Settings
from polynext.service.workers import LocalWorkers, Progress, WorkerDied, Workers

LOOK_SECONDS = 2.0
PROGRESS_SECONDS = 0.5

Files = dict[str, bytes]


class Node:
    """What runs on a node: an answerer, and the files it was sent."""

    def __init__(self, networks: dict[str, Files], settings: Settings):
        self.folder = Path(tempfile.mkdtemp(prefix="polynext-node-"))
        folders = {name: write_files(self.folder / "networks" / name, files) for name, files in networks.items()}
        self.workers = LocalWorkers(folders, settings)
        self.progress: dict[str, float] = {}

    async def start(self) -> None:
        await self.workers.start()

    def has_keys(self, keys: str) -> bool:
        return (self.folder / "keys" / keys).is_dir()

    def take_keys(self, keys: str, files: Files) -> None:
        if not self.has_keys(keys):
            write_files(self.folder / "arriving" / keys, files)
            (self.folder / "keys").mkdir(exist_ok=True)
            (self.folder / "arriving" / keys).replace(self.folder / "keys" / keys)

    def forget_keys(self, keys: str) -> None:
        self.workers.forget_keys(keys)
        shutil.rmtree(self.folder / "keys" / keys, ignore_errors=True)

    async def run(self, job: str, network: str, keys: str, request: bytes, dialect: str) -> bytes | str:
        """The answer, or the sentence that refuses it."""
        folder = write_files(self.folder / "jobs" / job, {"request": request})
        assignment = Assignment(
            network, keys, self.folder / "keys" / keys, folder / "request", folder / "answer", dialect
        )
        try:
            await self.workers.run(assignment, lambda share: self.progress.update({job: share}))
            return (folder / "answer").read_bytes()
        except PolyNeXtError as error:
            return str(error)
        finally:
            self.progress.pop(job, None)
            shutil.rmtree(folder, ignore_errors=True)

    def how_far(self, job: str) -> float:
        return self.progress.get(job, 0.0)


class RayWorkers(Workers):
    """An answerer on every node of a Ray cluster. `settings.workers` is for each node."""

    def __init__(self, networks: Mapping[str, Path], settings: Settings, address: str):
        self.networks = {name: read_files(folder) for name, folder in networks.items()}
        self.settings, self.address = settings, address
        self.nodes: dict[str, Any] = {}
        self.starting: set[str] = set()
        self.busy: Counter[str] = Counter()
        self.looking: asyncio.Task[None] | None = None

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
        self.sent = ray.put(self.networks)  # every node fetches it once
        self.looking = asyncio.create_task(self.look())
        while not self.nodes:
            if self.looking.done():
                self.looking.result()
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Gives an actor to nodes that joined."""
        while True:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
            for node in set(self.nodes) - alive:
                self.lose(node)
            await asyncio.gather(*(self.join(node) for node in alive - set(self.nodes)))
            await asyncio.sleep(LOOK_SECONDS)

    async def join(self, node: str) -> None:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(Node).options(scheduling_strategy=where, num_cpus=0, max_concurrency=64)
        made = actor.remote(self.sent, self.settings)
        try:
            await made.start.remote()
            self.nodes[node] = made
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PolyNeXtError):
                raise PolyNeXtError(str(error.cause)) from error
            raise
        except ray.exceptions.RayError:
            pass  # gone before it was there; the next look sees what became of it

    def lose(self, node: str) -> None:
        self.nodes.pop(node, None)
        self.busy.pop(node, None)

    async def stop(self) -> None:
        if self.looking is not None:
            self.looking.cancel()
            await asyncio.gather(self.looking, return_exceptions=True)
        for actor in self.nodes.values():
            ray.kill(actor)
        self.nodes.clear()

    async def run(self, assignment: Assignment, progress: Progress) -> None:
        while not self.nodes:
            await asyncio.sleep(0.1)
        node = min(self.nodes, key=lambda name: (self.busy[name], name))
        actor, job = self.nodes[node], assignment.request.parent.name
        self.busy[node] += 1
        telling = None
        try:
            if not await actor.has_keys.remote(assignment.keys):
                await actor.take_keys.remote(assignment.keys, ray.put(read_files(assignment.key_folder)))
            answer = actor.run.remote(
                job, assignment.network, assignment.keys, assignment.request.read_bytes(), assignment.dialect
            )
            telling = asyncio.create_task(self.tell(actor, job, progress))
            result = await answer
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self.lose(node)
            raise WorkerDied(f"node {node[:8]}") from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WorkerDied):
                raise WorkerDied(str(error.cause)) from error
            raise
        finally:
            if node in self.busy:
                self.busy[node] -= 1
            if telling is not None:
                telling.cancel()
        if isinstance(result, str):
            raise PolyNeXtError(result)
        ready = assignment.answer.with_suffix(".ready")
        ready.write_bytes(result)
        ready.replace(assignment.answer)

    async def tell(self, actor: Any, job: str, progress: Progress) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            try:
                progress(await actor.how_far.remote(job))
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
