"""`make bench`: every benchmark in turn. Figures are ratios measured in one run, so that machines compare."""

import os
import subprocess
import sys

from tidegate_engine.process.container import share_cores

environment = dict(os.environ)
share_cores(environment)  # threads wait as the engine's do; torch reads this when it is imported
for name in ("scheduler", "linear"):
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment, check=True)
