"""Reads cargo's messages, and prints "name path" for each program, test or bench that cargo built, but the tests in a
program's own source."""

import json
import sys

for line in sys.stdin:
    if line.startswith("{"):
        message = json.loads(line)
        if message.get("executable") and not (message["profile"]["test"] and message["target"]["kind"] == ["bin"]):
            print(message["target"]["name"], message["executable"])
