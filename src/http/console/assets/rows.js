// Tables whose rows are updated in place. Their order changes only on a click, or after five quiet seconds.

import { el, patch } from './parts.js';
import { current } from './address.js';

const QUIET = 5000;

// Creates a table. Each column has `id`, `name` and `cell(row)`; optional are `num` (right-aligned), `sort` (its name as
// an order), `wide` (not on phones) and `under(row)`. `key(row)` names a row, and `link(row)` is the address that it opens.
export function rows({ label, columns, key, link, order, onOrder, empty }) {
	const body = el('tbody', { own: true });
	const head = el('tr');
	const caption = el('caption.sr', label);
	const table = el('table.rows', caption, el('thead', head), body);
	const none = el('div', { hidden: true });
	const element = el('div.table', { own: true }, table, none);
	let [shown, acted, later, last] = [[], -QUIET, 0, null];

	const note = () => {
		acted = performance.now();
	};
	for (const type of ['pointermove', 'pointerdown', 'keydown', 'wheel', 'touchmove', 'focusin']) {
		element.addEventListener(type, note, { passive: true });
	}
	element.addEventListener('click', event => {
		if (event.target.closest('a, button, input') || !getSelection().isCollapsed) return;
		event.target.closest('tbody tr')?.querySelector('a.row')?.click();
	});
	element.addEventListener('keydown', event => {
		const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
		if (!step || !event.target.matches('a.row')) return;
		const all = [...body.querySelectorAll('a.row')];
		all[all.indexOf(event.target) + step]?.focus();
		event.preventDefault();
	});

	const isQuiet = () => {
		const selection = getSelection();
		const selects = !selection.isCollapsed && element.contains(selection.anchorNode);
		return !selects && performance.now() - acted >= QUIET;
	};

	// Returns the rows to show: as they are, with new ones at the end, unless the order may change. A row that has the focus
	// or is open stays, even when it is gone from the list.
	function arranged(list, now) {
		const fresh = new Map(list.map(row => [key(row), { row, gone: false }]));
		const merged = shown.map(({ row }) => fresh.get(key(row)) ?? { row, gone: true });
		if (!now && !isQuiet()) return [...new Set([...merged, ...fresh.values()])];
		const focused = document.activeElement?.closest('tr')?.key;
		const found = [...fresh.values()];
		merged.forEach((one, at) => {
			const stays = key(one.row) === focused || (link && link(one.row) === current());
			if (one.gone && stays && !now) found.splice(at, 0, one);
		});
		return found;
	}

	const look = ({ num, wide, class: own }) => [num && 'num', wide && 'wide', own].filter(Boolean).join(' ') || null;

	function heads() {
		const now = order?.();
		patch(
			head,
			columns.map(column => {
				const at = { key: column.id, scope: 'col', class: look(column) };
				if (!column.sort) return el('th', at, column.name);
				const isNow = now.by === column.sort;
				return el(
					'th',
					{ ...at, 'aria-sort': isNow ? (now.up ? 'ascending' : 'descending') : null },
					el(
						'button.sort',
						{ type: 'button', click: () => onOrder(column.sort) },
						column.name,
						el('span.arrow', { 'aria-hidden': 'true' }, isNow ? (now.up ? '▲' : '▼') : '')
					)
				);
			})
		);
	}

	function draw() {
		heads();
		patch(
			body,
			shown.map(({ row, gone }) => {
				const address = link?.(row);
				const isOpen = address && address === current();
				return el(
					'tr',
					{ key: key(row), class: gone ? 'gone' : null, 'aria-current': isOpen ? 'true' : null },
					columns.map((column, at) => {
						const cell = column.cell(row);
						const under = column.under?.(row);
						return el(
							at ? 'td' : 'th',
							{ class: look(column), scope: at ? null : 'row' },
							at || !address ? cell : el('a.row', { href: address }, cell),
							under && el('span.under', under)
						);
					})
				);
			})
		);
	}

	// Shows a list. `now` changes the order at once.
	function show(list, { now = false } = {}) {
		clearTimeout(later);
		last = list;
		shown = arranged(list, now || !shown.length || !list.length);
		const isEmpty = !shown.length;
		table.hidden = isEmpty;
		none.hidden = !isEmpty;
		if (isEmpty) patch(none, empty());
		// Keeps the row that has the focus at its place on the screen.
		const held = body.contains(document.activeElement) ? document.activeElement : null;
		const before = held?.getBoundingClientRect().top;
		draw();
		const moved = held?.isConnected ? held.getBoundingClientRect().top - before : 0;
		if (Math.abs(moved) > 1) scrollBy(0, moved);
		const rest = QUIET - (performance.now() - acted);
		if (rest > 0) later = setTimeout(() => last && element.isConnected && show(last), rest + 50);
	}

	return {
		element,
		show,
		again: () => last && draw(),
		// Shows what the table holds above it.
		label(text) {
			caption.className = '';
			patch(caption, text);
		}
	};
}
