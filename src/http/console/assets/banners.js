// Banners above every page: what is wrong, and what is adjusted.

import { $, button, el, patch } from './parts.js';
import { ask, mayAdjust, seen } from './service.js';
import { endAdjustment, onlyHere, sentence } from './adjusting.js';
import { link } from './address.js';
import { ago, clock, exact, moment, plural, share } from './words.js';

let open = null;

// Names the limits that let everything pass while the store is unavailable.
function openLimits() {
	open ??= ask('/rules?failure_mode=open&limit=20&instance=self')
		.then(told => {
			open = told;
			banners();
		})
		.catch(() => {
			open = null;
		});
	if (typeof open?.then === 'function') return 'Looking up the limits that are open.';
	if (!open?.total) return open ? 'No limit has failure_mode open.' : '';
	const names = open.limits.map(line => `${line.domain}/${line.rule}`).join(', ');
	const more = open.total > open.limits.length ? ` and ${exact(open.total - open.limits.length)} more` : '';
	return `Open, so not limited: ${names}${more}.`;
}

function wrong(tick) {
	const { store } = tick;
	const lines = [];
	const line = (key, mark, title, ...more) =>
		lines.push(
			el(
				'div.banner.bad',
				{ key },
				el('p', el('b', mark, ' ', title)),
				more.map(text => text && el('p', text))
			)
		);
	if (store.up < 1) {
		const part = store.up === 0 ? 'The store is down' : `The store is down for ${share(1 - store.up)} of its slots`;
		line('store', '▲', `${part} since ${clock(store.since_ms)}: ${store.cause ?? 'unknown cause'}`, openLimits());
	} else {
		open = null;
	}
	if (tick.not_serving) line('serving', '▲', `Not serving: ${tick.not_serving}`);
	if (tick.rules_refused) {
		const why = seen.events.findLast(event => event.level === 'ERROR' && /^(changed|the) rules are rejected/.test(event.text));
		line(
			'refused',
			'▲',
			'Changed rules are rejected, and the previous ones stay in force',
			why ? `${clock(why.at_ms)} ${why.text}` : 'The log on Health says why.'
		);
	}
	return lines;
}

function known(tick) {
	const lines = [];
	const line = (key, ...words) => lines.push(el('div.banner', { key }, words));
	if (tick.rules_differ_ms > 10000)
		line(
			'differ',
			el('p', '◆ Instances of one release have had different rules for a while. ', el('a', { href: link('health') }, 'See which'))
		);
	if (tick.shadow_mode) line('shadow', el('p', '◌ SHADOW_MODE is on: no request is denied.'));
	const shown = tick.adjusted ?? [];
	shown
		.slice(0, 2)
		.forEach(one =>
			line(
				`adjusted-${one.id}`,
				el('p', '◆ ', el('b', sentence(one)), ` until ${moment(one.until)}, by ${one.who}: “${one.why}”`, one.only_here && el('span.warn', `, ${onlyHere(one)}`)),
				el(
					'span.actions',
					el('a', { href: link('adjust') }, 'view'),
					mayAdjust(one.domain ?? null) && button('end', () => endAdjustment(one), 'link', { 'aria-label': `End: ${sentence(one)}` })
				)
			)
		);
	const rest = tick.adjustments - Math.min(2, shown.length);
	if (rest > 0)
		line(
			'adjusted',
			el('p', `◆ ${shown.length ? `${plural(rest, 'more adjustment')}` : plural(rest, 'adjustment')} in force`),
			el('a', { href: link('adjust') }, 'view')
		);
	return lines;
}

export function banners() {
	if (!seen.tick) return;
	patch($('alerts'), wrong(seen.tick));
	patch($('conditions'), known(seen.tick));
}

export function noBanners() {
	open = null;
	$('alerts').replaceChildren();
	$('conditions').replaceChildren();
}

// Says for how long the store has been unavailable, for the head of the page.
export const storeWords = store => (store.up === 1 ? 'up' : `down for ${ago(store.since_ms)}`);
