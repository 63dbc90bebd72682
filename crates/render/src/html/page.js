'use strict';
(() => {
  const find = (selector) => document.querySelector(selector);
  const said = find('#said');

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
  const sort = (table, heads, column) => {
    const head = heads[column];
    const numbers = head.classList.contains('r');
    const now = head.getAttribute('aria-sort');
    const down = now ? now === 'ascending' : numbers;
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
  for (const table of document.querySelectorAll('table.sortable')) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!head.textContent) return;
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener('click', () => sort(table, heads, column));
    });
  }

  // The graph: another metric's colours and values, and its size.
  const box = find('#dag-box');
  if (!box) return;
  const dag = find('#dag');
  const nodes = [...dag.querySelectorAll('g.n')];
  const { metrics } = JSON.parse(find('#data').textContent);
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
  choice.addEventListener('change', () => recolour(metrics[choice.value]));

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
  find('.tools').hidden = false;
  zoom(Math.max(0.7, Math.min(1, box.clientWidth / natural.width)));
  box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
  box.scrollTop = 0;
})();
