"""A bucket: objects that are created once, replaced, read, listed and deleted, with their faults. A
response may be lost: a creation that "exists", or is not answered, reads the object, which is its
own with these bytes. Where it matters who was first, the bytes must name their writer. Errors are
`OSError`s with a plain text: `FileExistsError`, `FileNotFoundError`, or another one.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from orchestrator.errors import OrchError
from orchestrator.plugins import require
from orchestrator.values.codec import Value

T = TypeVar("T")
# A request ends after so long. What it was to do may happen all the same.
_REQUEST_S, _LARGE_REQUEST_S = 10, 600
LARGE_BYTES = 4 << 20
_MOST_BYTES = 1 << 30  # of an object that is read whole: the code of a run
# The waits between tries that failed: a bucket that throttles or fails over is back by then.
_WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
THREADS = 16
# Google's own libraries, AWS's own and TensorStore read these names too.
_GCS_ENDPOINT, _S3_ENDPOINT = "STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"


class StoredObject(Value):
    name: str
    size: int
    version: str
    at_s: float


@dataclass(frozen=True)
class Bucket:
    """A bucket of Google Cloud Storage (`gs`), or of S3 and what speaks as it does (`s3`)."""

    scheme: str
    name: str

    def address(self, name: str) -> str:
        return f"{self.scheme}://{self.name}/{name}"

    def create(self, name: str, content: bytes) -> None:
        """Create an object; `FileExistsError` where there is one with other bytes."""
        self._put_if(name, content, "create", (_obstore().exceptions.AlreadyExistsError,))

    def replace(self, name: str, content: bytes) -> None:
        self._tried(name, lambda: _obstore().put(self._store_for(content), name, content))

    def replace_version(self, name: str, content: bytes, version: str) -> None:
        """Write an object in place of that version; `FileExistsError` where it is another now."""
        mode = {key: value for key, value in json.loads(version).items() if value is not None}
        kinds = _obstore().exceptions
        refused = (kinds.PreconditionError, kinds.NotFoundError, FileNotFoundError)
        self._put_if(name, content, mode, refused)

    def _put_if(
        self, name: str, content: bytes, mode: Any, refused: tuple[type[Exception], ...]
    ) -> None:
        """Put an object on a condition. One that fails may have been met by this very request."""

        def put() -> None:
            store = self._store_for(content)
            try:
                _obstore().put(store, name, content, mode=mode, use_multipart=False)
            except refused as error:
                with suppress(FileNotFoundError):
                    if self.read(name)[0] == content:
                        return
                raise FileExistsError(errno.EEXIST, "exists already", name) from error

        self._tried(name, put)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone already do not matter."""

        def delete(name: str) -> None:
            with suppress(FileNotFoundError):
                self._tried(name, lambda: _obstore().delete(self._quick, name))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(delete, names))

    def read(self, name: str) -> tuple[bytes, StoredObject]:
        """Return the bytes of an object and what is known of it, or raise `FileNotFoundError`."""
        return self._tried(name, lambda: self._read(name, None))

    def read_if_changed(self, name: str, version: str | None) -> tuple[bytes, StoredObject] | None:
        """Return what `read` does; None where the object still has that version."""
        try:
            return self._tried(name, lambda: self._read(name, version))
        except _obstore().exceptions.NotModifiedError:
            return None

    def _read(self, name: str, version: str | None) -> tuple[bytes, StoredObject]:
        options: Any = {"if_none_match": json.loads(version)["e_tag"]} if version else None
        got = _obstore().get(self._patient, name, options=options)
        if got.meta["size"] > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"is larger than {_MOST_BYTES:,} bytes", name)
        return bytes(got.bytes()), _found(got.meta)

    def read_part(self, name: str, start: int, stop: int, version: str) -> bytes:
        """Return a few of the bytes of that version; `OSError` where the object is another now."""
        options: Any = {"range": (start, stop), "if_match": json.loads(version)["e_tag"]}

        def read() -> bytes:
            try:
                return bytes(_obstore().get(self._quick, name, options=options).bytes())
            except _obstore().exceptions.PreconditionError as error:
                where = self.address(name)
                raise OSError(errno.ESTALE, "has changed since it was opened", where) from error

        return self._tried(name, read)

    def found(self, name: str) -> StoredObject:
        try:
            return _found(self._tried(name, lambda: _obstore().head(self._quick, name)))
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.address(name)) from error

    def has(self, name: str) -> bool:
        try:
            return bool(self.found(name))
        except FileNotFoundError:
            return False

    def below(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        """Return the objects below a prefix that ends with a slash, in order, from after a name."""

        def listed() -> list[StoredObject]:
            parts = _obstore().list(self._quick, prefix, offset=after, chunk_size=1000)
            return [_found(meta) for part in parts for meta in part]

        return sorted(self._tried(prefix, listed), key=lambda stored: stored.name)

    def inside(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects directly below a prefix, and the prefixes below it, as in a folder."""
        folder = prefix.rstrip("/")
        got = self._tried(prefix, lambda: _obstore().list_with_delimiter(self._quick, folder))
        return [_found(meta) for meta in got["objects"]], list(got["common_prefixes"])

    def _tried(self, name: str, ask: Callable[[], T]) -> T:
        """Ask until it is answered. What the server refuses for good is not asked again."""
        for wait_s in (*_WAITS_S, None):
            try:
                return ask()
            except (FileExistsError, FileNotFoundError, OrchError):
                raise
            except Exception as error:
                kind, number = type(error).__name__, getattr(error, "errno", None)
                if kind == "NotModifiedError":
                    raise
                final = kind in _FINAL or number in (errno.EFBIG, errno.ESTALE)
                if wait_s is None or final:
                    raise _failure(self.address(name), error) from error
                time.sleep(wait_s)
        raise AssertionError  # the last try returns or raises

    def _store_for(self, content: bytes) -> Any:
        return self._patient if len(content) > LARGE_BYTES else self._quick

    @cached_property
    def _quick(self) -> Any:
        return _store(self.scheme, self.name, _REQUEST_S)

    @cached_property
    def _patient(self) -> Any:
        return _store(self.scheme, self.name, _LARGE_REQUEST_S)


@lru_cache
def bucket(scheme: str, name: str) -> Bucket:
    return Bucket(scheme, name)


def _obstore() -> Any:
    require("bucket")
    import obstore  # noqa: PLC0415  commands about folders need not load it

    return obstore


def _store(scheme: str, name: str, limit_s: int) -> Any:
    stores = _obstore().store
    options: Any = {"timeout": f"{limit_s}s", "connect_timeout": "5s", "allow_http": True}
    retries: Any = {"max_retries": 0}  # `_tried` tries again: it knows what a lost answer means
    kind, settings = stores.S3Store, s3_settings()
    if scheme == "gs":
        kind, settings = stores.GCSStore, {}
        if url := gcs_endpoint():
            no_account = {"client_email": "", "private_key": "", "private_key_id": ""}
            account = {"gcs_base_url": url, "disable_oauth": True, **no_account}
            settings = {"service_account_key": json.dumps(account)}
    try:
        return kind(name, client_options=options, retry_config=retries, **settings)
    except Exception as error:
        raise _failure(f"{scheme}://{name}", error) from error


def gcs_endpoint() -> str | None:
    endpoint = os.environ.get(_GCS_ENDPOINT)
    return f"http://{endpoint}" if endpoint and "://" not in endpoint else endpoint


def s3_settings() -> dict[str, Any]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = os.environ.get(_S3_ENDPOINT)
    return {"region": region} | ({"endpoint": endpoint} if endpoint else {})


def _found(meta: Any) -> StoredObject:
    version = json.dumps({"e_tag": meta["e_tag"], "version": meta["version"]})
    at_s = meta["last_modified"].timestamp()
    return StoredObject(name=meta["path"], size=meta["size"], version=version, at_s=at_s)


# Asking again makes no sense: it is not allowed, or not possible.
_REFUSALS = ("PermissionDeniedError", "UnauthenticatedError")
_FINAL = (*_REFUSALS, "UnknownConfigurationKeyError", "NotSupportedError", "InvalidPathError")
_NO_TOKEN = "Error performing token request"
_NO_CREDENTIALS = (
    "this machine has no credentials for it: set GOOGLE_APPLICATION_CREDENTIALS, or"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run gcloud auth application-default login"
)


def _failure(where: str, error: Exception) -> OSError:
    if isinstance(error, OSError) and error.strerror:
        return error
    text = str(error).strip().split("\n\nDebug source", 1)[0]
    first = " ".join(text.split()) or type(error).__name__
    if _NO_TOKEN in first:
        return OSError(errno.EIO, _NO_CREDENTIALS, where)
    number = errno.EACCES if type(error).__name__ in _REFUSALS else errno.EIO
    return OSError(number, f"the bucket does not serve it: {first}", where)
