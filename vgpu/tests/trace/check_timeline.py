#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a timeline against the Trace Event Format that chrome://tracing and Perfetto read.

  check_timeline.py FILE [ROW...]     the file must hold each ROW (a prefix: "TMA" finds "TMA 0")
  check_timeline.py --self-test       the check itself must refuse broken traces
"""
import copy
import json
import re
import sys


def refuse_constant(word):
    raise ValueError(f"{word} is no JSON number")


def problems(trace):
    """What is wrong with a trace, as a list of texts."""
    found = []
    processes, rows, slices = {}, {}, {}
    for number, event in enumerate(trace["traceEvents"]):
        where = f"event {number} ({event.get('name')})"
        phase = event.get("ph")
        if phase == "M":
            name = event["args"].get("name")
            if event["name"] == "process_name":
                if event["pid"] in processes:
                    found.append(f"{where}: process {event['pid']} is named twice")
                processes[event["pid"]] = name
            elif event["name"] == "thread_name":
                # Perfetto joins rows of one number, and keeps 0 for itself.
                if event["tid"] == 0 or event["tid"] in (tid for _, tid in rows):
                    found.append(f"{where}: row number {event['tid']} is 0 or not its own")
                rows[event["pid"], event["tid"]] = name
            elif event["name"] != "thread_sort_index":
                found.append(f"{where}: unknown metadata")
        elif phase == "X":
            for key, kinds in (("ts", (int, float)), ("dur", (int, float)), ("pid", int),
                               ("tid", int), ("name", str), ("cat", str), ("args", dict)):
                if not isinstance(event.get(key), kinds) or isinstance(event.get(key), bool):
                    found.append(f"{where}: {key} is {event.get(key)!r}")
                    break
            else:
                if event["ts"] < 0 or event["dur"] <= 0:
                    found.append(f"{where}: ts {event['ts']}, dur {event['dur']}")
                slices.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            found.append(f"{where}: phase {phase!r}; the timeline has complete events and metadata")
    for (pid, tid), events in slices.items():
        if pid not in processes:
            found.append(f"process {pid} has no name")
        if (pid, tid) not in rows:
            found.append(f"row {tid} of process {pid} has no name")
        end = 0
        for event in events:
            if event["ts"] < end:
                found.append(f"process {pid}, row {tid}: {event['name']} at {event['ts']} starts "
                             f"before the slice in front of it ends, at {end}")
            end = event["ts"] + event["dur"]
    if not slices:
        found.append("no slices")
    producer = trace.get("otherData", {}).get("producer")
    if not re.fullmatch(r"vgpu \d+\.\d+\.\d+", str(producer)):
        found.append(f"otherData.producer is {producer!r}, not 'vgpu' and its version")
    return found


def row_names(trace):
    used = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    return {e["args"]["name"] for e in trace["traceEvents"]
            if e["ph"] == "M" and e["name"] == "thread_name" and (e["pid"], e["tid"]) in used}


def self_test():
    good = {"traceEvents": [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "k"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "warp 0"}},
        {"ph": "X", "pid": 1, "tid": 7, "ts": 0, "dur": 2, "name": "a", "cat": "run", "args": {}},
        {"ph": "X", "pid": 1, "tid": 7, "ts": 2, "dur": 1, "name": "b", "cat": "run", "args": {}}],
        "otherData": {"producer": "vgpu 1.2.3"}}
    assert problems(good) == [], problems(good)

    assert problems({**good, "otherData": {}}), "a trace without its producer passes"

    def broken(change):
        trace = copy.deepcopy(good)
        change(trace["traceEvents"])
        assert problems(trace), "a broken trace passes"

    broken(lambda events: events.pop(0))
    broken(lambda events: events.pop(1))
    broken(lambda events: events.reverse())
    broken(lambda events: events[2].update(dur=3))
    broken(lambda events: events[2].update(dur=0))
    broken(lambda events: events[2].update(ts=-1))
    broken(lambda events: events[2].update(ts="0"))
    broken(lambda events: events[2].update(ph="B"))
    broken(lambda events: events[2].pop("dur"))
    broken(lambda events: events.append(dict(events[0])))
    broken(lambda events: events.append(dict(events[1], pid=2)))
    broken(lambda events: [event.update(tid=0) for event in events[1:]])
    broken(lambda events: events.__delitem__(slice(2, 4)))
    for word in ("NaN", "Infinity"):
        try:
            json.loads(f'{{"ts": {word}}}', parse_constant=refuse_constant)
        except ValueError:
            continue
        raise AssertionError(f"{word} passes")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    with open(sys.argv[1]) as file:
        trace = json.load(file, parse_constant=refuse_constant)
    found = problems(trace)
    names = row_names(trace)
    found += [f"no row {wanted!r}; there are: {', '.join(sorted(names))}" for wanted in sys.argv[2:]
              if not any(name.startswith(wanted) for name in names)]
    for text in found[:20]:
        print(text)
    print(f"{len(trace['traceEvents'])} events, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
