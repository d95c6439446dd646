"""An InferencePool as it stands in a file: read strictly, so that a typo is a refusal and not a default.

`tidegate plan -f` reads it; the operator's schema is imported only where there is a file.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_cli.errors import BadPlan

if TYPE_CHECKING:
    from tidegate_operator.api.v1alpha1 import InferencePool

MAX_CHARACTERS = 4 * 2**20  # of a file with manifests; an API server takes no object as large


def read_pool(file: str) -> "InferencePool":
    """The one InferencePool of a file that may hold other objects too; - is standard input. Raises BadPlan."""
    import yaml

    from tidegate_operator.api.base import KIND
    from tidegate_operator.api.errors import BadManifest
    from tidegate_operator.api.manifest import read_manifest
    from tidegate_operator.decisions.extra_args import refusal

    try:
        documents = [document for document in yaml.safe_load_all(_text(file)) if document is not None]
        pools = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
        if len(pools) > 1:
            raise BadPlan(f"{file} holds {len(pools)} objects of kind {KIND}; plan takes one at a time")
        if not pools and len(documents) != 1:
            raise BadPlan(f"{file} holds no {KIND}")
        pool = read_manifest((pools or documents)[0], source=file)
    except OSError as error:
        raise BadPlan(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadPlan(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a day that no month has
        raise BadPlan(f"{file} is not YAML: {error}") from error
    except BadManifest as error:
        raise BadPlan(str(error)) from error
    if said := refusal(pool):
        raise BadPlan(f"{file}: {said}")
    return pool


def _text(file: str) -> str:
    with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as source:
        text = source.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise BadPlan(f"{file} has more than {MAX_CHARACTERS:,} characters; a pool's manifest has a few hundred")
    return text
