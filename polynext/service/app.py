"""The FastAPI application: routes, error responses, logging, security headers and the page."""

import asyncio
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from polynext import __version__
from polynext.encrypted.messages import Manifest, ManifestPart
from polynext.service import routes
from polynext.service.connections import client_network
from polynext.service.log import log_event, logger
from polynext.service.refusal import Refusal
from polynext.service.service import Service
from polynext.service.settings import Tokens

PAGE = Path(__file__).parent / "page"
NO_PAGE = """<!doctype html><meta charset="utf-8"><title>polynext</title>
<p>This is a service for encrypted inference. Its page is not built: run <code>make page</code> in a checkout.</p>
<p>The service itself works: <a href="docs">HTTP interface</a>, <a href="v1/networks">networks</a>.</p>
"""
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")  # labels of metrics; others are counted together
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create_app(service: Service, tokens: Tokens | None = None) -> FastAPI:
    """The application for a service. Start the service before the application receives requests."""
    app = FastAPI(
        title="polynext encrypted inference",
        version=__version__,
        description="Networks that compute on ciphertexts. Clients make the keys and keep the secret key.",
        docs_url=None,  # FastAPI's own page loads scripts from another host
        redoc_url=None,
    )
    app.state.service, app.state.tokens = service, tokens or Tokens()
    app.add_middleware(
        CORSMiddleware,
        allow_origins=service.settings.page_origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["Authorization"],
        expose_headers=["Retry-After"],
    )
    app.add_middleware(RequestLog, service=service)
    add_error_handlers(app)
    for router in (routes.networks, routes.keys, routes.jobs, routes.operation):
        app.include_router(router)
    add_manifest_schema(app)
    add_page(app)
    return app


def add_page(app: FastAPI) -> None:
    if (PAGE / "index.html").is_file():
        app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
        return

    @app.get("/", include_in_schema=False)
    async def no_page() -> HTMLResponse:
        return HTMLResponse(NO_PAGE)


def add_manifest_schema(app: FastAPI) -> None:
    """Describe the manifest, which FastAPI does not know: its route parses it after limiting its size."""
    schemas = app.openapi()["components"]["schemas"]
    for model in (Manifest, ManifestPart):
        schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas["Manifest"].pop("$defs")


def error_response(refusal: Refusal) -> JSONResponse:
    headers = {"Retry-After": f"{max(1, round(refusal.retry_after))}"} if refusal.retry_after is not None else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(refusal.body, refusal.status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Give every error the same JSON form."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        return error_response(refusal)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(Refusal(422, "invalid", routes.validation_message(error.errors())))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        code = re.sub(r"\W+", "_", str(error.detail).lower()).strip("_")
        response = error_response(Refusal(error.status_code, code, f"{str(error.detail).rstrip('.').lower()}."))
        response.headers.update(error.headers or {})
        return response


class RequestLog:
    """Middleware that counts, limits and logs requests, adds headers, and answers unexpected exceptions with status
    500."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service
        self.open: Counter[str] = Counter()  # requests in progress by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, address = time.monotonic(), 0, client_network(scope.get("client"))

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = ((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items())
                message["headers"] = [*message["headers"], *added]
            await send(message)

        self.open[address] += 1
        try:
            if self.open[address] > self.service.settings.requests:
                refusal = Refusal(429, "too_many_requests", "too many requests at the same time: wait for some.", 1)
                await error_response(refusal)(scope, receive, send_with_headers)
                return
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = 499
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a request failed unexpectedly")
            if status == 0:
                refusal = Refusal(500, "internal_error", "internal server error: the server's log has the details.")
                await error_response(refusal)(scope, receive, send_with_headers)
        finally:
            self.open[address] -= 1
            if not self.open[address]:
                del self.open[address]
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.labels(method, route, status).inc()
            took = round(time.monotonic() - start, 3)
            log_event("request", method=method, route=route, status=status, seconds=took)
