"""Heap profiles in the format of pprof: profile.proto, compressed.

What is written of the message is described here by the names and numbers of the public description
(github.com/google/pprof, proto/profile.proto); the protobuf library does the rest.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hakmem.profiles.frames import Frame
from hakmem.profiles.heap_profile import Figures, HeapProfile, Mapped, known_of_both
from hakmem.profiles.other_formats import DIFFERENCE
from hakmem.profiles.profile_sites import Change, Named
from hakmem.profiles.symbols import Place

PACKAGE = "perftools.profiles"
# In the head of the compressed file: by it a file of ours is known.
PPROF_NAME = "hakmem"
Kind = descriptor_pb2.FieldDescriptorProto
NUMBER, COUNTING, FLAG, TEXT, PART = (
    Kind.TYPE_INT64, Kind.TYPE_UINT64, Kind.TYPE_BOOL, Kind.TYPE_STRING, Kind.TYPE_MESSAGE,
)  # fmt: skip
# Name, number, type, and for a part its message; a name that begins with * is repeated.
MESSAGES = {
    "Profile": (
        ("*sample_type", 1, PART, "ValueType"), ("*sample", 2, PART, "Sample"),
        ("*mapping", 3, PART, "Mapping"), ("*location", 4, PART, "Location"),
        ("*function", 5, PART, "Function"), ("*string_table", 6, TEXT), ("time_nanos", 9, NUMBER),
        ("duration_nanos", 10, NUMBER), ("period_type", 11, PART, "ValueType"),
        ("period", 12, NUMBER), ("*comment", 13, NUMBER), ("default_sample_type", 14, NUMBER),
    ),
    "ValueType": (("type", 1, NUMBER), ("unit", 2, NUMBER)),
    "Sample": (("*location_id", 1, COUNTING), ("*value", 2, NUMBER), ("*label", 3, PART, "Label")),
    "Label": (("key", 1, NUMBER), ("str", 2, NUMBER), ("num", 3, NUMBER)),
    "Mapping": (
        ("id", 1, COUNTING), ("memory_start", 2, COUNTING), ("memory_limit", 3, COUNTING),
        ("file_offset", 4, COUNTING), ("filename", 5, NUMBER), ("build_id", 6, NUMBER),
        ("has_functions", 7, FLAG), ("has_filenames", 8, FLAG), ("has_line_numbers", 9, FLAG),
        ("has_inline_frames", 10, FLAG),
    ),
    "Location": (("id", 1, COUNTING), ("mapping_id", 2, COUNTING), ("address", 3, COUNTING),
                 ("*line", 4, PART, "Line")),
    "Line": (("function_id", 1, COUNTING), ("line", 2, NUMBER)),
    "Function": (("id", 1, COUNTING), ("name", 2, NUMBER), ("system_name", 3, NUMBER),
                 ("filename", 4, NUMBER)),
}  # fmt: skip

SAMPLE_TYPES = (
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("peak_space", "bytes"),
    ("pinned_space", "bytes"),
)
# An empty text is no label.
UNNAMED_HEAP = "unnamed"
IN_USE, ALLOCATED = "inuse_space", "alloc_space"
# Of a signed number of 64 bits.
VALUE_MOST = (1 << 63) - 1


@cache
def message_class():
    """The class of the message Profile."""
    file = descriptor_pb2.FileDescriptorProto(
        name="hakmem/profile.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for title, number, kind, *part in fields:
            repeated = title.startswith("*")
            message.field.add(
                name=title.removeprefix("*"),
                number=number,
                type=kind,
                label=Kind.LABEL_REPEATED if repeated else Kind.LABEL_OPTIONAL,
                type_name=f".{PACKAGE}.{part[0]}" if part else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName(f"{PACKAGE}.Profile")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(described)
    # protobuf before 4.22; Debian 12 and 13 have 3.21.
    return message_factory.MessageFactory(pool).GetPrototype(described)


class Builder:
    """One message; each string, function, mapping and location is written once."""

    def __init__(self, profile: HeapProfile, build_ids: Mapping[str, str], default: str) -> None:
        self.message = message_class()()
        self.build_ids = build_ids
        self.strings: dict[str, int] = {}
        self.functions: dict[tuple[str, str], int] = {}
        self.mappings: dict[Mapped, int] = {}
        self.locations: dict[object, int] = {}
        self.string("")
        for name, unit in SAMPLE_TYPES:
            self.message.sample_type.add(type=self.string(name), unit=self.string(unit))
        self.message.default_sample_type = self.string(default)
        self.message.period_type.type = self.string("space")
        self.message.period_type.unit = self.string("bytes")
        self.message.period = min(profile.rate, VALUE_MOST)
        self.message.time_nanos = profile.taken_ms * 1_000_000
        self.message.duration_nanos = profile.milliseconds * 1_000_000
        # The first mapping is the program's, as pprof expects.
        for one in profile.maps:
            if one.path == profile.program and "x" in one.rights:
                self.mapping(one)
                break

    def comment(self, text: str) -> None:
        self.message.comment.append(self.string(f"hakmem: {text}"))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.message.string_table.append(text)
        return self.strings[text]

    def function(self, frame: Frame) -> int:
        key = (frame.function, frame.file)
        if key not in self.functions:
            self.functions[key] = len(self.functions) + 1
            name = self.string(frame.function)
            self.message.function.add(
                id=self.functions[key],
                name=name,
                system_name=name,
                filename=self.string(frame.file),
            )
        return self.functions[key]

    def mapping(self, one: Mapped | None) -> int:
        if one is None:
            return 0
        if one not in self.mappings:
            self.mappings[one] = len(self.mappings) + 1
            self.message.mapping.add(
                id=self.mappings[one],
                memory_start=one.start,
                memory_limit=one.end,
                file_offset=one.offset,
                filename=self.string(one.path),
                build_id=self.string(self.build_ids.get(one.path, "")),
                # All names that there are have been found.
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
                has_inline_frames=True,
            )
        return self.mappings[one]

    def location(self, place: Place) -> int:
        # One address has one name; a place without an address is told by its name.
        key = place.address or place
        if key not in self.locations:
            self.locations[key] = len(self.locations) + 1
            location = self.message.location.add(
                id=self.locations[key],
                mapping_id=self.mapping(place.mapping),
                address=place.address,
            )
            for frame in place.frames:
                location.line.add(function_id=self.function(frame), line=frame.line)
        return self.locations[key]

    def sample(
        self,
        places: Iterable[Place],
        values: Sequence[int],
        label: int = 0,
        name: str = "",
        heap: str | None = None,
    ) -> None:
        if not any(values):
            return
        sample = self.message.sample.add(
            location_id=[self.location(place) for place in places],
            value=[max(-VALUE_MOST, min(value, VALUE_MOST)) for value in values],
        )
        # As the library's own message has them: the number, as a signed one, and its text.
        if label:
            sample.label.add(key=self.string("label"), num=(label ^ 1 << 63) - (1 << 63))
        if label and name:
            sample.label.add(key=self.string("label_name"), str=self.string(name))
        if heap is not None:
            sample.label.add(key=self.string("heap"), str=self.string(heap or UNNAMED_HEAP))

    def compressed(self) -> bytes:
        out = io.BytesIO()
        with gzip.GzipFile(PPROF_NAME, "wb", fileobj=out, mtime=0) as file:
            file.write(self.message.SerializeToString())
        return out.getvalue()


def values(figures: Figures) -> list[int]:
    return [
        figures.live.count,
        figures.live.bytes,
        figures.total.count,
        figures.total.bytes,
        figures.peak_bytes,
        figures.pinned,
    ]


def of_profile(named: Named, default: str = IN_USE) -> bytes:
    builder = Builder(named.profile, named.build_ids, default)
    builder.comment(named.profile.known)
    for stack, places in zip(named.profile.stacks, named.places):
        name = named.profile.labels.get(stack.label, "")
        builder.sample(places, values(stack.figures), stack.label, name, stack.heap)
    return builder.compressed()


def of_interval(before: Named, after: Named, default: str = IN_USE) -> bytes:
    """What has changed in one process, which has its code where it was: by address."""
    builder = Builder(after.profile, after.build_ids, default)
    builder.message.duration_nanos = (
        max(0, after.profile.taken_ms - before.profile.taken_ms) * 1_000_000
    )
    builder.comment(known_of_both(before.profile, after.profile))
    changes: dict[tuple[tuple[Place, ...], int, str | None], list[int]] = {}
    for named, sign in ((before, -1), (after, 1)):
        for stack, places in zip(named.profile.stacks, named.places):
            key = (places, stack.label, stack.heap)
            sums = changes.setdefault(key, [0] * len(SAMPLE_TYPES))
            for index, value in enumerate(values(stack.figures)):
                sums[index] += sign * value
    for (places, label, heap), sums in changes.items():
        builder.sample(places, sums, label, after.profile.labels.get(label, ""), heap)
    return builder.compressed()


def of_changes(before: Named, after: Named, changes: Sequence[Change]) -> bytes:
    """Growth by stack of functions, negative where memory has gone. Two runs have no addresses in
    common: there are none in it."""
    builder = Builder(after.profile, after.build_ids, IN_USE)
    builder.comment(DIFFERENCE)
    builder.comment(known_of_both(before.profile, after.profile))
    builder.message.ClearField("mapping")
    builder.mappings.clear()
    for one in changes:
        places = [Place(0, (frame,)) for frame in one.frames]
        builder.sample(places, [one.count, one.bytes, 0, 0, 0, 0])
    return builder.compressed()
