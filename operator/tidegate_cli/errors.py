"""Why `tidegate plan` cannot answer: one class per exit code.

PlanError
├── BadPlan         arguments or manifest leave open what to plan, or say something that cannot be meant
└── ModelElsewhere  the manifest's model cannot be read from here
"""


class PlanError(Exception):
    """Base of what `tidegate plan` raises on purpose."""


class BadPlan(PlanError):
    """The user corrects an argument or the manifest; the message says which."""


class ModelElsewhere(PlanError):
    """The user brings the model's config."""
