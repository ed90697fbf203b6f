"""The keys of a study's file. Its schema is generated from them."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from orchestrator.types.spec_fields import Name, about
from orchestrator.types.study import AfterFailure, Scaling, StudyKind


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """The keys that a study varies, and how its trials are run."""

    base: Annotated[
        str,
        about(
            "The path of the spec that is varied, relative to this file.", "../llama3_70b_4pod.yaml"
        ),
        Meta(min_length=1, title="the path of a spec"),
    ]
    kind: Annotated[
        StudyKind | None,
        about(
            "A scaling study compares speeds on more and fewer chips; a sweep compares losses. When"
            " left out: scaling where `scaling` is given, or resources.pods or resources.topology"
            " is varied."
        ),
    ] = None
    scaling: Annotated[
        Scaling,
        about(
            "Whether every trial has the batch of the base (strong), or the batch grows with the"
            " pods (weak)."
        ),
    ] = "strong"
    vary: Annotated[
        dict[str, Annotated[list[Any], Meta(min_length=1)]],
        about(
            "The dotted keys that are varied, each with its values. Several keys make a grid.",
            {"resources.pods": [1, 2, 4]},
        ),
        Meta(min_length=1, title="a mapping of dotted keys to lists of values"),
    ]
    repeats: Annotated[
        int,
        about(
            "The number of runs of each trial. The report has the spread over them.", ge=1, le=100
        ),
    ] = 1
    after_failure: Annotated[
        AfterFailure,
        about("Whether the study stops when a trial fails, or goes on with the next."),
    ] = "stop"


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """One spec varied: every combination of the values is a trial. A key that is left out has the
    default named here.
    """

    name: Annotated[
        Name | None,
        about(
            "The name of the study; the name of its base and the kind of scaling when left out.",
            "llama3-70b-pods",
        ),
    ] = None
    study: StudySection
