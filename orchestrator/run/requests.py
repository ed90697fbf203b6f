"""What somebody asks for when a spec is submitted, and what a run of it is made of."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator import tracking
from orchestrator.errors import Interrupted, JournalUnwritable, NotAnswered, SpecError
from orchestrator.journal.files import check_writable
from orchestrator.journal.run_paths import UNCOMMITTED
from orchestrator.launch import provenance
from orchestrator.run.progress import Progress, silent
from orchestrator.storage.addresses import folder
from orchestrator.values.plan import Plan
from orchestrator.values.run_options import Proposal, SubmitOptions
from orchestrator.values.spec import Spec

NOBODY_ASKED = "a run on a named cluster needs --yes where nobody can be asked"

Confirm: TypeAlias = Callable[[Proposal], bool]


class NotConfirmed(Interrupted):
    """The answer was no."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who submits: `confirm` is asked before anything starts, `progress` gets what happens.

    Without `confirm` nothing that takes chips starts at all.
    """

    confirm: Confirm | None = None
    progress: Progress = silent

    def check_confirmable(self) -> None:
        """Refuse before a cluster is contacted, rather than after."""
        if self.confirm is None:
            raise NotAnswered(NOBODY_ASKED)

    def check_confirmed(self, proposal: Proposal) -> None:
        """Ask whether to go on."""
        if self.confirm and not self.confirm(proposal):
            raise NotConfirmed(f"{proposal.name}: not confirmed, nothing was submitted")


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A spec, the file it is from, its plan, how to carry it out, and for whom."""

    path: Path
    spec: Spec
    plan: Plan
    options: SubmitOptions
    caller: Caller

    @property
    def storage(self) -> Path:
        return folder(self.spec.run.storage)


@dataclass(frozen=True, kw_only=True)
class NamedCluster:
    """A cluster's address, and what named it."""

    address: str
    named_by: str


def named_cluster(spec: Spec, address: str | None) -> NamedCluster | None:
    """The cluster that is named by an option, by the environment or by the spec."""
    written = spec.cluster.address
    names = {
        "--address": address,
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
        "cluster.address": None if written == "auto" else written,
    }
    found = ((where, name) for name, where in names.items() if where)
    return next((NamedCluster(address=where, named_by=name) for where, name in found), None)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a run is made of: versions and commit, texts to keep, the folder of its spec, the steps
    to trace, and the study that it is a trial of.
    """

    environment: Mapping[str, str]
    documents: Mapping[str, bytes]
    folder: str
    profile: tuple[int, int] | None
    study: str | None = None

    def with_document(self, name: str, text: bytes) -> "Provenance":
        return replace(self, documents={**self.documents, name: text})

    def on_cluster(self, address: str) -> "Provenance":
        return replace(self, environment={**self.environment, "cluster": address})

    @property
    def fields(self) -> dict[str, Any]:
        """As a journal takes them."""
        return vars(self)


def provenance_of(
    path: Path, spec: Spec, steps: int, profile: tuple[int, int] | None
) -> Provenance:
    """Return the provenance of a run of `steps` steps.

    The text of its spec leaves out the values of secrets; uncommitted changes are kept only if
    `run.record_diff` asks for them.
    """
    if profile and profile[0] >= steps:
        first, end = profile
        raise SpecError(f"--profile {first}:{end}: the run has {steps} steps, counted from 0")
    commit = provenance.commit()
    documents = {
        "spec.yaml": provenance.without_secrets(path.read_bytes(), spec.run.secrets),
    }
    if commit and (changes := provenance.uncommitted()):
        commit["git_uncommitted"] = "uncommitted changes"
        if spec.run.record_diff:
            documents[UNCOMMITTED] = changes
            commit["git_uncommitted"] = f"documents/{UNCOMMITTED}"
    return Provenance(
        environment=provenance.versions() | commit,
        documents=documents,
        folder=str(path.absolute().parent),
        profile=profile,
    )


def check_storage(spec: Spec) -> None:
    """Refuse a storage or a tracking address that cannot be used, before anything takes long."""
    storage = folder(spec.run.storage)
    tracking.destination(spec.tracking, storage, os.environ)
    try:
        check_writable(storage)
    except JournalUnwritable as error:
        raise JournalUnwritable(f"run.storage: {error}") from error
