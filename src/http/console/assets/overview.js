// Overview: is anything wrong, and who or what is it.

import { el, patch } from './parts.js';
import { ask, feed, seen } from './service.js';
import { here, link, replace } from './address.js';
import { chart, trace } from './chart.js';
import { rows } from './rows.js';
import { COLUMNS, deniedShare, heading, isShadow, keyLink, keyName, limitLink, limitSpark, modeTag, number, state } from './views.js';
import { clock, count, latency, moment, rate, share } from './words.js';

const DENYING = link('limits', { filter: 'denying' });
const UNDECIDED = link('limits', { filter: 'undecided' });
const ABOUT = /rules are in force|redis is (up|down)|tollgate is up|draining/;
const MARKS = { ERROR: '▲', WARN: '△' };

function figures({ now, steps }) {
	const line = (of, kind) =>
		trace(
			steps.slice(-60).map(one => (one.allowed == null ? null : of(one))),
			kind
		);
	const tile = (name, value, kind, drawn, href) =>
		el('a', { class: `figure ${kind}`, href, key: name }, el('span.name', name), el('span.value', value), drawn);
	const sum = one => one.allowed + one.denied + (one.undecided ?? 0);
	const times = ['p50', 'p99'].map(name => el('b', el('small', name), ' ', latency(now[`${name}_us`]), ' '));
	return el(
		'div.figures',
		{ key: 'figures' },
		tile(
			'Denied',
			share(now.denied_share),
			now.denied_share ? 'denied' : '',
			line(one => one.denied / Math.max(1, sum(one)), 'denied'),
			DENYING
		),
		tile('Decisions', rate(now.decisions_per_s), '', line(sum), link('health')),
		tile(
			'Latency',
			times,
			'',
			line(one => one.p50_us),
			link('health')
		),
		tile(
			'Undecided',
			now.undecided_per_s ? rate(now.undecided_per_s) : '0',
			now.undecided_per_s ? 'undecided' : '',
			line(one => one.undecided, 'undecided'),
			UNDECIDED
		)
	);
}

// Joins log lines and the history of adjustments.
function recent(history) {
	const acts = (history?.entries ?? []).map(one => ({
		at: Date.parse(one.at),
		level: '◆',
		href: link('adjust'),
		text: `${one.who ?? 'Somebody'} ${one.action} ${[one.effect, one.target].filter(Boolean).join(' of ')}${one.why ? `: “${one.why}”` : ''}`
	}));
	const lines = seen.events
		.filter(({ level, text }) => level !== 'INFO' || ABOUT.test(text))
		.map(event => ({ at: event.at_ms, level: event.level, href: link('health', { level: event.level }), text: event.text }));
	const all = [...acts, ...lines].sort((one, other) => other.at - one.at).slice(0, 8);
	if (!all.length) return el('p.soft', 'Nothing has happened lately: no reload, no adjustment, no warning.');
	return el(
		'ol.recent',
		all.map(({ at, level, href, text }) =>
			el(
				'li',
				{ key: `${at}${text}` },
				el('time', Date.now() - at < 36e5 ? clock(at) : moment(at)),
				el('a', { href }, `${MARKS[level] ?? (level === 'INFO' ? '·' : level)} ${text}`)
			)
		)
	);
}

export const overview = {
	title: 'Overview',
	open(place) {
		const pin = ms => replace({ at: here().params.get('at') === String(ms) ? null : ms });
		const decisions = chart({ label: 'Decisions a second', stacked: true, show: count, pin });
		const byLimit = chart({ label: 'Denied a second, by limit', stacked: true, show: count, pin });
		const times = chart({ label: 'p99 of calls and of Redis', show: latency, pin, height: 150 });
		const topLimits = rows({
			label: 'Top limits by denials',
			key: limitLink,
			link: limitLink,
			empty: () => el('p.soft', 'No limit has denied anything in the last 15 minutes.'),
			columns: [
				COLUMNS.limit,
				{ id: 'number', name: 'Number', wide: true, cell: number },
				{ id: 'share', name: 'Denied', num: true, cell: deniedShare },
				{
					id: 'rate',
					name: 'Denied/s',
					num: true,
					cell: ({ role, rate: now }) => count(isShadow(role) ? now?.shadow_per_s : now?.denied_per_s)
				},
				{ id: 'spark', name: '15 min', class: 'sparks', cell: limitSpark }
			]
		});
		const topKeys = rows({
			label: 'Top keys by denials',
			key: row => keyLink(row) ?? row.rule,
			link: row => keyLink(row, { by: 'denied' }),
			empty: () => el('p.soft', 'No key has been denied in the last minutes.'),
			columns: [
				{ id: 'key', name: 'Key', class: 'key', cell: keyName, under: row => [`${row.domain}/${row.rule} `, modeTag(row.role)] },
				COLUMNS.denied,
				COLUMNS.state
			]
		});

		function charts({ steps, step_ms: step, denied_by: deniedBy }) {
			const series = (key, name, kind, values, href) => ({
				key,
				name,
				kind,
				href,
				values: values.map(value => (value == null ? null : (value * 1000) / step))
			});
			const values = name => steps.map(one => one[name] ?? null);
			const of = (name, href) => series(name, name, name, values(name), href);
			const at = { times: steps.map(one => one.at_ms), step };
			const failed = steps.some(one => one.failed) ? [series('failed', 'failed calls', 'others', values('failed'), link('health'))] : [];
			decisions.show({ ...at, series: [of('allowed'), of('undecided', UNDECIDED), of('denied', DENYING), ...failed] });
			const line = (name, words, kind) => ({ key: name, name: words, kind, values: values(name) });
			times.show({ ...at, series: [line('store_p99_us', 'Redis', 'allowed'), line('p99_us', 'calls', 'denied')] });
			byLimit.show({
				...at,
				series: deniedBy
					.map((one, at) =>
						one.rule
							? series(limitLink(one), `${one.domain}/${one.rule}`, `rank${Math.min(5, at + 1)}`, one.denied, limitLink(one))
							: series('others', 'all others', 'others', one.denied)
					)
					.toReversed()
			});
		}
		const section = (key, title, href, all, ...parts) =>
			el('section', { key }, el('div.title', el('h2', title), el('a', { href }, all)), parts);

		function draw() {
			const told = main.answer;
			if (!told) return patch(place, heading('Overview'), state(main));
			charts(told);
			topLimits.show(told.limits);
			topKeys.show(keys.answer?.keys ?? []);
			const isIdle = !told.steps.some(one => one.allowed || one.denied || one.undecided);
			patch(
				place,
				heading('Overview', told.instances),
				state(main),
				figures(told),
				isIdle &&
					el(
						'div.hint',
						{ key: 'idle' },
						el('b', 'No request has been decided in the last 15 minutes. '),
						'Point the rate-limit filter of Envoy at this service, or ',
						el('a', { href: link('keys', { try: true }) }, 'try a request'),
						' here.'
					),
				el('h2.sr', { key: 'all' }, 'The last 15 minutes'),
				el('div.halves', { key: 'charts' }, decisions.element, told.denied_by.length ? byLimit.element : null),
				el(
					'div.halves',
					{ key: 'tops' },
					section('limits', 'Top limits', link('limits', { sort: 'denials' }), 'All limits', topLimits.element),
					section('keys', 'Top keys', link('keys', { by: 'denied' }), 'All keys', keys.answer ? topKeys.element : state(keys))
				),
				el(
					'div.halves',
					{ key: 'last' },
					section('recent', 'Recent', link('health'), 'The whole log', recent(acts.answer)),
					section('latency', 'Latency', link('health'), 'Health of Redis', times.element)
				)
			);
		}
		function moved() {
			const at = Number(here().params.get('at')) || null;
			for (const one of [decisions, byLimit, times]) one.pin(at);
		}
		const main = feed(5000, () => ask('/overview'), draw);
		const keys = feed(5000, () => ask('/top?by=denied&n=8&remaining=true'), draw);
		const acts = feed(15000, () => ask('/audit?days=1&limit=8'), draw);
		moved();
		return { moved, again: acts.again, end: () => [main, keys, acts].forEach(one => one.end()) };
	}
};
