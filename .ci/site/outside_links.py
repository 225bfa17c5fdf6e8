"""mdBook preprocessor: links to files outside this folder lead to the repository's pages.

The Markdown files link to `../bench-data/...`, which works on GitHub but not on the site. Pictures are copied beside the
pages.
"""

import json
import re
import sys

REPOSITORY = "https://github.com/gridguard/gridguard"


def outside(match):
    text, path = match.groups()
    if text.startswith("!"):
        return f"{text}({path.removeprefix('bench-data/results/')})"
    return f"{text}({REPOSITORY}/blob/main/{path})"


def rewrite(item):
    chapter = item.get("Chapter") if isinstance(item, dict) else None
    if chapter:
        chapter["content"] = re.sub(r"(!?\[[^\]]*\])\(\.\./([^)]*)\)", outside, chapter["content"])
        for inner in chapter["sub_items"]:
            rewrite(inner)


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
_, book = json.load(sys.stdin)
for item in book.get("items", book.get("sections", [])):
    rewrite(item)
json.dump(book, sys.stdout)
