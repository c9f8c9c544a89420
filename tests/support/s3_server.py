"""A small S3 on loopback for the tests: one bucket in memory, conditional puts, uploads in parts, and faults.

moto cannot be in our lock: its botocore wants python-dateutil < 3 and our kubernetes wants 4.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

BUCKET = "runs"


@dataclass
class Bucket:
    """What is stored, and what goes wrong. Fault counters count down with each request that they hit."""

    objects: dict[str, tuple[bytes, dict[str, str], float]] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ignores_conditions: bool = False
    refuse: int = 0
    """So many requests are answered with 503 before anything is done."""
    refuse_until: float = 0.0
    """Likewise, in monotonic seconds."""
    cut_puts: int = 0
    """So many puts are done, and their connection is closed without an answer."""
    fail_puts: int = 0
    """So many puts are done and answered with 500."""
    delay: float = 0.0
    stall: int = 0
    """So many requests are never answered."""
    listed_after: float = 0.0
    """Seconds until a new object is in the lists."""
    requests: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *_: object) -> None: ...

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        _, _, self.key = unquote(parts.path).lstrip("/").partition("/")
        bucket = self.bucket
        bucket.requests.append(f"{self.command} {self.key}")
        bucket.headers.append(str(self.headers))
        time.sleep(bucket.delay)
        if self._taken("stall"):
            time.sleep(3600)
        if time.monotonic() < bucket.refuse_until or self._taken("refuse"):
            return self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        handle = getattr(self, f"_{self.command.lower()}")
        return handle()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve

    def _taken(self, fault: str) -> bool:
        with self.bucket.lock:
            left = getattr(self.bucket, fault)
            setattr(self.bucket, fault, max(0, left - 1))
            return left > 0

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "content_length" not in headers:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _put(self) -> None:
        bucket = self.bucket
        etag = f'"{hashlib.md5(self.body).hexdigest()}"'
        if "partNumber" in self.query:
            bucket.parts[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
            return self._answer(200, etag=etag)
        with bucket.lock:
            condition = self.headers.get("if-none-match") == "*" and not bucket.ignores_conditions
            if condition and self.key in bucket.objects:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self._store(self.body)
        if self._taken("cut_puts"):
            self.close_connection = True
            self.connection.shutdown(2)
            return None
        if self._taken("fail_puts"):
            return self._answer(500, b"<Error><Code>InternalError</Code></Error>")
        return self._answer(200, etag=etag)

    def _store(self, data: bytes) -> None:
        meta = {k.lower(): v for k, v in self.headers.items() if k.lower().startswith("x-amz-meta-")}
        self.bucket.objects[self.key] = (data, meta, time.monotonic())

    def _get(self) -> None:
        if not self.key:
            return self._list()
        if (found := self.bucket.objects.get(self.key)) is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, meta, _ = found
        common = {"etag": f'"{hashlib.md5(data).hexdigest()}"', "last_modified": LAST_MODIFIED, **meta}
        if ranged := self.headers.get("range"):
            first, last = ranged.removeprefix("bytes=").split("-")
            end = min(int(last or len(data)), len(data) - 1)
            part = data[int(first) : end + 1]
            return self._answer(206, part, content_range=f"bytes {first}-{end}/{len(data)}", **common)
        return self._answer(200, data, **common)

    _head = _get

    def _delete(self) -> None:
        self.bucket.objects.pop(self.key, None)
        self._answer(204)

    def _post(self) -> None:
        if "delete" in self.query:
            keys = [e.text or "" for e in ElementTree.fromstring(self.body).iter() if e.tag.endswith("Key")]
            for key in keys:
                self.bucket.objects.pop(key, None)
            gone = "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
            return self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
        if "uploads" in self.query:
            upload = f"upload-{len(self.bucket.parts)}"
            self.bucket.parts[upload] = {}
            body = (
                f"<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            )
            return self._answer(200, body.encode())
        parts = self.bucket.parts[self.query["uploadId"]]
        self._store(b"".join(parts[n] for n in sorted(parts)))
        body = "<CompleteMultipartUploadResult><ETag>whole</ETag></CompleteMultipartUploadResult>"
        return self._answer(200, body.encode())

    def _list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        due = time.monotonic() - self.bucket.listed_after
        contents, folders = "", set()
        for key, (data, _, since) in sorted(self.bucket.objects.items()):
            if not key.startswith(prefix) or (self.bucket.listed_after and since > due):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            contents += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>x</ETag><Size>{len(data)}</Size></Contents>"
            )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        self._answer(200, body.encode())


LAST_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None: ...


def served_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The bucket in the environment of this process; for fixtures."""
    with s3() as (bucket, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield bucket


@contextmanager
def s3() -> Iterator[tuple[Bucket, dict[str, str]]]:
    """The bucket, and the environment in which obstore finds it as s3://runs/…"""
    bucket = Bucket()
    server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"bucket": bucket}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield (
            bucket,
            {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST0001",
                "AWS_SECRET_ACCESS_KEY": "c2VjcmV0LWtleS1vZi10aGUtdGVzdHM0001",
            },
        )
    finally:
        server.shutdown()
        server.server_close()
