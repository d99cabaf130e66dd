// Try: the answer that a request would get, and the reasons. It can be sent and counted, too.

import { button, el, field, grid, patch } from './parts.js';
import { ask, mayAdjust, mayReset, query } from './service.js';
import { completed, domainOffers } from './complete.js';
import { explained } from './explain.js';
import { descriptors, lines, pair } from './entries.js';
import { NONE, plural } from './words.js';

const OFFERED = 12;
const words = ({ key, value }) => `${key}=${value ?? ''}`;

async function send(domain, all, times) {
	const body = { domain, descriptors: all.map(entries => ({ entries })) };
	const answers = [];
	for (let turn = 1; turn <= times; turn += 1) {
		const { overallCode: code, statuses = [] } = await ask('/json', { method: 'POST', body });
		const first = statuses.find(status => status.code === code) ?? statuses[0];
		const isAllowed = code === 'OK';
		answers.push([
			turn,
			el(isAllowed ? 'span.good' : 'span.denied', isAllowed ? '✓ allowed' : '✕ denied'),
			first?.currentLimit?.name || NONE,
			first?.limitRemaining ?? (first?.currentLimit ? 0 : NONE),
			first?.durationUntilReset ?? NONE
		]);
	}
	return grid(`${plural(times, 'request')} sent and counted`, ['#Request', 'Answer', 'Limit', '#Remaining', 'Reset'], answers);
}

// Builds the panel with these entries filled in.
export const tryPanel = (domain, given) => place => {
	const [box, list] = completed(
		el('input', { type: 'text', value: domain, required: true, placeholder: 'shop', autocomplete: 'off', input: () => changed() }),
		domainOffers
	);
	const entries = el('textarea', { rows: 3, required: true, spellcheck: 'false', placeholder: 'user=ann', input: () => changed() });
	if (given.length) entries.value = lines(given.map(one => one.map(({ key, value = '' }) => ({ key, value }))));
	const next = el('div.actions', { role: 'group', 'aria-label': 'Entries that the rules suggest' });
	const times = el('input.short', { type: 'number', min: 1, max: 100, value: 10 });
	const result = el('div', { 'aria-live': 'polite', own: true });
	let [timer, turn] = [0, 0];

	// An answer to another request no longer stands here.
	function changed() {
		turn += 1;
		patch(result);
		clearTimeout(timer);
		timer = setTimeout(offer, 150);
	}
	async function show(answer) {
		const mine = (turn += 1);
		let told;
		try {
			told = await answer(descriptors(entries.value));
		} catch (error) {
			told = el('p.bad', { role: 'alert' }, error.message);
		}
		if (mine === turn) patch(result, told);
	}
	const explain = () =>
		show(async all => {
			const pairs = [
				['domain', box.value],
				...all.flatMap((one, at) => [...(at ? [['+', '']] : []), ...one.map(({ key, value }) => [key, value])])
			];
			return explained(await ask(`/explain?${new URLSearchParams(pairs)}`), { domain: box.value, descriptors: all });
		});
	const sent = () => show(all => send(box.value, all, Math.min(100, Math.max(1, Number(times.value) || 1))));

	// Suggests entries of the rules at the cursor.
	async function offer() {
		const [name, text] = [box.value, entries.value];
		if (text.trim().startsWith('[')) return patch(next);
		const rest = text
			.slice(text.lastIndexOf('\n+') + 1)
			.replace(/^\+\n?/, '')
			.split('\n')
			.map(line => line.trimStart());
		const last = rest.at(-1);
		const before = rest.filter(line => line.indexOf('=') > 0).map(pair);
		const look = (begin, known) =>
			ask(`/console/entries?${query({ domain: name, begin, entries: JSON.stringify(known) })}`).catch(() => null);
		// A last line with a value may be complete or not.
		const [begun, behind] = await Promise.all(
			last.indexOf('=') > 0 ? [look(last, before.slice(0, -1)), look('', before)] : [look(last, before), { next: [] }]
		);
		if (!begun || !behind || name !== box.value || text !== entries.value) return;
		// Keeps the text typed since then.
		const take = (entry, goesOn) => {
			const { value } = entries;
			const line = value.slice(value.lastIndexOf('\n') + 1).trimStart();
			const completes = words(entry).startsWith(line) && (goesOn || !line.includes('='));
			entries.value = `${completes ? value.slice(0, value.length - line.length) : `${value}\n`}${words(entry)}`;
			entries.focus();
			changed();
		};
		const offers = (all, goesOn) =>
			all
				.slice(0, OFFERED)
				.map(entry =>
					button(entry.value == null ? `${entry.key}=…` : words(entry), () => take(entry, goesOn), 'small', {
						key: `${goesOn}${words(entry)}`
					})
				);
		const longer = begun.next.filter(entry => words(entry) !== last);
		const isMore = begun.more || behind.more || longer.length > OFFERED || behind.next.length > OFFERED;
		patch(next, offers(longer, true), offers(behind.next, false), isMore && el('span.soft', 'and more'));
	}
	patch(
		place,
		el(
			'form',
			{
				own: true,
				submit: event => {
					event.preventDefault();
					explain();
				}
			},
			field('Domain', box),
			list,
			field('Entries of the descriptor, one per line', entries, 'Separate two descriptors with a line +'),
			next,
			el('div.actions', el('button.primary', 'Explain without counting')),
			(mayAdjust() || mayReset()) && el('div.actions.count', field('Requests', times), button('Send and count', sent))
		),
		result
	);
	offer();
	if (given.length && domain) explain();
	return () => clearTimeout(timer);
};
