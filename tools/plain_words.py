"""Find words and phrases that this project does not use, in the files and folders given.

    python tools/plain_words.py shim topics docs README.md

`codespell` finds misspelt words and the single words of `tools/words.txt`. This script finds phrases, which codespell
cannot. Each entry of `PHRASES` is a regular expression and what to write in its place. `ALLOWED` lists lines where a
phrase is the right one, each with the reason.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PHRASES = {
    r"(?:is|are|was|were|be|been|being|gets?|got) said": "is logged, is reported",
    r"(?:is|are|was|were|be|been|being) told": "is passed, is notified, is configured",
    r"(?:of|to|by|for) (?:ours|yours)(?! truly)": "our, your",
    r"in work": "in progress, being processed",
    r"alarms? on": "alert on",
    r"for ever": "forever, indefinitely",
    r"at once": "immediately, at the same time",
    r"puts? by": "buffered",
    r"lets? go": "close, release",
    r"so many": "a number",
    r"so long": "a duration, while",
    r"at its end": "at shutdown, at the end of the topic",
    r"who ha(?:s|ve)": "the user, the caller",
    r"takes? up|took up|taken up": "start, accept",
    r"(?:to|and|then|can|will|must) mend": "fix",
    r"is no (?!longer\b|more\b|less\b|other\b|need\b|such\b|way\b|reason\b|point\b)": "is not a",
}
"""Phrase (case-insensitive, whole words) to what we write in its place."""

ALLOWED = {
    ("topics/rocketshim_topics/wire.py", "UNREADABLE: Final"): "these bytes are part of stored digests",
}
"""(path, text in the line) to the reason why the phrase is the right one there."""

_PATTERN = re.compile(r"\b(?:" + "|".join(f"({phrase})" for phrase in PHRASES) + r")(?!\w)", re.IGNORECASE)
_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ""}


def main(paths: list[str]) -> int:
    """Print every finding; return 1 if there is one."""
    listed = subprocess.run(("git", "ls-files", *paths), cwd=ROOT, capture_output=True, text=True, check=True)
    found = 0
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in _SUFFIXES or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = _PATTERN.search(line)
            if match and not any(name == where and text in line for where, text in ALLOWED):
                advice = list(PHRASES.values())[(match.lastindex or 1) - 1]
                print(f"{name}:{number}: {match[0]!r}: write {advice!r}")
                found += 1
    print(f"plain words: {found} findings")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
