// Adjust: limits changed for a time, what is in force, and who changed what.

import { button, el, empty, patch, tag } from './parts.js';
import { ask, feed, mayAdjust } from './service.js';
import { rows } from './rows.js';
import { VERBS, adjust, endAdjustment, onlyHere, paused, sentence } from './adjusting.js';
import { heading, state } from './views.js';
import { NONE, duration, moment } from './words.js';

const ACTIONS = { began: '▸', ended: '■', expired: '□', refused: '✕', reset: '↺', credited: '+', promoted: '▲' };
const left = one => duration(Math.max(0, Math.floor((Date.parse(one.until) - Date.now()) / 1000) * 1000));

export const adjustPage = {
	title: 'Adjust',
	open(place) {
		const list = rows({
			label: 'In force',
			key: one => one.id,
			empty: () =>
				empty(
					'No adjustment is in force: every limit has the number of its file.',
					mayAdjust() && 'Choose one of the verbs above to change limits for a time.'
				),
			columns: [
				{
					id: 'what',
					name: 'What',
					cell: one => el('b', sentence(one)),
					under: one => [
						`${one.who}: “${one.why}”`,
						one.paused_until && el('span.soft', ` ◌ ${paused(one)}`),
						one.only_here && el('span.warn', ` △ ${onlyHere(one)}`),
						one.unmatched && el('span.warn', ` △ ${one.unmatched}`),
						one.note && el('span.warn', ` △ ${one.note}`)
					]
				},
				{ id: 'id', name: 'ID', wide: true, cell: one => el('code', one.id) },
				{ id: 'since', name: 'Since', wide: true, cell: one => moment(one.since) },
				{ id: 'until', name: 'Ends', num: true, cell: one => el('b', `in ${left(one)}`), under: one => moment(one.until) },
				{
					id: 'end',
					name: 'Action',
					class: 'num',
					cell: one =>
						mayAdjust(one.domain ?? null) && button('End', () => endAdjustment(one), '', { 'aria-label': `End: ${sentence(one)}` })
				}
			]
		});
		const history = rows({
			label: 'History of 30 days',
			key: one => `${one.at}${one.who}${one.action}${one.target}`,
			empty: () => empty('Nobody has adjusted, reset, credited or promoted anything in 30 days.'),
			columns: [
				{ id: 'at', name: 'When', cell: one => el('time', moment(one.at)) },
				{ id: 'who', name: 'Who', cell: one => one.who ?? NONE, under: one => one.role },
				{
					id: 'what',
					name: 'What it did',
					under: one => one.reason,
					cell: one => [
						tag(`${ACTIONS[one.action] ?? '·'} ${one.action}`, one.action === 'refused' ? 'bad' : ''),
						' ',
						[one.effect?.replace('%', ' %'), one.target].filter(Boolean).join(' of ')
					]
				},
				{ id: 'why', name: 'Why', wide: true, cell: one => one.why }
			]
		});
		const verb = effect =>
			el(
				'button',
				{ type: 'button', key: effect, click: () => adjust({ effect }) },
				el('b', VERBS[effect].name),
				el('span.soft', VERBS[effect].does)
			);
		let may = mayAdjust();
		function draw() {
			if (now.answer) list.show(now.answer);
			if (past.answer) history.show(past.answer.entries);
			patch(
				place,
				heading('Adjust'),
				may
					? el('div.verbs', { key: 'verbs' }, ['scale', 'pass', 'block', 'shadow'].map(verb))
					: el('p.soft', { key: 'reader' }, 'This token may only read: it cannot begin or end an adjustment.'),
				state(now),
				el('h2', { key: 'now' }, 'In force'),
				now.answer && list.element,
				el('h2', { key: 'history' }, 'History'),
				state(past),
				past.answer?.unavailable && el('p.warn', { key: 'gone' }, `△ The history is unknown: ${past.answer.unavailable}`),
				past.answer && history.element
			);
		}
		const now = feed(2000, () => ask('/adjustments'), draw);
		const past = feed(15000, () => ask('/audit?days=30&limit=200'), draw);
		return {
			tick() {
				if (may !== mayAdjust()) {
					may = mayAdjust();
					draw();
				}
			},
			again() {
				now.again();
				past.again();
			},
			end() {
				now.end();
				past.end();
			}
		};
	}
};
