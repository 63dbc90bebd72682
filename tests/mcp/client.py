"""Uses `profinfer mcp` through the protocol's public SDK (package mcp of PyPI), for tests/plain/mcp_cli.rs, and prints what the
client got as JSON. Exits 3 if the package is not available.

usage: client.py PROFINFER BEFORE AFTER

The SDK checks each message by the protocol's types, and structured content by the schema that its tool has in the list."""

import asyncio
import json
import sys

try:
    from mcp import Client, ClientSession, MCPError, StdioServerParameters
    from mcp.client.stdio import stdio_client
except ImportError as e:
    print(f"the package mcp is not available: {e}", file=sys.stderr)
    sys.exit(3)


def plain(result):
    """Text, structure, and whether the call failed."""
    text = "".join(part.text for part in result.content)
    return {"text": text, "object": result.structured_content, "failed": bool(result.is_error)}


async def calls(session, before, after):
    """What each tool answers."""
    asked = {
        "verdict": ("verdict", {"file": before}),
        "compare": ("compare", {"before": before, "after": after, "by": "op"}),
        "table": ("table", {"file": before, "table": "layer", "top": 2}),
        "record": ("record", {"seconds": 1}),
        "missing": ("verdict", {"file": "/nowhere/run.pfi"}),
        "engines": ("list_engines", {}),
    }
    answers = {name: plain(await session.call_tool(*call)) for name, call in asked.items()}
    try:
        await session.call_tool("erase", {})
        unknown = None
    except MCPError as e:
        unknown = e.code
    return answers | {"unknown": unknown}


async def by_handshake(server, before, after):
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        began = await session.initialize()
        await session.send_ping()
        tools = (await session.list_tools()).tools
        return {
            "protocol": began.protocol_version,
            "name": began.server_info.name,
            "instructions": began.instructions,
            "tools": {tool.name: tool.input_schema for tool in tools},
            "structured": sorted(tool.name for tool in tools if tool.output_schema),
            **await calls(session, before, after),
        }


async def by_discovery(server, before):
    """A client that asks first for a revision without a handshake."""
    async with Client(server) as client:
        verdict = await client.call_tool("verdict", {"file": before})
        return plain(verdict)


async def main(program, before, after):
    server = StdioServerParameters(command=program, args=["mcp"])
    answers = await by_handshake(server, before, after)
    answers["discovered"] = await by_discovery(server, before)
    print(json.dumps(answers))


asyncio.run(main(*sys.argv[1:]))
