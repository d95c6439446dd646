"""What should be: plan.py is the value, planning.py asks the questions, each of which is a module here. Pure."""
