// The search: limits, keys, domains, pages and verbs, from every page. A verb opens its sheet; nothing is done at once.

import { button, el, patch } from './parts.js';
import { mayAdjust } from './service.js';
import { VERBS, adjust } from './adjusting.js';
import { find, targetText } from './find.js';
import { sheet } from './sheet.js';
import { go, keyParams, link } from './address.js';
import { plural } from './words.js';

const PAGES = {
	Overview: 'denied share, decisions, latency, top limits and keys',
	Limits: 'every limit with its number and denials',
	Keys: 'who is limited, and why',
	Tune: 'choose a number, compare rules',
	Adjust: 'what is in force, and its history',
	Health: 'instances, Redis, the log'
};
const WORDS = {
	scale: 'scale',
	halve: 'scale',
	double: 'scale',
	'let pass': 'pass',
	pass: 'pass',
	allow: 'pass',
	block: 'block',
	deny: 'block',
	shadow: 'shadow',
	enforce: 'enforce',
	'another number': 'number',
	number: 'number',
	raise: 'number'
};

// Reads `let pass user=ann`, `scale api to 50%` or `raise api/login to 20`.
function command(text) {
	const word = Object.keys(WORDS).find(one => text.toLowerCase() === one || text.toLowerCase().startsWith(`${one} `));
	if (!word) return null;
	const effect = WORDS[word];
	const percent = { halve: '50%', double: '200%' }[word] ?? text.match(/\d+(\.\d+)?(?=\s*%)/)?.[0].concat('%') ?? '50%';
	const rest = text
		.slice(word.length)
		.replace(/\d+(\.\d+)?\s*%/, '')
		.replace(/(^|\s)to(\s|$)/, ' ');
	const number = effect === 'number' ? rest.match(/(?:^|\s)(\d+)\s*$/)?.[1] : null;
	return { effect, share: percent, number, rest: (number ? rest.replace(/\d+\s*$/, '') : rest).trim() };
}

async function verbs(text) {
	const given = command(text);
	if (!given) {
		const named = Object.entries(VERBS).filter(([effect, { name }]) =>
			text ? name.toLowerCase().startsWith(text.toLowerCase()) : effect !== 'enforce'
		);
		return named.map(([effect, { name, does }]) => ({ kind: 'Do', label: `${name} …`, hint: does, take: () => adjust({ effect }) }));
	}
	const { effect, share, number } = given;
	const found = (await find(given.rest || 'every'))
		.filter(one => one.exact !== false && mayAdjust(one.target.domain ?? null))
		.map(({ target }) => target);
	const amount = effect === 'scale' ? ` to ${share}` : number ? ` to ${number}` : '';
	return [...found, null]
		.slice(0, 6)
		.map(target => ({
			kind: 'Do',
			label: `${VERBS[effect].name} ${target ? targetText(target) : '…'}${amount}`,
			hint: 'opens a sheet with a preview',
			take: () => adjust({ effect, target, share, number })
		}));
}

// Where a found target is shown.
function address({ target: { domain, rule, entries }, of }) {
	if (entries) return link('keys', { in: domain, limit: of, key: keyParams([entries]) });
	return rule ? link('limits', { in: domain, limit: rule }) : link('limits', { domain });
}

async function results(text) {
	const word = text.trim();
	const pages = Object.entries(PAGES)
		.filter(([name]) => name.toLowerCase().startsWith(word.toLowerCase()))
		.map(([label, hint]) => ({ kind: 'Pages', label, hint, take: () => go(link(label.toLowerCase())) }));
	const [todo, found] = await Promise.all([mayAdjust() ? verbs(word) : [], word && !command(word) ? find(word) : []]);
	const shown = found.filter(({ target, kind }) => target.domain && kind !== 'Descriptors');
	return [...todo, ...pages, ...shown.map(one => ({ ...one, take: () => go(address(one)) }))];
}

export function openSearch() {
	sheet(
		'Search',
		(body, done) => {
			const list = el('div.found', { role: 'listbox', id: 'found', 'aria-label': 'Results', own: true });
			const said = el('p.sr', { role: 'status', own: true });
			let [found, at, turn, timer, answered] = [[], 0, 0, 0, null];
			const input = el('input', {
				type: 'text',
				role: 'combobox',
				'aria-controls': 'found',
				'aria-expanded': 'true',
				'aria-autocomplete': 'list',
				autocomplete: 'off',
				spellcheck: 'false',
				own: true,
				'aria-label': 'Search limits, keys, domains, pages and verbs',
				placeholder: 'login, user=ann, scale 50%, let pass user=ann',
				input: () => {
					clearTimeout(timer);
					timer = setTimeout(look, 120);
				},
				keydown: press
			});
			const take = one => {
				done();
				one?.take();
			};
			function draw() {
				input.setAttribute('aria-activedescendant', found.length ? `found-${at}` : '');
				const kinds = [...new Set(found.map(({ kind }) => kind))];
				const option = one =>
					el(
						'div',
						{
							role: 'option',
							id: `found-${found.indexOf(one)}`,
							key: found.indexOf(one),
							'aria-selected': String(found[at] === one),
							click: () => take(one)
						},
						el('span.name', one.label),
						el('span.soft', one.hint)
					);
				patch(
					list,
					kinds.map(kind =>
						el(
							'div',
							{ role: 'group', 'aria-label': kind, key: kind },
							el('p.kind', { 'aria-hidden': 'true' }, kind),
							found.filter(one => one.kind === kind).map(option)
						)
					),
					!found.length &&
						el(
							'div',
							{ role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' },
							el('span', 'Nothing found'),
							el('span.soft', 'Try a limit, key=value, a domain, or a verb such as block')
						)
				);
				document.getElementById(`found-${at}`)?.scrollIntoView({ block: 'nearest' });
			}
			async function look() {
				clearTimeout(timer);
				const [mine, text] = [(turn += 1), input.value];
				const told = await results(text).catch(error => [
					{ kind: 'No answer', label: 'The search failed', hint: error.message, take() {} }
				]);
				if (mine !== turn) return;
				[found, at, answered] = [told, 0, text];
				said.textContent = plural(found.length, 'result');
				draw();
			}
			async function press(event) {
				const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
				if (step && found.length) at = (at + step + found.length) % found.length;
				else if (event.key !== 'Enter') return;
				event.preventDefault();
				if (step) return draw();
				// Takes a result of what is typed now.
				if (answered !== input.value) await look();
				take(found[at]);
			}
			patch(body, input, said, list, el('p.soft.small', '↑ ↓ to choose, Enter to open, Esc to close'));
			input.focus();
			look();
			return () => clearTimeout(timer);
		},
		'search'
	);
}

const KEYS = [
	['/ or Ctrl-K', 'Search'],
	['?', 'These keys'],
	['1 … 6', 'Overview, Limits, Keys, Tune, Adjust, Health'],
	['↑ ↓ or j k', 'Move through the rows of a table'],
	['Enter', 'Open the row at the side'],
	['Esc', 'Close the panel, the sheet or the search'],
	['← →', 'Read a chart, one step at a time'],
	['Enter on a chart', 'Mark the time, also in the address']
];

export function showKeys() {
	sheet('Keys', (body, done) => {
		patch(
			body,
			el(
				'dl.keys',
				KEYS.map(([key, does]) => el('div', el('dt', el('kbd', key)), el('dd', does)))
			),
			el('div.actions.end', button('Close', done, 'primary'))
		);
		body.querySelector('button').focus();
	});
}
