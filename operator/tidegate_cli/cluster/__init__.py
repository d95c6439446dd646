"""Commands about pools in a cluster, with the rights of whoever runs them; `kubectl tidegate` offers the same."""
