"""Why `tidegate bench` cannot measure: one class per exit code.

BenchError
├── BadBench      arguments that make no sense: the user corrects them
│   └── BadTrace  a file that is no trace; the message says which file and line, and what is wrong there
└── NoServer      the server cannot be reached, or does not answer as OpenAI's API does
"""


class BenchError(Exception):
    """Base of what `tidegate bench` raises on purpose."""


class BadBench(BenchError):
    """The user corrects an argument or a file; the message says which."""


class BadTrace(BadBench):
    """The user brings another file."""


class NoServer(BenchError):
    """Not one request could be answered; the message has the server's words."""
