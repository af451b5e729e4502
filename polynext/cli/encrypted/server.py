"""The server's commands: `polynext encrypted run` and `serve`."""

import sys
import time
from pathlib import Path
from typing import Annotated

import tyro

from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, mebibytes
from polynext.errors import require_at_least
from polynext.memory import peak_memory
from polynext.threads import cores

NATIVE_HINT = (
    "The native extension is about three times as fast on one thread and uses all cores; it needs a C++ compiler: "
    "pip install ./native in a checkout."
)


def answer(
    request: Annotated[Path, tyro.conf.Positional],
    keys: Path,
    server: Path = Path("server"),
    out: Path = Path("answer.enc"),
    threads: int | None = None,
) -> None:
    """Server: compute on a request, without being able to read it.

    Args:
        request: a client's request.
        keys: the client's evaluation.keys.
        server: server folder.
        out: answer for the client.
        threads: number of threads. They compute several ciphertexts at a time, or share one. Default: one per core.
    """
    count = usable_threads(threads)
    from polynext.encrypted.server import Server

    start = time.perf_counter()
    ready = Server.load(server, keys, count)
    loaded = time.perf_counter()
    ready.answer_request(request, out)
    took = time.perf_counter() - loaded
    print(
        f"{out}: answered in {took:.2f} s, after {loaded - start:.1f} s to load keys and encode weights, "
        f"with {mebibytes(peak_memory())} of memory"
    )


def serve(
    networks: Annotated[list[str], tyro.conf.Positional] = [],  # noqa: B006  (tyro reads it as "none")
    host: str = "127.0.0.1",
    port: int = 8000,
    store: Path | None = None,
    parallel: int | None = None,
    threads: int | None = None,
    queue: int = 100,
    jobs: int = 50,
    key_sets: int = 32,
    key_memory: int = 2048,
    key_days: float = 7.0,
    answer_minutes: float = 60.0,
    tokens: Path | None = None,
    cluster: str | None = None,
    page_origins: list[str] = [],  # noqa: B006  (tyro reads it as "none")
) -> None:
    """Server: serve networks over HTTP; the shipped MNIST network by default.

    Args:
        networks: server folders, each served under the folder's name, or shipped networks: mnist, digits, cifar10,
            cifar10-deep.
        host: address to listen on. Use a TLS proxy to serve other machines.
        port: port to listen on; 0 chooses a free one.
        store: folder for keys, jobs and answers, which survive a restart; by default in the user's data folder.
        parallel: ciphertexts to compute at a time; by default one per core.
        threads: threads for each ciphertext; by default one per core.
        queue: most jobs that may wait.
        jobs: most open jobs of one client.
        key_sets: most key sets of one client.
        key_memory: megabytes of memory for loaded keys.
        key_days: days that unused keys are kept.
        answer_minutes: minutes that an answer is kept.
        tokens: TOML file with a table [NAME] and token = "..." for each client; others are refused.
        cluster: address of a Ray cluster for the workers; "auto" finds one, "local" starts one here.
        page_origins: other origins, such as https://page.example.org, whose page may use this service.
    """
    import platformdirs

    from polynext.service import Settings, Tokens, load_networks
    from polynext.service import serve as serve_networks

    folders = [server_folder(name) for name in networks or ["mnist"]]
    settings = Settings(
        queue=queue,
        jobs=jobs,
        keys=key_sets,
        workers=parallel or cores(),
        threads=0 if threads is None else usable_threads(threads),
        key_memory=key_memory * MEBIBYTE,
        keys_seconds=key_days * 24 * 3600,
        answer_seconds=answer_minutes * 60,
        page_origins=tuple(page_origins),
    )
    allowed = None if tokens is None else Tokens.load(tokens, settings)
    store = store or platformdirs.user_data_path("polynext") / "service"
    serve_networks(load_networks(folders), store, host, port, settings, allowed, cluster)


def usable_threads(wanted: int | None) -> int:
    """The number of threads that a command asks for, by default one per core. SEAL has only one."""
    engine = get_backend("seal").engine
    if wanted is not None:
        require_at_least(1, threads=wanted)
        if wanted > 1 and not engine.threads:
            print(f"{engine.name.upper()} computes on one thread. {NATIVE_HINT}", file=sys.stderr)
    return (wanted or cores()) if engine.threads else 1


def server_folder(name: str) -> Path:
    """A server folder on disk, which needs no compiler, or that of a shipped network."""
    from polynext.encrypted.server import CLIENT_SPEC

    if (Path(name) / CLIENT_SPEC).is_file():
        return Path(name)
    from polynext.encrypted.compiler.shipped import find_shipped, is_prepared, shipped_server

    shipped = find_shipped(name)
    if shipped is None:
        return Path(name)
    if not is_prepared(shipped):
        print(f"Preparing the shipped network {name}, once, which takes up to a minute.", file=sys.stderr)
    return shipped_server(shipped)
