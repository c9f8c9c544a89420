"""A real HTTP proxy before the dashboard that can be slow, cut connections, answer wrongly or stay silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


@dataclass
class Fault:
    """What happens to a request that matches; `times` counts down, None is for ever."""

    matches: Callable[[str, str], bool]
    status: int = 0
    text: str = ""
    cut_after_bytes: int | None = None
    """Close the connection after so many bytes of a good answer; 0 answers nothing at all."""
    delay_seconds: float = 0.0
    times: int | None = None


@dataclass
class Proxy:
    """`with Proxy(url) as proxy:` and use `proxy.url`."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def __enter__(self) -> Proxy:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *args: Any) -> None:
                """Silent: pytest shows what matters."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        method, path = request.command, request.path
        self.seen.append(f"{method} {path}")
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self._fault(method, path)
        if fault:
            time.sleep(fault.delay_seconds)
            if fault.status:
                self._send(request, fault.status, fault.text.encode(), None)
                return
            if fault.cut_after_bytes == 0:
                request.close_connection = True
                return
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("authorization", "content-type")}
        answer = httpx.request(method, self.target + path, content=body, headers=headers, timeout=60)
        self._send(request, answer.status_code, answer.content, fault.cut_after_bytes if fault else None)

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times != 0 and fault.matches(method, path):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, content: bytes, cut: int | None) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content if cut is None else content[:cut])
        request.close_connection = True


def any_request(method: str, path: str) -> bool:
    return True


def jobs_api(method: str, path: str) -> bool:
    return path.startswith("/api/jobs")


def submission(method: str, path: str) -> bool:
    return method == "POST" and path == "/api/jobs/"


def packages(method: str, path: str) -> bool:
    return path.startswith("/api/packages")
