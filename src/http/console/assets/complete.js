// Completion of text fields by the browser's own list.

import { el, patch } from './parts.js';
import { once } from './service.js';
import { plural } from './words.js';

let lists = 0;

// Completes an input with `offers(text)`, each with its text `label` and a `hint`. Returns the input and its list.
export function completed(input, offers) {
	const list = el('datalist', { id: `offers-${(lists += 1)}` });
	let timer = 0;
	const look = async () => {
		const found = await offers(input.value.trim()).catch(() => []);
		patch(
			list,
			found.map(({ label, hint }) => el('option', { value: label }, hint))
		);
	};
	const soon = () => {
		clearTimeout(timer);
		timer = setTimeout(look, 150);
	};
	for (const type of ['input', 'focus']) input.addEventListener(type, soon);
	input.setAttribute('list', list.id);
	return [input, list];
}

// Offers the domains of the rules.
export async function domainOffers(text) {
	const { domains } = await once('/rules?limit=0');
	return domains
		.filter(({ domain }) => domain.includes(text))
		.map(({ domain, limits }) => ({ label: domain, hint: plural(limits, 'limit') }));
}
