// Sheets: dialogs that ask before something changes.

import { button, el, patch } from './parts.js';

// Opens a dialog. `build(body, done)` fills it, and returns a function that ends it.
export function sheet(title, build, kind = '') {
	const from = document.activeElement;
	const body = el('div.sheet-body');
	const dialog = el('dialog', { class: `sheet ${kind}`, 'aria-labelledby': 'sheet-title' });
	const done = () => dialog.close();
	dialog.append(
		el(
			'div.sheet-head',
			el('h2', { id: 'sheet-title' }, title),
			button('Close', done, 'quiet', { 'aria-label': 'Close without a change' })
		),
		body
	);
	let stop = null;
	dialog.addEventListener('close', () => {
		stop?.();
		dialog.remove();
		if (from?.isConnected) from.focus({ preventScroll: true });
	});
	dialog.addEventListener('click', event => {
		if (event.target === dialog) done();
	});
	document.body.append(dialog);
	dialog.showModal();
	stop = build(body, done);
	return { dialog, done };
}

// Asks once more. `act` runs on the second button; the first one, which has the focus, goes back.
export function confirm(place, { says, yes, act, back }) {
	const trouble = el('div', { role: 'alert', own: true });
	const stay = button('Go back', back, '');
	const sure = button(
		yes,
		async () => {
			sure.disabled = true;
			try {
				await act();
			} catch (error) {
				patch(trouble, el('p.bad', error.message));
				sure.disabled = false;
			}
		},
		'danger'
	);
	patch(place, el('div.confirm', { key: 'confirm' }, el('p.big', says), trouble, el('div.actions', stay, sure)));
	stay.focus();
}
