"""An engine as a process: its container, what it loads, what it says when it starts and ends."""
