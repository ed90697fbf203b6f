"""Launch room: the project's code as it travels to a cluster: one archive, byte for byte the same.

It holds what `provenance.code_files` names, and the lock where there is one: what must be installed
on the cluster's hosts.
"""

import io
import zipfile

from orchestrator.launch import provenance

NAME = "code.zip"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that an archive can say


def archive() -> bytes:
    """The code, without times: the same code is the same archive, which Ray keeps once."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as target:
        for path in [*provenance.code_files(), *provenance.lock_files()]:
            member = zipfile.ZipInfo(path.as_posix(), EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            target.writestr(member, (provenance.PROJECT / path).read_bytes())
    return written.getvalue()
