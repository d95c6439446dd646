"""The hub's token where it comes from a file, as pods have it: mounted from a Secret, never in the environment."""

import argparse
from pathlib import Path


class BadToken(Exception):
    """A token file that is not there or holds nothing: whoever filled the Secret corrects it."""


def add_token_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the hub's token (default: HF_TOKEN, or what `hf auth login` left)",
    )


def read_token(file: Path | None) -> str | None:
    """None where no file is named: then the hub's client looks for itself. Raises BadToken."""
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadToken(f"the token file {file} cannot be read: {error}") from error
    if not token:
        raise BadToken(f"the token file {file} is empty: put the hub's token into that entry of the Secret")
    return token
