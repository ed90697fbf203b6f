"""A server of buckets in this process: it speaks S3 and Google Cloud Storage, and fails on request.

It has the requests that orch makes: conditional puts (`If-None-Match`, `If-Match`, and
`x-goog-if-generation-match`), reads, listings and deletions. The requests and headers are those of
the public references of both clouds' XML interfaces; `tests/test_bucket_servers.py` holds it to
servers that others wrote.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

# What a fault does with a request: it is carried out and its answer lost, or it is not carried out.
LOST, STALLED, THROTTLED, BROKEN = "lost response", "stalled", "429", "503"
JSON_OBJECT = re.compile(r"(?:upload/)?storage/v1/b/([^/]+)/o/?(.*)")
Answer = tuple[int, bytes, dict[str, str]]
Fault = Callable[[str, str], str | None]  # of a method and a path: which fault, if any


@dataclass
class Stored:
    """An object. Its sum is made once: tests that change the content put another in its place."""

    content: bytes
    generation: int
    at_s: float

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}-{self.generation}"'


@dataclass
class BucketServer:
    """The objects of all buckets, and what is done to requests. Use it as a context."""

    fault: Fault = lambda _method, _path: None
    stall_s: float = 3.0
    conditions: bool = True  # whether conditions on a put count
    objects: dict[str, Stored] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: int = 0
    generation: int = 1000
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "BucketServer":
        state = self

        class Handler(_Handler):
            server_state = state

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def names(self, begin: str = "") -> list[str]:
        """The names of all objects, with their buckets."""
        return sorted(name for name in self.objects if name.startswith(begin))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # an answer is one packet, and is not held back
    server_state: BucketServer

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_DELETE = do_HEAD = do_POST = do_GET  # noqa: N815

    def _serve(self) -> None:
        state, body = self.server_state, self._body()
        parts = urlsplit(self.path)
        name = unquote(parts.path).lstrip("/")
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        state.requests.append((self.command, name))
        fault = state.fault(self.command, name)
        state.faults += fault is not None
        if fault in (THROTTLED, BROKEN):
            self._answer(int(fault), b"<Error><Code>SlowDown</Code></Error>")
            return
        with state.lock:
            answer = self._carried_out(name, query, body)
        if fault == STALLED:
            time.sleep(state.stall_s)
        if fault in (LOST, STALLED):
            self.close_connection = True
            self.connection.close()
            return
        self._answer(*answer)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _carried_out(self, name: str, query: dict[str, str], body: bytes) -> Answer:
        objects = self.server_state.objects
        if match := JSON_OBJECT.fullmatch(name):
            return self._json_object(f"{match[1]}/{match[2] or query['name']}", query, body)
        bucket, _, key = name.partition("/")
        if self.command == "POST":  # S3's deletion of several objects
            gone = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for key in gone:
                objects.pop(f"{bucket}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in gone)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
        if not key:
            return 200, self._listing(bucket, query), {"Content-Type": "application/xml"}
        here = objects.get(name)
        if self.command == "PUT":
            return self._put(name, here, body)
        if here is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        if self.command == "DELETE":
            del objects[name]
            return 204, b"", {}
        if self.headers.get("If-Match", here.etag) != here.etag:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        if self.headers.get("If-None-Match") == here.etag:
            return 304, b"", _headers(here)
        return self._ranged(here)

    def _json_object(self, name: str, query: dict[str, str], body: bytes) -> Answer:
        """Google's JSON interface, as far as TensorStore uses it."""
        here = self.server_state.objects.get(name)
        if self.command == "POST":
            wanted = query.get("ifGenerationMatch")
            if wanted is not None and int(wanted) != (here.generation if here else 0):
                return 412, b"{}", {}
            self._put(name, here, body)
            stored = self.server_state.objects[name]
            bucket, _, key = name.partition("/")
            return 200, json.dumps(_described(bucket, key, stored)).encode(), {}
        if here is None:
            return 404, b"{}", {}
        if query.get("ifGenerationNotMatch") == str(here.generation):
            return 304, b"", _headers(here)
        return self._ranged(here)

    def _ranged(self, here: Stored) -> Answer:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return 200, here.content, _headers(here)
        first, size = int(match[1]), len(here.content)
        last = min(int(match[2] or size), size - 1)
        part = {"Content-Range": f"bytes {first}-{last}/{size}"}
        return 206, here.content[first : last + 1], _headers(here) | part

    def _put(self, name: str, here: Stored | None, body: bytes) -> Answer:
        state = self.server_state
        if state.conditions and not self._may(here):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        state.generation += 1
        stored = Stored(body, state.generation, time.time())
        state.objects[name] = stored
        return 200, b"", _headers(stored)

    def _may(self, here: Stored | None) -> bool:
        """Whether the conditions of a put are met."""
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None and int(generation) != (here.generation if here else 0):
            return False
        if self.headers.get("If-None-Match") == "*" and here:
            return False
        match = self.headers.get("If-Match")
        return match is None or (here is not None and match == here.etag)

    def _listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        keys = [name.partition("/")[2] for name in self.server_state.names(f"{bucket}/")]
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        inside, prefixes = keys, set()
        if delimiter := query.get("delimiter"):
            inside = [key for key in keys if delimiter not in key[len(prefix) :]]
            prefixes = {
                prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
                for key in keys
                if key not in inside
            }
        objects = self.server_state.objects
        found = {key: objects[f"{bucket}/{key}"] for key in inside}
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key>"
            f"<LastModified>{_iso(one.at_s)}</LastModified><ETag>{escape(one.etag)}</ETag>"
            f"<Size>{len(one.content)}</Size><Generation>{one.generation}</Generation></Contents>"
            for key, one in found.items()
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"
            for prefix in sorted(prefixes)
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{contents}{common}"
            "</ListBucketResult>"
        ).encode()

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and code not in (204, 304):
            self.wfile.write(body)


def _described(bucket: str, key: str, stored: Stored) -> dict[str, str]:
    return {
        "name": key,
        "bucket": bucket,
        "generation": str(stored.generation),
        "metageneration": "1",
        "size": str(len(stored.content)),
        "timeCreated": _iso(stored.at_s),
        "updated": _iso(stored.at_s),
    }


def _headers(stored: Stored) -> dict[str, str]:
    return {
        "ETag": stored.etag,
        "Last-Modified": formatdate(stored.at_s, usegmt=True),
        "x-goog-generation": str(stored.generation),
    }


def _iso(at_s: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    return f"{whole}.{int(at_s % 1 * 1000):03d}Z"
