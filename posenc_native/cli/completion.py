"""completion: a script that makes a shell complete commands and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from .kinds import Kind
from .parser import require

Shell = Annotated[str, Kind(choices=("bash", "zsh", "tcsh"))]


def completion_of(parser: Any) -> Callable[[Shell], None]:
    """The command that prints the completions of this parser."""

    def completion(shell: Shell, /) -> None:
        """Print a script that makes a shell complete commands and options.

        Prints a script for the shell to read when it starts. The Tab key then
        completes commands, options and their choices. Needs shtab.

        Args:
            shell: which shell

        Examples:
            $ bash | sudo tee /etc/bash_completion.d/posenc-native
            $ zsh | tee ~/.zfunc/_posenc-native
        """
        shtab: Any = require("shtab", "completion")
        print(shtab.complete(parser, shell=shell))

    return completion
