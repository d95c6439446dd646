"""The chat template as a ConfigMap named by its content.

A new text is a new name, so it rolls pods as every other input does.
"""

from hashlib import sha256

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import CHAT_TEMPLATE_ROLE, metadata
from tidegate_operator.manifests.pod import CHAT_TEMPLATE_DIRECTORY, CHAT_TEMPLATE_KEY
from tidegate_operator.resources import CONFIG_MAP, Manifest

CHAT_TEMPLATE_FILE = f"{CHAT_TEMPLATE_DIRECTORY}/{CHAT_TEMPLATE_KEY}"


def chat_template_name(pool: InferencePool) -> str | None:
    """Name of the ConfigMap, None for a pool that uses the model's own template."""
    text = pool.spec.model.chat_template
    return None if text is None else f"{pool.metadata.name}-chat-{sha256(text.encode()).hexdigest()[:8]}"


def chat_template(pool: InferencePool) -> Manifest | None:
    """The ConfigMap, where the pool gives a template."""
    name = chat_template_name(pool)
    if name is None:
        return None
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": metadata(pool, name, CHAT_TEMPLATE_ROLE),
        "immutable": True,
        "data": {CHAT_TEMPLATE_KEY: pool.spec.model.chat_template},
    }
