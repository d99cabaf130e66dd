// Finds what people name: `everything`, `api`, `api/login`, `shop user=ann`, or a part of these.

import { once, query } from './service.js';
import { isExact, oneLine, typed } from './entries.js';
import { entriesText, limitText, plural } from './words.js';

// Returns the descriptors of a target.
export const descriptorsOf = ({ entries, descriptors }) => (entries?.length ? [entries] : (descriptors ?? []));

// Writes a target, with at most so many of its descriptors.
export function targetText(target, most = Infinity) {
	const { everything, domain, rule } = target;
	if (everything || !domain) return 'everything';
	const all = descriptorsOf(target);
	const rest = all.length > most ? ` + ${all.length - most} more` : '';
	if (all.length) return `${domain} ${all.slice(0, most).map(oneLine).join(' + ')}${rest}`;
	return rule ? `${domain}/${rule}` : domain;
}

const ofDescriptors = (domain, descriptors) =>
	descriptors.length > 1 ? { domain, descriptors } : { domain, entries: descriptors[0] };

// Reads a target that is written in full.
export function parsed(text) {
	const {
		words: [first, ...others],
		descriptors
	} = typed(text);
	if (!first || others.length) return null;
	if (descriptors.length) return ofDescriptors(first, descriptors);
	if (first === 'everything') return { everything: true };
	const [domain, rule] = first.split(/\/(.*)/s);
	return rule ? { domain, rule } : { domain };
}

// Returns the domains whose rules begin with the key of an entry.
async function domainsWith(domains, { key }) {
	const known = await Promise.all(
		domains.slice(0, 12).map(async ({ domain }) => {
			const told = await once(`/console/entries?${query({ domain, begin: key })}`).catch(() => null);
			return told?.next.some(one => one.key === key) ? domain : null;
		})
	);
	return known.filter(Boolean);
}

// Returns targets, each with its `kind`, the text `label`, and a `hint`. Keys have the limit that counts them in `of`.
export async function find(text) {
	const { words, descriptors } = typed(text);
	const isKey = descriptors.length === 1 && isExact(descriptors[0]);
	const entries = isKey ? descriptors[0] : [];
	const word = words.join(' ').toLowerCase();
	const [inside, search] = word.includes('/') ? word.split(/\/(.*)/s) : ['', word];
	const wanted = query({ search: descriptors.length ? '' : search, limit: 8 });
	const [listing, top] = await Promise.all([once(`/rules?${wanted}`), once('/top?n=100&by=hits').catch(() => ({ keys: [] }))]);
	const found = [];
	const add = (kind, target, hint, more) => found.push({ kind, target, label: targetText(target), hint, ...more });
	if (!descriptors.length) {
		if (/^(every|all)/.test(word)) add('Everything', { everything: true }, 'all limits of all domains');
		const domains = listing.domains.filter(({ domain }) => domain.toLowerCase().includes(word)).slice(0, 5);
		for (const { domain, limits } of domains) add('Domains', { domain }, plural(limits, 'limit'));
		const limits = word ? listing.limits.filter(({ domain }) => domain.toLowerCase().includes(inside)) : [];
		for (const { domain, rule, limit } of limits) add('Limits', { domain, rule }, limitText(limit));
	}
	const name = [...words, ...entries.map(one => entriesText([one]))].join(' ').toLowerCase();
	const keys = name && (isKey || !descriptors.length)
		? top.keys.filter(({ domain, descriptor }) => descriptor && `${domain} ${entriesText(descriptor)}`.toLowerCase().includes(name))
		: [];
	for (const { domain, rule, descriptor, exact } of keys.slice(0, 6))
		add('Keys', { domain, entries: descriptor }, rule, { of: rule, exact });
	if (descriptors.length && !keys.length) {
		const named = listing.domains.filter(({ domain }) => domain === words[0]).map(({ domain }) => domain);
		const domains = named.length ? named : await domainsWith(listing.domains, descriptors[0][0]);
		const [kind, hint] = isKey ? ['Keys', 'not among the heaviest keys'] : ['Descriptors', 'all that match'];
		for (const domain of domains) add(kind, ofDescriptors(domain, descriptors), hint, { exact: isKey || null });
	}
	return found;
}
