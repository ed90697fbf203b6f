"""Command line room: what a run is made of, as `orch submit` finds it here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import JournalUnwritable, SpecError
from orchestrator.types.spec import Spec

UNCOMMITTED = "uncommitted.diff"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Versions and commit, texts to keep, where the spec lies, the steps to trace, and the study
    that the run is a trial of.
    """

    environment: Mapping[str, str]
    documents: Mapping[str, bytes]
    folder: str
    profile: tuple[int, int] | None
    study: str | None = None

    def keeping(self, name: str, text: bytes) -> "Origin":
        """With one more text to keep."""
        return replace(self, documents={**self.documents, name: text})

    @property
    def fields(self) -> dict[str, Any]:
        """As a journal takes them."""
        return vars(self)


def check_kept(spec: Spec) -> None:
    """Refuse before anything takes long what the spec says of where a run is kept and recorded."""
    from orchestrator import journal, tracking

    storage = Path(spec.run.storage)
    tracking.destination(spec.tracking, storage, os.environ)
    try:
        journal.check_writable(storage)
    except JournalUnwritable as error:
        raise JournalUnwritable(f"run.storage: {error}") from error


def origin_of(path: Path, spec: Spec, steps: int, profile: tuple[int, int] | None) -> Origin:
    """What a run of so many steps is made of. Secrets that its texts hold stay out of them."""
    from orchestrator.launch import provenance

    if profile and profile[0] >= steps:
        first, end = profile
        raise SpecError(f"--profile {first}:{end}: the run has {steps} steps, counted from 0")
    commit = provenance.commit()
    texts = {"spec.yaml": path.read_bytes()}
    if commit and (changes := provenance.uncommitted()):
        texts[UNCOMMITTED] = changes
        commit["git_uncommitted"] = f"documents/{UNCOMMITTED}"
    return Origin(
        environment=provenance.versions() | commit,
        documents={
            name: provenance.without_secrets(text, spec.run.secrets) for name, text in texts.items()
        },
        folder=str(path.absolute().parent),
        profile=profile,
    )
