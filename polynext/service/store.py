"""All that a service remembers: keys and jobs, in a folder with an SQLite file. What is in it survives a restart.

    store.sqlite              who announced which keys, and how every job stands
    keys/ID/PART              a part of evaluation keys, checked
    keys/ID/PART.incoming     one that is still being sent; its length is how much has arrived
    jobs/ID/request, answer   ciphertexts

Jobs are started in the order of their `turn`. The next job with the same keys gets the turn after the last one, and
nobody's turn lies before that of the last job started: whoever sends a hundred jobs waits for the one job of somebody
else in between.
"""

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from polynext.files import alone_in
from polynext.service.refusal import Refusal, disk_full
from polynext.service.settings import Client, Settings

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
State = Literal["queued", "running", "done", "failed", "expired"]
OPEN, ENDED = ("queued", "running"), ("done", "failed", "expired")

SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, offer TEXT NOT NULL, client TEXT NOT NULL, parts TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, offer TEXT NOT NULL, keys TEXT NOT NULL, client TEXT NOT NULL, digest TEXT NOT NULL,
    dialect TEXT NOT NULL, turn INTEGER NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL,
    finished REAL, attempts INTEGER NOT NULL DEFAULT 0, error TEXT) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_turn ON jobs (state, turn, created);
"""


@dataclass(frozen=True)
class PartInfo:
    """A part as it was announced."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class KeySet:
    """Evaluation keys that somebody announced."""

    id: str
    offer: str
    client: str
    parts: tuple[PartInfo, ...]
    used: float


@dataclass(frozen=True)
class Job:
    """A ciphertext to be answered, and how that stands."""

    id: str
    offer: str
    keys: str
    client: str
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
    """Keys and jobs in a folder, for one process at a time, which a lock ensures."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder, self.settings = folder, settings
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.keys, self.jobs = folder / "keys", folder / "jobs"
        for place in (self.keys, self.jobs):
            place.mkdir(mode=0o700, exist_ok=True)
        self.alone = ExitStack()
        self.alone.enter_context(
            alone_in(folder, f"another service works in {folder}: stop it, or choose another `data`.")
        )
        self.database = sqlite3.connect(folder / "store.sqlite", isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")  # an accepted job is on the disk before its client hears so
        self.database.executescript(SCHEMA)
        self.recover()

    def close(self) -> None:
        self.database.close()
        self.alone.close()

    def recover(self) -> None:
        """After a restart: what was running waits again, and files that nobody knows of are removed."""
        self.write("UPDATE jobs SET state = 'queued', started = NULL WHERE state = 'running'")
        for job in self.jobs_in("queued"):
            if not self.request(job.id).is_file():
                self.end(job.id, "failed", "the server lost the request: send it again.")
        known = {id for (id,) in self.read("SELECT id FROM jobs UNION SELECT id FROM keys")}
        for folder in [*self.keys.iterdir(), *self.jobs.iterdir()]:
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What fails for want of room is a refusal, and changes nothing."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise disk_full() from error
            raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise disk_full() from error
            raise

    def read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(query, values).fetchall()

    def write(self, query: str, *values: Any) -> int:
        with self.writing():
            return self.database.execute(query, values).rowcount

    def require_room(self, count: int) -> None:
        if shutil.disk_usage(self.folder).free < count + self.settings.free_disk:
            raise disk_full()

    # Keys

    def announce_keys(self, offer: str, client: Client, parts: Iterable[PartInfo]) -> tuple[KeySet, bool]:
        """The key set of these parts, and whether it is new."""
        parts = tuple(parts)
        text = json.dumps([[part.name, part.bytes, part.sha256] for part in parts])
        id = hashlib.sha256(f"{offer} {text}".encode()).hexdigest()[:32]
        known = self.key_set(id)
        if known is not None:
            if known.client != client.name:
                id = hashlib.sha256(f"{client.name} {id}".encode()).hexdigest()[:32]
                known = self.key_set(id)
            if known is not None:
                return known, False
        ((mine,),) = self.read("SELECT count(*) FROM keys WHERE client = ?", client.name)
        if mine >= client.keys:
            raise Refusal(
                429,
                "too_many_keys",
                f"you have {mine} of {client.keys} sets of keys that you may have here: delete one, or use one again.",
                retry_after=60,
            )
        size = sum(part.bytes for part in parts)
        ((held,),) = self.read("SELECT coalesce(sum(bytes), 0) FROM keys")
        if held + size > self.settings.key_disk:
            raise disk_full()
        self.require_room(size)
        now = time.time()
        with self.writing():
            (self.keys / id).mkdir(mode=0o700, exist_ok=True)
        self.write("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)", id, offer, client.name, text, size, now, now)
        return KeySet(id, offer, client.name, parts, now), True

    def key_set(self, id: str) -> KeySet | None:
        for offer, client, parts, used in self.read("SELECT offer, client, parts, used FROM keys WHERE id = ?", id):
            return KeySet(id, offer, client, tuple(PartInfo(*part) for part in json.loads(parts)), used)
        return None

    def part(self, keys: str, name: str) -> Path:
        return self.keys / keys / name

    def incoming(self, keys: str, name: str) -> Path:
        return self.keys / keys / f"{name}.incoming"

    def complete(self, keys: KeySet) -> bool:
        return all(self.part(keys.id, part.name).is_file() for part in keys.parts)

    def forget_keys(self, id: str) -> None:
        """Removes them; jobs that still wait for them fail."""
        for job in self.jobs_in("queued"):
            if job.keys == id:
                self.end(job.id, "failed", "its keys were deleted before it was answered.")
        self.write("DELETE FROM keys WHERE id = ?", id)
        shutil.rmtree(self.keys / id, ignore_errors=True)

    # Jobs

    def request(self, job: str) -> Path:
        return self.jobs / job / "request"

    def answer(self, job: str) -> Path:
        return self.jobs / job / "answer"

    def job(self, id: str) -> Job | None:
        for row in self.read(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", id):
            return Job(*row)
        return None

    def jobs_in(self, *states: State) -> list[Job]:
        """In the order in which they are started."""
        marks = ", ".join("?" * len(states))
        rows = self.read(f"SELECT {COLUMNS} FROM jobs WHERE state IN ({marks}) ORDER BY turn, created", *states)
        return [Job(*row) for row in rows]

    def require_place(self, client: Client, seconds: float) -> None:
        """Refuses a job for which there is no place. `seconds` is what one usually takes."""
        ((waiting,),) = self.read("SELECT count(*) FROM jobs WHERE state = 'queued'")
        retry = max(1.0, round(seconds * waiting / self.settings.workers / 2))
        if waiting >= self.settings.queue:
            raise Refusal(429, "queue_full", f"{waiting} jobs are waiting: try again in {retry:.0f} s.", retry)
        ((mine,),) = self.read(
            "SELECT count(*) FROM jobs WHERE client = ? AND state IN ('queued', 'running')", client.name
        )
        if mine >= client.jobs:
            sentence = f"{mine} of your jobs are open, and {client.jobs} are allowed: try again in {retry:.0f} s."
            raise Refusal(429, "too_many_jobs", sentence, retry)

    def add_job(self, id: str, offer: str, keys: KeySet, client: Client, digest: str, dialect: str) -> Job:
        """A job whose request is in its place already."""
        ((now_serving,),) = self.read("SELECT coalesce(max(turn), 0) FROM jobs WHERE state != 'queued'")
        ((last,),) = self.read("SELECT coalesce(max(turn), 0) FROM jobs WHERE keys = ?", keys.id)
        turn, now = max(now_serving, last + 1), time.time()
        self.write(
            "INSERT INTO jobs (id, offer, keys, client, digest, dialect, turn, state, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?)",
            *(id, offer, keys.id, client.name, digest, dialect, turn, now),
        )
        self.write("UPDATE keys SET used = ? WHERE id = ?", now, keys.id)
        job = self.job(id)
        assert job is not None
        return job

    def position(self, job: Job) -> int:
        """How many jobs are started before this one."""
        ((before,),) = self.read(
            "SELECT count(*) FROM jobs WHERE state = 'queued' AND (turn, created) < (?, ?)", job.turn, job.created
        )
        return before

    def start_next(self) -> Job | None:
        """Takes the next job out of the queue."""
        for (id,) in self.read("SELECT id FROM jobs WHERE state = 'queued' ORDER BY turn, created LIMIT 1"):
            self.write(
                "UPDATE jobs SET state = 'running', started = ?, attempts = attempts + 1 WHERE id = ?", time.time(), id
            )
            return self.job(id)
        return None

    def put_back(self, id: str) -> None:
        """Back to its old place in the queue, which is the first."""
        self.write("UPDATE jobs SET state = 'queued', started = NULL WHERE id = ? AND state = 'running'", id)

    def end(self, id: str, state: State, error: str | None = None) -> None:
        """The request is of no use any more; the answer stays."""
        self.write("UPDATE jobs SET state = ?, finished = ?, error = ? WHERE id = ?", state, time.time(), error, id)
        self.request(id).unlink(missing_ok=True)

    def forget_job(self, id: str) -> None:
        self.write("DELETE FROM jobs WHERE id = ?", id)
        shutil.rmtree(self.jobs / id, ignore_errors=True)

    def expire(self) -> int:
        """Forgets what nobody came back for: answers, later the jobs themselves, and unused keys. Returns how many."""
        now = time.time()
        old = now - self.settings.answer_seconds
        answered = self.read("SELECT id FROM jobs WHERE state = 'done' AND finished < ?", old)
        for (id,) in answered:
            self.write("UPDATE jobs SET state = 'expired' WHERE id = ?", id)
            shutil.rmtree(self.jobs / id, ignore_errors=True)
        gone = self.read(
            "SELECT id FROM jobs WHERE state IN ('failed', 'expired') AND finished < ?",
            now - 2 * self.settings.answer_seconds,
        )
        for (id,) in gone:
            self.forget_job(id)
        unused = self.read(
            "SELECT id FROM keys WHERE used < ? AND id NOT IN "
            "(SELECT keys FROM jobs WHERE state IN ('queued', 'running'))",
            now - self.settings.keys_seconds,
        )
        for (id,) in unused:
            self.forget_keys(id)
        return len(answered) + len(gone) + len(unused)


def save_durably(path: Path, data: bytes) -> None:
    """On the disk, and not just on its way there, when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
