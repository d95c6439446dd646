"""`tidegate api-key`: makes an API key. The key goes to the terminal, its line to stdout, so that `>> keys` files it.

An engine keeps only the digest, so a key that is lost is replaced, not recovered.
"""

import argparse
import secrets
import sys

from tidegate_engine.server.keys import BadKeys, key_line

KEY_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tenant",
        nargs="?",
        default="",
        help="whom the key is for, as metrics and fair shares name it; absent: nameless",
    )


def run(arguments: argparse.Namespace) -> int:
    key = f"tg-{secrets.token_urlsafe(KEY_BYTES)}"
    try:
        line = key_line(key, arguments.tenant)
    except BadKeys as error:
        print(f"tidegate api-key: {error}", file=sys.stderr)
        return 2
    print(f"the key, shown only now: {key}", file=sys.stderr)
    print(line)
    return 0
