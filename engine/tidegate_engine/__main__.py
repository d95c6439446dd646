"""`python -m tidegate_engine MODEL [flags]`: an engine process without the CLI, for tests and development."""

import sys

from tidegate_core.errors import BadLaunch
from tidegate_core.launch import EngineLaunch
from tidegate_core.termination import ExitCode
from tidegate_engine.process.lifecycle import exit_on_signals


def main(args: list[str]) -> int:
    try:
        launch = EngineLaunch.from_args(args)
    except BadLaunch as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_ARGUMENTS
    exit_on_signals()
    from tidegate_engine.serve import serve

    return serve(launch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
