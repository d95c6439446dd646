"""The errors of shared facts: one class per reaction, each message says what, which and what to do.

CoreError
├── BadQuantity        a size such as "80Gi" cannot be read: the user corrects the value
├── UnknownAccelerator a GPU that the catalogue does not know: the user corrects the name or gives its memory
├── BadModelUri        a model's URI has another form than its scheme's: the user corrects it
├── BadLaunch          an engine argument is wrong: the user corrects the argument
└── UnsupportedShape   a model's description lacks what sizing needs, or has a form we do not serve
"""


class CoreError(Exception):
    """Base of everything tidegate_core raises on purpose."""


class BadQuantity(CoreError):
    """A byte size or count that is not a Kubernetes quantity."""


class UnknownAccelerator(CoreError):
    """A GPU name or product label from which no memory size follows."""


class BadModelUri(CoreError):
    """A URI that names no model."""


class BadLaunch(CoreError):
    """Engine arguments that do not form a launch contract."""


class UnsupportedShape(CoreError):
    """A model description from which no size can be computed."""
