"""`PYTHONPATH=tests python -m model_hub ROOT --host H --port P --token T`: serve ROOT/ORG/NAME as a hub."""

import argparse
from pathlib import Path

from .repository import repositories_below
from .server import ModelHub


def main() -> None:
    parser = argparse.ArgumentParser(prog="model_hub", description="A stand-in for a model hub.")
    parser.add_argument("root", type=Path, help="ROOT/ORG/NAME is a repository; a file .gated in it lists its tokens")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", action="append", default=[], help="a token that is valid (repeatable)")
    arguments = parser.parse_args()
    hub = ModelHub(repositories_below(arguments.root), arguments.token, arguments.host, arguments.port)
    print(hub.url, flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()
