"""Opens pages of `profinfer html` in headless Chromium and uses them like a reader, for tests/html_browser.rs. Exits 1
with an error message, and 3 if there is no Chromium.

usage: browser.py [--shots DIR] PAGE...

Checks for every page: no error on the console, no request, no dialog, every chart drawn and named, no wider than a phone,
both themes, sorting and focus with only the keyboard; for a page with a graph: zoom and another metric; with timelines: opened
by a click and by keyboard, filters, and a state that survives in a link. The times of the frames of the longest timeline
are reported, not judged. With --shots, screenshots of both themes, of a phone's width and of the print version are written to DIR.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAMS = ["chromium-headless-shell", "chromium", "google-chrome"]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--remote-debugging-pipe",
]
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
NARROW = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


class Browser:
    """Chromium through its debugging pipe: JSON messages, each terminated by a zero byte."""

    def __init__(self, program, home):
        hears, self.to = os.pipe()
        self.back, says = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        command = ["sh", "-c", f'exec "$@" 3<&{hears} 4>&{says}', "sh", program, *FLAGS, f"--user-data-dir={home}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*command, "about:blank"], stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(hears, says),
            env={**os.environ, "HOME": home},
        )
        os.close(hears)
        os.close(says)
        self.number, self.rest, self.events = 0, b"", []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.ask(f"{domain}.enable")

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.back, 1 << 20)
            if not more:
                sys.exit("Chromium went away")
            self.rest += more
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self.read())

    def do(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            sys.exit(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def key(self, key, code=None, text=""):
        """Presses and releases a key."""
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, " ": 32, "ArrowLeft": 37, "ArrowRight": 39,
                 "Escape": 27}
        press = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **press)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **press)

    def click(self, x, y):
        for what in ["mousePressed", "mouseReleased"]:
            self.ask("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)

    def theme(self, name, media="screen"):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def close(self):
        self.session = None
        self.ask("Browser.close")
        self.process.wait()


def same(got, want, what):
    if got != want:
        sys.exit(f"{what}: {got!r}, not {want!r}")


def check(condition, what):
    if not condition:
        sys.exit(what)


# The scale of colours is part of the graph.
CHARTS = """[...document.querySelectorAll('svg:not(.scale)')].map((svg) => {
  const box = svg.getBBox();
  const own = svg.getBoundingClientRect();
  const ids = (svg.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
  const named = ids.length ? ids.every((id) => document.getElementById(id).textContent) : svg.getAttribute('aria-label');
  const lost = [...svg.querySelectorAll('path')].filter((p) => /NaN|Infinity/.test(p.getAttribute('d'))).length;
  return { id: svg.id, parts: svg.querySelectorAll('path, rect, circle, text').length, lost,
    drawn: box.width > 50 && box.height > 20, shown: own.width > 100 && own.height > 20, named: Boolean(named) };
})"""


def charts(b):
    """Ids of the charts; each has content, and a name for screen readers."""
    ids = []
    for c in b.do(CHARTS):
        ids.append(c["id"])
        check(c["shown"] and c["named"] and not c["lost"], f"chart {c}")
        # A bar has as many parts as there are shares, in units of its own.
        check(c["id"].startswith("time-bar") or (c["drawn"] and c["parts"] > 4), f"chart {c}")
    return ids


def outline(b, sections):
    """The page as a screen reader presents it."""
    headings = b.do("[...document.querySelectorAll('section')].map((s) => [s.id, "
                    "document.getElementById(s.getAttribute('aria-labelledby')).textContent, s.innerText.length])")
    same(len(headings), sections, "sections")
    for name, heading, length in headings:
        check(heading and length > 40, f"section {name} is empty")
    bare = b.do("[...document.querySelectorAll('table')].filter((t) => !t.tHead || [...t.tBodies[0].rows]"
                ".some((r) => !r.querySelector('th[scope=row]'))).length")
    same(bare, 0, "tables without headings")
    same(b.do("document.querySelectorAll('button:not([type=button])').length"), 0, "buttons that send a form")


def focus(b):
    """The first Tab reveals the link to the content, and the focus is visible."""
    b.key("Tab")
    same(b.do("document.activeElement.className"), "skip", "first stop")
    check(b.do("document.activeElement.getBoundingClientRect().left >= 0"), "the first stop is out of sight")
    check(b.do("getComputedStyle(document.activeElement).outlineStyle") != "none", "focus is not visible")
    b.key("Enter", text="\r")
    same(b.do("location.hash"), "#main", "the way to the content")


COLUMN = "[...document.querySelector('{t}').tBodies[0].rows].map((r) => r.cells[{c}].textContent)"


def sort(b, table, column):
    """A heading sorts both ways by keyboard, and announces it."""
    column_of = COLUMN.format(t=table, c=column)
    before = b.do(column_of)
    head = f"document.querySelector('{table}').tHead.rows[0].cells[{column}]"
    b.do(f"{head}.closest('details')?.setAttribute('open', ''); {head}.querySelector('button').focus()")
    for way in ["descending", "ascending"]:
        b.key("Enter", text="\r")
        same(b.do(f"{head}.getAttribute('aria-sort')"), way, f"{table}: way of sorting")
        check(way in b.do("document.querySelector('#said').textContent"), "sorting is not said")
        body = [float(v) for v in b.do(
            f"[...document.querySelector('{table}').tBodies[0].querySelectorAll('tr:not(.end)')]"
            f".map((r) => r.cells[{column}].textContent)") if v != "-"]
        same(body, sorted(body, reverse=way == "descending"), f"{table} {way}")
    same(sorted(before), sorted(b.do(column_of)), f"{table}: rows after sorting")
    same(b.do(f"document.querySelectorAll('{table} [aria-sort]').length"), 1, f"{table}: headings that sort")
    last = b.do(f"[...document.querySelector('{table}').tBodies[0].rows].map((r) => r.className)")
    check("end" not in last or last.index("end") + last.count("end") == len(last), "closing rows stay at the end")


def graph(b):
    """Selects another metric by keyboard; zooms by button and by key."""
    same(b.do("document.querySelector('.tools').hidden"), False, "tools of the graph")
    fills = "[...document.querySelectorAll('#dag g.n rect')].map((r) => r.getAttribute('fill')).join()"
    texts = "[...document.querySelectorAll('#dag .v')].map((t) => t.textContent).join('|')"
    seen = set()
    n = b.do("document.querySelector('#metric').options.length")
    same(n, 10, "metrics")
    first = b.do("document.querySelector('#metric').selectedIndex")
    legend_of = "document.querySelector('#legend').textContent"
    was = (b.do(fills), b.do(texts), b.do(legend_of))
    b.do("document.querySelector('#metric').focus()")
    for i in range(first + 1, n):
        b.key("ArrowDown")
        same(b.do("document.querySelector('#metric').selectedIndex"), i, "metric by key")
        legend = b.do(legend_of)
        missing = "is not available" in legend
        check(missing == ("url(#gap)" in b.do(fills) and not b.do(texts).strip("-|")), f"{legend}: colours")
        seen.add((b.do(fills), b.do(texts), legend))
    # Of one call, the mean is the median; metrics that were not recorded are drawn alike.
    drawn = {s[:2] for s in seen | {was}}
    check(len(seen | {was}) == n - first and len(drawn) > 3, "a metric changes nothing")
    for _ in range(first + 1, n):
        b.key("ArrowUp")
    same((b.do(fills), b.do(texts), b.do(legend_of)), was, "the first metric again")

    width = "Number(document.querySelector('#dag').getAttribute('width'))"
    start = b.do(width)
    b.do("document.querySelector('#zoom-in').focus()")
    b.key("Enter", text="\r")
    larger = b.do(width)
    check(larger > start, "the button for larger")
    b.do("document.querySelector('#dag-box').focus()")
    b.key("-", "Minus", "-")
    check(b.do(width) < larger, "the key for smaller")
    b.key("+", "Equal", "+")
    b.key("+", "Equal", "+")
    check(b.do(width) > larger, "the key for larger")
    b.key("0", "Digit0", "0")
    fits = b.do("document.querySelector('#dag').getBoundingClientRect().width <= document.querySelector('#dag-box').clientWidth + 1")
    check(fits, "the key that fits it in")


def flame(b):
    """Zooms into the narrowest frame by keyboard, and out again; the link has it."""
    b.do("window.frames_ = [...document.querySelectorAll('#flame-chart g.f')].filter((g) => !g.classList.contains('out'));"
         "window.widths_ = () => frames_.map((g) => Number(g.querySelector('rect').getAttribute('width')));")
    wide = b.do("document.querySelector('#flame-chart').clientWidth")
    widths = b.do("widths_()")
    check(len(widths) > 4 and abs(widths[0] - wide) < 1, f"frames of {widths[:3]}, in {wide} pixels")
    least = widths.index(min(widths))
    b.do(f"frames_[{least}].focus()")
    b.key("Enter", text="\r")
    check(abs(b.do("widths_()")[least] - wide) < 1, "a frame fills the place when it is selected")
    check("flame=" in b.do("location.hash"), "the link has the frame")
    b.key("Escape")
    same(b.do("widths_()"), widths, "all frames again")
    check("flame=" not in b.do("location.hash"), "the link has no frame any more")
    b.do("frames_[0].focus()")
    b.key("ArrowDown")
    below = "document.activeElement.querySelector('rect').getAttribute('y') > 0"
    check(b.do(below), "the key for the frame below")


def middle(b, element):
    """The place of an element in the window, after scrolling there."""
    return b.do(f"(() => {{ const e = {element}; e.scrollIntoView({{ block: 'center' }}); "
                "const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()")


def pixels(b):
    """Number of colours on the canvas of the timeline."""
    return b.do("""(() => { const c = document.querySelector('#timeline-canvas');
      const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
      return new Set(d).size; })()""")


OPEN = "!document.querySelector('#timeline').hidden"
CALL = "document.querySelector('#timeline-call').value"
CANVAS = "document.querySelector('#timeline-canvas')"
DRAWN = f"{CANVAS}.toDataURL()"


def timeline(b):
    """Opens timelines with the mouse and with the keyboard, walks through them, zooms, and closes."""
    same(b.do(OPEN), False, "timeline before it was asked for")
    mark = "document.querySelectorAll('[data-phase=decode] .mark')[7]"
    b.click(*middle(b, mark))
    same(b.do(OPEN), True, "timeline after a click")
    call = b.do(f"{mark}.dataset.from")
    same(b.do(CALL), call, "call of the timeline")
    check(f"token={call}" in b.do("location.hash"), "the link has no token")
    check(f"Call {call}, decode" in b.do("document.querySelector('#timeline-about').textContent"), "about")
    check(pixels(b) > 6, "the canvas is empty")
    for thread in ["0 (tid ", "1 (tid "]:
        check(thread in b.do("document.querySelector('#timeline-facts').textContent"), f"thread {thread}")
    # Of what is at a place of the canvas.
    x, y = middle(b, CANVAS)
    b.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=b.do(f"{CANVAS}.getBoundingClientRect().top") + 25)
    tip = "document.querySelector('#tip-box')"
    check(b.do(f"!{tip}.hidden") and any(u in b.do(f"{tip}.textContent") for u in [" ns", " us", " ms"]), "tooltip")
    # The same by keyboard.
    same(b.do("document.activeElement.id"), "timeline-canvas", "focus after a click")
    first = b.do(DRAWN)
    b.key("+", "Equal", "+")
    check(b.do(DRAWN) != first, "the key for zoom")
    b.key("0", "Digit0", "0")
    same(b.do(DRAWN), first, "all of the token again")
    b.key("ArrowRight")
    same(b.do(CALL), str(int(call) + 1), "next token")
    b.key("ArrowLeft")
    same(b.do(CALL), call, "previous token")
    b.key("Escape")
    same((b.do(OPEN), "token" in b.do("location.hash")), (False, False), "after Escape")
    same(b.do(f"document.activeElement === {mark}"), True, "focus is back at the mark")
    b.key("ArrowRight")
    b.key("Enter", text="\r")
    same((b.do(OPEN), b.do(CALL)), (True, str(int(call) + 1)), "by keyboard")
    b.key("Escape")


def choose(b, selector, value):
    b.do(f"(() => {{ const e = document.querySelector('{selector}'); e.value = {json.dumps(value)}; "
         "e.dispatchEvent(new Event('input', { bubbles: true })); })()")


SHOWN = ("[...document.querySelectorAll('#ops table[data-ops] tbody tr')].filter((r) => !r.hidden)"
         ".map((r) => r.cells[0].textContent)")


def filters(b):
    """Phase, name and layer; what does not match is hidden, and comes back."""
    everything = b.do(SHOWN)
    choose(b, "#filter-find", "rope")
    found = b.do(SHOWN)
    check(found and all("rope" in name.lower() for name in found), f"found {found}")
    check("match" in b.do("document.querySelector('#filter-said').textContent"), "matches are not said")
    check(b.do("document.querySelectorAll('#dag g.n.dim').length") > 3, "no box is dimmed")
    choose(b, "#filter-find", "")
    same(b.do(SHOWN), everything, "after the search")
    choose(b, "#filter-layer", "2")
    layers = [name for name in b.do(SHOWN) if name.startswith("layer ")]
    same(set(layers), {"layer 2"}, "layers")
    choose(b, "#filter-layer", "")
    choose(b, "#filter-phase", "prefill")
    same(b.do("[...document.querySelectorAll('#ops [data-phase]')].filter((e) => !e.hidden)"
              ".map((e) => e.dataset.phase)"), ["prefill"], "phases")
    check(b.do("!document.querySelector('#graph .only').hidden"), "the graph's phase is not said")
    choose(b, "#filter-phase", "")
    same(b.do(SHOWN), everything, "after all filters")


def link(b, page):
    """A link carries phase, search, layer, token and order of a table."""
    choose(b, "#filter-phase", "decode")
    choose(b, "#filter-find", "mul_mat")
    b.do("document.querySelector('#ops table.sortable').tHead.rows[0].cells[1].querySelector('button').click()")
    mark = "document.querySelectorAll('[data-phase=decode] .mark')[3]"
    b.click(*middle(b, mark))
    state = ("[location.hash, document.querySelector('#filter-phase').value, document.querySelector('#filter-find').value, "
             f"{OPEN}, {CALL}, {SHOWN}.join('|'), "
             "document.querySelector('#ops table.sortable [aria-sort]')?.cellIndex]")
    before = b.do(state)
    check(before[3] and "find=mul_mat" in before[0] and "phase=decode" in before[0] and "sort=" in before[0], f"{before}")
    url = page.resolve().as_uri() + before[0]
    for where in ["about:blank", url]:
        b.events = [e for e in b.events if e.get("method") not in ("Page.loadEventFired",)]
        b.ask("Page.navigate", url=where)
        b.wait("Page.loadEventFired")
    same(b.do(state), before, "the state after opening the link")
    # A link to a section keeps it.
    b.do("document.querySelector('nav a[href=\"#roof\"]').click()")
    b.do("new Promise((done) => setTimeout(done, 50))")
    check(b.do("location.hash").startswith("#roof&") and "find=mul_mat" in b.do("location.hash"), b.do("location.hash"))


FRAMES = """(() => {
  const canvas = document.querySelector('#timeline-canvas');
  const context = canvas.getContext('2d');
  const press = (key, shiftKey = false) => canvas.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey }));
  // The page is laid out anew once, after the panel has opened.
  canvas.getBoundingClientRect();
  const times = [];
  const keys = [...Array(8).fill('0'), ...Array(8).fill('+'), ...Array(8).fill('ArrowRight'), ...Array(8).fill('-')];
  for (const key of keys) {
    const start = performance.now();
    press(key, key === 'ArrowRight');
    context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - start);
  }
  return times;
})()"""


def frames(b):
    """Milliseconds of each frame while the longest timeline is zoomed and moved, painted to the last pixel."""
    b.do("(() => { const l = document.querySelector('#timeline-call'); const all = JSON.parse(document.querySelector('#data')"
         ".textContent).timeline.calls; const size = (c) => c.rows.reduce((n, r) => n + r.data.length, 0); "
         "const p = document.querySelector('#filter-phase'); p.value = ''; p.dispatchEvent(new Event('input')); "
         "l.value = String(all.sort((a, b) => size(b) - size(a))[0].seq); l.dispatchEvent(new Event('change')); })()")
    times = b.do(FRAMES)
    # All of the token eight times: the least is what drawing takes, the rest is what else the machine does.
    whole = min(times[:8])
    times.sort()
    return {"about": b.do("document.querySelector('#timeline-about').textContent"), "all_of_it_ms": round(whole, 2),
            "median_ms": round(times[len(times) // 2], 2), "max_ms": round(times[-1], 2)}


def compared(b):
    """The graph has the colours of faster and slower, and the search finds a changed op."""
    fills = b.do("[...document.querySelectorAll('#dag g.n rect')].map((r) => r.getAttribute('fill'))")
    check("#b2182b" in fills, f"nothing is slower: {set(fills)}")
    values = b.do("[...document.querySelectorAll('#dag .v')].map((t) => t.textContent)")
    check(any(v.startswith("+1") and v.endswith(" %") for v in values), f"{values}")
    choose(b, "#filter-find", "rope")
    rows = b.do("[...document.querySelectorAll('#changes tbody tr')].filter((r) => !r.hidden).map((r) => r.cells[0].textContent)")
    check(rows and all("ROPE" in r for r in rows), f"{rows}")
    choose(b, "#filter-find", "")


def errors(b):
    """Events that a page must never cause."""
    wrong = []
    for e in b.events:
        method, p = e.get("method", ""), e.get("params", {})
        if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            wrong.append(e)
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            wrong.append(e)
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            wrong.append(p["entry"])
        elif method == "Network.requestWillBeSent" and p["type"] != "Document":
            wrong.append(p["request"]["url"])
    pages = [e for e in b.events if e.get("method") == "Network.requestWillBeSent" and e["params"]["type"] == "Document"]
    own = {e["params"]["request"]["url"].split("#")[0] for e in pages}
    check(len(own - {"about:blank"}) <= 1 and not wrong, f"errors or requests: {wrong or pages}")


def shoot(b, shots, name):
    if shots:
        size = b.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        data = b.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        (shots / f"{name}.png").write_bytes(base64.b64decode(data))


def views(b, shots, name):
    """Both themes, a phone's width, and the print version."""
    backs = []
    for theme in ["dark", "light"]:
        b.theme(theme)
        backs.append(b.do("getComputedStyle(document.body).backgroundColor"))
        shoot(b, shots, f"{name}-{theme}")
    check(backs[0] != backs[1], f"both themes are {backs[0]}")
    b.ask("Emulation.setDeviceMetricsOverride", **NARROW)
    wide = b.do("document.documentElement.scrollWidth")
    check(wide <= NARROW["width"], f"{name}: {wide} pixels wide in a narrow window")
    shoot(b, shots, f"{name}-narrow")
    b.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    wide = b.do("document.documentElement.scrollWidth")
    check(wide <= PHONE["width"], f"{name}: {wide} pixels wide on a phone")
    shoot(b, shots, f"{name}-phone")
    b.ask("Emulation.setDeviceMetricsOverride", **DESK)
    b.theme("dark", "print")
    same(b.do("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)", "paper")
    same(b.do("getComputedStyle(document.querySelector('nav')).display"), "none", "links on paper")
    if shots:
        pdf = b.ask("Page.printToPDF", printBackground=True)["data"]
        (shots / f"{name}.pdf").write_bytes(base64.b64decode(pdf))
    b.theme("light")


def use(b, page, shots):
    b.events.clear()
    # Another fragment of the page that is open would not load it again.
    b.ask("Page.navigate", url="about:blank")
    b.wait("Page.loadEventFired")
    b.events.clear()
    b.ask("Emulation.setDeviceMetricsOverride", **DESK)
    b.theme("light")
    b.ask("Page.navigate", url=page.resolve().as_uri())
    b.wait("Page.loadEventFired")
    ids = charts(b)
    outline(b, 3 if page.stem == "compare" else 12)
    focus(b)
    same(b.do("typeof hostile"), "undefined", "a name was run")
    views(b, shots, page.stem)
    if b.do("document.querySelector('#ops table.sortable') !== null"):
        sort(b, "#ops table.sortable", 1)
        sort(b, "#ops table.sortable", 4)
    if page.stem == "compare":
        compared(b)
    elif "dag" in ids:
        graph(b)
    if "flame-chart" in ids:
        flame(b)
    found = {"charts": ids}
    if b.do("document.querySelector('#timeline') !== null"):
        if page.stem == "rich":
            timeline(b)
            filters(b)
            link(b, page)
        errors(b)
        found["frames"] = frames(b)
        shoot(b, shots, f"{page.stem}-timeline")
        # The browser warns about a canvas that is read back again and again.
        b.events = [e for e in b.events if "willReadFrequently" not in json.dumps(e)]
    errors(b)
    return found


def main(args):
    shots = None
    if args[:1] == ["--shots"]:
        shots, args = pathlib.Path(args[1]), args[2:]
        shots.mkdir(parents=True, exist_ok=True)
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        print(f"none of {', '.join(PROGRAMS)} is installed (scripts/setup.sh test installs one)", file=sys.stderr)
        sys.exit(3)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        b = Browser(program, home)
        try:
            used = {page: use(b, pathlib.Path(page), shots) for page in args}
        except BaseException:
            b.process.kill()
            raise
        b.close()
    print(json.dumps(used))


main(sys.argv[1:])
