"""Read XProf traces: files of XSpace, the schema of `xplane.proto`. jax.profiler.ProfileData reads
them too, but shows nothing of an event's metadata, where TPUs keep what an operation is.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from orchestrator.errors import TraceUnreadable

# The fields that are read, by message: name, number, type; `*` of a repeated one.
_FIELDS = {
    "Stat": "metadata_id 1 int64, double_value 2 double, uint64_value 3 uint64,"
    " int64_value 4 int64, str_value 5 string, bytes_value 6 bytes, ref_value 7 uint64",
    "Event": "metadata_id 1 int64, offset_ps 2 int64, duration_ps 3 int64, stats 4 *Stat",
    "Line": "name 2 string, timestamp_ns 3 int64, events 4 *Event",
    "EventMetadata": "name 2 string, display_name 4 string, stats 5 *Stat",
    "StatMetadata": "name 2 string",
    "EventEntry": "key 1 int64, value 2 EventMetadata",
    "StatEntry": "key 1 int64, value 2 StatMetadata",
    "Plane": "name 2 string, lines 3 *Line, event_metadata 4 *EventEntry,"
    " stat_metadata 5 *StatEntry",
    "Space": "planes 1 *Plane",
}
_DEVICE = re.compile(r"/device:(TPU|GPU):(\d+)")
_OPS, _ASYNC, _MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"  # lines of a TPU
_COPY = "Memcpy"
_STREAM = "Stream #"  # begins the name of a line of a GPU
_HLO = re.compile(r"%([\w.\-]+) = ")  # TPUs name an event by its instruction's text
_CHIP_START, _CHIP_LENGTH = "device_offset_ps", "device_duration_ps"
_MODULE = re.compile(r"(.+)\((?:\d+)\)")  # jit_step(12190760917235803885)


@dataclass(frozen=True)
class Said:
    """What the trace itself says of an operation; empty where it says nothing."""

    op_name: str = ""
    category: str = ""
    source: str = ""


_Span = tuple[int, int]  # picoseconds: where it begins and ends
Op = tuple[int, int, str]  # the same, and the operation's name


@dataclass
class Device:
    """What ran on a device. `sent` are transfers that ran during other operations; `executions` of
    a module are known where the trace has them.
    """

    name: str
    ops: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))  # by module
    sent: list[Op] = field(default_factory=list)
    executions: dict[str, list[_Span]] = field(default_factory=lambda: defaultdict(list))
    said: dict[str, Said] = field(default_factory=dict)  # by operation


def read_trace(content: bytes, name: str) -> list[Device]:
    """Return what ran on the devices of one process; `name` is the file's, for messages."""
    try:
        space = _space_class().FromString(content)
    except DecodeError as error:
        raise TraceUnreadable(f"{name} is not a whole trace: {error}") from error
    devices: dict[str, Device] = {}
    for plane in space.planes:
        reader = _Plane(plane)
        if found := _DEVICE.fullmatch(plane.name):
            device = devices.setdefault(found[0], Device(found[0]))
            (reader.read_tpu if found[1] == "TPU" else reader.read_gpu)(device)
        else:
            reader.read_host(devices)
    known = [device for device in devices.values() if device.ops]
    if not known:
        planes = ", ".join(plane.name for plane in space.planes) or "nothing"
        raise TraceUnreadable(f"{name} has no operation of a device, only {planes}")
    return sorted(known, key=lambda device: device.name)


def check_in_order(spans: list[_Span], place: str) -> None:
    """Refuse steps of which one begins before half of the one before is over."""
    for (begin, end), (after, _) in pairwise(spans):
        if after < (begin + end) // 2:
            raise TraceUnreadable(f"its clock jumps: steps on {place} overlap")


class _Plane:
    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.stat_names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        self.events = {entry.key: entry.value for entry in plane.event_metadata}

    def stats(self, of: Any) -> dict[str, Any]:
        found = {}
        for stat in of.stats:
            values = stat.ListFields()
            kind, value = values[-1][0].name, values[-1][1]  # the last: after metadata_id
            is_zero = kind == "metadata_id"  # a number that is zero is left out
            value = self.stat_names.get(value, "") if kind == "ref_value" else value
            found[self.stat_names.get(stat.metadata_id, "")] = 0 if is_zero else value
        return found

    def spans(self, line: Any) -> Iterator[tuple[int, int, Any]]:
        """Yield where each event of a line begins and ends, and the event."""
        began = 1000 * line.timestamp_ns
        for event in line.events:
            if event.duration_ps < 0 or event.offset_ps < 0:
                where = f"{self.plane.name}, {line.name}"
                raise TraceUnreadable(f"its clock runs backwards: an event of {where} ends early")
            start = began + event.offset_ps
            yield start, start + event.duration_ps, event

    def read_tpu(self, device: Device) -> None:
        lines = {line.name: line for line in self.plane.lines}
        names = {number: self.name_of(metadata) for number, metadata in self.events.items()}
        modules: list[tuple[int, int, str]] = []
        for start, end, event in self.spans(lines[_MODULES]) if _MODULES in lines else ():
            module = self.events[event.metadata_id].name
            match = _MODULE.fullmatch(module)
            modules.append((start, end, match[1] if match else module))
        modules.sort(reverse=True)
        check_in_order([(start, end) for start, end, _ in modules[::-1]], device.name)
        # Events lie where the host's clock saw them; how long one took only the chip's own clock
        # says exactly, which most operations have as well. A step is where its operations are.
        windows: dict[tuple[int, str], _Span] = {}
        ahead = 0
        for seen, seen_end, event in self.spans(lines[_OPS]) if _OPS in lines else ():
            while modules and modules[-1][1] <= seen and len(modules) > 1:
                modules.pop()
            window = modules[-1][0] if modules else 0, modules[-1][2] if modules else ""
            stats = self.stats(event)
            start = stats.get(_CHIP_START, seen)
            end = start + stats.get(_CHIP_LENGTH, seen_end - seen)
            ahead = start - seen
            device.ops[window[1]].append((start, end, names[event.metadata_id]))
            first, last = windows.get(window, (start, end))
            windows[window] = min(first, start), max(last, end)
        for (_, module), span in windows.items() if modules else ():
            device.executions[module].append(span)
        for start, end, event in self.spans(lines[_ASYNC]) if _ASYNC in lines else ():
            device.sent.append((start + ahead, end + ahead, names[event.metadata_id]))
        for number, metadata in self.events.items():
            if not (stats := self.stats(metadata)):
                continue
            device.said[names[number]] = Said(
                str(stats.get("tf_op", "")).rstrip(":"), str(stats.get("hlo_category", "")),
                str(stats.get("source", "")),
            )  # fmt: skip

    @staticmethod
    def name_of(metadata: Any) -> str:
        found = _HLO.match(metadata.name)
        return found[1] if found else metadata.display_name or metadata.name

    def read_gpu(self, device: Device) -> None:
        for line in self.plane.lines:
            for start, end, event in self.spans(line) if line.name.startswith(_STREAM) else ():
                stats, metadata = self.stats(event), self.events[event.metadata_id]
                if "hlo_op" not in stats:
                    # Copies to and from the host are not operations of a program.
                    if metadata.name.startswith(_COPY):
                        device.sent.append((start, end, metadata.name))
                    continue
                name = str(stats["hlo_op"])
                device.ops[str(stats.get("hlo_module", ""))].append((start, end, name))
                op_name = str(stats.get("tf_op") or stats.get("name") or "")
                device.said[name] = Said(op_name.rstrip(":"), metadata.name.lower())

    def read_host(self, devices: dict[str, Device]) -> None:
        """The operations of emulated devices, on the threads of the host."""
        operations = "hlo_op" in self.stat_names.values()
        runs: dict[tuple[str, str, Any], _Span] = {}
        for line in self.plane.lines:
            for start, end, event in self.spans(line):
                if not operations or len(event.stats) < 2:
                    continue
                stats = self.stats(event)
                if not (name := stats.get("hlo_op")) or "device_ordinal" not in stats:
                    continue
                place, module = f"cpu:{stats['device_ordinal']}", str(stats.get("hlo_module", ""))
                device = devices.setdefault(place, Device(place))
                device.ops[module].append((start, end, str(name)))
                run = place, module, stats.get("run_id")
                first, last = runs.get(run, (start, end))
                runs[run] = min(first, start), max(last, end)
        for (place, module, _), span in sorted(runs.items(), key=lambda item: item[1]):
            devices[place].executions[module].append(span)


@cache
def _space_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xspace.proto", package="x", syntax="proto3")
    for message, described in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind in (words.split() for words in described.split(", ")):
            label = kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL
            added = made.field.add(name=name, number=int(number), label=label)
            if (plain := kind.lstrip("*")) in _FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".x.{plain}"
            else:
                added.type = getattr(kinds, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Space"))
