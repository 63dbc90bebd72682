// The flame graph: as wide as its place, and zoomed into the frame that was selected.
(() => {
  const { find } = page;
  const chart = find('#flame-chart');
  if (!chart) return;
  const [LETTER, LEAST] = [6.5, 0.5];
  const high = chart.viewBox.baseVal.height;
  const frames = [...chart.querySelectorAll('g.f')].map((g) => ({
    g,
    x: Number(g.dataset.x),
    w: Number(g.dataset.w),
    y: Number(g.querySelector('rect').getAttribute('y')),
    name: g.querySelector('title').textContent.split('\n')[0],
    rect: g.querySelector('rect'),
    label: g.querySelector('text'),
  }));
  let top = frames[0];
  const draw = () => {
    const wide = Math.max(chart.clientWidth, 300);
    chart.setAttribute('viewBox', `0 0 ${wide} ${high}`);
    for (const { g, x, w, name, rect, label } of frames) {
      const from = Math.max((x - top.x) / top.w, 0) * wide;
      const to = Math.min((x + w - top.x) / top.w, 1) * wide;
      g.classList.toggle('out', to - from < LEAST);
      rect.setAttribute('x', from);
      rect.setAttribute('width', Math.max(to - from, 0));
      label.setAttribute('x', from + 3);
      const letters = Math.floor((to - from - 6) / LETTER);
      label.textContent = letters > 2 ? name.slice(0, letters) : '';
    }
  };
  const zoom = (frame) => {
    top = frame;
    page.set('flame', frame === frames[0] ? '' : String(frames.indexOf(frame)));
    page.said.textContent = frame.g.querySelector('title').textContent;
    draw();
  };
  /** The frame next to one: in its row to either side, above it, or the first one below it. */
  const beside = (frame, key) => {
    const seen = frames.filter(({ g }) => !g.classList.contains('out'));
    const overlaps = (other) => other.x < frame.x + frame.w && other.x + other.w > frame.x;
    const row = (y) => seen.filter((other) => other.y === y);
    const step = frames.length > 1 ? frames[1].y - frames[0].y : 0;
    switch (key) {
      case 'ArrowLeft': return row(frame.y).filter((other) => other.x < frame.x).pop();
      case 'ArrowRight': return row(frame.y).find((other) => other.x > frame.x);
      case 'ArrowUp': return row(frame.y - step).find(overlaps);
      case 'ArrowDown': return row(frame.y + step).find(overlaps);
      default: return undefined;
    }
  };
  for (const frame of frames) {
    const { g } = frame;
    g.setAttribute('tabindex', frame === frames[0] ? '0' : '-1');
    g.setAttribute('role', 'button');
    g.setAttribute('aria-label', g.querySelector('title').textContent);
    g.addEventListener('click', () => zoom(frame));
    g.addEventListener('keydown', (event) => {
      const next = beside(frame, event.key);
      if (event.key === 'Enter' || event.key === ' ') zoom(frame);
      else if (event.key === 'Escape' || event.key === '0') zoom(frames[0]);
      else if (next) next.g.focus();
      else if (!event.key.startsWith('Arrow')) return;
      event.preventDefault();
    });
  }
  addEventListener('resize', draw);
  page.onLink(() => {
    top = frames[Number(page.get('flame'))] || frames[0];
    draw();
  });
})();
