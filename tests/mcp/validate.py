"""Checks objects by a JSON Schema with the package jsonschema, for tests/plain/diagnose_cli.rs, and prints what is wrong as a
list of JSON. Exits 3 if the package is not available.

usage: validate.py SCHEMA < LIST"""

import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError as e:
    print(f"the package jsonschema is not available: {e}", file=sys.stderr)
    sys.exit(3)

with open(sys.argv[1], encoding="utf-8") as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
checks = Draft202012Validator(schema)
found = [(i, error) for i, one in enumerate(json.load(sys.stdin)) for error in checks.iter_errors(one)]
json.dump([f"{i}: {error.json_path}: {error.message}" for i, error in found], sys.stdout)
