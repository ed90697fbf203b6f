"""The kinds of fields in a spec, and what its JSON Schema publishes about a field."""

from typing import Annotated, Any, Literal

from msgspec import Meta


def about(
    description: str,
    *examples: Any,
    notation: str | None = None,
    default: Any = None,
    **constraints: Any,
) -> Meta:
    """What the schema publishes about a field.

    A file may write the value in a `notation` (15T, 10%, auto), and leave out what has a `default`.
    """
    more = {"notation": notation, "default": default}
    return Meta(
        description=description,
        examples=list(examples) or None,
        extra_json_schema={key: value for key, value in more.items() if value is not None},
        **constraints,
    )


# No key of a file: it follows from the others.
COMPUTED = Meta(extra_json_schema={"computed": True})
# A key that a file needs only where it has no stages.
FROM_STAGES = Meta(extra_json_schema={"unless": "stages"})

Name = Annotated[
    str,
    Meta(
        title="a name: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit",
        pattern="^[a-z0-9][a-z0-9-]{0,62}$",
        examples=["my-run-2"],
    ),
]
Text = Annotated[str, Meta(title="text", min_length=1, max_length=4096)]
Address = Annotated[
    str,
    Meta(
        title="a path or address, without a password",
        pattern="^(?!.*://[^/]*@).",
        max_length=4096,
        extra_json_schema={"writeOnly": True},
    ),
]
Variable = Annotated[
    str,
    Meta(
        title="the name of an environment variable (A-Z, 0-9, _), never its value",
        pattern="^[A-Z_][A-Z0-9_]{0,127}$",
        examples=["HF_TOKEN"],
        extra_json_schema={"writeOnly": True},
    ),
]
OptionName = Annotated[
    str,
    Meta(
        title="the name of an XLA option (a-z, 0-9, _)",
        pattern="^[a-z][a-z0-9_]{0,127}$",
        examples=["xla_tpu_enable_latency_hiding_scheduler"],
    ),
]
PositiveInteger = Annotated[int, Meta(ge=1, le=10**18, extra_json_schema={"notation": "count"})]
NonNegativeInteger = Annotated[
    int, Meta(ge=0, le=10**18, extra_json_schema={"notation": "count_or_zero"})
]
PositiveNumber = Annotated[float, Meta(gt=0)]
NonNegativeNumber = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
DecayRate = Annotated[float, Meta(ge=0, lt=1)]
PodCount = Annotated[int, Meta(ge=1, le=10_000)]
AxisSize = Annotated[int, Meta(ge=1, le=1_000_000)]
Microbatches = Annotated[int, Meta(ge=1, le=1_000_000)]
RetryCount = Annotated[int, Meta(ge=0, le=1_000_000)]
DType = Literal["fp32", "bf16"]
MomentType = Literal["fp32", "bf16", "int8"]
MatmulType = Literal["fp32", "bf16", "int8", "fp8"]
Treatment = Literal["keep", "offload", "recompute"]
StudyKind = Literal["scaling", "sweep"]
Scaling = Literal["strong", "weak"]
AfterFailure = Literal["stop", "go on"]
