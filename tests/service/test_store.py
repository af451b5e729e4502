"""What a service remembers: in which order jobs come, what survives a restart, what is forgotten."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polynext.errors import PolyNeXtError
from polynext.service import Settings, Store
from polynext.service.answering import Assignment, KeyCache
from polynext.service.refusal import Refusal
from polynext.service.settings import Client
from polynext.service.store import KeySet, PartInfo
from tests.service.conftest import new_job

Opener = Callable[..., Store]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens stores, and closes them after the test."""
    stores: list[Store] = []

    def open_one(name: str = "data", **settings: Any) -> Store:
        stores.append(Store(tmp_path / name, Settings(**{"free_disk": 0, **settings})))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


ANN, BOB = Client("ann", 100, 2), Client("bob", 100, 2)


def keys_of(store: Store, client: Client, digest: str = "0") -> KeySet:
    return store.announce_keys("offer", client, [PartInfo("relinearisation", 10, digest * 64)])[0]


def add(store: Store, keys: KeySet, client: Client) -> str:
    job = new_job()
    store.request(job).parent.mkdir()
    store.request(job).write_bytes(b"ciphertext")
    store.add_job(job, "small", keys, client, "digest", "dialect")
    return job


def test_who_asks_much_does_not_keep_others_waiting(opened: Opener) -> None:
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


def test_a_restart_loses_nothing(opened: Opener) -> None:
    store = opened()
    with pytest.raises(PolyNeXtError, match="another service works in"):
        opened()
    keys = keys_of(store, ANN)
    running, waiting, lost, done = (add(store, keys, ANN) for _ in range(4))
    assert store.start_next()
    store.request(lost).unlink()
    store.end(done, "done")
    (store.jobs / "unknown").mkdir()
    store.close()
    store = opened()
    assert [job.id for job in store.jobs_in("queued")] == [running, waiting]
    assert [job.id for job in store.jobs_in("failed")] == [lost]
    assert [job.id for job in store.jobs_in("done")] == [done]
    assert not (store.jobs / "unknown").exists() and store.key_set(keys.id)


def test_what_nobody_comes_back_for_is_forgotten(opened: Opener) -> None:
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
    assert store.key_set(keys.id), "keys that a job waits for stay"
    store.end(waiting, "failed", "why")
    store.write("UPDATE jobs SET finished = finished - 150")
    store.expire()
    assert store.job(done) is None and store.job(waiting)
    assert store.key_set(keys.id) is None and not (store.keys / keys.id).exists()


def test_everything_is_bounded(opened: Opener) -> None:
    store = opened(queue=2, key_disk=25)
    keys = keys_of(store, ANN)
    store.require_place(ANN, 3.0)
    add(store, keys, ANN)
    with pytest.raises(Refusal, match="1 of your jobs are open, and 1 are allowed") as refusal:
        store.require_place(Client("ann", 1, 1), 3.0)
    add(store, keys, ANN)
    with pytest.raises(Refusal, match="2 jobs are waiting") as refusal:
        store.require_place(BOB, 3.0)
    assert (refusal.value.status, refusal.value.code) == (429, "queue_full") and refusal.value.retry_after
    keys_of(store, ANN, "1")
    with pytest.raises(Refusal, match="2 of 2 sets of keys"):
        keys_of(store, ANN, "2")
    with pytest.raises(Refusal, match="no room") as refusal:
        keys_of(store, BOB, "3")
    assert refusal.value.status == 507
    with pytest.raises(Refusal, match="no room"):
        keys_of(opened("other", free_disk=2**60), ANN)


def test_keys_in_memory_are_bounded(tmp_path: Path) -> None:
    network = SimpleNamespace(spec=SimpleNamespace(cost=SimpleNamespace(key_bytes=40)), loaded=[])
    network.load_keys = lambda folder: network.loaded.append(folder.name)
    cache = KeyCache(100)
    for keys in ("a", "b", "a", "c", "a"):  # c makes b go
        cache.get(network, Assignment("small", keys, tmp_path / keys, tmp_path, tmp_path, ""))  # type: ignore[arg-type]
    assert list(cache.held) == ["c", "a"] and cache.bytes == 80 and network.loaded == ["a", "b", "c"]
    cache.forget("c")
    assert list(cache.held) == ["a"]
