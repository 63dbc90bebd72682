// The timeline of a token: a mark of the chart opens it, a canvas draws it.
(() => {
  const { find, said } = page;
  const panel = find('#timeline');
  const { timeline } = page.data;
  if (!panel || !timeline) return;
  const canvas = find('#timeline-canvas');
  const box = find('#timeline-box');
  const about = find('#timeline-about');
  const list = find('#timeline-call');
  const tip = document.createElement('div');
  tip.id = 'tip-box';
  tip.hidden = true;
  panel.append(tip);

  const STATES = [
    ['nocpu', 'preempted by'], ['nocpu', 'woken, waiting for a CPU that ran'], ['idle', 'asleep'],
    ['fault', 'page fault'], ['fault', 'I/O'], ['blocked', 'blocked'],
  ];
  const COLOURS = [...timeline.kinds, 'wait', 'nocpu', 'idle', 'fault', 'blocked', 'rest', 'ink', 'quiet', 'line', 'back', 'inverse'];
  const WAIT = timeline.kinds.length;
  const DIM = WAIT + 1;
  const time = (ns) => {
    if (ns < 1e3) return `${ns.toFixed(0)} ns`;
    if (ns < 1e6) return `${(ns / 1e3).toFixed(2)} us`;
    return ns < 1e9 ? `${(ns / 1e6).toFixed(2)} ms` : `${(ns / 1e9).toFixed(2)} s`;
  };
  /** A round time of an axis. */
  const tick = (ns) => time(ns).replace(/\.0+(?= )/, '').replace(/(\.\d*?)0+(?= )/, '$1');
  const NO_OP = '(structure not recorded)';
  const names = timeline.ops.map(([name, , layer]) => timeline.names[name].replace('{L}', layer - 1));
  const opName = (op) => (op < 0 ? NO_OP : names[op]);

  // The format is described in timeline.rs.
  const unpack = (row) => {
    const bytes = Uint8Array.from(atob(row.data), (c) => c.charCodeAt(0));
    let at = 0;
    const next = () => {
      let [n, times] = [0, 1];
      while (at < bytes.length) {
        const byte = bytes[at++];
        n += (byte & 127) * times;
        if (byte < 128) break;
        times *= 128;
      }
      return n;
    };
    const signed = () => {
      const n = next();
      return n % 2 ? -(n + 1) / 2 : n / 2;
    };
    const [op, from, end, wait] = [[], [], [], []];
    let [last, before] = [0, 0];
    for (let groups = next(); groups > 0; groups--) {
      for (let n = next(); n > 0; n--) {
        before += signed();
        last += signed();
        op.push(before - 1);
        from.push(last);
        last += Math.max(0, next() - 1);
        end.push(last);
        last += Math.max(0, next() - 1);
        wait.push(last);
      }
    }
    const off = [];
    last = 0;
    for (let n = next(); n > 0; n--) {
      const mark = { from: last + signed(), ns: next(), state: next(), who: next() - 1, cpu: next() };
      last = mark.from + mark.ns;
      off.push(mark);
    }
    const cpus = [];
    last = 0;
    for (let n = next(); n > 0; n--) {
      last += signed();
      cpus.push({ from: last, cpu: next() - 1 });
    }
    const exact = (values) => Float64Array.from(values);
    return { ...row, op: Int32Array.from(op), from: exact(from), end: exact(end), wait: exact(wait), off, cpus };
  };

  let call = null;
  let rows = [];
  let opener = null;
  let [from, to] = [0, 1];
  let dimmed = new Uint8Array(timeline.ops.length);
  const LEFT = 70;
  const HEAD = 20;
  let LANE = 20;
  let THIN = 9;
  const height = () => HEAD + rows.length * (LANE + THIN + 6) + (call.splits.length ? 18 : 4);

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim() || '#888']));
  };
  /** First index whose value is above `t`. */
  const above = (values, t) => {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > t) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  const draw = () => {
    if (!call || panel.hidden) return;
    const width = box.clientWidth;
    const ratio = devicePixelRatio || 1;
    const high = height();
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(high * ratio);
      canvas.style.height = `${high}px`;
    }
    const c = canvas.getContext('2d');
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const colour = colours();
    const fill = [...timeline.kinds.map((kind) => colour[kind]), colour.wait, colour.rest];
    c.fillStyle = colour.back;
    c.fillRect(0, 0, width, high);
    c.font = '11px system-ui, sans-serif';
    const room = width - LEFT;
    const each = room / (to - from);
    const x = (t) => LEFT + (t - from) * each;

    // The axis.
    const rough = (to - from) / Math.max(2, room / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
    c.strokeStyle = colour.line;
    c.fillStyle = colour.quiet;
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      c.beginPath();
      c.moveTo(x(t), HEAD - 4);
      c.lineTo(x(t), high);
      c.stroke();
      const label = tick(t);
      if (x(t) + 3 + c.measureText(label).width < width) c.fillText(label, x(t) + 3, 12);
    }

    rows.forEach((row, i) => {
      const top = HEAD + i * (LANE + THIN + 6);
      c.fillStyle = colour.ink;
      c.fillText(`thread ${row.ith}`, 4, top + LANE * 0.7);
      c.save();
      c.beginPath();
      c.rect(LEFT, 0, room, high);
      c.clip();
      // Slices narrower than a pixel are collected: the pixel has the colour of what took the most of it.
      const sums = new Float64Array(fill.length);
      let pixel = -1;
      let any = false;
      const flush = () => {
        if (!any) return;
        let best = 0;
        for (let k = 1; k < sums.length; k++) if (sums[k] > sums[best]) best = k;
        c.fillStyle = fill[best];
        c.fillRect(pixel, top, 1, LANE);
        sums.fill(0);
        any = false;
      };
      const put = (a, b, kind) => {
        if (b <= from || a >= to || b <= a) return;
        const [u, v] = [x(a), x(b)];
        if (v - u < 1) {
          if (Math.floor(u) !== pixel) {
            flush();
            pixel = Math.floor(u);
          }
          sums[kind] += v - u;
          any = true;
          return;
        }
        flush();
        c.fillStyle = fill[kind];
        c.fillRect(u, top, v - u, LANE);
      };
      const first = above(row.wait, from);
      const last = above(row.from, to);
      for (let k = first; k < last; k++) {
        const op = row.op[k];
        const dim = op >= 0 && dimmed[op];
        put(row.from[k], row.end[k], op < 0 ? WAIT - 1 : dim ? DIM : timeline.ops[op][1]);
        put(row.end[k], row.wait[k], dim ? DIM : WAIT);
      }
      flush();
      if (last - first < 2000) {
        for (let k = first; k < last; k++) {
          const [u, v] = [Math.max(LEFT, x(row.from[k])), Math.min(width, x(row.end[k]))];
          if (v - u < 34) continue;
          const op = row.op[k];
          const name = opName(op);
          c.fillStyle = op >= 0 && dimmed[op] ? colour.ink : colour.inverse;
          c.fillText(name.slice(0, Math.floor((v - u - 6) / 6.2)), u + 3, top + LANE * 0.7);
          c.fillStyle = colour.back;
          c.fillRect(u, top, 1, LANE);
        }
      }
      // Off-CPU times; at least a pixel, so that each can be seen.
      if (row.known) {
        c.fillStyle = colour.rest;
        c.fillRect(LEFT, top + LANE + THIN / 2, room, 1);
      }
      for (const mark of row.off) {
        if (mark.from > to || mark.from + mark.ns < from) continue;
        c.fillStyle = colour[STATES[mark.state][0]];
        c.fillRect(x(mark.from), top + LANE + 1, Math.max(1, mark.ns * each), THIN - 1);
      }
      c.restore();
    });
    const foot = high - 16;
    call.splits.forEach(([start, ns, name]) => {
      c.fillStyle = colour.ink;
      c.fillText('splits', 4, foot + 11);
      c.strokeStyle = colour.quiet;
      const [u, v] = [Math.max(LEFT, x(start)), Math.min(width, x(start + ns))];
      if (v - u <= 1) return;
      c.strokeRect(u + 0.5, foot + 0.5, v - u - 1, 13);
      if (v - u > 30) c.fillText(name.slice(0, Math.floor((v - u) / 6.2)), u + 4, foot + 11);
    });
  };

  const show = (a, b) => {
    const least = Math.min(50, call.dur);
    const span = Math.min(call.dur, Math.max(least, b - a));
    from = Math.min(Math.max(0, a), call.dur - span);
    to = from + span;
    draw();
  };
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
  const move = (share) => show(from + (to - from) * share, to + (to - from) * share);

  /** What is at a place of the canvas. */
  const at = (px, py) => {
    const i = Math.floor((py - HEAD) / (LANE + THIN + 6));
    const row = rows[i];
    if (!row || px < LEFT) return '';
    const t = from + (px - LEFT) / (box.clientWidth - LEFT) * (to - from);
    const near = (to - from) / (box.clientWidth - LEFT);
    if (py - HEAD - i * (LANE + THIN + 6) > LANE) {
      if (!row.known) return 'off-CPU times of this thread were not recorded (record with --sched)';
      const mark = row.off.find((m) => m.from - near <= t && t <= m.from + m.ns + near);
      if (!mark) return '';
      const who = mark.who >= 0 && mark.state < 2 ? ` ${timeline.who[mark.who]}, CPU ${mark.cpu}` : '';
      return `${STATES[mark.state][1]}${who}: ${time(mark.ns)}`;
    }
    const k = above(row.from, t) - 1;
    if (k < 0 || t > row.wait[k] + near) return '';
    const name = opName(row.op[k]);
    const cpu = row.cpus.findLast((change) => change.from <= row.from[k])?.cpu ?? -1;
    const on = cpu < 0 ? '' : `, CPU ${cpu}`;
    if (t <= row.end[k]) return `${name}: ${time(row.end[k] - row.from[k])}, from ${time(row.from[k])} on${on}`;
    return `waiting at the barrier after ${name}: ${time(row.wait[k] - row.end[k])}`;
  };

  // The figures of the token as tables.
  const table = (caption, heads, lines) => {
    const made = document.createElement('table');
    made.createCaption().textContent = caption;
    const top = made.createTHead().insertRow();
    heads.forEach((head, i) => {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.textContent = head;
      if (i) cell.className = 'r';
      top.append(cell);
    });
    const body = made.createTBody();
    for (const [name, ...values] of lines) {
      const row = body.insertRow();
      const head = document.createElement('th');
      head.scope = 'row';
      head.textContent = name;
      row.append(head);
      for (const value of values) {
        const cell = row.insertCell();
        cell.className = 'r';
        cell.textContent = value;
      }
    }
    const scroll = document.createElement('div');
    scroll.className = 'scroll';
    scroll.tabIndex = 0;
    scroll.setAttribute('role', 'region');
    scroll.setAttribute('aria-label', caption);
    scroll.append(made);
    return scroll;
  };
  const facts = () => {
    const threads = rows.map((row) => {
      let [ops, waits] = [0, 0];
      for (let k = 0; k < row.op.length; k++) {
        ops += row.end[k] - row.from[k];
        waits += row.wait[k] - row.end[k];
      }
      const off = (states) => {
        if (!row.known) return '-';
        return time(row.off.filter((m) => states.includes(m.state)).reduce((sum, m) => sum + m.ns, 0));
      };
      return [`${row.ith} (tid ${row.tid})`, time(ops), time(waits), off([0, 1]), off([2]), off([3, 4]), off([5])];
    });
    const heads = ['thread', 'in ops', 'at barriers', 'waiting for a CPU', 'asleep', 'faults and I/O', 'blocked'];
    const parts = [table('Threads in this token; times off-CPU are within ops and waits', heads, threads)];
    const by = new Map();
    for (const mark of rows.flatMap((row) => row.off).filter((m) => m.state < 2 && m.who >= 0)) {
      const known = by.get(mark.who) || { ns: 0, n: 0, cpus: new Set() };
      known.ns += mark.ns;
      known.n += 1;
      known.cpus.add(mark.cpu);
      by.set(mark.who, known);
    }
    if (by.size) {
      const lines = [...by].sort((a, b) => b[1].ns - a[1].ns).slice(0, 12)
        .map(([who, k]) => [timeline.who[who], time(k.ns), k.n, [...k.cpus].sort((a, b) => a - b).join(', ')]);
      parts.push(table('Who had the CPU', ['program', 'time', 'times', 'CPUs'], lines));
    }
    const row = rows[0];
    if (row) {
      const order = [...row.op.keys()].sort((a, b) => row.end[b] - row.from[b] - row.end[a] + row.from[a]);
      const lines = order.slice(0, 10).map((k) => [
        opName(row.op[k]), time(row.end[k] - row.from[k]), time(row.wait[k] - row.end[k]), time(row.from[k]),
      ]);
      parts.push(table(`Longest ops of thread ${row.ith}`, ['op', 'time', 'wait after it', 'start'], lines));
    }
    find('#timeline-facts').replaceChildren(...parts);
  };

  const shown = () => timeline.calls.filter((c) => !page.phase() || c.phase === page.phase());
  const choices = () => {
    const calls = shown();
    list.replaceChildren(...calls.map((c) => {
      const option = document.createElement('option');
      option.value = c.seq;
      option.textContent = `${c.seq}, ${c.phase}, ${time(c.dur)}${c.why ? ` (${c.why})` : ''}`;
      return option;
    }));
    if (call) list.value = call.seq;
  };
  const close = () => {
    panel.hidden = true;
    call = null;
    tip.hidden = true;
    page.set('token', '');
    for (const mark of document.querySelectorAll('.mark.open')) mark.classList.remove('open');
    opener?.focus();
  };
  const open = (wanted, note = '') => {
    call = wanted;
    rows = call.rows.map(unpack);
    [LANE, THIN] = rows.length > 16 ? [10, 5] : [20, 9];
    panel.hidden = false;
    list.value = call.seq;
    const slices = rows.reduce((sum, row) => sum + row.op.length, 0);
    const unknown = rows.some((row) => !row.known) ? ' Off-CPU times were not recorded for every thread (record with --sched).' : '';
    const left = rows.reduce((sum, row) => sum + row.left, 0);
    const more = left ? ` ${left} off-CPU times are not drawn.` : '';
    find('#timeline-h').textContent = `Timeline of token ${call.seq}`;
    about.textContent = `${note}Call ${call.seq}, ${call.phase}${call.why ? ` (the ${call.why})` : ''}: ${time(call.dur)}, `
      + `${rows.length} threads, ${slices} op slices.${unknown}${more}`;
    page.set('token', String(call.seq));
    for (const mark of document.querySelectorAll('.mark')) {
      const inside = Number(mark.dataset.from) <= call.seq && call.seq <= Number(mark.dataset.to);
      mark.classList.toggle('open', inside && mark.closest('[data-phase]').dataset.phase === call.phase);
    }
    show(0, call.dur);
    facts();
  };
  const step = (by) => {
    const calls = shown();
    const next = calls[calls.findIndex((c) => c.seq === call.seq) + by];
    if (next) open(next);
    else said.textContent = by < 0 ? 'This is the first timeline' : 'This is the last timeline';
  };

  // Marks of the charts.
  const marks = [...document.querySelectorAll('.mark')];
  const within = (mark) => {
    const calls = timeline.calls.filter((c) => c.phase === mark.closest('[data-phase]').dataset.phase);
    const [a, b] = [Number(mark.dataset.from), Number(mark.dataset.to)];
    const inside = calls.filter((c) => a <= c.seq && c.seq <= b).sort((x, y) => y.dur - x.dur);
    return { inside: inside[0], near: [...calls].sort((x, y) => Math.abs(x.seq - a) - Math.abs(y.seq - a))[0], a, b };
  };
  const choose = (mark) => {
    const { inside, near, a, b } = within(mark);
    const wanted = inside || near;
    if (!wanted) return;
    opener = mark;
    const none = a === b ? `Call ${a} has no timeline on this page: it was left out to keep the page small. `
      : `Calls ${a} to ${b} have no timeline on this page: they were left out to keep the page small. `;
    open(wanted, inside ? '' : `${none}The nearest one is shown. `);
    canvas.focus();
    panel.scrollIntoView({ block: 'nearest' });
  };
  for (const svg of document.querySelectorAll('svg[id^="tokens-"]')) {
    const own = marks.filter((mark) => svg.contains(mark));
    const any = own.some((mark) => within(mark).near);
    if (!any) continue;
    svg.setAttribute('role', 'group');
    own.forEach((mark, i) => {
      mark.setAttribute('role', 'button');
      mark.setAttribute('tabindex', i ? '-1' : '0');
      mark.classList.toggle('has', Boolean(within(mark).inside));
      mark.setAttribute('aria-label', mark.querySelector('title').textContent);
      mark.addEventListener('click', () => choose(mark));
      mark.addEventListener('keydown', (event) => {
        const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: own.length - 1 }[event.key];
        if (event.key === 'Enter' || event.key === ' ') choose(mark);
        else if (own[to]) {
          mark.setAttribute('tabindex', '-1');
          own[to].setAttribute('tabindex', '0');
          own[to].focus();
        } else return;
        event.preventDefault();
      });
    });
  }

  find('#timeline-back').addEventListener('click', () => step(-1));
  find('#timeline-next').addEventListener('click', () => step(1));
  find('#timeline-in').addEventListener('click', () => zoom(0.5));
  find('#timeline-out').addEventListener('click', () => zoom(2));
  find('#timeline-all').addEventListener('click', () => show(0, call.dur));
  find('#timeline-close').addEventListener('click', close);
  list.addEventListener('change', () => open(timeline.calls.find((c) => String(c.seq) === list.value)));
  panel.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') close();
  });
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => (event.shiftKey ? move(-0.25) : step(-1)),
      ArrowRight: () => (event.shiftKey ? move(0.25) : step(1)),
      '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), 0: () => show(0, call.dur),
    };
    if (!does[event.key]) return;
    event.preventDefault();
    does[event.key]();
  });
  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const share = Math.max(0, event.offsetX - LEFT) / (box.clientWidth - LEFT);
    zoom(Math.exp(event.deltaY / 300), from + share * (to - from));
  }, { passive: false });
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const drag = (e) => move(-e.movementX / (box.clientWidth - LEFT));
    canvas.addEventListener('pointermove', drag);
    const stop = () => canvas.removeEventListener('pointermove', drag);
    canvas.addEventListener('pointerup', stop, { once: true });
    canvas.addEventListener('pointercancel', stop, { once: true });
  });
  canvas.addEventListener('pointermove', (event) => {
    const text = at(event.offsetX, event.offsetY);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY + 16}px`;
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  new ResizeObserver(draw).observe(box);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  page.onFilter(() => {
    dimmed = Uint8Array.from(timeline.ops, ([, , layer], op) => (
      page.passes(names[op], layer ? layer - 1 : null) ? 0 : 1
    ));
    choices();
    draw();
  });
  page.onLink(() => {
    const wanted = timeline.calls.find((c) => String(c.seq) === page.get('token'));
    if (wanted) open(wanted);
  });
})();
page.start();
