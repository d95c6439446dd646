"""What is said: status, Events, costs, metrics about pools."""
