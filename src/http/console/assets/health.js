// Health: instances, Redis, the failure modes that answer, and the log.

import { bar, el, facts, grid, patch, tag, verbatim } from './parts.js';
import { ask, feed, inMemory, query, seen } from './service.js';
import { here, replace } from './address.js';
import { chart } from './chart.js';
import { rows } from './rows.js';
import { COLUMNS, covered, heading, limitLink, state } from './views.js';
import { NONE, bytes, clock, count, duration, exact, latency, moment, rate, share } from './words.js';

const STATES = { ready: ['● ready', 'good'], draining: ['◑ draining', 'warn'] };
const LEVELS = { INFO: ['·', 'soft', 'all levels'], WARN: ['△', 'warn', 'warnings and errors'], ERROR: ['▲', 'bad', 'errors'] };

const instanceRows = () =>
	rows({
		label: 'Instances',
		key: one => one.id,
		empty: () => el('p.soft', 'No instance is known.'),
		columns: [
			{ id: 'id', name: 'Instance', cell: one => el('code', one.id), under: one => one.is_self && 'this one answers' },
			{
				id: 'state',
				name: 'State',
				cell: one => {
					const [words, kind] = STATES[one.state] ?? [`▲ ${one.state.replace('_', ' ')}`, 'bad'];
					return el(`span.${kind}`, words);
				}
			},
			{
				id: 'share',
				name: 'Traffic',
				wide: true,
				cell: one => (one.share == null ? NONE : el('span.left', bar(one.share), `${share(one.share)}, ${rate(one.decisions_per_s)}`))
			},
			{
				id: 'rules',
				name: 'Rules',
				cell: one => [one.rules ? el('code', one.rules.slice(0, 12)) : 'none yet', one.differs && [' ', tag('▲ differs from most', 'bad')]]
			},
			{ id: 'since', name: 'For', wide: true, num: true, cell: one => (one.rules ? duration(one.rules_age_ms) : NONE) },
			{ id: 'version', name: 'Version', wide: true, cell: one => one.version || 'unknown' },
			{
				id: 'candidates',
				name: 'Candidates',
				wide: true,
				class: 'late',
				cell: one => (one.candidates ? el('code', one.candidates.slice(0, 12)) : NONE)
			},
			{ id: 'up', name: 'Up', wide: true, num: true, cell: one => duration(one.uptime_ms) },
			{
				id: 'heard',
				name: 'Heard',
				wide: true,
				num: true,
				class: 'late',
				cell: one => (one.is_self ? NONE : `${duration(Math.max(1000, one.heard_ms))} ago`)
			}
		]
	});

const concerns = one => [...one.errors.map(line => el('p.bad', `▲ ${line}`)), ...one.warnings.map(line => el('p.warn', `△ ${line}`))];

// The servers of Redis, as `tollgate check --redis` finds them.
const servers = (found, title) =>
	el(
		'div',
		{ key: title },
		el('h3', `${title}: ${found.redis}, ${found.kind}`),
		concerns(found),
		found.sentinels.map(line => el('p.soft', `${line.sentinel} names ${line.master ?? 'none'}`)),
		grid(
			`${title}, by server`,
			['Server', 'Version', 'Role', 'Decision', 'Eviction', 'Clock', 'Concerns'],
			found.servers.map(one => [
				el('code', one.server ?? NONE),
				one.engine,
				one.role,
				one.decision_us ? `${latency(one.decision_us.median)}, at most ${latency(one.decision_us.most)}` : NONE,
				one.maxmemory_policy === 'noeviction' ? 'noeviction' : tag(`▲ ${one.maxmemory_policy ?? 'unknown'}`, 'bad'),
				one.clock_ahead_ms == null ? NONE : `${exact(one.clock_ahead_ms)} ms ahead`,
				concerns(one)
			])
		)
	);

// The last fifteen minutes of Redis. `graph` returns the chart of a name.
function redisPast({ steps, step_ms: step, maxmemory }, graph) {
	if (!steps.length) return el('p.soft', { key: 'none' }, 'No data yet: the first values appear after ten seconds.');
	const last = steps.at(-1);
	const total = of => steps.reduce((sum, one) => sum + (of(one) ?? 0), 0);
	const [evicted, damaged] = [total(one => one.evicted), total(one => one.damaged)];
	const kinds = [...new Set(steps.flatMap(one => Object.keys(one.errors)))].sort();
	const times = steps.map(one => one.at_ms);
	function show(label, words, ...series) {
		const it = graph(label, words);
		it.show({ times, step, series: series.map(([name, of, kind = 'allowed']) => ({ key: name, name, kind, values: steps.map(of) })) });
		return it.element;
	}
	return [
		facts([
			['p50', latency(last.p50_us)],
			['p99', latency(last.p99_us)],
			['Queued or in flight', count(last.in_flight)],
			['Calls', rate(last.calls)],
			['Requests a call', count(last.requests_per_call)],
			['Memory', maxmemory && last.memory != null ? `${bytes(last.memory)} of ${bytes(maxmemory)}` : bytes(last.memory)],
			['Evicted, 15 min', last.evicted == null && !evicted ? NONE : count(evicted), evicted ? 'bad' : null],
			['Damaged counters', count(damaged), damaged ? 'bad' : null],
			['Clients', count(last.clients)],
			['CPU cores', count(last.cpu)]
		]),
		el(
			'div.thirds',
			{ key: 'charts' },
			show('Time of a decision in Redis', latency, ['p50', one => one.p50_us], ['p99', one => one.p99_us, 'denied']),
			show('Calls a second', count, ['of this instance', one => one.calls], ['commands of Redis', one => one.commands, 'undecided']),
			show('Queued or in flight', count, ['requests', one => one.in_flight]),
			show('Memory', bytes, ['used', one => one.memory]),
			evicted > 0 && show('Keys evicted in ten seconds', count, ['keys', one => one.evicted, 'denied']),
			kinds.length > 0 &&
				show(
					'Undecided in ten seconds',
					count,
					...kinds.slice(0, 3).map((kind, at) => [kind, one => one.errors[kind] ?? 0, ['denied', 'undecided', 'allowed'][at]])
				)
		),
		kinds.length > 0 &&
			el(
				'p',
				{ key: 'reasons' },
				'Undecided in the last 15 minutes, by reason: ',
				kinds.map(kind => `${kind} ${exact(total(one => one.errors[kind]))}`).join(', ')
			)
	];
}

const logLine =
	of =>
	({ at_ms: at, level, text, instance }) => {
		const [mark, kind] = LEVELS[level] ?? ['·', 'soft'];
		return el(
			'li',
			{ key: `${at}${instance}${text}` },
			el('time', Date.now() - at < 43e6 ? clock(at) : moment(at)),
			el(`span.${kind}`, `${mark} ${level}`),
			el('code', text),
			of > 1 && el('span.soft', instance)
		);
	};

export const health = {
	title: 'Health',
	open(place) {
		const instances = instanceRows();
		const undecided = rows({
			label: 'Limits that failure modes answer',
			key: limitLink,
			link: limitLink,
			empty: () => el('p.soft', 'No failure mode answers now: the store decides every request.'),
			columns: [
				COLUMNS.limit,
				{ id: 'mode', name: 'Answers by', cell: row => el(row.failure_mode === 'open' ? 'b.bad' : 'b', row.failure_mode) },
				{ id: 'rate', name: 'Undecided/s', num: true, cell: row => count(row.rate?.undecided_per_s) }
			]
		});
		const graphs = {};
		const graph = (label, show) => (graphs[label] ??= chart({ label, show, height: 140 }));
		const given = here().params;
		const level = el(
			'select',
			{ 'aria-label': 'Lowest level', change: () => change({ level: level.value }) },
			Object.entries(LEVELS).map(([name, [, , words]]) => el('option', { value: name }, words))
		);
		const search = el('input', {
			type: 'search',
			placeholder: 'part of a line',
			'aria-label': 'Search the log',
			value: given.get('q') ?? '',
			input: () => change({ q: search.value })
		});
		level.value = LEVELS[given.get('level')] ? given.get('level') : 'INFO';
		const tools = el('div.bar-row', { own: true }, level, search);
		const change = others => {
			replace(others);
			log.afresh(150);
		};
		const section = (key, title, ...parts) => el('section', { key }, el('h2', title), parts);

		function draw() {
			const told = fleet.answer;
			if (told) instances.show(told.replicas);
			undecided.show(modes.answer?.limits ?? []);
			const why = seen.events.findLast(event => event.level === 'ERROR' && /rules are rejected/.test(event.text));
			const lines = log.answer?.lines;
			const found = redis.answer;
			patch(
				place,
				heading('Health', told?.instances),
				section(
					'instances',
					'Instances',
					state(fleet),
					told?.unavailable && el('p.bad', `▲ Other instances are unknown: ${told.unavailable}`),
					told?.rules_differ_ms != null && el('p.warn', `△ Their rules have differed for at least ${duration(told.rules_differ_ms)}`),
					told && instances.element
				),
				section(
					'redis',
					'Redis',
					inMemory()
						? el('p.soft', 'There is none: counters are in the memory of this process. Set REDIS_URL to share them.')
						: [
								state(redis),
								past.answer && redisPast(past.answer, graph),
								found && servers(found, 'Counters'),
								found?.per_second && servers(found.per_second, 'Limits with a period below a minute')
							]
				),
				section('modes', 'Failure modes that answer', undecided.element),
				section(
					'rules',
					'Rejected rules',
					seen.tick?.rules_refused
						? [
								el('p.bad', '▲ The files are rejected, and the previous rules stay in force.'),
								why && verbatim('Why', `${clock(why.at_ms)} ${why.text}`)
							]
						: el('p.soft', 'The rules of the files are in force.')
				),
				section(
					'log',
					'Log',
					tools,
					state(log),
					lines && [
						el('p.soft.small', covered(log.answer.instances), 'newest first'),
						lines.length
							? el('ol.log', lines.map(logLine(log.answer.instances?.of)))
							: el('p.soft', 'No line matches. Choose all levels, or search for less.')
					]
				)
			);
		}
		const fleet = feed(3000, () => ask('/replicas?rates=true'), draw);
		const redis = feed(10000, async () => (inMemory() ? null : ask('/redis')), draw);
		const past = feed(10000, async () => (inMemory() ? null : ask('/redis/history')), draw);
		const modes = feed(5000, () => ask('/rules?filter=undecided&sort=requests&limit=50'), draw);
		const log = feed(5000, () => ask(`/log?${query({ level: level.value, search: search.value, limit: 200 })}`), draw);
		return { end: () => [fleet, redis, past, modes, log].forEach(one => one.end()) };
	}
};
