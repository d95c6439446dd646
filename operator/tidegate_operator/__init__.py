"""The control plane: observe.py -> planning.py -> apply.py -> status.py, one pool at a time by reconcile.py."""
