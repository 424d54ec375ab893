"""The rules of docs/style.md that a program can check, as checks of proselint.

Each has sentences that break it and sentences that keep it, for tests/packaging/test_prose.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from proselint.registry.checks import Check, CheckResult, types
from proselint.registry.checks.engine import Fancy, RegexOptions


class LongSentence:
    """A check of proselint: one pattern of so many words would go back and forth without end."""

    def check(self, text: str, check: Check) -> Iterator[CheckResult]:
        for sentence in re.finditer(r"(?:[^.!?:;\n]|\n(?!\n)|[.!?:;](?=\S))+", text):
            if len(sentence[0].split()) > _MOST_WORDS:
                message = check.message.format(" ".join(sentence[0].split()[:8]) + " ...")
                yield CheckResult(check.path, message, sentence.span(), None)


@dataclass(frozen=True)
class Rule:
    name: str
    message: str
    pattern: str | types.CheckType
    breaks: tuple[str, ...]
    keeps: tuple[str, ...]

    def check(self) -> Check:
        return Check(
            check_type=types.ExistenceSimple(pattern=self.pattern)
            if isinstance(self.pattern, str)
            else self.pattern,
            path=f"posenc.{self.name}",
            message=self.message,
            engine=Fancy(RegexOptions()),
        )


# Between two words of one passage: passages are apart by an empty line.
_GAP = r"(?:[ \t]|\n(?!\n))+"
# Where a sentence begins.
_START = r"(?:\A\n?|\n\n|[.!?]" + _GAP + ")"
_MOST_WORDS = 45

# Phrases that this project once used, and the field's words for them. No patterns: see `_term`.
TERMS = {
    "all there is to know": "say what it is, as 'one number per head and distance'",
    "has the bits of": "'matches ... bit for bit'",
    "have the bits of": "'match ... bit for bit'",
    "less those": "'except', 'omitting'",
    "may have been meant": "'a suggested fix'",
    "what is promised": "'guarantees'",
    "what there is": "'an overview', 'features'",
    "who writes the": "'you write your own ...'",
    "in vain": "say what failed",
    "makes no sense": "'is invalid', 'is not supported'",
    "for whom": "'audience'",
    "a stranger": "'untrusted input'",
    "a stranger's": "'untrusted'",
    "and the rooms": "'and the packages'",
    "both ways": "say which two: 'with and without'",
    "as it is;": "'unmodified'",
    "that of a copy": "'the bandwidth of a copy'",
    "it is not for": "name the reader: 'if you need ...'",
}


def _term(phrase: str, better: str) -> Rule:
    name = "term_" + re.sub(r"\W+", "_", phrase).strip("_")
    # Words may be on two lines.
    pattern = _GAP.join(re.escape(word) for word in phrase.split())
    return Rule(name, f"{better}, not '{{}}'", rf"\b{pattern}(?!\w)", (f"Say {phrase} here",), ())


# Participles that begin an inverted sentence.
_PARTICIPLES = (
    "seen|left|left out|missing|missed|refused|wanted|measured|tested|shared|given|served|asked|"
    "supported|compared|covered|judged|counted|read|timed|kept|needed"
)
# After these words "which" asks, or belongs to a preposition: it does not define.
_BEFORE_WHICH = (
    "in|of|for|by|with|from|to|on|at|after|under|over|into|than|as|through|upon|within|about|between|"
    "before|during|until|among|beyond|without|against|across|and|or|but|not|no|is|are|whose|both|all|"
    "each|most|some|many|any|one|out|exactly|only|that|then|says?|said|knows?|known|tells?|told|"
    "names?|naming|chooses?|chosen|decides?|lists?|shows?|see|asks?|asked|depends?|matter|"
    "determines?|states?|records?|recorded|reports?|remembers?|learns?|learned|checks?|finds?|found|"
    "picks?|specify|specifies|indicates?|selects?|describes?|explains?|guess|guesses|declares?|"
    "looks?|notes?|counts?|defines?|sets?|controls?|understands?|identify|identifies"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "inversion",
        "subject first: '{}'",
        rf"{_START}(?:not )?(?:{_PARTICIPLES}){_GAP}(?:is|are|was|were)\s",
        ("It works. Not seen are kernels of others.", "Measured is the call."),
        ("Kernels of others are not seen.", "We measured it. The reading is done."),
    ),
    Rule(
        "clause_as_noun",
        "a noun in place of a clause: '{}'",
        rf"{_START}(?:What|Whatever|Whoever|Who|Whose|Which)\s"
        r"(?:[^.!?\n]|\n(?!\n)|\.(?=\w))*\.(?=\s|\Z)",
        ("What is left is torch.", "Whoever takes tests out, runs this."),
        ("What does it cost?", "The remainder is torch. Say what it costs."),
    ),
    Rule(
        "whoever",
        "name the person: '{}'",
        r"\b(?:whoever|whomever|whosoever)\b",
        ("It is for whoever asks.",),
        ("It is for the person who asks.",),
    ),
    Rule(
        "that_which",
        "'that' defines, ', which' adds: '{}'",
        rf"\b(?!(?:{_BEFORE_WHICH})\b)[a-z]+ which "
        r"(?:is|are|was|were|has|have|can|do|does|the|a|it|they|makes?|takes?|needs?)\b",
        ("a table which is cast", "The kernel which has no barrier waits."),
        ("a table, which is cast", "the table that is cast", "say which is faster"),
    ),
    Rule(
        "long_sentence",
        "more than 45 words in a sentence: '{}'",
        LongSentence(),
        (" ".join(["word"] * 50) + ".",),
        (" ".join(["word"] * 40) + ".", " ".join(["word"] * 30) + "; " + " ".join(["word"] * 30)),
    ),
    *(_term(phrase, better) for phrase, better in TERMS.items()),
)

# Checks of proselint that read technical English wrongly here, each with why.
OFF = {
    "typography": "quotes and dashes are typed as on a keyboard; ruff and Sphinx look after signs",
    "dates_times": "dates are those of ISO 8601",
    "weasel_words.very": "once in a while it says something",
}
