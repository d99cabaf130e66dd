// Tune: which number to choose, by replaying recorded requests.

import { button, copyable, el, empty, field, grid, patch, svg } from './parts.js';
import { ask, mayAdjust, query } from './service.js';
import { here, link, replace } from './address.js';
import { nice } from './chart.js';
import { candidates, pasted } from './compare.js';
import { adjust } from './adjusting.js';
import { covered, heading, place as filePlace } from './views.js';
import { clock, count, duration, exact, plural, portion, share } from './words.js';

const HOW = 'WHAT_IF_REQUESTS=20000          # number of latest requests to record, 8 MiB at most';
const ALGORITHMS = ['sliding_window', 'sliding_log', 'token_bucket', 'leaky_bucket', 'fixed_window'];
const UNITS = { second: 1000, minute: 60000, hour: 3600000, day: 86400000, week: 604800000, month: 2592000000, year: 31536000000 };
const STEPS = 1000;
const [WIDTH, HEIGHT, BASE, LEFT] = [640, 200, 172, 44];

const unit = ms => Object.keys(UNITS).find(name => UNITS[name] === ms);
const option = (value, words) => el('option', { value }, words);

// The x of a number on a log axis up to `most`.
const across = (number, most) => LEFT + (Math.log(number + 1) / Math.log(most + 1)) * (WIDTH - LEFT - 16);

// Draws a picture with numbers across, on a log axis. `draw(y)` returns its shapes.
function picture(most, top, show, draw, lines) {
	const scale = nice(top, show);
	const y = value => BASE - (value / scale.top) * (BASE - 12);
	const marks = [];
	for (let value = 0; value <= scale.top * 1.001; value += scale.step) {
		marks.push(
			svg(value ? 'line.grid' : 'line.axis', { x1: LEFT, x2: WIDTH - 16, y1: y(value), y2: y(value) }),
			svg('text.label', { x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, show(value))
		);
	}
	for (let number = 1; number <= most; number *= 10) {
		marks.push(svg('text.label', { x: across(number, most), y: HEIGHT - 12, 'text-anchor': 'middle' }, count(number)));
	}
	const upright = ([number, kind, words]) => [
		svg(`line.${kind}`, { x1: across(number, most), x2: across(number, most), y1: 4, y2: BASE }),
		svg('text.label', { x: across(number, most) + 4, y: 12 }, words)
	];
	return svg('svg.histogram', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, 'aria-hidden': 'true' }, marks, draw(y), lines.map(upright));
}

// Draws how many keys peak at which number of hits in a period, with the limit as a line.
const histogram = (peaks, most, now, then) =>
	picture(
		most,
		Math.max(1, ...peaks.map(one => one.keys)),
		count,
		y =>
			peaks.map((one, at) => {
				const [from, to] = [across(peaks[at - 1]?.hits ?? 0, most), across(one.hits, most)];
				const bounds = { x: from + 1, width: Math.max(1, to - from - 2), y: y(one.keys), height: BASE - y(one.keys) };
				return svg(
					one.hits <= then ? 'rect.within' : 'rect.beyond',
					bounds,
					svg('title', `${plural(one.keys, 'key')} with at most ${exact(one.hits)} hits`)
				);
			}),
		[...(now === then ? [] : [[now, 'pin', 'now']]), [then, 'limit-line', exact(then)]]
	);

// Draws the denials at each number.
const curve = ({ curve: points, keys, requests, number }, most) =>
	picture(
		most,
		1,
		share,
		y =>
			[
				['requests_denied', requests, 'denied'],
				['keys_denied', keys, 'undecided']
			].map(([name, of, kind]) =>
				svg(`path.line.${kind}`, { d: `M${points.map(one => `${across(one.number, most)} ${y(one[name] / Math.max(1, of))}`).join('L')}` })
			),
		number == null ? [] : [[number, 'limit-line', exact(number)]]
	);

// Describes the recorded requests and what limits the replay.
function record(told) {
	const notes = [
		told.sample_now < told.sample && `Memory for the counters is short: only ${share(told.sample_now)} of all keys are replayed.`,
		told.replicas > 1 &&
			!told.instances &&
			`EXPECTED_REPLICAS is ${told.replicas}: this is right only if ${told.replicas} instances share the traffic.`,
		told.dropped > 0 && `${exact(told.dropped)} requests could not be recorded.`,
		told.more_rules > 0 && `${exact(told.more_rules)} more limits were reached and are not listed.`
	];
	const span = told.first
		? `, from the ${duration(Date.parse(told.last) - Date.parse(told.first))} before ${clock(Date.parse(told.last))}`
		: '';
	return el(
		'div.small',
		{ key: 'record' },
		el(
			'p.soft',
			covered(told.instances),
			`Replays the latest ${exact(told.requests)} requests of ${share(told.sample)} of all keys`,
			`${span}, with the real algorithms and from empty counters. It counts nothing and denies no request.`
		),
		notes.map(note => note && el('p.warn', `△ ${note}`))
	);
}

// The lines to write into the rules for another limit.
function rulesLines(tried, present) {
	const lines = [`requests_per_unit: ${tried.number}`];
	if (tried.period_ms !== present.period_ms)
		lines.push(unit(tried.period_ms) ? `unit: ${unit(tried.period_ms)}` : `period: ${tried.period_ms}ms`);
	if (tried.algorithm !== present.algorithm) lines.push(`algorithm: ${tried.algorithm}`);
	return lines;
}

// Lists the keys that another number denies most.
function mostDenied(now, then) {
	const before = new Map(now.most_denied.map(one => [one.key, one.denied]));
	// Hidden values can make different keys look equal: these cannot be told apart.
	const alike = [now, then].flatMap(one => one.most_denied.map(({ key }) => key).filter((key, at, all) => all.indexOf(key) < at));
	const deniedNow = key => (alike.includes(key) ? '–' : before.has(key) ? count(before.get(key)) : now.most_denied.length < 25 ? '0' : '–');
	return then.most_denied.length
		? grid(
				'Most denied keys with the new limit',
				['Key', '#Requests', '#Denied now', '#Denied then'],
				then.most_denied.map(one => [el('code', one.key), count(one.decisions), deniedNow(one.key), count(one.denied)])
			)
		: el('p', 'It would deny no request.');
}

// The view of one number: `in`, `limit` and `number` of the address fill it in.
function numberView(place) {
	const value = key => here().params.get(key) ?? '';
	const rule = el('select', { change: () => choose(true) });
	const number = el('input.short', {
		type: 'number',
		min: 0,
		max: Number.MAX_SAFE_INTEGER,
		input: () => {
			slide();
			changed();
		}
	});
	const slider = el('input', {
		type: 'range',
		min: 0,
		max: STEPS,
		'aria-label': 'Number, by dragging',
		input: () => {
			number.value = Math.round((most + 1) ** (slider.value / STEPS)) - 1;
			changed();
		}
	});
	const period = el('select', { change: () => attempt() });
	const algorithm = el(
		'select',
		{ change: () => attempt() },
		ALGORITHMS.map(name => option(name, name.replace('_', ' ')))
	);
	const percent = el('input.short', { type: 'number', min: 0, max: 100, step: 'any', value: 0.1 });
	const of = el('select', option('users', 'of the keys'), option('requests', 'of the requests'));
	const [result, found, said] = [
		el('div', { own: true }),
		el('div', { own: true, 'aria-live': 'polite' }),
		el('p.big', { own: true, 'aria-live': 'polite' })
	];
	function drag(event) {
		const { left, width } = graph.getBoundingClientRect();
		slider.value = ((((event.clientX - left) / width) * WIDTH - LEFT) / (WIDTH - LEFT - 16)) * STEPS;
		slider.dispatchEvent(new Event('input'));
	}
	const graph = el('div.drag', {
		own: true,
		pointerdown: event => {
			graph.setPointerCapture(event.pointerId);
			drag(event);
		},
		pointermove: event => event.buttons && drag(event)
	});
	const form = el(
		'form.fields',
		{ own: true, submit: event => event.preventDefault() },
		field('Limit', rule),
		field('Number', number),
		field('Per', period),
		field('Algorithm', algorithm)
	);
	const propose = el(
		'form.fields',
		{
			own: true,
			submit: event => {
				event.preventDefault();
				search();
			}
		},
		field('Deny at most, in percent', percent),
		field('Of', of),
		el('button', 'Propose a number')
	);
	let [list, most, chosen, timer, turn, last, ended] = [[], 0, null, 0, 0, null, false];
	const failed = error => el('p.bad', { role: 'alert' }, error.message);

	async function load() {
		let told;
		try {
			told = await ask('/what-if');
		} catch (error) {
			return patch(
				place,
				error.status === 404
					? empty(
							error.message,
							'To record the latest requests of some keys, start the service with these settings:',
							copyable(HOW, 'the settings')
						)
					: failed(error)
			);
		}
		if (ended) return;
		const isChosen = one => one.domain === value('in') && one.rule === value('limit');
		list = told.rules;
		if (value('limit') && !list.some(isChosen)) list = [{ domain: value('in'), rule: value('limit') }, ...list];
		if (!list.length) return patch(place, record(told), empty('No recorded request has reached a limit yet.', button('Look again', load)));
		patch(
			rule,
			list.map((one, at) =>
				option(
					at,
					`${one.domain}/${one.rule}${one.limit ? `: ${one.limit}, denies ${portion(one.denied, one.decisions)} of ${count(one.decisions)}` : ''}`
				)
			)
		);
		rule.value = Math.max(0, list.findIndex(isChosen));
		patch(
			place,
			form,
			said,
			el(
				'div.halves',
				{ key: 'graphs' },
				el(
					'section',
					el('h2', 'Keys by their busiest period'),
					graph,
					slider,
					el('p.soft.small', 'Across: the most hits of a key in one period, on a log axis. Drag the line to another number.')
				),
				el('section', el('h2', 'Find a number'), propose, found)
			),
			result,
			record(told)
		);
		choose(false);
	}
	function choose(isNew) {
		chosen = { domain: list[rule.value].domain, rule: list[rule.value].rule };
		patch(found, el('p.soft', 'Finds the smallest number that denies no more than this, and draws what each number denies.'));
		number.value = isNew ? '' : value('number');
		[most, last] = [0, null];
		attempt();
	}
	function stale() {
		turn += 1;
		clearTimeout(timer);
		patch(said, 'Replaying …');
		patch(result);
	}
	// Waits a moment: dragging changes the number many times, and only the last one counts.
	function changed() {
		slider.setAttribute('aria-valuetext', exact(Number(number.value)));
		stale();
		if (last) patch(graph, histogram(last.peaks, most, last.in_force.number, Math.max(0, Number(number.value))));
		timer = setTimeout(attempt, 200);
	}
	function slide() {
		if (most) slider.value = Math.round((STEPS * Math.log(Number(number.value) + 1)) / Math.log(most + 1));
	}
	const asked = more =>
		ask(
			`/what-if?${query({ ...chosen, number: number.value, ...(last && { algorithm: algorithm.value, period_ms: period.value }), ...more })}`
		);

	async function attempt() {
		stale();
		const mine = turn;
		let trial;
		try {
			trial = await asked();
		} catch (error) {
			if (mine === turn) {
				patch(said);
				patch(result, failed(error));
			}
			return;
		}
		if (mine !== turn) return;
		const { tried, in_force: present, peaks } = trial;
		if (!last) {
			// Fills the fields with the limit in force, or the number of the address.
			most = Math.max(10, present.number * 2, tried.number, peaks.at(-1)?.hits ?? 0);
			patch(
				period,
				[...new Set([present.period_ms, ...Object.values(UNITS)])].map(ms => option(ms, unit(ms) ?? duration(ms)))
			);
			[number.value, algorithm.value, period.value] = [tried.number, tried.algorithm, tried.period_ms];
			slide();
		}
		last = trial;
		replace({ in: chosen.domain, limit: chosen.rule, number: tried.number === present.number ? null : tried.number });
		tell(trial);
	}
	function tell({ now, then, tried, in_force: present, peaks, first, last: end }) {
		const denies = one => `${portion(one.denied, one.decisions)} of the requests and ${exact(one.keys_denied)} of ${exact(one.keys)} keys`;
		const lines = rulesLines(tried, present);
		const isOther = tried.number !== present.number || lines.length > 1;
		const canary = () => adjust({ effect: 'number', target: chosen, number: tried.number, lasts: '15m', why: 'trying a number' });
		patch(graph, histogram(peaks, most, present.number, tried.number));
		patch(said, `${then.limit} denies ${denies(then)}; now ${denies(now).replace('of the requests ', '')}.`);
		patch(
			result,
			Date.parse(end) - Date.parse(first) < tried.period_ms &&
				el('p.warn', '△ The recorded requests cover less than one period of the limit: over a whole period it may deny more.'),
			el(
				'div.halves',
				el('section', el('h2', 'Denied most with this number'), mostDenied(now, then)),
				el(
					'section',
					el('h2', 'Apply it'),
					isOther
						? [
								el('p', 'Write into the rules', now.file && [' at ', filePlace(now)], ':'),
								copyable(lines.join('\n'), 'the lines'),
								el(
									'p.soft.small',
									'For a canary, add enforce: 5%. The limit then denies only a twentieth of its keys, and watches the others.'
								),
								mayAdjust(chosen.domain) &&
									tried.number > 0 &&
									el('p', button('Try it for 15 minutes', canary), ' on all traffic, as an adjustment')
							]
						: el('p.soft', 'This is the limit in force. Choose another number to see what it would deny.'),
					el(
						'details',
						el('summary', 'Compare other rules in a terminal'),
						copyable(
							`curl -s -H "Authorization: Bearer $ADMIN_TOKEN" ${location.origin}/what-if/log > requests.log\ntollgate replay --rules NEW --against OLD requests.log`,
							'the commands'
						)
					)
				)
			)
		);
	}
	async function search() {
		patch(found, el('p.soft', 'Trying numbers …'));
		let it;
		try {
			it = (await asked({ suggest: `deny at most ${percent.value} % of ${of.value}` })).suggestion;
		} catch (error) {
			return patch(found, failed(error));
		}
		if (!it) return patch(found, el('p', 'No recorded request has reached this limit.'));
		const use = () => {
			number.value = it.number;
			slide();
			changed();
			number.focus();
		};
		patch(
			found,
			it.number == null
				? el('p', 'Every number tried denies more.')
				: el(
						'p',
						el('b', `${exact(it.number)} ${it.per}`),
						` is the smallest number that denies at most ${it.percent} % of the ${it.of}. `,
						button(`Use ${exact(it.number)}`, use, 'primary')
					),
			curve(it, Math.max(most, it.curve.at(-1)?.number ?? 1)),
			el('p.small', el('span.denied', '━ requests denied'), ' ', el('span.undecided', '┅ keys denied'))
		);
	}
	load();
	// An answer that comes later must not change the address of another page.
	return () => {
		ended = true;
		turn += 1;
		clearTimeout(timer);
	};
}

const VIEWS = { '': ['A number', numberView], rules: ['Pasted rules', pasted], candidates: ['Candidates', candidates] };

export const tune = {
	title: 'Tune',
	open(place) {
		const body = el('div', { own: true });
		let [name, end] = [null, null];
		function moved() {
			const view = here().params.get('view') ?? '';
			patch(
				place,
				heading(
					'Tune',
					null,
					el(
						'nav.tabs',
						{ 'aria-label': 'Ways to tune' },
						Object.entries(VIEWS).map(([key, [words]]) =>
							el('a', { href: link('tune', { view: key }), 'aria-current': key === view ? 'page' : null }, words)
						)
					)
				),
				body
			);
			if (view === name || !VIEWS[view]) return;
			end?.();
			name = view;
			body.replaceChildren();
			end = VIEWS[view][1](body);
		}
		moved();
		return { moved, end: () => end?.() };
	}
};
