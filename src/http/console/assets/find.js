// Finds what people name: `everything`, `api`, `api/login`, `shop user=ann`, or a part of these.

import { once, query } from './service.js';
import { oneLine, typed } from './entries.js';
import { entriesText, limitText, plural } from './words.js';

// Writes a target.
export function targetText({ everything, domain, rule, entries }) {
	if (everything || !domain) return 'everything';
	if (entries?.length) return `${domain} ${oneLine(entries)}`;
	return rule ? `${domain}/${rule}` : domain;
}

// Reads a target that is written in full.
export function parsed(text) {
	const {
		words: [first, ...others],
		entries
	} = typed(text);
	if (!first || others.length) return null;
	if (entries.length) return { domain: first, entries };
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
	const { words, entries } = typed(text);
	const word = words.join(' ').toLowerCase();
	const [inside, search] = word.includes('/') ? word.split(/\/(.*)/s) : ['', word];
	const wanted = query({ search: entries.length ? '' : search, limit: 8 });
	const [listing, top] = await Promise.all([once(`/rules?${wanted}`), once('/top?n=100&by=hits').catch(() => ({ keys: [] }))]);
	const found = [];
	const add = (kind, target, hint, more) => found.push({ kind, target, label: targetText(target), hint, ...more });
	if (!entries.length) {
		if (/^(every|all)/.test(word)) add('Everything', { everything: true }, 'all limits of all domains');
		const domains = listing.domains.filter(({ domain }) => domain.toLowerCase().includes(word)).slice(0, 5);
		for (const { domain, limits } of domains) add('Domains', { domain }, plural(limits, 'limit'));
		const limits = word ? listing.limits.filter(({ domain }) => domain.toLowerCase().includes(inside)) : [];
		for (const { domain, rule, limit } of limits) add('Limits', { domain, rule }, limitText(limit));
	}
	const name = [...words, ...entries.map(one => entriesText([one]))].join(' ').toLowerCase();
	const keys = name
		? top.keys.filter(({ domain, descriptor }) => descriptor && `${domain} ${entriesText(descriptor)}`.toLowerCase().includes(name))
		: [];
	for (const { domain, rule, descriptor, exact } of keys.slice(0, 6))
		add('Keys', { domain, entries: descriptor }, rule, { of: rule, exact });
	if (entries.length && !keys.length) {
		const named = listing.domains.filter(({ domain }) => domain === words[0]).map(({ domain }) => domain);
		const domains = named.length ? named : await domainsWith(listing.domains, entries[0]);
		for (const domain of domains) add('Keys', { domain, entries }, 'not among the heaviest keys', { exact: true });
	}
	return found;
}
