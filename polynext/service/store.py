"""Keys and jobs of a service, in a folder with an SQLite database. They survive a restart.

    store.sqlite              key sets and jobs
    keys/ID/PART              a checked part of evaluation keys
    keys/ID/PART.incoming     the bytes of a part that have arrived so far
    jobs/ID/request, answer   ciphertexts

Jobs start in the order of their `turn`. A job's turn is one after the last turn of the same caller, but not before the
turn of the last started job. Jobs of different callers therefore alternate: a single job does not wait for a hundred
jobs of another caller, however many key sets that has.
"""

import errno
import hashlib
import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from polynext.encrypted.messages import Manifest, ManifestPart
from polynext.errors import PolyNeXtError
from polynext.files import lock_folder
from polynext.service.refusal import Refusal, disk_full
from polynext.service.settings import Caller, Settings

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
State = Literal["queued", "running", "done", "failed", "expired"]
ENDED = ("done", "failed", "expired")
OPEN = "state IN ('queued', 'running')"

LOST_ANSWER = "the server lost the answer: submit a new job."
SCHEMA_VERSION = 1

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, client_spec TEXT NOT NULL, caller TEXT NOT NULL, parts TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, network TEXT NOT NULL, keys TEXT NOT NULL, caller TEXT NOT NULL, digest TEXT NOT NULL,
    dialect TEXT NOT NULL, turn INTEGER NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL,
    finished REAL, attempts INTEGER NOT NULL DEFAULT 0, error TEXT) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_turn ON jobs (state, turn, created);
PRAGMA user_version = {SCHEMA_VERSION};
"""
# Version 0 is a store from before the schema had a version. It used other column names.
MIGRATION = """
BEGIN;
ALTER TABLE keys RENAME COLUMN offer TO client_spec;
ALTER TABLE keys RENAME COLUMN client TO caller;
ALTER TABLE jobs RENAME COLUMN offer TO network;
ALTER TABLE jobs RENAME COLUMN client TO caller;
COMMIT;
"""


@dataclass(frozen=True)
class KeySet:
    """Announced evaluation keys. `client_spec` is the fingerprint that they were made for."""

    id: str
    client_spec: str
    caller: str
    parts: list[ManifestPart]
    used: float


@dataclass(frozen=True)
class Job:
    """A ciphertext to compute on, and the state of that."""

    id: str
    network: str
    keys: str
    caller: str
    digest: str
    dialect: str
    turn: int
    state: State
    created: float
    started: float | None
    finished: float | None
    attempts: int
    error: str | None


COLUMNS = ", ".join(field.name for field in fields(Job))


class Store:
    """Keys and jobs in a folder. A lock ensures that only one process uses it."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder, self.settings = folder, settings
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.keys, self.jobs = folder / "keys", folder / "jobs"
        for place in (self.keys, self.jobs):
            place.mkdir(mode=0o700, exist_ok=True)
        self.deleted_keys: list[str] = []  # which workers may still have
        self.arrived: dict[str, float] = {}  # when the last byte of a key set arrived
        self.lock = ExitStack()
        message = f"another service uses {folder}: stop it, or choose another `data` folder."
        self.lock.enter_context(lock_folder(folder, message))
        self.database = sqlite3.connect(folder / "store.sqlite", isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")  # an accepted job is on disk
        self.update_schema()
        self.recover()
        self.stored = {path.name: folder_size(path) for path in self.keys.iterdir()}  # bytes of each key set

    def update_schema(self) -> None:
        """Create the tables, or rename the columns of an older version."""
        ((version,),) = self.read("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            self.close()
            raise PolyNeXtError(
                f"{self.folder} was written by a newer version of polynext: install that version, or choose another "
                "`data` folder."
            )
        if version == 0 and self.read("SELECT name FROM sqlite_master WHERE name = 'jobs'"):
            self.database.executescript(MIGRATION)
        self.database.executescript(SCHEMA)

    def close(self) -> None:
        self.database.close()
        self.lock.close()

    def recover(self) -> None:
        """After a restart, put running jobs back into the queue, end those without files, and remove unknown files.

        A job that was running when the service died may be the reason for that, so its attempts count.
        """
        for job in self.jobs_in("running"):
            if job.attempts >= self.settings.attempts:
                message = f"the server stopped unexpectedly in each of {job.attempts} attempts: submit a new job."
                self.end(job.id, "failed", message)
        self.write("UPDATE jobs SET state = 'queued', started = NULL WHERE state = 'running'")
        for job in self.jobs_in("done"):
            if not self.has_answer(job.id):
                self.end(job.id, "failed", LOST_ANSWER)
        for job in self.jobs_in("queued"):
            if not self.request(job.id).is_file():
                self.end(job.id, "failed", "the server lost the request: submit a new job.")
        known = self.first_column("SELECT id FROM jobs UNION SELECT id FROM keys")
        for folder in [*self.keys.iterdir(), *self.jobs.iterdir()]:
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of a full disk into a refusal."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                raise disk_full() from error
            raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise disk_full() from error
            raise

    def read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(query, values).fetchall()

    def first_column(self, query: str, *values: Any) -> list[Any]:
        return [row[0] for row in self.read(query, *values)]

    def write(self, query: str, *values: Any) -> None:
        with self.writing():
            self.database.execute(query, values)

    def require_space(self, count: int) -> None:
        if shutil.disk_usage(self.folder).free < count + self.settings.free_disk:
            raise disk_full()

    # Keys

    def announce_keys(self, manifest: Manifest, caller: Caller) -> tuple[KeySet, bool]:
        """The key set of a manifest, and whether it is new."""
        client_spec, parts = manifest.client_spec, manifest.parts
        text = json.dumps([[part.name, part.bytes, part.sha256] for part in parts])
        id = hashlib.sha256(f"{client_spec} {text}".encode()).hexdigest()[:32]
        known = self.key_set(id)
        if known is not None:
            if known.caller != caller.name:
                id = hashlib.sha256(f"{caller.name} {id}".encode()).hexdigest()[:32]
                known = self.key_set(id)
            if known is not None:
                return known, False
        ((mine,),) = self.read("SELECT count(*) FROM keys WHERE caller = ?", caller.name)
        if mine >= caller.keys:
            raise Refusal(
                429,
                "too_many_keys",
                f"you have {mine} of at most {caller.keys} key sets on this server: delete one, or use one of them.",
                retry_after=60,
            )
        size, now = sum(part.bytes for part in parts), time.time()
        with self.writing():
            (self.keys / id).mkdir(mode=0o700, exist_ok=True)
        self.stored[id] = 0
        self.write("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)", id, client_spec, caller.name, text, size, now, now)
        return KeySet(id, client_spec, caller.name, parts, now), True

    def key_set(self, id: str) -> KeySet | None:
        rows = self.read("SELECT client_spec, caller, parts, used FROM keys WHERE id = ?", id)
        for client_spec, caller, text, used in rows:
            parts = [ManifestPart(name=name, bytes=size, sha256=sha256) for name, size, sha256 in json.loads(text)]
            return KeySet(id, client_spec, caller, parts, used)
        return None

    def part(self, keys: str, name: str) -> Path:
        return self.keys / keys / name

    def incoming(self, keys: str, name: str) -> Path:
        return self.keys / keys / f"{name}.incoming"

    def complete(self, keys: KeySet | None) -> bool:
        return keys is not None and all(self.part(keys.id, part.name).is_file() for part in keys.parts)

    def grow(self, keys: KeySet, size: int) -> None:
        """Count bytes of keys that arrive. If the disk is full, keys of the caller with the most bytes are deleted,
        unless that is this caller: every caller can have an equal share."""
        if keys.id not in self.stored:
            raise Refusal(404, "unknown_keys", "these keys were deleted while they arrived: announce them again.")
        self.require_space(size)
        while sum(self.stored.values()) + size > self.settings.key_disk:
            victim = self.least_needed(keys, size)
            if victim is None:
                raise disk_full()
            self.delete_keys(victim)
        self.stored[keys.id] += size
        self.arrived[keys.id] = time.time()

    def least_needed(self, keys: KeySet, size: int) -> str | None:
        """The least recently used key set without open jobs of the caller with the most bytes, if that is more than
        the caller of `keys` would have."""
        rows = self.read("SELECT id, caller FROM keys ORDER BY used")
        busy = self.first_column(f"SELECT keys FROM jobs WHERE {OPEN}")
        totals: Counter[str] = Counter()
        for id, caller in rows:
            totals[caller] += self.stored.get(id, 0)
        for heaviest, total in totals.most_common():
            if heaviest == keys.caller or total <= totals[keys.caller] + size:
                return None
            for id, caller in rows:
                if caller == heaviest and id not in busy and self.stored.get(id, 0):
                    return id
        return None

    def measure_keys(self, id: str) -> None:
        """Count the bytes of a key set anew, after its files were converted or deleted."""
        if id in self.stored:
            self.stored[id] = folder_size(self.keys / id)

    def delete_keys(self, id: str) -> None:
        """Delete keys. Queued jobs that use them fail."""
        for job in self.jobs_in("queued"):
            if job.keys == id:
                self.end(job.id, "failed", "its keys were deleted before it ran.")
        self.write("DELETE FROM keys WHERE id = ?", id)
        self.stored.pop(id, None)
        self.arrived.pop(id, None)
        self.deleted_keys.append(id)
        shutil.rmtree(self.keys / id, ignore_errors=True)

    # Jobs

    def request(self, job: str) -> Path:
        return self.jobs / job / "request"

    def answer(self, job: str) -> Path:
        return self.jobs / job / "answer"

    def has_answer(self, job: str) -> bool:
        return file_size(self.answer(job)) > 0

    def job(self, id: str) -> Job | None:
        for row in self.read(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", id):
            return Job(*row)
        return None

    def jobs_in(self, *states: State) -> list[Job]:
        """Jobs in the order in which they start."""
        marks = ", ".join("?" * len(states))
        rows = self.read(f"SELECT {COLUMNS} FROM jobs WHERE state IN ({marks}) ORDER BY turn, created", *states)
        return [Job(*row) for row in rows]

    def require_queue_slot(self, caller: Caller, seconds: float) -> None:
        """Refuse a job beyond the limits. `seconds` is the expected time of a job."""
        ((waiting,),) = self.read("SELECT count(*) FROM jobs WHERE state = 'queued'")
        retry = max(1.0, round(seconds * waiting / self.settings.workers / 2))
        if waiting >= self.settings.queue:
            raise Refusal(429, "queue_full", f"{waiting} jobs are in the queue: try again in {retry:.0f} s.", retry)
        ((mine, queued),) = self.read(
            f"SELECT count(*), coalesce(sum(state = 'queued'), 0) FROM jobs WHERE caller = ? AND {OPEN}", caller.name
        )
        # The fuller the queue, the fewer slots a caller may have. With k busy callers each has a share of 1 / (k + 1),
        # and as much is left for those without jobs.
        if queued > self.settings.queue - waiting:
            message = f"you have {queued} of {waiting} jobs in the queue: try again in {retry:.0f} s."
            raise Refusal(429, "queue_full", message, retry)
        if mine >= caller.jobs:
            message = f"you have {mine} open jobs, and the limit is {caller.jobs}: try again in {retry:.0f} s."
            raise Refusal(429, "too_many_jobs", message, retry)

    def add_job(self, id: str, network: str, keys: KeySet, caller: Caller, digest: str, dialect: str) -> Job:
        """Add a job whose request is already saved."""
        ((last_started,),) = self.read("SELECT coalesce(max(turn), 0) FROM jobs WHERE state != 'queued'")
        ((last,),) = self.read("SELECT coalesce(max(turn), 0) FROM jobs WHERE caller = ?", caller.name)
        turn, now = max(last_started, last + 1), time.time()
        self.write(
            "INSERT INTO jobs (id, network, keys, caller, digest, dialect, turn, state, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?)",
            *(id, network, keys.id, caller.name, digest, dialect, turn, now),
        )
        self.touch_keys(keys.id)
        job = self.job(id)
        assert job is not None
        return job

    def position(self, job: Job) -> int:
        """The number of queued jobs before this one."""
        query = "SELECT count(*) FROM jobs WHERE state = 'queued' AND (turn, created) < (?, ?)"
        return self.first_column(query, job.turn, job.created)[0]

    def start_next(self) -> Job | None:
        """Take the next job from the queue."""
        for job in self.jobs_in("queued")[:1]:
            query = "UPDATE jobs SET state = 'running', started = ?, attempts = attempts + 1 WHERE id = ?"
            self.write(query, time.time(), job.id)
            return self.job(job.id)
        return None

    def put_back(self, id: str, uncount: bool = False) -> None:
        """Return a job to its old place in the queue, the first. `uncount`: its attempt does not count."""
        self.write(
            "UPDATE jobs SET state = 'queued', started = NULL, attempts = attempts - ? "
            "WHERE id = ? AND state = 'running'",
            int(uncount),
            id,
        )

    def end(self, id: str, state: State, error: str | None = None) -> None:
        """Save the outcome and delete the request."""
        self.write("UPDATE jobs SET state = ?, finished = ?, error = ? WHERE id = ?", state, time.time(), error, id)
        self.request(id).unlink(missing_ok=True)

    def delete_job(self, id: str) -> None:
        self.write("DELETE FROM jobs WHERE id = ?", id)
        shutil.rmtree(self.jobs / id, ignore_errors=True)

    def expire(self) -> int:
        """Delete old answers, later their jobs, and unused keys. Returns how many were deleted."""
        now, limits = time.time(), self.settings
        answered = self.first_column(
            "SELECT id FROM jobs WHERE state = 'done' AND finished < ?", now - limits.answer_seconds
        )
        for id in answered:
            self.write("UPDATE jobs SET state = 'expired' WHERE id = ?", id)
            shutil.rmtree(self.jobs / id, ignore_errors=True)
        query = "SELECT id FROM jobs WHERE state IN ('failed', 'expired') AND finished < ?"
        gone = self.first_column(query, now - 2 * limits.answer_seconds)
        for id in gone:
            self.delete_job(id)
        query = f"SELECT id FROM keys WHERE used < ? AND id NOT IN (SELECT keys FROM jobs WHERE {OPEN})"
        unused = self.first_column(query, now - limits.keys_seconds)
        silent = self.first_column("SELECT id FROM keys WHERE used < ?", now - limits.upload_seconds)
        abandoned = [
            id
            for id in silent
            if self.arrived.get(id, 0.0) < now - limits.upload_seconds and not self.complete(self.key_set(id))
        ]
        for id in {*unused, *abandoned}:
            self.delete_keys(id)
        return len(answered) + len(gone) + len({*unused, *abandoned})

    def touch_keys(self, id: str) -> None:
        """Note that keys were used, or that bytes of them arrived."""
        self.write("UPDATE keys SET used = ? WHERE id = ?", time.time(), id)


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def folder_size(folder: Path) -> int:
    return sum(file_size(path) for path in folder.iterdir()) if folder.is_dir() else 0
