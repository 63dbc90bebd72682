"""Decodes what `profinfer export` writes for flame graph programs, independently of its source, and prints it as JSON for
tests/plain/export_stacks.rs: {"stacks": [{"frames", "thread", "calls", "ns"}], ...}. Anything that the formats do not
allow is an error.

usage: flame.py pprof FILE | flame.py speedscope FILE | flame.py folded FILE

pprof: the field numbers are those of proto/profile.proto in github.com/google/pprof; the rules those of CheckValid in its
package profile. speedscope: the rules of its file-format-schema.json that concern sampled profiles.
"""

import gzip
import json
import sys


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            assert value < 1 << 64
            return value, at


def message(data, types):
    """A message as {name: [values]}; types: {field: (name, kind)} with kind "int", "ints", "text" or a message's types."""
    out = {name: [] for name, _ in types.values()}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        assert tag >> 3 in types, f"unknown field {tag >> 3}"
        name, kind = types[tag >> 3]
        if tag & 7 == 0:
            assert kind in ("int", "ints"), name
            value, at = varint(data, at)
            out[name].append(value)
            continue
        assert tag & 7 == 2 and kind != "int", name
        n, at = varint(data, at)
        part, at = data[at : at + n], at + n
        assert len(part) == n, "cut off"
        if kind == "text":
            out[name].append(part.decode())
        elif kind == "ints":
            place = 0
            while place < n:
                value, place = varint(part, place)
                out[name].append(value)
        else:
            out[name].append(message(part, kind))
    return out


VALUE_TYPE = {1: ("type", "int"), 2: ("unit", "int")}
LABEL = {1: ("key", "int"), 2: ("str", "int"), 3: ("num", "int"), 4: ("num_unit", "int")}
SAMPLE = {1: ("location_id", "ints"), 2: ("value", "ints"), 3: ("label", LABEL)}
LINE = {1: ("function_id", "int"), 2: ("line", "int")}
LOCATION = {1: ("id", "int"), 2: ("mapping_id", "int"), 3: ("address", "int"), 4: ("line", LINE), 5: ("is_folded", "int")}
FUNCTION = {1: ("id", "int"), 2: ("name", "int"), 3: ("system_name", "int"), 4: ("filename", "int"), 5: ("start", "int")}
PROFILE = {
    1: ("sample_type", VALUE_TYPE),
    2: ("sample", SAMPLE),
    4: ("location", LOCATION),
    5: ("function", FUNCTION),
    6: ("string_table", "text"),
    9: ("time_nanos", "int"),
    10: ("duration_nanos", "int"),
    14: ("default_sample_type", "int"),
}


def only(values):
    assert len(values) == 1, values
    return values[0]


def by_id(entries):
    out = {only(e["id"]): e for e in entries}
    assert len(out) == len(entries) and 0 not in out, "an id is used twice, or is 0"
    return out


def pprof(path):
    with open(path, "rb") as f:
        raw = f.read()
    profile = message(gzip.decompress(raw), PROFILE)
    strings = profile["string_table"]
    assert strings[0] == "" and len(set(strings)) == len(strings)
    kinds = [[strings[only(t[part])] for part in ("type", "unit")] for t in profile["sample_type"]]
    locations, functions = by_id(profile["location"]), by_id(profile["function"])

    def name(location):
        # Without a mapping there must be nothing to look up.
        assert not locations[location]["mapping_id"] and not locations[location]["address"]
        function = functions[only(only(locations[location]["line"])["function_id"])]
        return strings[only(function["name"])]

    stacks = []
    for sample in profile["sample"]:
        assert len(sample["value"]) == len(kinds) and all(v < 1 << 63 for v in sample["value"])
        label = only(sample["label"])
        assert strings[only(label["key"])] == "thread"
        values = {kind: value for (kind, _), value in zip(kinds, sample["value"])}
        # The leaf comes first.
        frames = [name(location) for location in reversed(sample["location_id"])]
        stacks.append({"frames": frames, "thread": strings[only(label["str"])], "calls": values["calls"], "ns": values["time"]})
    return {
        "kinds": kinds,
        "default": strings[only(profile["default_sample_type"])],
        "time": profile["time_nanos"],
        "duration": only(profile["duration_nanos"]),
        "stacks": stacks,
    }


def speedscope(path):
    with open(path, encoding="utf-8") as f:
        file = json.load(f)
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(file) <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    assert isinstance(file["exporter"], str) and 0 <= file["activeProfileIndex"] < len(file["profiles"])
    frames = file["shared"]["frames"]
    for frame in frames:
        assert set(frame) <= {"name", "file", "line", "col"} and isinstance(frame["name"], str)
    assert len({frame["name"] for frame in frames}) == len(frames)
    stacks = []
    for profile in file["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled" and isinstance(profile["name"], str)
        assert profile["unit"] in ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
        samples, weights = profile["samples"], profile["weights"]
        assert len(samples) == len(weights) and all(isinstance(w, int) and w >= 0 for w in weights)
        assert profile["endValue"] - profile["startValue"] == sum(weights)
        for sample, weight in zip(samples, weights):
            assert all(isinstance(i, int) and 0 <= i < len(frames) for i in sample)
            thread = profile["name"].rsplit(", ", 1)[1]
            stacks.append({"frames": [frames[i]["name"] for i in sample], "thread": thread, "ns": weight})
    return {"unit": sorted({p["unit"] for p in file["profiles"]}), "stacks": stacks}


def folded(path):
    """As flamegraph.pl reads it: the number is what follows the last space, frames are between semicolons."""
    stacks = []
    with open(path, encoding="utf-8", newline="\n") as f:
        for line in f:
            stack, number = line.rstrip("\n").rsplit(" ", 1)
            assert line.endswith("\n") and number.isdigit() and all(stack.split(";")), line
            stacks.append({"frames": stack.split(";"), "ns": int(number)})
    assert len({tuple(s["frames"]) for s in stacks}) == len(stacks), "a stack occurs twice"
    return {"stacks": stacks}


json.dump({"pprof": pprof, "speedscope": speedscope, "folded": folded}[sys.argv[1]](sys.argv[2]), sys.stdout)
