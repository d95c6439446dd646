"""One model on several devices of a node: each computes its share in a process of its own, in step with the first."""
