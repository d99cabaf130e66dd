// Elements. Data of the service become text, never markup.

export const $ = id => document.getElementById(id);

const SVG = 'http://www.w3.org/2000/svg';
const dispatch = event => event.currentTarget.handlers[event.type]?.(event);

function fill(element, attributes, children) {
	for (const [name, value] of Object.entries(attributes)) {
		if (name === 'key') element.key = String(value);
		else if (name === 'own') element.own = true;
		else if (typeof value === 'function') {
			(element.handlers ??= {})[name] = value;
			element.addEventListener(name, dispatch);
		} else if (value === true) element.setAttribute(name, '');
		else if (value !== false && value != null) element.setAttribute(name, value);
	}
	// An element that is shown already stays where it is until `patch` has found its place.
	element.append(...nodes(children).map(child => (child.own && child.isConnected ? standIn(child) : child)));
	return element;
}

// Creates an element: `el('p.soft', { key: 1 }, 'text')`. Functions become listeners. `key` names a child among its
// siblings; `own` keeps `patch` out.
const make =
	create =>
	(selector, ...rest) => {
		const [name, ...classes] = selector.split('.');
		const attributes = rest[0]?.constructor === Object ? rest.shift() : {};
		const element = create(name);
		if (classes.length) element.setAttribute('class', classes.join(' '));
		return fill(element, attributes, rest);
	};
export const el = make(name => document.createElement(name));
export const svg = make(name => document.createElementNS(SVG, name));

function nodes(children) {
	const shown = children.flat(Infinity).filter(child => child != null && child !== false && child !== '');
	return shown.map(child => (child instanceof Node ? child : document.createTextNode(String(child))));
}

const standIn = stands => Object.assign(document.createComment(''), { stands });

// Puts the elements into a new part that stand-ins hold places for.
function settle(part) {
	const walk = document.createTreeWalker(part, NodeFilter.SHOW_COMMENT);
	const found = [];
	while (walk.nextNode()) found.push(walk.currentNode);
	for (const one of found) one.replaceWith(one.stands);
	return part;
}

// Makes the children of an element equal to these by changing only what differs. So focus, selection and scroll stay.
export function patch(place, ...children) {
	const wanted = nodes(children).map(node => node.stands ?? node);
	const keyed = new Map([...place.childNodes].filter(node => node.key != null).map(node => [node.key, node]));
	const stay = new Set(wanted.filter(node => node.parentNode === place));
	for (const node of wanted) if (node.key != null && keyed.has(node.key)) stay.add(keyed.get(node.key));
	let at = place.firstChild;
	for (const next of wanted) {
		while (at && !stay.has(at) && (at.key != null || at.own)) at = drop(at);
		const found =
			next.parentNode === place ? next : next.key != null ? keyed.get(next.key) : at && !stay.has(at) && alike(at, next) ? at : null;
		if (!found) {
			place.insertBefore(settle(next), at);
			continue;
		}
		if (found !== at && found.contains(document.activeElement)) {
			// A moved element would lose the focus: moves those before it.
			while (at !== found) {
				const later = at;
				at = at.nextSibling;
				if (stay.has(later)) place.append(later);
				else later.remove();
			}
		} else if (found !== at) place.insertBefore(found, at);
		if (found !== next) update(found, next);
		at = found.nextSibling;
	}
	while (at) at = drop(at);
}

function drop(node) {
	const next = node.nextSibling;
	node.remove();
	return next;
}

const alike = (one, other) =>
	one.nodeName === other.nodeName &&
	one.nodeType === other.nodeType &&
	one.key === other.key &&
	!one.own &&
	!other.own &&
	one.type === other.type &&
	one.id === other.id;

// Attributes that people or scripts change, and that a new drawing does not reset.
const KEPT = ['open', 'style'];

function update(old, next) {
	if (old.nodeType === Node.TEXT_NODE) {
		if (old.data !== next.data) old.data = next.data;
		return;
	}
	for (const { name } of [...old.attributes]) {
		if (!next.hasAttribute(name) && !KEPT.includes(name)) old.removeAttribute(name);
	}
	for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
	for (const type of Object.keys(next.handlers ?? {})) {
		if (!old.handlers?.[type]) old.addEventListener(type, dispatch);
	}
	old.handlers = next.handlers;
	if (!next.own) patch(old, ...next.childNodes);
}

// Says something to screen readers, and shows it for a moment.
export function announce(text, kind = '') {
	const note = el('p', { class: `note ${kind}` }, text);
	$('notes').replaceChildren(note);
	setTimeout(() => note.remove(), 6000);
}

export async function copy(text, what = text) {
	try {
		await navigator.clipboard.writeText(text);
		announce(`Copied ${what}`);
		return true;
	} catch {
		announce(`The browser does not let this page copy. Select it instead: ${text}`);
		return false;
	}
}

// Shows a text with a button to copy it.
export function copyable(text, what) {
	const take = async ({ currentTarget }) => {
		const done = await copy(text, what);
		if (!done) getSelection().selectAllChildren(currentTarget.previousSibling);
	};
	return el('div.copyable', verbatim(what, text), el('button', { type: 'button', 'aria-label': `Copy ${what}`, click: take }, 'Copy'));
}

let fields = 0;

// Labels an input, with an optional hint below.
export function field(label, input, hint) {
	input.id ||= `field-${(fields += 1)}`;
	return el('div.field', el('label', { for: input.id }, label), input, hint && el('p.soft.small', hint));
}

export const button = (words, click, kind = '', more = {}) => el('button', { type: 'button', class: kind, click, ...more }, words);

// Draws a share as a bar.
export function bar(part, kind = '') {
	const width = Math.max(0, Math.min(1, part || 0)) * 100;
	return svg(
		'svg',
		{ class: `bar ${kind}`, viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
		svg('rect.track', { width: 100, height: 8 }),
		svg('rect.level', { width, height: 8 })
	);
}

// Draws values as a small line of columns, told in words beside it.
export function spark(values, kind = 'denied') {
	if (!values?.length) return el('span.soft', '–');
	const most = Math.max(1e-9, ...values.map(value => value ?? 0));
	const heights = values.map(value => (value ? 1 + (value / most) * 21 : 0));
	const columns = heights.map((height, x) => (height ? `M${x * 3 + 1.5} 24V${(24 - height).toFixed(1)}` : '')).join('');
	return svg(
		'svg',
		{ class: `spark ${kind}`, viewBox: `0 0 ${values.length * 3} 24`, preserveAspectRatio: 'none', 'aria-hidden': 'true' },
		svg('path.base', { d: `M0 23.5H${values.length * 3}` }),
		svg('path', { d: columns })
	);
}

// Shows a word with a shape, so that no meaning hangs on a color alone.
export const tag = (words, kind = '') => el('span', { class: `tag ${kind}` }, words);

export const empty = (title, ...advice) =>
	el(
		'div.empty',
		el('p', title),
		advice.map(one => (one?.nodeType ? one : el('p.soft', one)))
	);

// Lists names with values, each with an optional look.
export const facts = (list, key = 'facts') =>
	el(
		'dl.facts',
		{ key },
		list.map(([name, value, kind]) => el('div', { key: name }, el('dt', name), el('dd', { class: kind }, value)))
	);

// A table that is drawn as a whole. Heads that begin with # are of numbers.
export function grid(label, heads, lines) {
	const kind = at => (heads[at].startsWith('#') ? 'num' : null);
	return el(
		'div.scroll',
		{ tabindex: 0, role: 'region', 'aria-label': label },
		el(
			'table',
			el('caption', label),
			el(
				'thead',
				el(
					'tr',
					heads.map((one, at) => el('th', { scope: 'col', class: kind(at) }, one.replace('#', '')))
				)
			),
			el(
				'tbody',
				lines.map(cells =>
					el(
						'tr',
						cells.map((cell, at) => el('td', { class: kind(at) }, cell))
					)
				)
			)
		)
	);
}

// A text that may be long, as it is.
export const verbatim = (label, text) => el('pre', { tabindex: 0, role: 'group', 'aria-label': label }, text);
