// Parts of pages. Data of the service become text, never markup.

export const MOST_SECONDS = 900;

export const $ = (id) => document.getElementById(id);

// Creates an element. Attributes that are functions become listeners; `null` children are left out.
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

const svg = (name, attributes) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

// ---- numbers

const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
export const count = (value) => (value == null ? '–' : number.format(value));
export const clock = (ms) => new Date(ms).toLocaleTimeString();
export function time(us) {
  if (us == null) return '–';
  return us < 1000 ? `${count(us)} µs` : us < 1e6 ? `${count(us / 1000)} ms` : `${count(us / 1e6)} s`;
}
export function bytes(value) {
  if (value == null) return '–';
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${count(value / 1024 ** power)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}
export function ago(ms) {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
export function wait(ms) {
  if (ms == null) return '–';
  if (ms < 120000) return ms < 1000 ? `${ms} ms` : `${count(ms / 1000)} s`;
  return ms < 7.2e6 ? `${count(ms / 60000)} min` : `${count(ms / 3.6e6)} h`;
}

// ---- parts of pages

export function table(caption, heads, rows, empty = 'Nothing yet.') {
  if (!rows.length) return el('p', { class: 'soft' }, empty);
  const head = (one) => el('th', { scope: 'col', class: one.startsWith('#') ? 'n' : null }, one.replace('#', ''));
  const cell = (one, at) => {
    const kind = heads[at].startsWith('#') ? 'n' : null;
    return el('td', { class: kind }, ...[one ?? '–'].flat());
  };
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, heads.map(head))),
      el('tbody', {}, rows.map((row) => el('tr', {}, row.map(cell))))));
}

// Draws lines over the last fifteen minutes, all to one scale; `whole` is the number of values for the whole time.
export function chart(caption, lines, show, whole = MOST_SECONDS) {
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.values.filter((value) => value != null)));
  const picture = svg('svg', { viewBox: `0 0 ${whole} 100`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${caption}; at most ${show(most)}` });
  lines.forEach((line, at) => {
    const from = whole - line.values.length;
    const points = line.values.map((value, x) => `${from + x},${98 - ((value ?? 0) / most) * 94}`).join(' ');
    picture.append(svg('polyline', { points, class: `c${at + 1}` }));
  });
  const names = lines.flatMap((line, at) => [at ? ', ' : ' ', el('b', { class: `c${at + 1}` }, line.name)]);
  return el('figure', {}, el('figcaption', {}, `${caption}, at most ${show(most)}:`, ...names), picture);
}

export const tile = (name, value, kind) => el('div', {}, el('dt', {}, name), el('dd', { class: kind }, value));

export function field(label, input) {
  return el('label', {}, label, input);
}

// Shows the error of an action in its place on the page.
export async function tried(place, action) {
  try {
    return await action();
  } catch (error) {
    place.replaceChildren(el('p', { class: 'bad', role: 'alert' }, error.message));
    return null;
  }
}

// Repeats an action while its page is shown.
export function every(ms, action) {
  let timer = null;
  const run = async () => {
    await action();
    if (timer !== null) timer = setTimeout(run, ms);
  };
  timer = 0;
  run();
  return () => { clearTimeout(timer); timer = null; };
}

// Shows a text with a button to copy it. If the page may not write to the clipboard, the text is selected.
export function copyable(text, what) {
  const pre = el('pre', { tabindex: 0 }, text);
  const button = el('button', { type: 'button', 'aria-label': `Copy ${what}`, click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = 'Selected: copy it';
    }
  } }, 'Copy');
  return el('div', { class: 'copyable' }, pre, button);
}

// Draws a share as a bar.
export function bar(part) {
  const picture = svg('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'bar' });
  picture.append(svg('rect', { x: 0, y: 0, width: part * 100, height: 10 }));
  return picture;
}

export const percent = (part, whole) => (whole ? `${number.format((part * 100) / whole)} %` : '–');
