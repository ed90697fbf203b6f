"""A serving spec, which says what to serve, how fast and on which chips; and the plan of it."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from orchestrator.values.codec import (
    COMPUTED,
    AxisSize,
    Name,
    NonNegativeNumber,
    PodCount,
    PositiveInteger,
    PositiveNumber,
    Share,
    Shown,
    Value,
    about,
)
from orchestrator.values.model import Model
from orchestrator.values.plan import LedgerLine
from orchestrator.values.spec import AUTO_TOPOLOGY

StoredType = Literal["bf16", "int8", "fp8", "int4", "fp4"]
_Concurrency = Annotated[int, Meta(ge=1, le=10_000_000)]
ANY_ENGINE = "any"  # an engine of which no run is published


class LengthShare(Value):
    """A length that a share of the requests has.

    Attributes:
        tokens: The number of tokens.
        share: The share of the requests that are so long; the shares of a list add up to 100 %.
    """

    tokens: Annotated[PositiveInteger, about(1024)]
    share: Annotated[Share, about("80%", notation="share")]


class Wish(Value):
    """The time that requests should take at most.

    Attributes:
        time: The time.
        percentile: The share of the requests, in percent, that should take no longer.
    """

    time: Annotated[float, about("200ms", notation="latency")]
    percentile: Annotated[float, about(95, ge=1, le=99.9)] = 50.0


_Lengths = tuple[LengthShare, ...]
_LISTED = [{"tokens": 1024, "share": "80%"}, {"tokens": 8192, "share": "20%"}]


class Serve(Value):
    """What is served: a model, the requests, and how fast they should be answered.

    Attributes:
        model: The model: the name of a known one, a shape, or a Hugging Face config.json.
        prompt: The number of tokens of a prompt, or a list of lengths with their shares.
        output: The number of tokens of an answer, or a list of lengths with their shares.
        ttft: The wish for the time from a request to its first token, or only the time.
        tpot: The wish for the time between two tokens of an answer, or only the time.
        requests_per_s: The number of requests that arrive in a second, at all replicas together.
            Without it and without `concurrency`, each replica is as busy as the wishes allow.
        concurrency: The number of requests that are in work at all times, at all replicas together.
        weights: The type in which the matrices of the layers are stored.
        kv_cache: The type in which keys and values of earlier positions are stored.
        chunk: The number of tokens of prompts that a step takes at most.
        engine: The software: one with published runs on the chip, or any.
    """

    model: Annotated[Model, about("llama3-70b", notation="model")]
    prompt: Annotated[_Lengths, about(8192, _LISTED, notation="lengths")]
    output: Annotated[_Lengths, about(512, _LISTED, notation="lengths")]
    ttft: Annotated[Wish | None, about("2s", notation="wish")] = None
    tpot: Annotated[Wish | None, about("50ms", notation="wish")] = None
    requests_per_s: Annotated[PositiveNumber | None, about(2.5)] = None
    concurrency: Annotated[_Concurrency | None, about(64)] = None
    weights: StoredType = "bf16"
    kv_cache: StoredType = "bf16"
    chunk: Annotated[PositiveInteger, about(2048)] = 2048
    engine: Annotated[str, about("vllm-tpu", notation="engine")] = ANY_ENGINE

    @property
    def prompt_tokens(self) -> float:
        return _mean_tokens(self.prompt)

    @property
    def output_tokens(self) -> float:
        return _mean_tokens(self.output)


def _mean_tokens(lengths: _Lengths) -> float:
    return sum(length.tokens * length.share for length in lengths)


class ServingMesh(Value):
    """How the devices of a slice share the work.

    Attributes:
        replicas: The number of copies of the model inside a slice, each with its own requests.
        attention: The number of parts into which the requests of a copy are split for attention;
            experts are shared by all parts.
        tensor: The number of parts into which heads, d_ff and the vocabulary are split.
        experts: The number of parts into which the experts are split; other devices of the copy
            split the width of each expert.
    """

    replicas: Annotated[AxisSize | None, about(notation="axis")] = None
    attention: Annotated[AxisSize | None, about(notation="axis")] = None
    tensor: Annotated[AxisSize | None, about(notation="axis")] = None
    experts: Annotated[AxisSize | None, about(notation="axis")] = None


class ServingResources(Value):
    """The requested chips.

    Attributes:
        chip: The kind of chip: the name of a known one, or a file of your own.
        topology: The shape of a slice in chips, such as 4x4, or its accelerator type, such as
            v5e-16. With auto, `orch plan` chooses the cheapest slice that meets the wishes.
        replicas: The number of slices, each of which serves by itself.
        mesh: How the devices of a slice share the work. The search chooses what is auto or left
            out.
        dollars_per_chip_hour: The price of a chip in US dollars per hour; the list price of the
            catalog when left out.
    """

    chip: Annotated[str, about("v5e", notation="chip")]
    chip_definition: Annotated[dict[str, Any] | None, COMPUTED] = None
    topology: Annotated[str, about("4x4", notation="topology")] = AUTO_TOPOLOGY
    replicas: PodCount = 1
    mesh: Annotated[ServingMesh, about(notation="serving_mesh")] = ServingMesh()
    dollars_per_chip_hour: Annotated[NonNegativeNumber | None, about(1.2)] = None

    @property
    def has_open_topology(self) -> bool:
        return self.topology == AUTO_TOPOLOGY


class ServingSpec(Value):
    """What to serve, how fast, and on which chips. A key that is left out has the default named
    here.

    Attributes:
        name: The name of the plan.
    """

    name: Annotated[Name, about("serve-llama3-70b")]
    serve: Annotated[Serve, Meta(examples=[{"model": "llama3-70b", "prompt": 8192, "output": 512}])]
    resources: Annotated[ServingResources, Meta(examples=[{"chip": "v5e", "topology": "4x4"}])]
    overrides: Annotated[tuple[str, ...], COMPUTED] = ()


class EngineConstants(Value):
    """What an engine makes of each kind of work on a kind of chip: seconds of each layer and of
    each mixture, whatever it does, and factors over seconds at the peak, at least 1. In prefill
    products take `prefill` times as long as in decoding.
    """

    layer_s: float
    mixture_s: float
    weights: float
    matmul: float
    cache: float
    attention: float
    exchange: float
    experts: float
    prefill: float


# --- the plan


class ServingEstimate(Value):
    """`lower` follows from the chip's peaks, all overlapped: no time is shorter, and for rates no
    rate is higher. `expected` is the estimate from published runs, `low` to `high` its 80 %
    interval.
    """

    lower: float
    expected: float
    low: float
    high: float


class ServingMemory(Value):
    """Bytes of one device: what is there at all times, and the room that is left for the cache."""

    weights_bytes: float
    activations_bytes: float
    cache_bytes: float
    hbm_bytes: float


class ServingForecast(Value):
    """What the plan should do. Tokens and dollars count every replica; seconds are those of one
    request, at the percentile of its wish; answers of one token have no time between tokens.
    `kv_bytes_per_token` is of the whole model; `max_batch`
    is the number of requests of the full length for which all slices together have room. Decoding
    `turns_at` so many requests from bandwidth-bound to compute-bound. `prefill` and `decode` are
    the lines of a step at the peaks; the longest line of decoding names the `bound`. The constants
    of the engine on this chip were learned from `learned_runs` runs.
    """

    ttft_s: ServingEstimate
    tpot_s: ServingEstimate | None
    output_tokens_per_s: ServingEstimate
    output_tokens_per_s_chip: ServingEstimate
    dollars_per_million_output_tokens: ServingEstimate | None
    requests_per_s: ServingEstimate
    kv_bytes_per_token: float
    kv_bytes_per_request: float
    max_batch: int
    batch: float
    turns_at: float
    bound: str
    memory: ServingMemory
    decode: tuple[LedgerLine, ...]
    prefill: tuple[LedgerLine, ...]
    engine: str
    learned_runs: int
    dollars_per_chip_hour: float | None


class ServingPlan(Shown, Value):
    """How a spec is served: the fastest layout of a slice that meets the wishes, if any does."""

    schema: int
    name: str
    overrides: tuple[str, ...]
    serve: Serve
    parameters: int
    active_parameters: int
    chip: str
    chip_definition: dict[str, Any] | None = None
    topology: str
    replicas: int
    chips: int
    devices: int
    mesh: dict[str, int]
    forecast: ServingForecast
    searched: int

    def _line(self) -> str:
        forecast = self.forecast
        return (
            f"{self.name}: {forecast.output_tokens_per_s.expected:,.0f} output tokens/s on"
            f" {self.chips} {self.chip}"
        )

    def _rows(self) -> list[dict[str, Any]]:
        names = ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_chip")
        return [
            {"figure": name, **{end: self._at(self.forecast, f"{name}.{end}") for end in
             ("lower", "expected", "low", "high")}}
            for name in names
        ]  # fmt: skip
