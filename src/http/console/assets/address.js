// The state of the console in the address: page, filters, selection and time. So a finding can be sent.

import { pair } from './entries.js';
import { entriesText } from './words.js';

// Links name the path, too: without it they would look like jumps within the page.
const PAGE = '/console';
export const current = () => `${PAGE}${location.hash}`;

export function here() {
	const [page, query] = location.hash.slice(1).split(/\?(.*)/s);
	return { page, params: new URLSearchParams(query ?? '') };
}

// Returns an address; missing and empty values are left out, and a list repeats its parameter.
export function link(page, values = {}) {
	const params = new URLSearchParams();
	for (const [name, value] of Object.entries(values)) {
		for (const one of [value].flat()) if (one != null && one !== '' && one !== false) params.append(name, one === true ? '1' : one);
	}
	const query = params.toString();
	return `${PAGE}#${page}${query ? `?${query}` : ''}`;
}

const values = params => {
	const found = {};
	for (const name of new Set(params.keys())) found[name] = params.getAll(name).length > 1 ? params.getAll(name) : params.get(name);
	return found;
};

// Returns this address with some values changed.
export function changed(others) {
	const { page, params } = here();
	return link(page || 'overview', { ...values(params), ...others });
}

export const go = address => {
	location.hash = address.split('#')[1];
};

// Replaces the address without an entry in the history, as for each letter of a filter.
export function replace(others) {
	history.replaceState(null, '', changed(others));
	dispatchEvent(new Event('tollgate-address'));
}

// Writes the descriptors of a selection as parameters: `key=user=ann`, and `+` between two descriptors.
export const keyParams = descriptors =>
	descriptors.flatMap((entries, at) => [...(at ? ['+'] : []), ...entries.map(one => entriesText([one]))]);

export function keysOf(params) {
	const found = [[]];
	for (const text of params.getAll('key')) {
		if (text === '+') found.push([]);
		else found.at(-1).push(pair(text));
	}
	return found.filter(entries => entries.length);
}
