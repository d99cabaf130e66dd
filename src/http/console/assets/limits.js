// Limits: every limit with its number, its denials and its place in the files.

import { button, copyable, el, empty, facts, patch, tag } from './parts.js';
import { ask, feed, mayAdjust, query } from './service.js';
import { changed, here, link, replace } from './address.js';
import { chart } from './chart.js';
import { hide as hidePanel, show as showPanel } from './panel.js';
import { rows } from './rows.js';
import { VERBS, adjust } from './adjusting.js';
import {
	COLUMNS,
	covered,
	deniedShare,
	heading,
	isShadow,
	keyLink,
	keyName,
	limitSpark,
	modeTag,
	number,
	place as filePlace,
	state
} from './views.js';
import { NONE, count, duration, exact, plural, rate } from './words.js';

const PAGE = 100;
const FILTERS = {
	'': ['All', 'No rules are in force yet. Start the service with RULES, or see the log on Health.'],
	denying: ['Denying', 'No limit has denied anything in the last 15 seconds.'],
	shadow: ['In shadow', 'No limit is in shadow mode. Set shadow_mode: true on a rule to watch a limit before it denies.'],
	adjusted: ['Adjusted', 'No adjustment changes a limit now. Adjust can scale, open, block or shadow limits for a time.'],
	unused: ['Never matched', 'Every limit has been matched since the start.'],
	undecided: ['Undecided', 'No failure mode answers for a limit now: the store decides everything.']
};
// Orders that begin with the first letter; the others begin with the largest number.
const BY_TEXT = ['rules', 'rule', 'algorithm', 'mode'];
const words = name => (name ?? NONE).replaceAll('_', ' ');

const columns = [
	{ ...COLUMNS.limit, sort: 'rule' },
	{ id: 'number', name: 'Number', sort: 'number', wide: true, cell: number },
	{ id: 'burst', name: 'Burst', sort: 'burst', wide: true, num: true, cell: row => exact(row.burst) },
	{ id: 'algorithm', name: 'Algorithm', sort: 'algorithm', wide: true, class: 'late', cell: row => words(row.algorithm) },
	{ id: 'mode', name: 'If Redis is down', sort: 'mode', wide: true, class: 'late', cell: row => row.failure_mode ?? NONE },
	{ id: 'place', name: 'Place', sort: 'rules', wide: true, class: 'late', cell: row => filePlace(row.at) },
	{
		id: 'requests',
		name: 'Requests/s',
		sort: 'requests',
		num: true,
		cell: row => (row.rate ? count(row.rate.requests_per_s) : el('span.soft', row.counted ? '0' : 'never'))
	},
	{ id: 'share', name: 'Denied', sort: 'share', num: true, cell: deniedShare },
	{
		id: 'undecided',
		name: 'Undecided/s',
		sort: 'undecided',
		wide: true,
		num: true,
		class: 'late',
		cell: ({ rate: now }) =>
			now?.undecided_per_s ? tag(`▲ ${count(now.undecided_per_s)}`, 'undecided') : el('span.soft', now ? '0' : NONE)
	},
	{ id: 'spark', name: '15 min', class: 'sparks', sort: 'denials', cell: limitSpark }
];

// The path of a rule as a tree: one level a line.
const tree = path =>
	el(
		'ul.tree',
		String(path ?? '')
			.split('|')
			.filter(Boolean)
			.map((level, depth) =>
				el(
					`li.level${Math.min(3, depth)}`,
					el('code', level),
					el('span.soft', level.includes('=') ? ' exactly this value' : ' any value, each with its own counter')
				)
			)
	);

const limitPanel = (domain, rule) => place => {
	const hour = chart({ label: 'Requests a minute, last hour', stacked: true, span: 3600000, show: count, height: 150 });
	const top = rows({
		label: 'Top keys of this limit',
		key: row => keyLink(row) ?? '',
		link: keyLink,
		empty: () => el('p.soft', 'No key has reached it in the last minutes.'),
		columns: [{ id: 'key', name: 'Key', class: 'key', cell: keyName }, COLUMNS.hits, COLUMNS.denied, COLUMNS.state]
	});
	const verb = (effect, kind) => button(VERBS[effect].name, () => adjust({ effect, target: { domain, rule } }), kind);
	function draw() {
		const told = one.answer;
		if (!told) return patch(place, state(one));
		const shadow = isShadow(told.role);
		const points = told.hour ?? [];
		hour.show({
			times: points.map(({ at_ms: ms }) => ms),
			step: 60000,
			series: [
				{
					key: 'allowed',
					name: 'allowed',
					kind: 'allowed',
					values: points.map(it => (it.requests == null ? null : it.requests - it.denied))
				},
				{
					key: 'denied',
					name: shadow ? 'over, in shadow' : 'denied',
					kind: shadow ? 'undecided' : 'denied',
					values: points.map(it => it.denied)
				}
			]
		});
		patch(
			place,
			state(one),
			mayAdjust(domain) &&
				el(
					'div.actions',
					{ key: 'actions' },
					verb('number', 'primary'),
					verb('scale'),
					verb(shadow ? 'enforce' : 'shadow'),
					verb('pass'),
					verb('block', 'bad')
				),
			el(
				'p',
				{ key: 'tune' },
				el('a', { href: link('tune', { in: domain, limit: rule }) }, 'Tune: try another number on recorded requests')
			),
			facts([
				['Number', number(told)],
				['Burst', exact(told.burst)],
				...(told.lease ? [['Lease', `up to ${exact(told.lease.most)} hits in advance, for ${duration(told.lease.ttl_ms)} each`]] : []),
				...(told.own_share ? [['Own share', `${told.own_share}, divided among the instances`]] : []),
				['Algorithm', words(told.algorithm)],
				['Mode', modeTag(told.role, told.enforce) ?? 'enforced'],
				['If Redis is down', told.failure_mode ?? NONE],
				['Place', filePlace(told.at)],
				['Requests', rate(told.rate?.requests_per_s)],
				['Denied', [deniedShare(told), told.rate?.denied_per_s ? `, ${rate(told.rate.denied_per_s)}` : '']],
				[
					'Since the start',
					told.counted ? `${count(told.counted.requests)} requests, ${count(told.counted.over_limit_requests)} over` : 'never matched'
				]
			]),
			points.length ? hour.element : el('p.soft', { key: 'none' }, 'Nothing has reached it in the last hour.'),
			el('h3', { key: 'keys' }, 'Top keys'),
			top.element,
			el('h3', { key: 'match' }, 'What it matches'),
			tree(told.path),
			told.yaml && [el('h3', { key: 'yaml' }, 'In its file'), copyable(told.yaml, 'the rule')],
			el('p.soft.small', covered(told.instances))
		);
	}
	const one = feed(5000, () => ask(`/rules/one?${query({ domain, rule })}`), draw);
	const keys = feed(
		5000,
		() => ask(`/top?${query({ domain, rule, by: 'hits', n: 8, remaining: true })}`),
		() => keys.answer && top.show(keys.answer.keys)
	);
	return () => {
		one.end();
		keys.end();
	};
};

export const limits = {
	title: 'Limits',
	open(place) {
		const value = key => here().params.get(key) ?? '';
		const search = el('input', {
			type: 'search',
			placeholder: 'a name or a path',
			'aria-label': 'Search limits',
			value: value('q'),
			input: () => change({ q: search.value }, 150)
		});
		const domain = el(
			'select',
			{ 'aria-label': 'Domain', change: () => change({ domain: domain.value }) },
			el('option', { value: '' }, 'all domains')
		);
		const filters = el('div.segments', { role: 'group', 'aria-label': 'Filter' });
		const bar = el('div.bar-row', { own: true }, filters, domain, search);
		let [fresh, asked] = [true, ''];

		const question = () => ['q', 'domain', 'filter', 'sort', 'up', 'page'].map(value).join('\n');
		const order = () => ({ by: value('sort') || 'rules', up: value('sort') ? value('up') === '1' : true });
		const offset = () => (Number(value('page')) || 0) * PAGE;
		function onOrder(by) {
			const now = order();
			const up = now.by === by ? !now.up : BY_TEXT.includes(by);
			change({ sort: by, up: up ? '1' : null });
		}
		const table = rows({
			label: 'Limits',
			key: row => `${row.domain}\n${row.rule}`,
			link: row => changed({ in: row.domain, limit: row.rule }),
			columns,
			order,
			onOrder,
			empty: none
		});
		// Changes what is asked: what was answered before no longer stands beside it.
		function change(others, wait) {
			replace({ page: null, ...others });
			asked = question();
			fresh = true;
			list.afresh(wait);
		}
		function load() {
			const { by: sort, up } = order();
			const reverse = up !== BY_TEXT.includes(sort) || null;
			const wanted = { domain: value('domain'), search: value('q'), filter: value('filter'), sort, reverse, offset: offset(), limit: PAGE };
			return ask(`/rules?${query(wanted)}`);
		}
		function none() {
			if (!value('q') && !value('domain')) return empty(FILTERS[value('filter')]?.[1] ?? 'No limit matches.');
			const all = () => {
				search.value = '';
				change({ q: null, domain: null, filter: null });
			};
			return empty('No limit matches.', button('Show all limits', all));
		}
		function draw() {
			const told = list.answer;
			place.setAttribute('aria-busy', String(!told && !list.error));
			patch(
				filters,
				Object.entries(FILTERS).map(([filter, [name]]) =>
					button(name, () => change({ filter }), '', { 'aria-pressed': String(filter === value('filter')), key: name })
				)
			);
			if (!told) return patch(place, heading('Limits'), bar, state(list));
			const total = told.domains.reduce((sum, one) => sum + one.limits, 0);
			patch(
				domain,
				el('option', { value: '', key: '' }, `all domains (${exact(total)})`),
				told.domains.map(one => el('option', { value: one.domain, key: one.domain }, `${one.domain} (${exact(one.limits)})`))
			);
			domain.value = value('domain');
			table.show(told.limits, { now: fresh });
			fresh = false;
			table.label(plural(told.total, 'limit'));
			const turn = by => change({ page: offset() / PAGE + by || null });
			patch(
				place,
				heading('Limits', told.instances),
				bar,
				state(list),
				table.element,
				told.total > PAGE &&
					el(
						'div.pages',
						{ key: 'pages' },
						button('Back', () => turn(-1), '', { disabled: !offset() }),
						button('More', () => turn(1), '', { disabled: offset() + PAGE >= told.total }),
						el('span.soft', `${exact(offset() + 1)} to ${exact(Math.min(told.total, offset() + PAGE))} of ${plural(told.total, 'limit')}`)
					)
			);
		}
		function moved() {
			const [inside, limit] = [value('in'), value('limit')];
			if (inside && limit) showPanel(`limit ${inside} ${limit}`, { kind: inside, title: limit }, limitPanel(inside, limit));
			else hidePanel();
			table.again();
			// A link or Back has changed the address.
			if (question() === asked) return;
			asked = question();
			search.value = value('q');
			fresh = true;
			list.afresh();
		}
		asked = question();
		const list = feed(3000, load, draw);
		moved();
		return { moved, again: () => list.again(), end: () => list.end() };
	}
};
