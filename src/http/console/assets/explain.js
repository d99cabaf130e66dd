// The explanation of a request: each limit's state, what matched, when it may be sent again, and a text for a customer.

import { bar, copyable, el, tag } from './parts.js';
import { isShadow, place } from './views.js';
import { once } from './service.js';
import { quoted } from './entries.js';
import { clock, count, duration, entriesText } from './words.js';

// Entries with an action of Envoy for each.
const ACTIONS = ['remote_address', 'source_cluster', 'destination_cluster'];
// Headers that usually provide these entries.
const HEADERS = { path: ':path', method: ':method', host: ':authority', authority: ':authority' };
const ANSWERS = {
	pass: ['✓ allowed', 'good'],
	deny: ['✕ denied', 'denied'],
	fail: ['▲ the call fails', 'bad'],
	unknown: ['? unknown', 'warn']
};

// Where gRPC listens, once it is known.
let service = {};

// Returns actions of Envoy's rate_limits for these descriptors, guessed from their keys.
function actions(all) {
	const isWord = text => /^[A-Za-z_][\w-]*$/.test(text) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(text);
	const yaml = text => (isWord(text) ? text : JSON.stringify(text));
	const header = key => HEADERS[key] ?? `x-${key.toLowerCase().replace(/[^a-z0-9-]/g, '-')}`;
	const action = ({ key, value }) => {
		if (ACTIONS.includes(key)) return `${key}: {}`;
		if (key === 'generic_key') return `generic_key: {descriptor_value: ${yaml(value)}}`;
		return `request_headers: {header_name: ${yaml(header(key))}, descriptor_key: ${yaml(key)}}`;
	};
	return `rate_limits:\n${all.map(entries => `- actions:\n${entries.map(entry => `  - ${action(entry)}`).join('\n')}`).join('\n')}`;
}

const numberOf = limit => limit.parts.find(({ key }) => key === 'requests_per_unit')?.value ?? 'the limit';
const waitOf = ({ state }) => state.banned_ms ?? state.next_after_ms ?? state.reset_after_ms;

// Writes what one may tell a customer.
function forCustomer(told, descriptors) {
	if (told.answer !== 'deny') return null;
	const who = `Requests with ${descriptors.map(entriesText).join(' and ')}`;
	const denying = told.descriptors.flatMap(one => one.limits).filter(limit => limit.state?.used_up && !isShadow(limit.role));
	if (!denying.length) return `${who} are denied at present: ${told.because}.`;
	const [limit] = denying.sort((one, other) => waitOf(other) - waitOf(one));
	const reason = limit.state.banned_ms
		? `exceeded ${numberOf(limit)} too often and are banned for a while`
		: `have used all of ${numberOf(limit)} (${limit.name})`;
	return `${who} ${reason}. Please send the next one after ${clock(Date.now() + waitOf(limit))}, and at most ${numberOf(limit)} from then on.`;
}

const budget = ({ used, held, holds, first_ends_after_ms: first, extra, learned }) => [
	`${count(used)} used`,
	extra > 0 && `${count(extra)} beyond the number`,
	holds > 0 && `${count(held)} held by ${count(holds)} ${holds === 1 ? 'stream' : 'streams'}, the first for at most ${duration(first)}`,
	learned > 0 && `nine of ten streams use up to ${count(learned)}`,
].filter(Boolean).join(', ');

function limitState({ state, lease, role, replaced_by: other, no_state: reason }) {
	if (!state) return el('span.soft', other ? `replaced by ${other}` : (reason ?? 'no counter'));
	const { banned_ms: banned, used_up: isOver, next_after_ms: next } = state;
	return [
		el('span.left', bar(state.remaining / Math.max(1, state.capacity)), `${count(state.remaining)} of ${count(state.capacity)}`),
		state.budget && el('span.soft', `, ${budget(state.budget)}`),
		state.share && el('span.soft', `, ${count(state.share.remaining)} in this instance's share of ${count(state.share.capacity)}`),
		state.leased > 0 && el('span.soft', ` and ${count(state.leased)} in leases${lease ? `, of at most ${count(lease.most)}` : ''}`),
		' ',
		banned
			? tag(`⊘ banned ${duration(banned)}, until ${clock(Date.now() + banned)}`, 'bad')
			: isOver &&
				(isShadow(role) ? tag('◌ over, denies nothing', 'shadow') : tag(next ? `▲ free in ${duration(next)}` : '▲ over', 'denied')),
		!banned && state.reset_after_ms > 0 && el('span.soft', ` full again in ${duration(state.reset_after_ms)}`)
	];
}

const origin = ({ setting, from }) => (setting ? ` (${setting})` : from && from !== 'limit' ? ` (${from.replace('_', ' ')})` : '');

const limitLine = limit =>
	el(
		'li.limit',
		{ key: `${limit.name}${limit.counter}` },
		el('p', el('b', limit.name), ' ', numberOf(limit), ' ', isShadow(limit.role) && tag('◌ shadow', 'shadow'), limit.at && place(limit.at)),
		el('p', limitState(limit)),
		limit.adjustments?.length > 0 && el('p', tag('◆ adjusted', 'adjusted'), ' ', limit.adjustments.join('; ')),
		el('p.soft.small', limit.parts.map(part => `${part.key}: ${part.value}${origin(part)}`).join(' · ')),
		limit.counter && el('p.soft.small', 'counter ', el('code', limit.counter))
	);

// Offers the same request to send from elsewhere.
function elsewhere(domain, descriptors) {
	const request = JSON.stringify({ domain, descriptors: descriptors.map(entries => ({ entries })) });
	const entry = ({ key, value }) => quoted(`${key}=${value}`);
	const words = descriptors.map(entries => entries.map(entry).join(' ')).join(' + ');
	const { grpc = '', grpc_tls: tls } = service;
	const socket = grpc.startsWith('unix:') && quoted(grpc.slice(5));
	const flags = `${tls ? '-cacert FILE' : '-plaintext'}${socket ? ' -unix' : ''}`;
	const address = socket || `${location.hostname}:${grpc.split(':').at(-1) || 8081}`;
	return el(
		'details',
		{ key: 'elsewhere' },
		el('summary', 'Send it from elsewhere'),
		el('h4', 'In a terminal, without counting'),
		copyable(`tollgate explain --address ${location.origin} --domain ${quoted(domain)} ${words}`, 'the tollgate command'),
		el('h4', 'With curl or grpcurl, which count'),
		copyable(`curl -s ${location.origin}/json -d ${quoted(request)}`, 'the curl command'),
		copyable(
			`grpcurl ${flags} -d ${quoted(request)} ${address} envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`,
			'the grpcurl command'
		),
		el('h4', 'Why it was denied before, from the decision log'),
		copyable(`tollgate why --log decisions.jsonl --domain ${quoted(domain)} ${descriptors[0].map(entry).join(' ')}`, 'the why command'),
		el('h4', 'For a route of Envoy'),
		el(
			'p.soft.small',
			'If a value comes from another header, change its name. A constant is generic_key: {descriptor_key: plan, descriptor_value: gold}.'
		),
		copyable(actions(descriptors), 'the actions for Envoy')
	);
}

// Returns the elements of an answer of `/explain` to these descriptors.
export function explained(told, { domain, descriptors }) {
	once('/console/entries', 600000).then(
		answer => {
			service = answer;
		},
		() => {}
	);
	const customer = forCustomer(told, descriptors);
	return [
		el('h3', { key: 'now' }, 'One more request now'),
		el('p.big', { key: 'answer' }, 'Result: ', tag(...(ANSWERS[told.answer] ?? [told.answer]))),
		el('p', { key: 'because' }, told.because),
		told.descriptors.map((one, at) =>
			el(
				'section',
				{ key: `descriptor-${at}` },
				descriptors.length > 1 && el('h3', el('code', one.entries.join(' '))),
				one.limits.length > 0 && [el('h3', 'Its limits'), el('ul.limits', one.limits.map(limitLine))],
				el('h3', 'Why'),
				el(
					'ul.why',
					one.matched.map(match => el('li', el('code', match.entry), ' matches ', el('code', match.node), match.at && place(match.at))),
					one.missed.slice(0, 3).map(miss => el('li.warn', '△ ', miss.words, miss.at && place(miss.at)))
				)
			)
		),
		customer && [el('h3', { key: 'tell' }, 'To tell a customer'), copyable(customer, 'the text for a customer')],
		elsewhere(domain, descriptors)
	];
}
