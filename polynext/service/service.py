"""The service without HTTP: takes keys and jobs, has them worked on in a fair order, and tells how they stand."""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError
from polynext.service.answering import Assignment
from polynext.service.log import Metrics, logger, tell
from polynext.service.networks import CIPHERTEXT, Network
from polynext.service.refusal import Refusal
from polynext.service.settings import Client, Settings
from polynext.service.store import ENDED, Job, KeySet, PartInfo, Store, save_durably
from polynext.service.workers import WorkerDied, Workers

HOUSEKEEPING_SECONDS = 10.0
MOST_EVENTS_A_SECOND = 5
ALIVE_SECONDS = 10.0


class Service:
    """Takes keys and jobs and has them answered. It runs in one event loop, except for checks of files, in threads."""

    def __init__(self, networks: Mapping[str, Network], workers: Workers, store: Store, settings: Settings):
        self.networks, self.workers, self.store, self.settings = dict(networks), workers, store, settings
        self.metrics = Metrics()
        self.progress: dict[str, float] = {}
        self.at_work: dict[str, asyncio.Task[None]] = {}
        self.uploading: set[tuple[str, str]] = set()
        self.changed = asyncio.Event()
        self.stopping = False
        self.loops: list[asyncio.Task[None]] = []
        self.check_memory()

    def check_memory(self) -> None:
        for network in self.networks.values():
            if network.spec.cost.key_bytes > self.settings.key_memory:
                raise PolyNeXtError(
                    f"one client's keys for {network.name} take {network.spec.cost.key_bytes / 2**20:.0f} MB, and "
                    f"{self.settings.key_memory / 2**20:.0f} MB are allowed for all keys: raise `key_memory`."
                )

    async def start(self) -> None:
        await self.workers.start()
        self.loops = [asyncio.create_task(self.dispatch()), asyncio.create_task(self.keep_house())]
        tell("started", offers=list(self.networks), waiting=len(self.store.jobs_in("queued")))

    async def stop(self) -> None:
        """Jobs at work are put back: the next start takes them up."""
        self.stopping = True
        self.wake()
        for running in [*self.loops, *self.at_work.values()]:
            running.cancel()
        await asyncio.gather(*self.loops, *self.at_work.values(), return_exceptions=True)
        await self.workers.stop()
        self.store.close()
        tell("stopped")

    def wake(self) -> None:
        """Whoever waits for a change looks again."""
        self.changed.set()
        self.changed = asyncio.Event()

    # Keys

    def network_of(self, fingerprint: str) -> Network:
        """One of the networks whose keys are like this: they may have several."""
        for network in self.networks.values():
            if network.spec.fingerprint == fingerprint:
                return network
        raise Refusal(404, "unknown_offer", f"no network here has parameters {fingerprint}: get the offer again.")

    def announce(self, fingerprint: str, parts: list[PartInfo], client: Client) -> tuple[KeySet, bool]:
        network = self.network_of(fingerprint)
        wanted = list(network.parts)
        if [part.name for part in parts] != wanted:
            names = ", ".join(wanted)
            raise Refusal(422, "invalid", f"`parts` must be those of the offer, in its order: {names}.")
        for part in parts:
            most = network.ring.most_bytes(network.parts[part.name])
            if part.bytes > most:
                sentence = f"{part.name} would have {part.bytes} bytes, and such a part has at most {most}."
                raise Refusal(413, "too_large", sentence)
        keys, new = self.store.announce_keys(fingerprint, client, parts)
        if new:
            tell("keys announced", keys=keys.id, client=client.name, bytes=sum(part.bytes for part in parts))
        return keys, new

    def find_keys(self, id: str, client: Client) -> KeySet:
        keys = self.store.key_set(id)
        if keys is None or not self.may_see(keys.client, client):
            raise Refusal(404, "unknown_keys", "these keys are not here, or not any more: announce and send them.")
        return keys

    def may_see(self, owner: str, client: Client) -> bool:
        """Without tokens, whoever knows the long random name of something may use it, from whichever address."""
        return owner == client.name or (is_address(owner) and is_address(client.name))

    def describe_keys(self, keys: KeySet) -> dict[str, Any]:
        return {
            "id": keys.id,
            "offer": keys.offer,
            "state": "ready" if self.store.complete(keys) else "incomplete",
            "expires": keys.used + self.settings.keys_seconds,
            "parts": [self.describe_part(keys, part) for part in keys.parts],
        }

    def describe_part(self, keys: KeySet, part: PartInfo) -> dict[str, Any]:
        complete = self.store.part(keys.id, part.name).is_file()
        received = part.bytes if complete else length(self.store.incoming(keys.id, part.name))
        return {"name": part.name, "bytes": part.bytes, "received": received, "complete": complete}

    async def receive_part(
        self, id: str, name: str, offset: int, body: AsyncIterator[bytes], client: Client
    ) -> dict[str, Any]:
        """Takes bytes of a part from an offset on. What arrived before a connection broke stays."""
        keys = self.find_keys(id, client)
        part = next((part for part in keys.parts if part.name == name), None)
        if part is None:
            raise Refusal(404, "unknown_part", f"these keys have no part {name!r}.")
        if (id, name) in self.uploading:
            raise Refusal(409, "busy", f"{name} is being sent by another connection: wait for it.", retry_after=1)
        self.uploading.add((id, name))
        try:
            status = self.describe_part(keys, part)
            if offset != status["received"] or status["complete"]:
                if status["complete"] and offset == status["received"]:
                    return status
                sentence = f"{status['received']} bytes of {name} are here: go on from there, not from {offset}."
                raise Refusal(409, "offset", sentence, 1, received=status["received"])
            await self.append(part, self.store.incoming(id, name), body)
            if length(self.store.incoming(id, name)) == part.bytes:
                await self.check_part(keys, part)
            return self.describe_part(keys, part)
        finally:
            self.uploading.discard((id, name))

    async def append(self, part: PartInfo, path: Path, body: AsyncIterator[bytes]) -> None:
        room = part.bytes - length(path)
        self.store.require_room(room)
        with self.store.writing(), path.open("ab") as file:
            async for piece in body:
                room -= len(piece)
                if room < 0:
                    file.truncate(0)
                    sentence = f"{part.name} has more than the {part.bytes} bytes that were announced: send it again."
                    raise Refusal(413, "too_large", sentence)
                file.write(piece)
                self.metrics.received.inc(len(piece))

    async def check_part(self, keys: KeySet, part: PartInfo) -> None:
        """A part that has arrived becomes one that can be loaded, or is thrown away."""
        network = self.network_of(keys.offer)
        incoming, checked = self.store.incoming(keys.id, part.name), self.store.part(keys.id, part.name)
        unpacked = checked.with_suffix(".unpacked")
        try:
            if await asyncio.to_thread(file_digest, incoming) != part.sha256:
                raise Refusal(422, "damaged", f"{part.name} arrived damaged (its SHA-256 differs): send it again.")
            self.store.require_room(network.ring.most_bytes(network.parts[part.name]))
            with self.store.writing():
                await asyncio.to_thread(network.ring.receive, incoming, unpacked, network.parts[part.name])
                unpacked.replace(checked)
        except PolyNeXtError as error:
            tell("part refused", keys=keys.id, part=part.name)
            raise Refusal(422, "wrong_part", sentence_without(error, incoming, part.name)) from error
        finally:
            unpacked.unlink(missing_ok=True)
            incoming.unlink(missing_ok=True)

    def forget_keys(self, id: str, client: Client) -> None:
        keys = self.find_keys(id, client)
        self.store.forget_keys(keys.id)
        self.workers.forget_keys(keys.id)
        tell("keys deleted", keys=keys.id, client=client.name)
        self.wake()

    # Jobs

    async def accept(self, id: str, offer: str, keys_id: str, body: AsyncIterator[bytes], client: Client) -> Job:
        """A job that is on the disk and in the queue when this returns. The same one again is the job it was."""
        network = self.networks.get(offer)
        if network is None:
            raise Refusal(404, "unknown_offer", f"there is no network {offer!r} here: see the list of offers.")
        most = network.ring.most_bytes(CIPHERTEXT)
        data = bytearray()
        async for piece in body:
            data += piece
            if len(data) > most:
                raise Refusal(413, "too_large", f"the ciphertext is longer than {most} bytes, which is the most.")
        self.metrics.received.inc(len(data))
        digest = hashlib.sha256(data).hexdigest()
        known = self.store.job(id)
        if known is not None:
            if (known.digest, known.offer, known.keys) != (digest, offer, keys_id):
                raise Refusal(409, "job_exists", "there is another job of this name: choose a random one for each.")
            return known
        if self.stopping:
            raise Refusal(503, "stopping", "the server is being stopped: try again soon.", retry_after=5)
        keys = self.find_keys(keys_id, client)
        if keys.offer != network.spec.fingerprint:
            sentence = f"these keys were made for parameters {keys.offer}, and {offer} has {network.spec.fingerprint}."
            raise Refusal(409, "keys_of_another_offer", f"{sentence[:-1]}: make keys for this offer.")
        if not self.store.complete(keys):
            raise Refusal(409, "keys_incomplete", "parts of these keys are missing: send them first.")
        self.store.require_place(client, network.spec.cost.seconds)
        self.store.require_room(3 * most)
        dialect = await self.save_request(id, network, bytes(data))
        known = self.store.job(id)  # somebody may have been faster, and others may have taken the last place
        if known is None:
            try:
                self.store.require_place(client, network.spec.cost.seconds)
            except Refusal:
                self.store.forget_job(id)
                raise
            known = self.store.add_job(id, offer, keys, client, digest, dialect)
            tell("job accepted", job=id, offer=offer, client=client.name, keys=keys.id)
            self.wake()
        return known

    async def save_request(self, id: str, network: Network, data: bytes) -> str:
        """Checks a ciphertext and puts it into its place; returns the dialect that it is in."""
        request = self.store.request(id)
        incoming, unpacked = (request.with_name(f"{os.urandom(4).hex()}.{kind}") for kind in ("incoming", "unpacked"))
        try:
            with self.store.writing():
                request.parent.mkdir(mode=0o700, exist_ok=True)
                await asyncio.to_thread(save_durably, incoming, data)
                dialect = await asyncio.to_thread(network.ring.receive, incoming, unpacked, CIPHERTEXT)
                await asyncio.to_thread(sync, unpacked)
                unpacked.replace(request)
                return dialect
        except PolyNeXtError as error:
            raise Refusal(422, "wrong_part", sentence_without(error, incoming, "the ciphertext")) from error
        finally:
            incoming.unlink(missing_ok=True)
            unpacked.unlink(missing_ok=True)
            if self.store.job(id) is None and not request.exists() and request.parent.exists():
                request.parent.rmdir()

    def find_job(self, id: str, client: Client) -> Job:
        job = self.store.job(id)
        if job is None or not self.may_see(job.client, client):
            raise Refusal(404, "unknown_job", "there is no such job, or it was forgotten.")
        return job

    def describe_job(self, job: Job) -> dict[str, Any]:
        queued = job.state == "queued"
        seconds = self.networks[job.offer].spec.cost.seconds if job.offer in self.networks else 1.0
        position = self.store.position(job) if queued else None
        wait = None if position is None else round(seconds * (position + 1) / max(self.workers.slots, 1), 1)
        return {
            "id": job.id,
            "offer": job.offer,
            "keys": job.keys,
            "state": job.state,
            "position": position,
            "progress": 1.0 if job.state == "done" else self.progress.get(job.id, 0.0),
            "created": job.created,
            "started": job.started,
            "finished": job.finished,
            "expires": None if job.finished is None else job.finished + self.settings.answer_seconds,
            "attempts": job.attempts,
            "error": job.error,
            "answer_bytes": length(self.store.answer(job.id)) or None if job.state == "done" else None,
            "retry_after": wait,
        }

    async def follow(self, id: str, client: Client) -> AsyncIterator[dict[str, Any] | None]:
        """How a job stands, now and at every change until it ends; None now and then, to show that this is alive."""
        last = None
        while True:
            changed = self.changed
            job = self.store.job(id)
            if job is None:
                return
            described = self.describe_job(job)
            if described != last:
                yield (last := described)
            if job.state in ENDED:
                return
            try:
                async with asyncio.timeout(ALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield None
            await asyncio.sleep(1 / MOST_EVENTS_A_SECOND)

    def answer(self, id: str, client: Client) -> Path:
        job = self.find_job(id, client)
        if job.state == "failed":
            raise Refusal(410, "failed", f"the job failed: {job.error}")
        if job.state == "expired":
            raise Refusal(410, "expired", "the answer was kept for a time and is gone: ask again.")
        if job.state != "done":
            raise Refusal(409, "not_done", f"the job is {job.state}: wait for it.", retry_after=1)
        return self.store.answer(id)

    def forget_job(self, id: str, client: Client) -> None:
        job = self.find_job(id, client)
        if job.id in self.at_work:
            self.at_work[job.id].cancel()
        self.store.forget_job(job.id)
        tell("job deleted", job=job.id, state=job.state)
        self.wake()

    # Work

    async def dispatch(self) -> None:
        """Starts jobs as long as there are workers for them."""
        while True:
            changed = self.changed
            try:
                while len(self.at_work) < self.workers.slots and (job := self.store.start_next()) is not None:
                    self.at_work[job.id] = asyncio.create_task(self.work(job))
                    self.wake()
            except Refusal:
                tell("no room to start a job", logging.ERROR)
            with suppress(TimeoutError):  # workers may come and go without telling
                async with asyncio.timeout(1):
                    await changed.wait()

    async def work(self, job: Job) -> None:
        try:
            await self.attempt(job)
        except asyncio.CancelledError:
            self.store.put_back(job.id)
            raise
        except Refusal:  # the disk is full: it is still down as running, and waits for the room to say so
            tell("no room to end a job", logging.ERROR, job=job.id)
            await asyncio.sleep(1)
            self.store.put_back(job.id)
        except Exception:
            logger.exception("a job failed unexpectedly")
            self.store.end(job.id, "failed", "the server made a mistake, and its operator can read which: ask again.")
        finally:
            self.at_work.pop(job.id, None)
            self.progress.pop(job.id, None)
            self.wake()

    async def attempt(self, job: Job) -> None:
        if job.offer not in self.networks:
            self.finish(job, "failed", f"{job.offer} is not offered any more.")
            return
        assignment = Assignment(
            job.offer,
            job.keys,
            self.store.keys / job.keys,
            self.store.request(job.id),
            self.store.answer(job.id),
            job.dialect,
        )
        start = time.monotonic()

        def progress(share: float) -> None:
            self.progress[job.id] = round(share, 2)
            self.wake()

        try:
            await self.workers.run(assignment, progress)
        except PolyNeXtError as error:
            self.finish(job, "failed", str(error))
        except WorkerDied as death:
            self.metrics.died.inc()
            if job.attempts >= self.settings.attempts:
                self.finish(job, "failed", f"it was started {job.attempts} times and no worker survived it: ask again.")
                return
            tell("worker died, the job is done again", logging.WARNING, job=job.id, how=str(death))
            self.store.put_back(job.id)
        else:
            self.metrics.seconds.labels(job.offer).observe(time.monotonic() - start)
            self.finish(job, "done")

    def finish(self, job: Job, state: Any, error: str | None = None) -> None:
        self.store.end(job.id, state, error)
        self.metrics.jobs.labels(job.offer, state).inc()
        tell("job ended", job=job.id, state=state, attempts=job.attempts, error=error)

    async def keep_house(self) -> None:
        while True:
            try:
                forgotten = self.store.expire()
                if forgotten:
                    tell("forgot", count=forgotten)
                    self.wake()
            except Refusal:
                tell("no room to forget", logging.ERROR)
            await asyncio.sleep(min(HOUSEKEEPING_SECONDS, self.settings.answer_seconds))

    def measure(self) -> Metrics:
        """The counters, with how things stand now."""
        ((keys, size),) = self.store.read("SELECT count(*), coalesce(sum(bytes), 0) FROM keys")
        self.metrics.queued.set(len(self.store.jobs_in("queued")))
        self.metrics.running.set(len(self.at_work))
        self.metrics.keys.set(keys)
        self.metrics.key_bytes.set(size)
        return self.metrics


def is_address(name: str) -> bool:
    """Clients without a token are named by their address, with a letter that no token's name begins with."""
    return name.startswith("@")


def length(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sentence_without(error: PolyNeXtError, path: Path, name: str) -> str:
    """A sentence about a file of ours, as one about what was sent."""
    return str(error).replace(path.name, name)
