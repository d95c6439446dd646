"""`python -m benchmarks [NAME [OPTION ...]]`; without a name, and by `make bench`, every benchmark in turn.

Figures are ratios measured in one run, so that machines compare, or virtual time, which is the same everywhere.
"""

import os
import subprocess
import sys

from tidegate_engine.process.container import share_cores

NAMES = ("scheduler", "admission", "eta", "prefix", "latency", "linear", "speed", "quality", "operator")
SHORTER = {"speed": ["--quick"], "operator": ["--pools", "50", "--seconds", "20"]}  # where all run

environment = dict(os.environ)
share_cores(environment)  # threads wait as the engine's do; torch reads this when it is imported
name, options = (sys.argv[1:2], sys.argv[2:])
for each in name or NAMES:
    given = options if name else SHORTER.get(each, [])
    print(f"\n== {each}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{each}", *given], env=environment, check=True)
