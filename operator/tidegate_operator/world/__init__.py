"""What is: everything that is read of a cluster, as frozen values, and the thin readers that fetch it."""
