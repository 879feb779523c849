"""Shrinks profiles of make_traces.py and make_fsdp.py for the tests: two steps, no names of hosts and files.

    python3 shrink.py TRACE.json.gz NEW.json.gz
"""
import gzip
import json
import sys

source, target = sys.argv[1:]
trace = json.load(gzip.open(source, "rt"))
if isinstance(trace, dict):
    for key in ("host_name", "traceName"):
        trace.pop(key, None)
    steps = sorted((e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    begin, end = steps[0]["ts"], steps[1]["ts"] + steps[1]["dur"]
    trace["traceEvents"] = [e for e in trace["traceEvents"] if begin <= e.get("ts", begin) < end and (
        e.get("cat") != "python_function" or e["name"].startswith("nn.Module"))]
    for event in trace["traceEvents"]:
        for key in ("Concrete Inputs", "Input Strides", "External id", "Record function id"):
            event.get("args", {}).pop(key, None)
with gzip.GzipFile(target, "wb", 9, mtime=0) as file:
    file.write(json.dumps(trace).encode())
