// Filters by phase, by layer and by name: rows of tables, boxes of the graph, slices of the timeline.
(() => {
  const { find } = page;
  const [phase, layer, text] = ['#filter-phase', '#filter-layer', '#filter-find'].map(find);
  const main = page.data.phase;
  const tables = [...document.querySelectorAll('table[data-ops]')];
  const layerOf = (name) => {
    const found = /^layer (\d+)$/.exec(name) || /-(\d+)(?![\d.])/.exec(name);
    return found ? found[1] : null;
  };

  /** Whether a name and a layer pass the filters; a layer that is not known passes. */
  page.passes = (name, of) => {
    const wanted = text.value.trim().toLowerCase();
    if (wanted && !name.toLowerCase().includes(wanted)) return false;
    return layer.value === '' || of === null || String(of) === layer.value;
  };

  const rows = () => {
    let shown = 0;
    const on = text.value.trim() !== '' || layer.value !== '';
    for (const table of tables) {
      const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
      const column = heads.indexOf('layer');
      for (const row of table.tBodies[0].rows) {
        const words = [...row.cells].filter((cell) => !cell.classList.contains('r')).map((cell) => cell.textContent);
        const number = column < 0 ? '' : row.cells[column].textContent;
        const of = /^\d+$/.test(number) ? number : layerOf(words[0] || '');
        const passes = !on || (!row.classList.contains('end') && page.passes(words.join(' '), of));
        row.hidden = !passes;
        shown += on && passes;
      }
    }
    const boxes = [...document.querySelectorAll('#dag g.n, #flame-chart g.f')];
    for (const box of boxes) {
      const name = box.textContent;
      box.classList.toggle('dim', on && !page.passes(name, layerOf(name)));
    }
    find('#filter-said').textContent = on ? `${shown} rows of operators match` : '';
  };

  const phases = () => {
    const wanted = phase.value;
    for (const part of document.querySelectorAll('[data-phase]')) {
      part.hidden = wanted !== '' && part.dataset.phase !== wanted;
      if (wanted && !part.hidden) part.querySelector('details')?.setAttribute('open', '');
    }
    for (const note of document.querySelectorAll('.only')) {
      note.hidden = wanted === '' || wanted === main;
    }
  };

  const listeners = [];
  page.onFilter = (listener) => listeners.push(listener);
  page.phase = () => phase.value;
  const all = () => {
    phases();
    rows();
    listeners.forEach((listener) => listener());
  };
  for (const [key, input] of [['phase', phase], ['layer', layer], ['find', text]]) {
    input.addEventListener('input', () => {
      page.set(key, input.value.trim());
      all();
    });
  }
  page.onLink(() => {
    for (const [key, input] of [['phase', phase], ['layer', layer], ['find', text]]) {
      input.value = page.get(key);
      if (input.value !== page.get(key)) input.value = '';
    }
    all();
  });
})();
