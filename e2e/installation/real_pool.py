"""Pools of the real model on the node's cores, as small as it serves with.

A base model has no chat template, so the pool gives one that adds nothing but the beginning-of-sequence token.
"""

import json
from typing import Any

SERVED_NAME = "gemma-3-270m"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


def real_pool(name: str, **spec: Any) -> str:
    """A manifest; keyword arguments replace parts of its spec. Its claims come from provide_model()."""
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {
                "uri": "pvc://models/gemma-3-270m-q4_k_m.gguf",
                "servedNames": [SERVED_NAME],
                "chatTemplate": CHAT_TEMPLATE,
            },
            "context": {"max": 4096, "min": 2048},
            "accelerator": {"resource": "cpu"},
            "drain": {"timeoutSeconds": 20},
            "pod": {
                "resources": {
                    "requests": {"cpu": "200m", "memory": "1Gi"},
                    "limits": {"cpu": "2", "memory": "2304Mi"},
                }
            },
            **spec,
        },
    }
    return json.dumps(document)
