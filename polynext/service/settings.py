"""The limits of a service, and who may use it."""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polynext.errors import PolyNeXtError, require_at_least

GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits of a service. Times are in seconds, sizes in bytes.

    Attributes:
        queue: most jobs that may wait.
        jobs: most open jobs of one caller (a token, or an address if the service needs no tokens).
        keys: most key sets of one caller.
        requests: most requests and event streams of one address at the same time.
        connections: most connections of one address; this machine's proxies have no limit.
        workers: jobs computed at the same time.
        threads: threads of each job, if the engine has threads; 0 for all cores.
        attempts: how many times a job is started before it fails, if its worker dies.
        key_memory: memory for loaded evaluation keys.
        key_disk: disk space for evaluation keys. If it is full, a new caller's keys replace those of the caller with
            the most.
        free_disk: disk space to leave free.
        keys_seconds: how long unused keys are kept.
        upload_seconds: how long an incomplete upload of keys is kept after its last byte.
        answer_seconds: how long an answer is kept.
        job_seconds: how long a job may run.
        chunk_bytes: most bytes in one request of an upload.
        page_origins: other origins, such as https://page.example.org, whose page may use this service.
    """

    queue: int = 100
    jobs: int = 50
    keys: int = 32
    requests: int = 128
    connections: int = 256
    workers: int = 2
    threads: int = 0
    attempts: int = 3
    key_memory: int = 2 * GIBIBYTE
    key_disk: int = 20 * GIBIBYTE
    free_disk: int = GIBIBYTE // 4
    keys_seconds: float = 7 * 24 * 3600
    upload_seconds: float = 600
    answer_seconds: float = 3600
    job_seconds: float = 600
    chunk_bytes: int = 256 * 2**20
    page_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_at_least(0, threads=self.threads)
        for origin in self.page_origins:
            if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+", origin):
                raise PolyNeXtError(f"`page_origins` has {origin!r}: give origins such as https://page.example.org.")
        require_at_least(1, queue=self.queue, jobs=self.jobs, keys=self.keys, workers=self.workers)


@dataclass(frozen=True)
class Caller:
    """Who sends a request, with limits on their open jobs and key sets."""

    name: str
    jobs: int
    keys: int


@dataclass(frozen=True)
class Tokens:
    """Callers by the SHA-256 of their token, which is not kept. Without any, everybody may use the service."""

    callers: Mapping[bytes, Caller] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, settings: Settings) -> "Tokens":
        """Read a TOML file with one table per caller: `[name]`, `token = "..."`, and optionally `jobs` and `keys`."""
        try:
            callers = {}
            for name, table in tomllib.loads(path.read_text()).items():
                if name.startswith("@"):  # the names of addresses, in a service without tokens
                    raise ValueError(f"[{name}] begins with @")
                if not table.keys() <= {"token", "jobs", "keys"} or len(table["token"]) < 16:
                    raise ValueError(f"[{name}] needs a token of at least 16 characters; only jobs and keys may follow")
                caller = Caller(name, int(table.get("jobs", settings.jobs)), int(table.get("keys", settings.keys)))
                callers[digest(table["token"])] = caller
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolyNeXtError(
                f"{path} is not a file of tokens ({error}): write a table [name] with a token for each client."
            ) from error
        if not callers:
            raise PolyNeXtError(f"{path} has no tokens: write a table [name] with a token for each client.")
        return cls(callers)

    def caller(self, given: str) -> Caller | None:
        """Whose token this is. Comparing takes the same time for every token."""
        found = None
        for known, caller in self.callers.items():
            if hmac.compare_digest(known, digest(given)):
                found = caller
        return found


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
