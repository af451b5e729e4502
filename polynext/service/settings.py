"""What a service may take, and who may ask it."""

import hashlib
import hmac
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from polynext.errors import PolyNeXtError, require_at_least

GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The bounds of a service. Times are seconds, sizes bytes.

    Attributes:
        queue: jobs that may wait.
        jobs: open jobs of one client (a token, or an address where none are needed).
        keys: key sets of one client.
        workers: jobs that are worked on at a time.
        attempts: how often a job is started before it is given up, if workers die of it.
        key_memory: for evaluation keys that are loaded.
        key_disk: for evaluation keys on disk.
        free_disk: what is left free on the disk.
        keys_seconds: how long keys are kept unused.
        answer_seconds: how long an answer can be fetched.
        job_seconds: how long a job may run.
        chunk_bytes: the longest piece of an upload.
    """

    queue: int = 100
    jobs: int = 50
    keys: int = 32
    workers: int = 2
    attempts: int = 3
    key_memory: int = 2 * GIBIBYTE
    key_disk: int = 20 * GIBIBYTE
    free_disk: int = GIBIBYTE // 4
    keys_seconds: float = 7 * 24 * 3600
    answer_seconds: float = 3600
    job_seconds: float = 600
    chunk_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        require_at_least(1, queue=self.queue, jobs=self.jobs, keys=self.keys, workers=self.workers)


@dataclass(frozen=True)
class Client:
    """Somebody who asks: a name, and how many open jobs and key sets they may have."""

    name: str
    jobs: int
    keys: int


@dataclass(frozen=True)
class Token:
    """Of a client only the hash of its token is kept in memory."""

    client: Client
    digest: bytes


@dataclass(frozen=True)
class Tokens:
    """Who may ask. Nobody needs a token if there are none."""

    tokens: tuple[Token, ...] = field(default=())

    @classmethod
    def load(cls, path: Path, settings: Settings) -> "Tokens":
        """From a file with a table for each client: `[name]`, `token = "..."`, and `jobs` or `keys` if they differ."""
        try:
            tables = tomllib.loads(path.read_text())
            made = []
            for name, table in tables.items():
                if not table.keys() <= {"token", "jobs", "keys"} or len(table["token"]) < 16:
                    raise ValueError(f"[{name}] must have a token of at least 16 characters, and jobs or keys at most")
                client = Client(name, int(table.get("jobs", settings.jobs)), int(table.get("keys", settings.keys)))
                made.append(Token(client, digest(table["token"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolyNeXtError(
                f"{path} is no file of tokens ({error}): write a [name] with a token for each client."
            ) from error
        if not made:
            raise PolyNeXtError(f"{path} holds no token: write a [name] with a token for each client.")
        return cls(tuple(made))

    def client(self, given: str) -> Client | None:
        """Whose token this is; takes as long for a wrong one as for a right one."""
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest(given)):
                found = token.client
        return found


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
