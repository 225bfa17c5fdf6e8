"""mdBook preprocessor: links to files outside this folder lead to the repository's pages.

The Markdown files link to `../bench-data/...`, which works on GitHub but not on the site.
"""

import json
import re
import sys

REPOSITORY = "https://github.com/gridguard/gridguard"


def outside(match):
    is_image, path = match.group(1).startswith("!"), match.group(2)
    return f"{match.group(1)}({REPOSITORY}/{'raw' if is_image else 'blob'}/main/{path})"


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
