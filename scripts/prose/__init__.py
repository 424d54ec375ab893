"""A linter of this project's English: proselint with rules of our own (`make check-prose`)."""
