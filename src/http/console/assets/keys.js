// Keys: who is limited, by what, and when they may ask again.

import { button, el, empty, facts, patch } from './parts.js';
import { ask, feed, mayAdjust, mayReset, once, query } from './service.js';
import { changed, here, keyParams, keysOf, link, replace } from './address.js';
import { completed, domainOffers } from './complete.js';
import { hide as hidePanel, show as showPanel } from './panel.js';
import { rows } from './rows.js';
import { VERBS, adjust, resetCounters } from './adjusting.js';
import { explained } from './explain.js';
import { tryPanel } from './try.js';
import { COLUMNS, freeIn, heading, isShadow, keyName, keyText, modeTag, perSecond, remaining, state } from './views.js';
import { count, duration, entriesText, limitText, plural, rate, share } from './words.js';

const BY = {
	denied: ['Denied', 'No key has been denied in the last minutes.'],
	hits: ['Hits', 'No key has been counted in the last minutes.'],
	near: ['Near the limit', 'No key is near its limit.']
};

// The panel of a key. `list` is that of the page: `find` looks for the key in it, and `follow` is called with each answer.
const keyPanel =
	(domain, rule, entries, { list, find, follow }) =>
	place => {
		const isWhole = entries.every(({ value }) => value != null);
		const target = { domain, entries };
		const verb = (effect, kind) => button(VERBS[effect].name, () => adjust({ effect, target }), kind);
		let row = null;
		function draw() {
			row = find() ?? row;
			const reset = () => resetCounters({ domain, descriptor: entries, banned_ms: row?.banned_ms }, () => asked.again());
			patch(
				place,
				isWhole && state(asked),
				isWhole &&
					(mayAdjust(domain) || mayReset()) &&
					el(
						'div.actions',
						{ key: 'actions' },
						mayAdjust(domain) && [verb('pass', 'primary'), verb('number'), verb('block')],
						mayReset() && button(row?.banned_ms ? 'Reset, lift the ban' : 'Reset', reset)
					),
				!isWhole &&
					el('p.soft', { key: 'hidden' }, 'TOP_KEYS_VALUES hides the values of this key, so it cannot be explained or changed here.'),
				row
					? [
							el('h3', { key: 'asked' }, `Asked in the last ${duration(Math.max(1000, Math.round(row.window_ms / 60000) * 60000))}`),
							facts([
								['State', freeIn(row)],
								['Hits', rate(perSecond(row, 'hits'))],
								[isShadow(row.role) ? 'Over, in shadow' : 'Denied', rate(perSecond(row, 'denied')), row.denied ? 'denied' : null],
								['Near the limit', rate(perSecond(row, 'near'))],
								['Of the limit’s traffic', share(row.share)],
								['Left', remaining(row)]
							])
						]
					: list.answer && el('p.soft', { key: 'rare' }, 'It is not among the heaviest keys now, so only its counters are known.'),
				asked.answer && explained(asked.answer, { domain, descriptors: [entries] }),
				el(
					'p',
					{ key: 'links' },
					isWhole && [
						el('a', { href: link('keys', { try: true, in: domain, key: keyParams([entries]) }) }, 'Try a request like it'),
						' · '
					],
					rule && [
						el('a', { href: link('limits', { in: domain, limit: rule }) }, `The limit ${rule}`),
						' · ',
						el('a', { href: link('tune', { in: domain, limit: rule }) }, 'Tune its number')
					]
				)
			);
		}
		const words = new URLSearchParams([['domain', domain], ...entries.map(({ key, value }) => [key, value ?? ''])]);
		const asked = feed(isWhole ? 3000 : 0, async () => (isWhole ? ask(`/explain?${words}`) : null), draw);
		follow(draw);
		return () => {
			asked.end();
			follow(null);
		};
	};

export const keys = {
	title: 'Keys',
	open(place) {
		const value = key => here().params.get(key) ?? '';
		const by = () => (BY[value('by')] ? value('by') : 'denied');
		const question = () => ['domain', 'rule', 'by'].map(value).join('\n');
		let [fresh, asked, followed] = [true, question(), null];

		const input = (name, label, set) =>
			el('input', { type: 'search', placeholder: label, 'aria-label': label, value: value(name), autocomplete: 'off', input: set });
		const filter = (name, label) => input(name, label, ({ target }) => change({ [name]: target.value }, 150));
		const [domain, domains] = completed(filter('domain', 'Domain'), domainOffers);
		const [rule, rules] = completed(filter('rule', 'Limit'), async text => {
			const { limits } = await once(`/rules?${query({ domain: value('domain'), search: text, limit: 8 })}`);
			return limits.map(one => ({ label: one.rule, hint: `${one.domain}, ${limitText(one.limit)}` }));
		});
		const search = input('q', 'Part of a key', () => {
			replace({ q: search.value });
			fresh = true;
			draw();
		});
		const segments = el('div.segments', { role: 'group', 'aria-label': 'Order by' });
		const bar = el(
			'div.bar-row',
			{ own: true },
			segments,
			domain,
			domains,
			rule,
			rules,
			search,
			el('a.button', { href: link('keys', { try: true }) }, 'Try a request')
		);

		function change(others, wait) {
			replace(others);
			asked = question();
			fresh = true;
			list.afresh(wait);
		}
		function none() {
			if (!value('q') && !value('domain') && !value('rule')) {
				return by() === 'hits'
					? empty(BY.hits[1], 'Send a request, or try one here.')
					: empty(
							BY[by()][1],
							button('Show by hits', () => change({ by: 'hits' }))
						);
			}
			const all = () => {
				for (const one of [domain, rule, search]) one.value = '';
				change({ q: null, domain: null, rule: null });
			};
			return empty('No key matches.', button('Show all keys', all));
		}
		const table = rows({
			label: 'Keys',
			key: row => `${row.domain}\n${row.rule}\n${JSON.stringify(row.descriptor)}`,
			empty: none,
			link: row => row.descriptor && changed({ in: row.domain, limit: row.rule, key: keyParams([row.descriptor]), try: null }),
			order: () => ({ by: by(), up: false }),
			onOrder: order => change({ by: order }),
			columns: [
				{
					id: 'key',
					name: 'Key',
					class: 'key',
					cell: keyName,
					under: row => el('span.phone', `${row.domain}/${row.rule} `, modeTag(row.role))
				},
				{ id: 'rule', name: 'Limit', wide: true, class: 'limit-name', cell: row => [row.rule, ' ', el('span.soft', row.domain), ' ', modeTag(row.role)] },
				{
					...COLUMNS.denied,
					sort: 'denied',
					cell: row => el(row.denied ? (isShadow(row.role) ? 'span.shadow' : 'span.denied') : 'span.soft', count(perSecond(row, 'denied')))
				},
				{ ...COLUMNS.hits, sort: 'hits', wide: true, class: 'late' },
				{ id: 'near', name: 'Near/s', sort: 'near', num: true, wide: true, class: 'late', cell: row => count(perSecond(row, 'near')) },
				{ id: 'share', name: 'Of the limit', num: true, wide: true, class: 'late', cell: row => share(row.share) },
				{ id: 'left', name: 'Left', wide: true, cell: remaining },
				COLUMNS.state
			]
		});
		function draw() {
			const told = list.answer;
			place.setAttribute('aria-busy', String(!told && !list.error));
			patch(
				segments,
				Object.entries(BY).map(([key, [name]]) =>
					button(name, () => change({ by: key }), '', { 'aria-pressed': String(key === by()), key })
				)
			);
			if (!told) return patch(place, heading('Keys'), bar, state(list));
			const wanted = value('q').toLowerCase();
			const shown = told.keys.filter(row => `${row.domain} ${row.rule} ${keyText(row)}`.toLowerCase().includes(wanted));
			table.show(shown, { now: fresh });
			fresh = false;
			const [{ window_ms: window = 0 } = {}] = told.keys;
			table.label(
				`${plural(shown.length, 'key')}, counted over the last ${window >= 1000 ? duration(window) : 'minutes'}; counts are approximate`
			);
			patch(
				place,
				heading('Keys', told.instances),
				bar,
				state(list),
				told.unavailable && el('p.warn', { key: 'unavailable' }, `△ What is left, and bans, are unknown: ${told.unavailable}`),
				table.element
			);
			followed?.();
		}
		function moved() {
			const { params } = here();
			const [inside, limit, all] = [params.get('in') ?? '', params.get('limit') ?? '', keysOf(params)];
			const id = JSON.stringify([inside, limit, all]);
			const find = () =>
				list.answer?.keys.find(
					row => row.domain === inside && (!limit || row.rule === limit) && row.descriptor && keyText(row) === entriesText(all[0])
				);
			if (params.get('try')) showPanel(`try ${id}`, { kind: 'counts nothing', title: 'Try a request' }, tryPanel(inside, all));
			else if (inside && all.length)
				showPanel(
					`key ${id}`,
					{ kind: `${inside}/${limit}`, title: entriesText(all[0]) },
					keyPanel(inside, limit, all[0], {
						list,
						find,
						follow: draw => {
							followed = draw;
						}
					})
				);
			else hidePanel();
			table.again();
			// A link or Back has changed the address.
			if (question() === asked) return;
			asked = question();
			[domain.value, rule.value, search.value] = [value('domain'), value('rule'), value('q')];
			fresh = true;
			list.afresh();
		}
		const list = feed(
			3000,
			() => ask(`/top?${query({ domain: value('domain'), rule: value('rule'), by: by(), n: 100, remaining: true })}`),
			draw
		);
		moved();
		return { moved, again: () => list.again(), end: () => list.end() };
	}
};
