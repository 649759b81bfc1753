#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Source tiles wait until the main load has filled its ring: seen in the virtual GPU's timeline.

    sm100_load_order_test.py VGPU SUBJECT

SUBJECT is convoy_sm100_mutation_subject. What the load-order barrier orders is when source loads
start, not what they read, so no result and no check shows that it is missing.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

MAIN_LOAD, EPILOGUE_LOAD = 5, 7  # warps
RING_COPIES = 8  # four stages of one atom, an activation and a filter copy each


def main(vgpu, subject):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder, "trace.json")
        # Random: warps sleep, so that the source load would often be first.
        subprocess.run([vgpu, "run", "--gpu", "b200", "--sms", "8", "--delivery",
                        "random", "--trace", trace, "--", subject], check=True)
        events = json.loads(trace.read_text())["traceEvents"]
    ctas = {e["pid"]: e["args"]["name"] for e in events
            if e["name"] == "process_name" and "run_with_residual" in e["args"]["name"]}
    loads = {cta: [] for cta in ctas}
    for event in events:
        if event["name"] == "TMA load" and event["pid"] in loads:
            loads[event["pid"]].append((event["ts"], event["args"]["warp"]))
    if not ctas:
        sys.exit("no CTA of a kernel with residual in the timeline")
    early = 0
    for cta, copies in loads.items():
        warps = [warp for _, warp in sorted(copies)]
        if EPILOGUE_LOAD not in warps:
            sys.exit(f"{ctas[cta]}: no source load in the timeline")
        before = warps[:warps.index(EPILOGUE_LOAD)].count(MAIN_LOAD)
        if before < RING_COPIES:
            print(f"{ctas[cta]}: source load after {before} copies of the main load; "
                  f"expected at least {RING_COPIES}")
            early += 1
    sys.exit(early > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
