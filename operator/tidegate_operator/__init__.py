"""The control plane: observe.py -> plan.py -> apply.py -> status.py, called by reconcile.py for one pool at a time."""
