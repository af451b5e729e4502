"""Keys and jobs on disk: the order of jobs, restarts, expiry, migration."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from polynext.encrypted.messages import Manifest, ManifestPart
from polynext.errors import PolyNeXtError
from polynext.service import Settings, Store
from polynext.service.refusal import Refusal
from polynext.service.settings import Caller
from polynext.service.store import SCHEMA_VERSION, KeySet
from tests.service.conftest import new_job

Opener = Callable[..., Store]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens stores and closes them after the test."""
    stores: list[Store] = []

    def open_one(name: str = "data", **settings: Any) -> Store:
        stores.append(Store(tmp_path / name, Settings(**{"free_disk": 0, **settings})))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


ANN, BOB = Caller("ann", 100, 2), Caller("bob", 100, 2)


def keys_of(store: Store, caller: Caller, digest: str = "0") -> KeySet:
    part = ManifestPart(name="relinearisation", bytes=10, sha256=digest * 64)
    return store.announce_keys(Manifest(client_spec="0" * 16, parts=[part]), caller)[0]


def add(store: Store, keys: KeySet, caller: Caller) -> str:
    job = new_job()
    store.request(job).parent.mkdir()
    store.request(job).write_bytes(b"ciphertext")
    store.add_job(job, "small", keys, caller, "digest", "dialect")
    return job


def test_jobs_of_different_clients_alternate(opened: Opener) -> None:
    store = opened()
    anns, bobs = keys_of(store, ANN), keys_of(store, BOB, "1")
    many = [add(store, anns, ANN) for _ in range(10)]
    started = [store.start_next() for _ in range(3)]
    assert [job.id for job in started if job] == many[:3]
    few = [add(store, bobs, BOB) for _ in range(2)]
    waiting = store.jobs_in("queued")
    assert [job.id for job in waiting[:4]] == [few[0], many[3], few[1], many[4]]
    assert [store.position(job) for job in waiting] == list(range(9))
    store.put_back(many[0])  # its worker died
    first = store.start_next()
    assert first is not None and (first.id, first.attempts) == (many[0], 2)


def test_jobs_and_keys_survive_a_restart(opened: Opener) -> None:
    store = opened()
    with pytest.raises(PolyNeXtError, match="another service uses"):
        opened()
    keys = keys_of(store, ANN)
    running, waiting, lost, done = (add(store, keys, ANN) for _ in range(4))
    assert store.start_next()
    store.request(lost).unlink()
    store.answer(done).write_bytes(b"answer")
    store.end(done, "done")
    (store.jobs / "unknown").mkdir()
    store.close()
    store = opened()
    assert [job.id for job in store.jobs_in("queued")] == [running, waiting]
    assert [job.id for job in store.jobs_in("failed")] == [lost]
    assert [job.id for job in store.jobs_in("done")] == [done]
    assert not (store.jobs / "unknown").exists() and store.key_set(keys.id)


def test_answers_jobs_and_keys_expire(opened: Opener) -> None:
    store = opened(answer_seconds=100, keys_seconds=-1)
    keys = keys_of(store, ANN)
    waiting, done = add(store, keys, ANN), add(store, keys, ANN)
    store.end(done, "done")
    store.answer(done).write_bytes(b"answer")
    store.expire()
    assert store.answer(done).exists()
    store.write("UPDATE jobs SET finished = finished - 150")
    store.expire()
    job = store.job(done)
    assert job is not None and job.state == "expired" and not store.answer(done).exists()
    assert store.key_set(keys.id), "keys of a queued job do not expire"
    store.end(waiting, "failed", "why")
    store.write("UPDATE jobs SET finished = finished - 150")
    store.expire()
    assert store.job(done) is None and store.job(waiting)
    assert store.key_set(keys.id) is None and not (store.keys / keys.id).exists()


OLD_SCHEMA = f"""
CREATE TABLE keys (id TEXT PRIMARY KEY, offer TEXT NOT NULL, client TEXT NOT NULL, parts TEXT NOT NULL,
    bytes INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL) STRICT;
CREATE TABLE jobs (id TEXT PRIMARY KEY, offer TEXT NOT NULL, keys TEXT NOT NULL, client TEXT NOT NULL,
    digest TEXT NOT NULL, dialect TEXT NOT NULL, turn INTEGER NOT NULL, state TEXT NOT NULL, created REAL NOT NULL,
    started REAL, finished REAL, attempts INTEGER NOT NULL DEFAULT 0, error TEXT) STRICT;
INSERT INTO keys VALUES ('k', 'fingerprint', 'ann', '[["relinearisation", 10, "{"0" * 64}"]]', 10, 1, 1);
INSERT INTO jobs (id, offer, keys, client, digest, dialect, turn, state, created)
    VALUES ('j', 'small', 'k', 'ann', 'd', 'SEAL 4.1', 1, 'queued', 1);
"""


def test_a_store_of_an_older_version_is_migrated(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "data" / "jobs" / "j").mkdir(parents=True)
    (tmp_path / "data" / "jobs" / "j" / "request").touch()
    with closing(sqlite3.connect(tmp_path / "data" / "store.sqlite")) as database:
        database.executescript(OLD_SCHEMA)
    for _ in range(2):
        store = opened()
        keys, (job,) = store.key_set("k"), store.jobs_in("queued")
        assert keys is not None and (keys.client_spec, keys.caller) == ("fingerprint", "ann")
        assert (job.id, job.network, job.caller) == ("j", "small", "ann")
        store.close()


def test_a_store_of_a_newer_version_is_refused(opened: Opener) -> None:
    store = opened()
    store.write(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()
    for _ in range(2):
        with pytest.raises(PolyNeXtError, match="written by a newer version of polynext: install that version"):
            opened()


def test_limits_of_jobs_keys_and_disk(opened: Opener) -> None:
    store = opened(queue=2, key_disk=25)
    keys = keys_of(store, ANN)
    store.require_queue_slot(ANN, 3.0)
    add(store, keys, ANN)
    with pytest.raises(Refusal, match="you have 1 open jobs, and the limit is 1") as refusal:
        store.require_queue_slot(Caller("ann", 1, 1), 3.0)
    add(store, keys, ANN)
    with pytest.raises(Refusal, match="2 jobs are in the queue") as refusal:
        store.require_queue_slot(BOB, 3.0)
    assert (refusal.value.status, refusal.value.code) == (429, "queue_full") and refusal.value.retry_after
    keys_of(store, ANN, "1")
    with pytest.raises(Refusal, match="2 of at most 2 key sets"):
        keys_of(store, ANN, "2")
    other = opened("other", free_disk=2**60)
    with pytest.raises(Refusal, match="disk is full") as refusal:
        other.grow(keys_of(other, ANN), 1)
    assert refusal.value.status == 507


def test_announced_keys_take_no_space_until_they_arrive(opened: Opener) -> None:
    store = opened(key_disk=25)
    anns = [keys_of(store, Caller("ann", 100, 100), digest) for digest in "0123456789"]
    bobs = keys_of(store, BOB, "a")
    store.grow(bobs, 10)
    store.grow(anns[0], 10)
    with pytest.raises(Refusal, match="disk is full"):  # ann would have more than bob
        store.grow(anns[0], 10)
    assert store.stored[bobs.id] == store.stored[anns[0].id] == 10


def test_a_full_disk_is_shared_equally(opened: Opener) -> None:
    """A newcomer's keys replace those of the caller with the most, least recently used first, but none in use."""
    store = opened(key_disk=100)
    many = Caller("ann", 100, 100)
    anns = [keys_of(store, many, digest) for digest in "0123456789"]
    for keys in anns:
        store.grow(keys, 10)
    add(store, anns[0], many)
    store.grow(keys_of(store, BOB, "a"), 20)
    assert [keys.id in store.stored for keys in anns] == [True, False, False] + [True] * 7
    assert store.deleted_keys == [anns[1].id, anns[2].id], "workers are told"
    store.grow(keys_of(store, Caller("eve", 1, 1), "b"), 20)
    assert sum(store.stored.values()) == 100


def test_incomplete_uploads_expire_in_minutes(opened: Opener) -> None:
    store = opened(upload_seconds=100)
    abandoned, arriving, complete = keys_of(store, ANN), keys_of(store, ANN, "1"), keys_of(store, BOB, "2")
    store.part(complete.id, "relinearisation").write_bytes(b"0123456789")
    store.write("UPDATE keys SET used = used - 150")
    store.grow(arriving, 5)
    store.expire()
    assert store.stored.keys() == {arriving.id, complete.id} and store.key_set(abandoned.id) is None


def test_one_caller_leaves_room_in_the_queue(opened: Opener) -> None:
    store = opened(queue=9)
    ann, bob = keys_of(store, ANN), keys_of(store, BOB, "1")
    for keys, caller, most in ((ann, ANN, 5), (bob, BOB, 2)):
        for _ in range(most):
            store.require_queue_slot(caller, 1.0)
            add(store, keys, caller)
    for caller in (ANN, BOB):
        with pytest.raises(Refusal, match="jobs in the queue"):
            store.require_queue_slot(caller, 1.0)
            add(store, bob, caller)
            store.require_queue_slot(caller, 1.0)
    store.require_queue_slot(Caller("eve", 1, 1), 1.0)


def test_attempts_count_across_restarts(opened: Opener) -> None:
    store = opened(attempts=2)
    keys = keys_of(store, ANN)
    job = add(store, keys, ANN)
    for _ in range(2):
        assert store.start_next()
        store.close()  # without putting the job back, as in a crash
        store = opened(attempts=2)
    found = store.job(job)
    assert found is not None and found.state == "failed" and "in each of 2 attempts" in (found.error or "")
    orderly = add(store, keys, ANN)
    for _ in range(4):
        assert store.start_next()
        store.put_back(orderly, uncount=True)
    assert [each.attempts for each in store.jobs_in("queued")] == [0]


def test_a_lost_answer_is_a_failure(opened: Opener) -> None:
    store = opened()
    keys = keys_of(store, ANN)
    lost, empty, fine = (add(store, keys, ANN) for _ in range(3))
    store.answer(empty).touch()
    store.answer(fine).write_bytes(b"answer")
    for job in (lost, empty, fine):
        store.end(job, "done")
    store.close()
    store = opened()
    assert {job.id for job in store.jobs_in("failed")} == {lost, empty}
    assert [job.id for job in store.jobs_in("done")] == [fine]
