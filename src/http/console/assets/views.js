// Parts that several pages share: what an answer covers, what went wrong, and how limits and keys are shown.

import { bar, button, copy, el, spark, tag } from './parts.js';
import { keyParams, link } from './address.js';
import { NONE, clock, count, duration, entriesText, exact, limitText, plural, share, zone } from './words.js';

// Says which instances are in the figures.
export function covered(instances) {
	if (!instances) return null;
	const { answered, of, missing = [], unavailable } = instances;
	return el(
		missing.length || unavailable ? 'span.warn' : 'span.soft',
		`${exact(answered)} of ${plural(of, 'instance')}`,
		missing.length ? `, without ${missing.join(', ')}` : '',
		unavailable ? `; others are unknown: ${unavailable}` : '',
		' · '
	);
}

// The heading of a page with what its figures cover.
export const heading = (title, instances, ...more) =>
	el('div.title', { key: 'title' }, el('h1', title), more, el('p.soft.small.covers', covered(instances), `times in ${zone()}`));

// Says that an answer is on its way, or what failed and what is still shown.
export function state({ answer, error, at }) {
	if (!error) return answer == null ? el('p.soft', { key: 'loading' }, 'Loading …') : null;
	return el(
		'div.trouble',
		{ role: 'alert', key: 'trouble' },
		el('b', `No answer: ${error.message}. `),
		answer ? `Shown are the figures of ${clock(at)}.` : 'The banner and the log on Health may say why.',
		' The page keeps trying.'
	);
}

export const isShadow = role => /shadow/.test(role ?? '');

// Marks what does not simply enforce: with `share`, what is enforced for so many of its keys.
export function modeTag(role, share) {
	if (isShadow(role)) return tag('◌ shadow', 'shadow');
	if (share) return tag(`◔ enforced for ${share.replace('%', ' %')} of keys`, 'shadow');
	return /quota/.test(role ?? '') ? tag('◇ quota') : null;
}

// Shows the number in force, and the file's struck through if an adjustment replaces it.
export function number({ limit, adjusted }) {
	const file = limitText(limit);
	if (!adjusted) return file;
	return [
		adjusted.limit ? [el('b', limitText(adjusted.limit)), ' ', el('s', el('span.sr', 'in the file: '), file)] : file,
		' ',
		tag(`◆ ${(adjusted.effects ?? []).join(', ').replaceAll('%', ' %') || 'adjusted'}`, 'adjusted')
	];
}

export const limitSpark = row =>
	row.spark &&
	el('span', { title: `in each half minute: ${row.spark.join(', ')}` }, spark(row.spark, isShadow(row.role) ? 'shadow' : 'denied'));

export const limitLink = row => link('limits', { in: row.domain, limit: row.rule });
export const keyLink = (row, more) =>
	row.descriptor && link('keys', { ...more, in: row.domain, limit: row.rule, key: keyParams([row.descriptor]) });

// The denied share of a limit, or what it would be.
export function deniedShare({ rate, role }) {
	if (!rate) return el('span.soft', NONE);
	const part = isShadow(role) ? rate.shadow_per_s / Math.max(1e-9, rate.requests_per_s) : rate.denied_share;
	if (!part) return el('span.soft', '0 %');
	return isShadow(role) ? el('span.shadow', `◌ ${share(part)}`) : el('span.denied', share(part));
}

export const keyText = row => (row.descriptor ? entriesText(row.descriptor) : 'too long to store');

export const keyName = row =>
	row.descriptor
		? el(
				'code',
				row.descriptor.map(({ key, value }, at) => [at ? ' ' : '', el('span.soft', value == null ? key : `${key}=`), value])
			)
		: el('span.soft', keyText(row));

export const perSecond = (row, name) => (row[name] == null ? null : (row[name] * 1000) / Math.max(1000, row.window_ms));

// Says when a key may ask again.
export function freeIn(row) {
	if (row.banned_ms) return tag(`⊘ banned ${duration(row.banned_ms)}`, 'bad');
	if (row.remaining == null) return el('span.soft', NONE);
	if (row.remaining > 0) return el('span.soft', 'has room');
	if (isShadow(row.role)) return tag('◌ over, shadow', 'shadow');
	return tag(row.retry_after_ms ? `▲ free in ${duration(row.retry_after_ms)}` : '▲ over', 'denied');
}

export const remaining = ({ remaining: left, capacity }) =>
	left == null || !capacity ? el('span.soft', NONE) : el('span.left', bar(left / capacity), `${count(left)} of ${count(capacity)}`);

// A place in a file that a click copies. `at` is `file:line` or its parts.
export function place(at) {
	if (!at) return NONE;
	const text = at.file ? `${at.file}${at.line ? `:${at.line}` : ''}` : at;
	return button(text.split('/').at(-1), () => copy(text), 'place', { title: `Copy ${text}`, 'aria-label': `Copy ${text}` });
}

// Columns that several tables have.
export const COLUMNS = {
	limit: { id: 'rule', name: 'Limit', cell: row => row.rule, under: row => [row.domain, ' ', modeTag(row.role, row.enforce)] },
	denied: { id: 'denied', name: 'Denied/s', num: true, cell: row => count(perSecond(row, 'denied')) },
	hits: { id: 'hits', name: 'Hits/s', num: true, cell: row => count(perSecond(row, 'hits')) },
	state: { id: 'state', name: 'State', cell: freeIn }
};
