"""The service without HTTP: receives keys and jobs, runs jobs in a fair order, and reports their state."""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from polynext.encrypted.key_folder import flush
from polynext.encrypted.messages import JobState, KeysState, Manifest, ManifestPart, PartState
from polynext.errors import PolyNeXtError
from polynext.service.inference import Assignment
from polynext.service.log import Metrics, log_event, logger
from polynext.service.networks import CIPHERTEXT, ServedNetwork
from polynext.service.refusal import Refusal
from polynext.service.settings import Caller, Settings
from polynext.service.store import ENDED, LOST_ANSWER, Job, KeySet, State, Store, file_size
from polynext.service.workers import WorkerDied, Workers

CLEANUP_SECONDS = 2.0
EVENTS_PER_SECOND = 5
KEEPALIVE_SECONDS = 10.0
INTERNAL_ERROR = "internal server error: the server's log has the details. Try again."


class Service:
    """Receives keys and jobs and runs the jobs. All of it runs in one event loop; threads only check files."""

    def __init__(self, networks: Mapping[str, ServedNetwork], workers: Workers, store: Store, settings: Settings):
        self.networks, self.workers, self.store, self.settings = dict(networks), workers, store, settings
        self.metrics = Metrics()
        self.progress: dict[str, float] = {}
        self.running: dict[str, asyncio.Task[None]] = {}
        self.uploading: set[tuple[str, str]] = set()  # keys and part
        self.accepting: set[str] = set()  # jobs whose body is being received
        self.changed = asyncio.Event()
        self.stopping = False
        self.loops: list[asyncio.Task[None]] = []
        for network in self.networks.values():
            if network.spec.cost.key_bytes > settings.key_memory:
                raise PolyNeXtError(
                    f"one client's keys for {network.name} take {network.spec.cost.key_bytes / 2**20:.0f} MB, and "
                    f"`key_memory` is {settings.key_memory / 2**20:.0f} MB for all clients: raise it."
                )

    async def start(self) -> None:
        await self.workers.start()
        self.loops = [asyncio.create_task(self.dispatch()), asyncio.create_task(self.clean_up())]
        log_event("started", networks=list(self.networks), queued=len(self.store.jobs_in("queued")))

    async def stop(self) -> None:
        """Stop. Running jobs return to the queue and run after the next start."""
        self.stopping = True
        self.notify()
        for task in [*self.loops, *self.running.values()]:
            task.cancel()
        await asyncio.gather(*self.loops, *self.running.values(), return_exceptions=True)
        await self.workers.stop()
        self.store.close()
        log_event("stopped")

    def notify(self) -> None:
        """Wake all coroutines that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def find_network(self, name: str) -> ServedNetwork:
        if name not in self.networks:
            raise Refusal(404, "unknown_network", f"there is no network {name!r}: GET /v1/networks lists them.")
        return self.networks[name]

    # Keys

    def network_for(self, fingerprint: str) -> ServedNetwork:
        """A network whose client spec has this fingerprint. If several have, their keys are alike."""
        for network in self.networks.values():
            if network.spec.fingerprint == fingerprint:
                return network
        message = f"no network has a client spec with fingerprint {fingerprint}: get the client spec again."
        raise Refusal(404, "unknown_client_spec", message)

    def announce(self, manifest: Manifest, caller: Caller) -> tuple[KeySet, bool]:
        """The key set of a manifest, and whether it is new."""
        network, parts = self.network_for(manifest.client_spec), manifest.parts
        if [part.name for part in parts] != list(network.parts):
            names = ", ".join(network.parts)
            raise Refusal(422, "invalid", f"`parts` must be those of the client spec, in its order: {names}.")
        for part in parts:
            most = network.ring.most_bytes(network.parts[part.name])
            if part.bytes > most:
                raise Refusal(413, "too_large", f"{part.name} has {part.bytes} bytes, and the limit is {most}.")
        keys, new = self.store.announce_keys(manifest, caller)
        if new:
            log_event("keys announced", keys=keys.id, caller=caller.name, bytes=sum(part.bytes for part in parts))
        return keys, new

    def find_keys(self, id: str, caller: Caller) -> KeySet:
        keys = self.store.key_set(id)
        if keys is None or not may_access(keys.caller, caller):
            raise Refusal(404, "unknown_keys", "the server does not have these keys: announce and send them.")
        return keys

    def describe_keys(self, keys: KeySet) -> KeysState:
        return KeysState(
            id=keys.id,
            client_spec=keys.client_spec,
            state="ready" if self.store.complete(keys) else "incomplete",
            expires=keys.used + self.settings.keys_seconds,
            parts=[self.describe_part(keys, part) for part in keys.parts],
        )

    def describe_part(self, keys: KeySet, part: ManifestPart) -> PartState:
        complete = self.store.part(keys.id, part.name).is_file()
        received = part.bytes if complete else file_size(self.store.incoming(keys.id, part.name))
        return PartState(name=part.name, bytes=part.bytes, received=received, complete=complete)

    async def receive_part(
        self, id: str, name: str, offset: int, body: AsyncIterator[bytes], caller: Caller
    ) -> PartState:
        """Append bytes to a part. Bytes that arrived before a connection broke are kept."""
        keys = self.find_keys(id, caller)
        part = next((part for part in keys.parts if part.name == name), None)
        if part is None:
            raise Refusal(404, "unknown_part", f"these keys have no part {name!r}.")
        if (id, name) in self.uploading:
            raise Refusal(409, "busy", f"another connection is sending {name}: wait for it.", retry_after=1)
        self.uploading.add((id, name))
        try:
            state = self.describe_part(keys, part)
            if offset != state.received:
                message = f"the server has {state.received} bytes of {name}: continue there, not at {offset}."
                raise Refusal(409, "offset", message, 1, received=state.received)
            if state.complete:
                return state
            incoming = self.store.incoming(id, name)
            await self.append(keys, part, incoming, body)
            self.store.touch_keys(id)
            if file_size(incoming) == part.bytes:
                await self.check_part(keys, part)
            return self.describe_part(keys, part)
        finally:
            self.uploading.discard((id, name))

    async def append(self, keys: KeySet, part: ManifestPart, path: Path, body: AsyncIterator[bytes]) -> None:
        missing = part.bytes - file_size(path)
        with self.store.writing(), path.open("ab") as file:
            async for piece in body:
                missing -= len(piece)
                if missing < 0:
                    file.truncate(0)
                    self.store.measure_keys(keys.id)
                    message = f"{part.name} has more than the {part.bytes} bytes that were announced: send it again."
                    raise Refusal(413, "too_large", message)
                self.store.grow(keys, len(piece))
                file.write(piece)
                self.metrics.received.inc(len(piece))

    async def check_part(self, keys: KeySet, part: ManifestPart) -> None:
        """Check a part that has arrived, and convert it to a file that the ring can load; delete it if it is wrong."""
        network = self.network_for(keys.client_spec)
        incoming, checked = self.store.incoming(keys.id, part.name), self.store.part(keys.id, part.name)
        unpacked = checked.with_suffix(".unpacked")
        try:
            if await asyncio.to_thread(file_digest, incoming) != part.sha256:
                raise Refusal(422, "damaged", f"{part.name} arrived damaged (its SHA-256 differs): send it again.")
            self.store.grow(keys, network.ring.most_bytes(network.parts[part.name]))
            with self.store.writing():
                await asyncio.to_thread(network.ring.receive, incoming, unpacked, network.parts[part.name])
                unpacked.replace(checked)
        except PolyNeXtError as error:
            log_event("part refused", keys=keys.id, part=part.name)
            raise Refusal(422, "wrong_part", str(error).replace(incoming.name, part.name)) from error
        finally:
            unpacked.unlink(missing_ok=True)
            incoming.unlink(missing_ok=True)
            self.store.measure_keys(keys.id)

    def delete_keys(self, id: str, caller: Caller) -> None:
        keys = self.find_keys(id, caller)
        self.store.delete_keys(keys.id)
        self.forget_deleted_keys()
        log_event("keys deleted", keys=keys.id, caller=caller.name)
        self.notify()

    def forget_deleted_keys(self) -> None:
        """Tell the workers which keys were deleted."""
        while self.store.deleted_keys:
            self.workers.forget_keys(self.store.deleted_keys.pop())

    # Jobs

    async def accept(self, id: str, name: str, keys_id: str, body: AsyncIterator[bytes], caller: Caller) -> Job:
        """Save a job and put it into the queue. A job with the same id, content, network and keys is the same job.

        Everything that does not depend on the body is checked before it is read.
        """
        network, known = self.find_network(name), self.store.job(id)
        taken = Refusal(409, "job_exists", "another job has this id: choose a random id for each job.")
        if known is not None and (
            not may_access(known.caller, caller) or (known.network, known.keys) != (name, keys_id)
        ):
            raise taken
        most = network.ring.most_bytes(CIPHERTEXT)
        if known is None:
            self.require_keys(network, keys_id, caller)
            self.store.require_queue_slot(caller, network.spec.cost.seconds)
            self.store.require_space(3 * most)
        if id in self.accepting:
            raise Refusal(409, "busy", "another connection is submitting this job: wait for it.", retry_after=1)
        self.accepting.add(id)
        folder = self.store.request(id).parent
        incoming = folder / f"{os.urandom(4).hex()}.incoming"
        try:
            with self.store.writing():
                folder.mkdir(mode=0o700, exist_ok=True)
                digest = await self.save_ciphertext(incoming, body, most)
            if known is not None:
                if known.digest != digest:
                    raise taken
                return known
            dialect = await self.convert_ciphertext(incoming, self.store.request(id), network)
            keys = self.require_keys(network, keys_id, caller)  # again: they may have been deleted in the meantime
            self.store.require_queue_slot(caller, network.spec.cost.seconds)
            added = self.store.add_job(id, name, keys, caller, digest, dialect)
            log_event("job accepted", job=id, network=name, caller=caller.name, keys=keys.id)
            self.notify()
            return added
        finally:
            self.accepting.discard(id)
            incoming.unlink(missing_ok=True)
            if self.store.job(id) is None:
                self.store.delete_job(id)

    def require_keys(self, network: ServedNetwork, id: str, caller: Caller) -> KeySet:
        """The complete keys for a network, unless the service is stopping."""
        if self.stopping:
            raise Refusal(503, "stopping", "the server is stopping: try again soon.", retry_after=5)
        keys = self.find_keys(id, caller)
        if keys.client_spec != network.spec.fingerprint:
            message = (
                f"these keys were made for client spec {keys.client_spec}, and {network.name} has "
                f"{network.spec.fingerprint}: make keys for this network."
            )
            raise Refusal(409, "wrong_keys", message)
        if not self.store.complete(keys):
            raise Refusal(409, "keys_incomplete", "parts of these keys are missing: send them first.")
        return keys

    async def save_ciphertext(self, path: Path, body: AsyncIterator[bytes], most: int) -> str:
        """Save a body of at most `most` bytes, and return its hash."""
        digest, total = hashlib.sha256(), 0
        with path.open("wb") as file:
            async for piece in body:
                total += len(piece)
                if total > most:
                    raise Refusal(413, "too_large", f"the ciphertext is longer than {most} bytes, the limit.")
                digest.update(piece)
                file.write(piece)
        self.metrics.received.inc(total)
        return digest.hexdigest()

    async def convert_ciphertext(self, incoming: Path, request: Path, network: ServedNetwork) -> str:
        """Check a ciphertext and save it as the job's request; returns its dialect."""
        unpacked = incoming.with_suffix(".unpacked")
        try:
            with self.store.writing():
                dialect = await asyncio.to_thread(network.ring.receive, incoming, unpacked, CIPHERTEXT)
                await asyncio.to_thread(flush, unpacked)
                unpacked.replace(request)
                return dialect
        except PolyNeXtError as error:
            raise Refusal(422, "wrong_part", str(error).replace(incoming.name, "the ciphertext")) from error
        finally:
            unpacked.unlink(missing_ok=True)

    def find_job(self, id: str, caller: Caller) -> Job:
        job = self.store.job(id)
        if job is None or not may_access(job.caller, caller):
            raise Refusal(404, "unknown_job", "there is no such job, or it was deleted.")
        return job

    def describe_job(self, job: Job) -> JobState:
        network = self.networks.get(job.network)
        seconds = 1.0 if network is None else network.spec.cost.seconds
        position = self.store.position(job) if job.state == "queued" else None
        wait = None if position is None else seconds * (position + 1) / max(self.workers.slots, 1)
        done = job.state == "done"
        return JobState(
            **asdict(job),
            position=position,
            progress=1.0 if done else self.progress.get(job.id, 0.0),
            expires=None if job.finished is None else job.finished + self.settings.answer_seconds,
            answer_bytes=file_size(self.store.answer(job.id)) or None if done else None,
            retry_after=None if wait is None else round(wait, 1),
        )

    async def follow(self, id: str) -> AsyncIterator[JobState | None]:
        """The state of a job, now and at every change until it ends; None as a sign of life if nothing changes."""
        last = None
        while True:
            changed = self.changed
            job = self.store.job(id)
            if job is None:
                return
            state = self.describe_job(job)
            if state != last:
                yield (last := state)
            if job.state in ENDED:
                return
            try:
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield None
            await asyncio.sleep(1 / EVENTS_PER_SECOND)

    def answer(self, id: str, caller: Caller) -> Path:
        job = self.find_job(id, caller)
        if job.state == "failed":
            raise Refusal(410, "failed", f"the job failed: {job.error}")
        if job.state == "expired":
            raise Refusal(410, "expired", "the answer has expired: submit a new job.")
        if job.state != "done":
            raise Refusal(409, "not_done", f"the job is {job.state}: wait for it.", retry_after=1)
        if not self.store.has_answer(id):
            self.finish(job, "failed", LOST_ANSWER)
            self.notify()
            raise Refusal(410, "failed", f"the job failed: {LOST_ANSWER}")
        return self.store.answer(id)

    def delete_job(self, id: str, caller: Caller) -> None:
        job = self.find_job(id, caller)
        if job.id in self.running:
            self.running[job.id].cancel()
        self.store.delete_job(job.id)
        log_event("job deleted", job=job.id, state=job.state)
        self.notify()

    # Work

    async def dispatch(self) -> None:
        """Start jobs while workers are free."""
        while True:
            changed = self.changed
            try:
                while len(self.running) < self.workers.slots and (job := self.store.start_next()) is not None:
                    self.running[job.id] = asyncio.create_task(self.run(job))
                    self.notify()
            except Refusal:
                log_event("disk full, cannot start a job", logging.ERROR)
            with suppress(TimeoutError):  # workers may join or leave without a notification
                async with asyncio.timeout(1):
                    await changed.wait()

    async def run(self, job: Job) -> None:
        try:
            await self.attempt(job)
        except asyncio.CancelledError:
            self.store.put_back(job.id, uncount=True)
            raise
        except Refusal:  # the disk is full, so the outcome cannot be saved: run the job again
            log_event("disk full, cannot finish a job", logging.ERROR, job=job.id)
            await asyncio.sleep(1)
            self.store.put_back(job.id, uncount=True)
        except Exception:
            logger.exception("a job failed unexpectedly")
            self.store.end(job.id, "failed", INTERNAL_ERROR)
        finally:
            self.running.pop(job.id, None)
            self.progress.pop(job.id, None)
            self.notify()

    async def attempt(self, job: Job) -> None:
        if job.network not in self.networks:
            self.finish(job, "failed", f"this service no longer has the network {job.network}.")
            return
        key_folder, request, answer = self.store.keys / job.keys, self.store.request(job.id), self.store.answer(job.id)
        assignment = Assignment(job.network, job.keys, key_folder, request, answer, job.dialect)
        start = time.monotonic()

        def progress(share: float) -> None:
            self.progress[job.id] = round(share, 2)
            self.notify()

        try:
            await self.workers.run(assignment, progress)
        except PolyNeXtError as error:
            self.finish(job, "failed", str(error))
        except WorkerDied as death:
            self.metrics.died.inc()
            if job.attempts >= self.settings.attempts:
                self.finish(job, "failed", f"the worker died in each of {job.attempts} attempts: try again.")
                return
            log_event("worker died, job returns to the queue", logging.WARNING, job=job.id, reason=str(death))
            self.store.put_back(job.id)
        else:
            self.metrics.seconds.labels(job.network).observe(time.monotonic() - start)
            self.finish(job, "done")

    def finish(self, job: Job, state: State, error: str | None = None) -> None:
        self.store.end(job.id, state, error)
        self.metrics.jobs.labels(job.network, state).inc()
        log_event("job ended", job=job.id, state=state, attempts=job.attempts, error=error)

    async def clean_up(self) -> None:
        while True:
            try:
                if deleted := self.store.expire():
                    log_event("expired keys and jobs deleted", count=deleted)
                    self.notify()
            except Refusal:
                log_event("disk full, cannot delete expired keys and jobs", logging.ERROR)
            self.forget_deleted_keys()
            await asyncio.sleep(CLEANUP_SECONDS)

    def measure(self) -> Metrics:
        """The metrics, with current values of the gauges."""
        self.metrics.queued.set(len(self.store.jobs_in("queued")))
        self.metrics.running.set(len(self.running))
        self.metrics.keys.set(len(self.store.stored))
        self.metrics.key_bytes.set(sum(self.store.stored.values()))
        return self.metrics


def may_access(owner: str, caller: Caller) -> bool:
    """Without tokens, a caller is an address (`@...`), and everybody who knows a random id may use it."""
    return owner == caller.name or (owner.startswith("@") and caller.name.startswith("@"))


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
