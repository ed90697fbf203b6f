"""A bucket: objects that are created once, replaced, read, listed and deleted, with their faults.

A response may be lost though the server has done what it was asked. So a creation that is answered
"exists", or not at all, reads the object: with these very bytes it is the caller's own. Where it
matters who was first, the bytes must name their writer.

Errors are `OSError`s with a plain text: `FileExistsError`, `FileNotFoundError`, or another one.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import OrchError
from orchestrator.plugins import require

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

T = TypeVar("T")
# A request ends after so long. What it was to do may happen all the same.
REQUEST_S, LARGE_REQUEST_S = 10, 600
LARGE_BYTES = 4 << 20
MOST_BYTES = 1 << 30  # of an object that is read whole: the code of a run
# The waits between tries that failed: a bucket that throttles or fails over is back by then.
WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
THREADS = 16
# Google's own libraries, AWS's own and TensorStore read these names too.
GCS_ENDPOINT, S3_ENDPOINT = "STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object: its name in the bucket, its size, its version, and when it was written."""

    name: str
    size: int
    version: str
    at_s: float


@dataclass(frozen=True)
class Bucket:
    """A bucket of Google Cloud Storage (`gs`), or of S3 and what speaks as it does (`s3`)."""

    scheme: str
    name: str

    # --- one object

    def create(self, name: str, content: bytes) -> None:
        """Create an object; `FileExistsError` where there is one with other bytes."""
        self._put_on(name, content, "create", (_exceptions().AlreadyExistsError,))

    def replace(self, name: str, content: bytes) -> None:
        """Write an object, whatever is there."""
        store = self._patient if len(content) > LARGE_BYTES else self._quick
        self._tried(name, lambda: _obstore().put(store, name, content))

    def replace_version(self, name: str, content: bytes, version: str) -> None:
        """Write an object in place of that version; `FileExistsError` where it is another now."""
        kinds = _exceptions()
        refused = (kinds.PreconditionError, kinds.NotFoundError, FileNotFoundError)
        self._put_on(name, content, _mode(version), refused)

    def _put_on(
        self, name: str, content: bytes, mode: Any, refused: tuple[type[Exception], ...]
    ) -> None:
        """Put an object on a condition. One that fails may have been met by this very request."""
        store = self._patient if len(content) > LARGE_BYTES else self._quick

        def put() -> None:
            try:
                _obstore().put(store, name, content, mode=mode, use_multipart=False)
            except refused as error:
                if self._has(name, content):
                    return
                raise FileExistsError(errno.EEXIST, "exists already", name) from error

        self._tried(name, put)

    def _has(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name)[0] == content
        except FileNotFoundError:
            return False

    def read(self, name: str) -> tuple[bytes, StoredObject]:
        """The bytes of an object, and what is known of it; `FileNotFoundError` where it is none."""
        return self._tried(name, lambda: self._read(name, None))

    def address(self, name: str) -> str:
        """What names an object on every machine."""
        return f"{self.scheme}://{self.name}/{name}"

    def found(self, name: str) -> StoredObject:
        """What is known of an object; `FileNotFoundError` where there is none."""
        try:
            return _found(self._tried(name, lambda: _obstore().head(self._quick, name)))
        except FileNotFoundError as error:
            where = self.address(name)
            raise FileNotFoundError(errno.ENOENT, "no such object", where) from error

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""
        try:
            self.found(name)
        except FileNotFoundError:
            return False
        return True

    def read_if_changed(self, name: str, version: str | None) -> tuple[bytes, StoredObject] | None:
        """The same; None where it still has that version."""
        try:
            return self._tried(name, lambda: self._read(name, version))
        except _exceptions().NotModifiedError:
            return None

    def _read(self, name: str, version: str | None) -> tuple[bytes, StoredObject]:
        options: Any = {"if_none_match": json.loads(version)["e_tag"]} if version else None
        got = _obstore().get(self._patient, name, options=options)
        if got.meta["size"] > MOST_BYTES:
            raise OSError(errno.EFBIG, f"is larger than {MOST_BYTES:,} bytes", name)
        return bytes(got.bytes()), _found(got.meta)

    def read_part(self, name: str, start: int, stop: int, version: str) -> bytes:
        """A few of the bytes of that version; `OSError` where the object is another now."""
        options: Any = {"range": (start, stop), "if_match": json.loads(version)["e_tag"]}

        def read() -> bytes:
            try:
                return bytes(_obstore().get(self._quick, name, options=options).bytes())
            except _exceptions().PreconditionError as error:
                where = self.address(name)
                raise OSError(errno.ESTALE, "has changed since it was opened", where) from error

        return self._tried(name, read)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone already do not matter."""

        def delete(name: str) -> None:
            try:
                self._tried(name, lambda: _obstore().delete(self._quick, name))
            except FileNotFoundError:
                return

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(delete, names))

    # --- many

    def below(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        """The objects below a prefix that ends with a slash, in order: all, or those after one."""

        def listed() -> Iterator[StoredObject]:
            for part in _obstore().list(self._quick, prefix, offset=after, chunk_size=1000):
                yield from map(_found, part)

        found = self._tried(prefix, lambda: list(listed()))
        return sorted(found, key=lambda one: one.name)

    def inside(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """The objects directly below a prefix, and the prefixes below it, as a folder has both."""
        got = self._tried(
            prefix, lambda: _obstore().list_with_delimiter(self._quick, prefix.rstrip("/"))
        )
        return [_found(one) for one in got["objects"]], list(got["common_prefixes"])

    # --- how it is reached

    def _tried(self, name: str, ask: Callable[[], T]) -> T:
        """Ask until it is answered. What the server refuses for good is not asked again."""
        for wait_s in (*WAITS_S, None):
            try:
                return ask()
            except (FileExistsError, FileNotFoundError, OrchError):
                raise
            except Exception as error:
                if type(error).__name__ == "NotModifiedError":
                    raise
                if wait_s is None or _is_final(error):
                    raise _failure(self.address(name), error) from error
                time.sleep(wait_s)
        raise AssertionError  # the last try returns or raises

    @cached_property
    def _quick(self) -> "GCSStore | S3Store":
        return _store(self.scheme, self.name, REQUEST_S)

    @cached_property
    def _patient(self) -> "GCSStore | S3Store":
        return _store(self.scheme, self.name, LARGE_REQUEST_S)


@lru_cache
def bucket(scheme: str, name: str) -> Bucket:
    """The bucket of that name. A process connects to it once."""
    return Bucket(scheme, name)


def _obstore() -> Any:
    require("bucket")
    import obstore  # noqa: PLC0415  commands about folders need not load it

    return obstore


def _exceptions() -> Any:
    _obstore()
    from obstore import exceptions  # noqa: PLC0415

    return exceptions


def _store(scheme: str, name: str, limit_s: int) -> "GCSStore | S3Store":
    _obstore()
    from obstore.store import GCSStore, S3Store  # noqa: PLC0415

    options: Any = {"timeout": f"{limit_s}s", "connect_timeout": "5s", "allow_http": True}
    retries: Any = {"max_retries": 0}  # `_tried` tries again: it knows what a lost answer means
    try:
        if scheme == "s3":
            return S3Store(name, client_options=options, retry_config=retries, **s3_settings())
        return GCSStore(name, client_options=options, retry_config=retries, **_gcs_settings())
    except Exception as error:
        raise _failure(f"{scheme}://{name}", error) from error


def s3_settings() -> dict[str, Any]:
    """The region and the endpoint of S3, as the environment names them for every library."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = os.environ.get(S3_ENDPOINT)
    return {"region": region} | ({"endpoint": endpoint} if endpoint else {})


def _gcs_settings() -> dict[str, Any]:
    endpoint = os.environ.get(GCS_ENDPOINT)
    if not endpoint:
        return {}
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    no_account = {"client_email": "", "private_key": "", "private_key_id": ""}
    return {
        "service_account_key": json.dumps(
            {"gcs_base_url": url, "disable_oauth": True, **no_account}
        )
    }


def _mode(version: str) -> Any:
    return {key: value for key, value in json.loads(version).items() if value is not None}


def _found(meta: Any) -> StoredObject:
    version = json.dumps({"e_tag": meta["e_tag"], "version": meta["version"]})
    return StoredObject(
        name=meta["path"],
        size=meta["size"],
        version=version,
        at_s=meta["last_modified"].timestamp(),
    )


# --- faults


def _is_final(error: Exception) -> bool:
    """Whether asking again would be answered alike: it is not allowed, or makes no sense."""
    kinds = _exceptions()
    refusals = (
        kinds.PermissionDeniedError,
        kinds.UnauthenticatedError,
        kinds.UnknownConfigurationKeyError,
        kinds.NotSupportedError,
        kinds.InvalidPathError,
    )
    return isinstance(error, refusals) or getattr(error, "errno", None) in FINAL


def _failure(where: str, error: Exception) -> OSError:
    if isinstance(error, OSError) and error.strerror:
        return error
    text = str(error).strip().split("\n\nDebug source", 1)[0]
    first = " ".join(text.split()) or type(error).__name__
    if NO_TOKEN in first:
        return OSError(errno.EIO, NO_CREDENTIALS, where)
    number = errno.EACCES if type(error).__name__ in REFUSED else errno.EIO
    return OSError(number, f"the bucket does not serve it: {first}", where)


FINAL = (errno.EFBIG, errno.ESTALE)
REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
NO_TOKEN = "Error performing token request"
NO_CREDENTIALS = (
    "this machine has no credentials for it: set GOOGLE_APPLICATION_CREDENTIALS, or"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run gcloud auth application-default login"
)
