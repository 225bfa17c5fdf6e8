"""Reads cargo's messages, and prints "name path" for each executable that cargo built."""

import json
import sys

for line in sys.stdin:
    if line.startswith("{"):
        message = json.loads(line)
        if message.get("executable"):
            print(message["target"]["name"], message["executable"])
