'use strict';
// What all parts of the page share: the data, and the state that a link carries in its fragment, as in
// `#ops&phase=decode&find=MUL_MAT`.
const page = (() => {
  const find = (selector) => document.querySelector(selector);
  const data = JSON.parse(find('#data').textContent);
  const listeners = [];
  const parse = () => {
    const raw = location.hash.slice(1);
    const first = raw.split('&')[0];
    const section = first.includes('=') ? '' : first;
    return { section, params: new URLSearchParams(raw.slice(section.length)) };
  };
  let now = parse();
  const write = () => {
    const hash = [now.section, now.params.toString()].filter(Boolean).join('&');
    if (hash !== location.hash.slice(1)) history.replaceState(null, '', `#${hash}`);
  };
  const apply = () => listeners.forEach((listener) => listener());
  addEventListener('hashchange', () => {
    const next = parse();
    if ([...next.params].length) {
      now = next;
      apply();
    } else {
      // A link to a section keeps the rest.
      now.section = next.section;
      write();
    }
  });
  return {
    find,
    data,
    said: find('#said'),
    get: (key) => now.params.get(key) || '',
    set(key, value) {
      if (value === '') now.params.delete(key);
      else now.params.set(key, value);
      write();
    },
    /** Calls a function when the state comes from a link. */
    onLink: (listener) => listeners.push(listener),
    start() {
      for (const tools of document.querySelectorAll('.tools')) tools.hidden = false;
      apply();
      // Without a state in the fragment the browser has scrolled there itself.
      if (now.section && [...now.params].length) document.getElementById(now.section)?.scrollIntoView();
    },
  };
})();

(() => {
  const { find, said } = page;

  // Tables: a button in each heading sorts the rows; those in brackets, which close a sum, stay at the end.
  const UNITS = {
    ns: 1, us: 1e3, ms: 1e6, s: 1e9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
    k: 1e3, M: 1e6, G: 1e9, T: 1e12,
  };
  const value = (text) => {
    const found = /^\s*([-+]?\d+(?:\.\d+)?)(?: ([A-Za-z]+)(?![\w/]))?/.exec(text);
    return found ? Number(found[1]) * (UNITS[found[2]] || 1) : NaN;
  };
  const before = (a, b, numbers) => {
    if (!numbers) return a.localeCompare(b, 'en', { numeric: true });
    const [x, y] = [value(a), value(b)];
    return x - y;
  };
  const sort = (table, heads, column, way) => {
    const head = heads[column];
    const numbers = head.classList.contains('r');
    const now = head.getAttribute('aria-sort');
    const down = way ? way === 'd' : now ? now === 'ascending' : numbers;
    for (const other of heads) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const body = table.tBodies[0];
    const text = (row) => row.cells[column].textContent;
    const rows = [...body.rows].filter((row) => !row.classList.contains('end'));
    const empty = (row) => numbers && Number.isNaN(value(text(row)));
    rows.sort((a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b);
      return before(text(a), text(b), numbers) * (down ? -1 : 1);
    });
    const last = [...body.rows].filter((row) => row.classList.contains('end'));
    body.append(...rows, ...last);
    said.textContent = `Sorted by ${head.textContent}, ${down ? 'descending' : 'ascending'}`;
  };
  const tables = [...document.querySelectorAll('table.sortable')];
  const headsOf = (table) => [...table.tHead.rows[0].cells];
  tables.forEach((table, number) => {
    const heads = headsOf(table);
    heads.forEach((head, column) => {
      if (!head.textContent) return;
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener('click', () => {
        sort(table, heads, column);
        const down = head.getAttribute('aria-sort') === 'descending';
        page.set('sort', `${number}.${column}.${down ? 'd' : 'a'}`);
      });
    });
  });
  page.onLink(() => {
    const [number, column, way] = page.get('sort').split('.');
    const table = tables[number];
    const heads = table ? headsOf(table) : [];
    if (!heads[column]) return;
    sort(table, heads, Number(column), way);
    table.closest('details')?.setAttribute('open', '');
  });
})();

// Tooltips of the maps of experts, whose cells are parts of a few paths.
(() => {
  const hover = (svg, tell) => {
    if (!svg) return;
    const title = svg.querySelector('title');
    const name = title.textContent;
    svg.addEventListener('pointermove', (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      title.textContent = tell(place, event.target.classList.contains('heat')) || name;
    });
    svg.addEventListener('pointerleave', () => { title.textContent = name; });
  };
  const range = (first, each) => (each > 1 ? `experts ${first} to ${first + each - 1}` : `expert ${first}`);
  const { experts, activation } = page.data;
  hover(experts && page.find('#experts-chart'), ({ x, y }) => {
    const [row, column] = [Math.floor((y - experts.top) / experts.step), Math.floor((x - experts.left) / experts.cell)];
    const layer = experts.layers[row];
    if (layer === undefined || column < 0) return '';
    const n = experts.counts[row]?.[column];
    if (experts.counts.length && n === undefined) return '';
    const times = n === undefined ? '' : `: chosen ${n} times`;
    return `layer ${layer}, ${range(column * experts.each, experts.each)}${times}`;
  });
  hover(activation && page.find('#activation-chart'), ({ x, y }, chosen) => {
    const band = activation.bands.find((b) => b.top <= y && y < b.top + b.rows * activation.step);
    const column = Math.floor((x - activation.left) / activation.cell);
    if (!band || column < 0) return '';
    const row = Math.floor((y - band.top) / activation.step);
    const first = column * activation.tokens;
    const token = activation.tokens > 1 ? `tokens ${first} to ${first + activation.tokens - 1}` : `token ${first}`;
    return `layer ${band.layer}, ${token}, ${range(row * band.each, band.each)}: ${chosen ? 'chosen' : 'not chosen'}`;
  });
})();

// The graph: another metric's colours and values, and its size.
(() => {
  const { find } = page;
  const box = find('#dag-box');
  if (!box) return;
  const dag = find('#dag');
  const nodes = [...dag.querySelectorAll('g.n')];
  const { metrics } = page.data;
  const recolour = (metric) => {
    nodes.forEach((node, i) => {
      const shown = node.querySelector('.v');
      if (!shown) return;
      shown.textContent = metric.text[i];
      node.querySelector('rect').setAttribute('fill', metric.fill[2 * i] || 'url(#gap)');
      for (const text of node.querySelectorAll('text')) {
        text.setAttribute('fill', metric.fill[2 * i + 1] || '#333333');
      }
    });
    find('#legend').textContent = metric.legend;
  };
  const choice = find('#metric');
  choice?.addEventListener('change', () => {
    recolour(metrics[choice.value]);
    page.set('colour', choice.value);
  });
  page.onLink(() => {
    const metric = metrics[page.get('colour')];
    if (!metric || !choice) return;
    choice.value = page.get('colour');
    recolour(metric);
  });

  const natural = dag.viewBox.baseVal;
  let size = 1;
  const zoom = (wanted, x = box.clientWidth / 2, y = box.clientHeight / 2) => {
    const next = Math.min(4, Math.max(0.1, wanted));
    const [left, top] = [(box.scrollLeft + x) * next / size, (box.scrollTop + y) * next / size];
    size = next;
    dag.setAttribute('width', Math.round(natural.width * size));
    dag.setAttribute('height', Math.round(natural.height * size));
    box.scrollLeft = left - x;
    box.scrollTop = top - y;
  };
  const fit = () => zoom(Math.min(1, box.clientWidth / natural.width));
  find('#zoom-in').addEventListener('click', () => zoom(size * 1.25));
  find('#zoom-out').addEventListener('click', () => zoom(size / 1.25));
  find('#zoom-fit').addEventListener('click', fit);
  box.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = { '+': () => zoom(size * 1.25), '=': () => zoom(size * 1.25), '-': () => zoom(size / 1.25), 0: fit };
    if (!does[event.key]) return;
    event.preventDefault();
    does[event.key]();
  });
  box.addEventListener('wheel', (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const place = box.getBoundingClientRect();
    zoom(size * Math.exp(-event.deltaY / 300), event.clientX - place.left, event.clientY - place.top);
  }, { passive: false });
  box.addEventListener('pointerdown', (event) => {
    if (event.pointerType !== 'mouse' || event.button !== 0) return;
    box.setPointerCapture(event.pointerId);
    const move = (to) => {
      box.scrollLeft -= to.movementX;
      box.scrollTop -= to.movementY;
    };
    box.addEventListener('pointermove', move);
    const stop = () => box.removeEventListener('pointermove', move);
    box.addEventListener('pointerup', stop, { once: true });
    box.addEventListener('pointercancel', stop, { once: true });
  });
  zoom(Math.max(0.7, Math.min(1, box.clientWidth / natural.width)));
  box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
  box.scrollTop = 0;
})();
