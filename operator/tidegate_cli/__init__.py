"""The `tidegate` command. Each subcommand imports its half of the house only when it is called."""
