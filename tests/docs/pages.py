"""The pages of the documentation: their blocks, the commands in them, their headings and their links."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Whose commands are run; the links of all tracked pages are checked.
READ = ["README.md", "docs/**/*.md", "python/README.md", "CONTRIBUTING.md"]
# Words that a line of a command begins with. A path of these sources, or NAME=VALUE, also does.
PROGRAMS = set(
    "adb alias awk cargo cat cd cp cross curl docker echo exec export for ggml-runner git hdc helm jq kill kubectl ln "
    "llama-bench llama-cli llama-quantize llama-server ls make mkdir mv nice perf pip podman profinfer python3 renice rm "
    "rustup scp sh ssh ssh-keygen su sudo systemctl taskset while".split()
)
PLACES = ("benches/", "cross/", "examples/", "fuzz/", "scripts/", "tests/", "./")
# Languages of fenced blocks that may hold commands; no language is one.
SHELLS = {"", "sh", "bash", "console"}


@dataclass
class Command:
    page: str
    line: int
    text: str

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    @property
    def short(self):
        """On one line, without comments at the ends of lines."""
        lines = [re.sub(r"\s+# .*$", "", line).removesuffix("\\") for line in self.text.splitlines()]
        return " ".join(" ".join(lines).split())


@dataclass
class Block:
    page: str
    line: int
    language: str
    lines: list


def pages():
    return sorted({path for pattern in READ for path in ROOT.glob(pattern)})


def blocks(page):
    """Fenced blocks, and those indented by four columns after an empty line (six in a list)."""
    name, lines = str(page.relative_to(ROOT)), page.read_text().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r" *```(\w*)", line)
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].lstrip().startswith("```"))
            yield Block(name, at + 2, fence[1], lines[at + 1 : end])
            at = end + 1
        elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(name, at + 1, "", lines[at:end])
            at = end
        else:
            at += 1


def begins_a_command(line):
    word = line.split()[0]
    return word in PROGRAMS or word.startswith(PLACES) or re.fullmatch(r"[A-Z_]+=\S*|alias|profinfer\w*", word) is not None


def unknown_program(block):
    """The first word of a block that holds no commands, if it is a program: PROGRAMS lacks it, or the block is `text`."""
    words = "\n".join(block.lines).split()
    program = words[0] if block.language in SHELLS and words and not commands(block) else ""
    return program if re.fullmatch(r"[a-z][\w.-]+", program) and shutil.which(program) else None


def complete(text):
    """Whether a shell would run this: it is not the beginning of a longer command."""
    if text.rstrip().endswith("\\"):
        return False
    read = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    return not re.search(r"unexpected (end of file|EOF)", read.stderr)


def commands(block):
    """Of a session (lines after `$ `), or of a block whose first line begins a command: all of its lines."""
    if block.language not in SHELLS:
        return []
    lines = [(block.line + i, line.strip()) for i, line in enumerate(block.lines)]
    session = any(line.startswith("$ ") for _, line in lines)
    first = next((line for _, line in lines if line and not line.startswith("#")), "")
    if not session and not (first and begins_a_command(first)):
        return []
    found, open_at = [], None
    for number, line in lines:
        if open_at is None:
            if session and not line.startswith("$ ") or not line or line.startswith("#"):
                continue
            open_at, text = number, line.removeprefix("$ ")
        else:
            text += "\n" + line
        if complete(text):
            found.append(Command(block.page, open_at, text))
            open_at = None
    if open_at is not None:
        found.append(Command(block.page, open_at, text))
    return found


def without_code(text):
    """The same lines, with the code in them blanked out: fences, indented blocks, spans."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced, line = not fenced, ""
        lines.append("" if fenced or line.startswith("    ") else line)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda span: re.sub(r"[^\n]", " ", span[0]), "\n".join(lines), flags=re.S)


def links(page):
    """(line, target) of each link and picture."""
    text = without_code(page.read_text())
    for found in re.finditer(r"\]\(\s*<?([^)\s>]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)|\b(?:src|href)=\"([^\"]+)\"", text, re.M):
        yield text.count("\n", 0, found.start()) + 1, found[1] or found[2] or found[3]


def anchors(page):
    """Names of its headings, as GitHub makes them."""
    seen, names = {}, set()
    fenced = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        heading = None if fenced else re.match(r"#{1,6} +(.*?) *#*$", line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            number = seen.get(name, 0)
            seen[name] = number + 1
            names.add(f"{name}-{number}" if number else name)
    return names | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page.read_text()))
