"""C++ with every mutant in it at once: each behind a switch that the environment turns.

A build takes minutes, a mutant then seconds. `a < b` becomes `(On(7) ? (a <= b) : (a < b))`, where
On also notes that it was asked: that is how a mutant's tests are known.

The sources are in clang-format's form, which this relies on: binary operators have spaces, and what
is in angle brackets has none.
"""

from __future__ import annotations

from collections.abc import Iterable

from mutants.mutant import Mutant

HEADER = """\
// What scripts/mutants adds to every source: which mutant is on, and which have been reached.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace posenc_mutants {
constexpr int kMost = 2048;

inline unsigned char* Reached() {
  const char* path = std::getenv("POSENC_MUTANTS_REACHED");
  const int file = path ? open(path, O_RDWR) : -1;
  void* at = file < 0 ? MAP_FAILED
                      : mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  return at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at);
}
inline int Active() {
  const char* number = std::getenv("POSENC_MUTANT");
  return number ? std::atoi(number) : 0;
}
inline unsigned char* const kReached = Reached();
inline const int kActive = Active();

inline bool On(int mutant) {
  if (kReached) kReached[mutant] = 1;
  return mutant == kActive;
}
}  // namespace posenc_mutants
"""

_OPENING, _CLOSING = "([{", ")]}"


def woven(text: str, mutants: list[Mutant]) -> str:
    """The text of a file with all of these mutants behind switches; lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    taken: dict[int, str] = {}
    for mutant in mutants:
        at = mutant.line(text)
        span = range(at, at + len(mutant.before.splitlines()))
        if clash := {taken[line] for line in span if line in taken}:
            raise ValueError(f"{mutant.name} is in a line of {', '.join(sorted(clash))}")
        taken.update(dict.fromkeys(span, mutant.name))
        old = "".join(lines[line] for line in span)
        lines[at] = _switched(old.rstrip("\n"), mutant) + "\n"
        for line in span[1:]:  # as many lines as there were
            lines[line] = "\n"
        if len(span) > 1:
            lines[at] = lines[at].replace("\n", " ").rstrip() + "\n"
    return "".join(lines)


def _switched(old: str, mutant: Mutant) -> str:
    """`old`, with its indentation, so that the switch chooses between it and the mutant."""
    before, after = mutant.before, mutant.after
    on = f"posenc_mutants::On({mutant.number})"
    indent = old[: len(old) - len(old.lstrip())]
    statement = before.endswith((";", "}")) and (not after or after.endswith((";", "}")))
    if "\n" in before or "\n" in after or not after:
        if not statement:
            raise ValueError(f"{mutant.name}: several lines have to be whole statements")
        flat = " ".join(line.split("//")[0].strip() for line in before.splitlines())
        new = " ".join(line.split("//")[0].strip() for line in after.splitlines())
        return f"{indent}if ({on}) {{ {new} }} else {{ {flat} }}"
    start = _alike(before, after)
    tail = _alike(before[start:][::-1], after[start:][::-1])
    left, right = expression(before, start, len(before) - tail)
    one, other = before[left:right], after[left : len(after) - (len(before) - right)]
    return f"{indent}{before[:left]}({on} ? ({other}) : ({one})){before[right:]}"


def _alike(one: str, other: str) -> int:
    """How many signs two texts begin with in common."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def expression(line: str, start: int, stop: int) -> tuple[int, int]:
    """Begin and end of the whole expression around line[start:stop], up to what binds it least.

    Where arguments of a call have changed their places, that is the call.
    """
    inside = line[start:stop]
    logical = any(sign in line[max(start - 1, 0) : stop + 1] for sign in ("&&", "||"))
    call = int(_lists(inside))
    left = start
    depth = _unmatched(reversed(inside), _CLOSING, _OPENING)
    out = call  # brackets still to leave
    while left > 0:
        sign = line[left - 1]
        if sign in _CLOSING:
            depth += 1
        elif sign in _OPENING:
            if depth == 0:
                if not out:
                    break
                out -= 1
            else:
                depth -= 1
        elif depth == 0 and not out and _ends(line, left - 1, logical):
            break
        left -= 1
    head = line[left:start].lstrip()
    for word in ("return ", "throw ", "else ", "case "):
        if head.startswith(word):
            left = line.index(word, left) + len(word)
    while line[left] == " ":
        left += 1
    right = stop
    depth = _unmatched(inside, _OPENING, _CLOSING)
    out = call
    while right < len(line):
        sign = line[right]
        if sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            if depth == 0:
                if not out:
                    break
                out -= 1
            else:
                depth -= 1
        elif depth == 0 and not out and _ends(line, right, logical):
            if sign == "=":
                raise ValueError(f"an assignment to what is changed: {line}")
            break
        right += 1
    else:
        raise ValueError(f"an expression goes on in the next line: {line}")
    return left, len(line[:right].rstrip())


def _lists(text: str) -> bool:
    """Whether there is a comma outside brackets."""
    depth = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if sign == "," and depth == 0:
            return True
    return False


def _unmatched(signs: Iterable[str], opening: str, closing: str) -> int:
    """How many brackets are open at the end."""
    depth = 0
    for sign in signs:
        if sign in opening:
            depth += 1
        elif sign in closing and depth:
            depth -= 1
    return depth


def _ends(line: str, at: int, logical: bool) -> bool:
    """Whether this character ends an expression that does not have it in brackets of its own."""
    sign = line[at]
    around = line[max(at - 1, 0) : at + 2]
    if sign in ";,?":
        return True
    if sign == ":":
        return "::" not in around
    if sign in "&|":
        return not logical and (sign * 2 in around)
    if sign == "=":
        return not any(other in around for other in ("==", "<=", ">=", "!="))
    return False
