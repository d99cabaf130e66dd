// The side panel: more about what is selected. The address holds the selection, so Back closes the panel.

import { $, button, el, patch } from './parts.js';
import { changed, go } from './address.js';

let open = null;

// Returns the address without any selection.
const without = () => changed({ in: null, limit: null, key: null, try: null });

export const close = () => go(without());

// Shows a panel. `build(body)` fills it and returns a function that ends it. The same `id` stays as it is.
export function show(id, { title, kind }, build) {
	if (open?.id === id) return;
	const from = document.activeElement;
	const back = open?.back ?? (from && from !== document.body && !$('panel').contains(from) ? from : null);
	end();
	const heading = el('h2', { tabindex: -1, id: 'panel-title' }, title);
	const body = el('div', { key: `body of ${id}` });
	patch(
		$('panel'),
		el(
			'div.panel-head',
			{ key: id },
			el('div', el('p.kind', kind), heading),
			button('Close', close, 'quiet', { 'aria-label': 'Close the panel' })
		),
		body
	);
	$('panel').hidden = false;
	document.body.classList.add('with-panel');
	open = { id, back, stop: build(body) };
	heading.focus({ preventScroll: true });
	$('panel').scrollTop = 0;
}

function end() {
	open?.stop?.();
	open = null;
}

// Hides the panel and gives the focus back to where it was.
export function hide() {
	if (!open) return;
	const { back } = open;
	const had = $('panel').contains(document.activeElement);
	end();
	$('panel').hidden = true;
	$('panel').replaceChildren();
	document.body.classList.remove('with-panel');
	if (had && back?.isConnected) back.focus({ preventScroll: true });
}

export const isOpen = () => Boolean(open);
