"""How the operator runs: watches, the work queue and its times, election, probes and metrics."""
