// The console: the frame around the pages, the token, and the keys.

import { $, announce, el, field, patch } from './parts.js';
import { REFUSED, SILENT, TICK, TOKEN, inMemory, seen, stop, watch } from './service.js';
import { banners, noBanners, storeWords } from './banners.js';
import { ADJUSTED } from './adjusting.js';
import { go, here, link } from './address.js';
import { close as closePanel, hide as hidePanel, isOpen } from './panel.js';
import { openSearch, showKeys } from './search.js';
import { latency } from './words.js';
import { overview } from './overview.js';
import { limits } from './limits.js';
import { keys } from './keys.js';
import { tune } from './tune.js';
import { adjustPage } from './adjust.js';
import { health } from './health.js';

export const PAGES = { overview, limits, keys, tune, adjust: adjustPage, health };
const UNKNOWN = 'The service does not accept this token.';

// The page that is shown: `moved(params)`, `tick()` and `end()` are what it takes part in.
let shown = null;

function show() {
	const { page: name, params } = here();
	const page = PAGES[name] ?? overview;
	if (shown?.page === page) return shown.moved?.(params);
	shown?.end?.();
	hidePanel();
	document.title = `${page.title} · Tollgate`;
	for (const one of $('nav').children) {
		if (PAGES[one.hash.slice(1)] === page) one.setAttribute('aria-current', 'page');
		else one.removeAttribute('aria-current');
	}
	const place = el('div.page', { own: true });
	$('main').replaceChildren(place);
	scrollTo(0, 0);
	const isFirst = !shown;
	shown = { page, ...page.open(place, params) };
	if (!isFirst) $('main').focus({ preventScroll: true });
}

function standing() {
	const { tick } = seen;
	if (!tick) return;
	const { known = 1, ready = 1 } = tick.instances ?? {};
	const isUp = tick.store.up === 1;
	const now = isUp && tick.store_p50_us != null ? latency(tick.store_p50_us) : storeWords(tick.store);
	const store = inMemory() ? 'Counters in memory' : `Redis ${now}`;
	patch(
		$('standing'),
		el(
			'a',
			{ href: link('health'), class: `state ${ready < known ? 'bad' : 'good'}`, key: 'instances' },
			`${ready} of ${known} ${known === 1 ? 'instance' : 'instances'}`
		),
		el('a', { href: link('health'), class: `state ${isUp ? 'good' : 'bad'}`, key: 'store', title: tick.store.name }, store),
		tick.role === 'read' || tick.role === 'reader' ? el('span.soft', { key: 'role' }, 'read-only') : null
	);
}

addEventListener(TICK, () => {
	standing();
	banners();
	shown?.tick?.();
});
addEventListener(SILENT, ({ detail }) => patch($('standing'), el('span.state.bad', { key: 'silent' }, `No answer: ${detail}`)));
addEventListener(ADJUSTED, () => shown?.again?.());

function enter() {
	$('leave').hidden = false;
	$('find').hidden = false;
	patch(
		$('nav'),
		Object.entries(PAGES).map(([name, page]) => el('a', { href: link(name), key: name }, page.title))
	);
	watch();
	show();
}

// Takes the token of a link that ends with #token=..., and removes it from the address. A browser sends this part of an
// address to no server.
function takeToken() {
	const token = new URLSearchParams(location.hash.slice(1)).get('token');
	if (!token) return false;
	history.replaceState(null, '', location.pathname);
	sessionStorage.setItem(TOKEN, token);
	return true;
}

function leave(reason = '') {
	sessionStorage.removeItem(TOKEN);
	stop();
	shown?.end?.();
	shown = null;
	hidePanel();
	for (const dialog of document.querySelectorAll('dialog')) dialog.close();
	$('leave').hidden = true;
	$('find').hidden = true;
	$('nav').replaceChildren();
	$('standing').replaceChildren();
	noBanners();
	document.title = 'Sign in · Tollgate';
	const input = el('input', { type: 'password', required: true, autocomplete: 'off', minlength: 16 });
	const submit = event => {
		event.preventDefault();
		sessionStorage.setItem(TOKEN, input.value);
		enter();
	};
	$('main').replaceChildren(
		el(
			'div.sign-in',
			el('h1', 'Sign in'),
			el(
				'p.soft',
				'Enter the ADMIN_TOKEN of the service, or its ADMIN_READ_TOKEN for read-only access. The browser keeps the token until you close this tab.'
			),
			el('form', { submit }, field('Token', input), el('button.primary', 'Sign in')),
			el('p.bad', { role: 'alert' }, reason)
		)
	);
	input.focus();
}

addEventListener(REFUSED, () => leave(UNKNOWN));
addEventListener('hashchange', () => (takeToken() ? enter() : sessionStorage.getItem(TOKEN) && show()));
addEventListener('tollgate-address', () => sessionStorage.getItem(TOKEN) && show());
addEventListener('keydown', event => {
	if (!sessionStorage.getItem(TOKEN) || document.querySelector('dialog[open]')) return;
	if (event.key === 'k' && (event.ctrlKey || event.metaKey)) {
		event.preventDefault();
		return openSearch();
	}
	const isWriting = event.target.closest?.('input:not([type=radio],[type=checkbox],[type=range]), textarea, select');
	if (event.ctrlKey || event.metaKey || event.altKey || isWriting) return;
	if (event.key === '/') openSearch();
	else if (event.key === '?') showKeys();
	else if (event.key === 'Escape' && isOpen()) closePanel();
	else if (/^[1-6]$/.test(event.key)) go(link(Object.keys(PAGES)[event.key - 1]));
	else return;
	event.preventDefault();
});
$('find').addEventListener('click', () => openSearch());
$('leave').addEventListener('click', () => {
	leave();
	announce('Signed out');
});
$('skip').addEventListener('click', event => {
	event.preventDefault();
	$('main').focus();
});
$('find').title = 'Search limits, keys, domains, pages and verbs (/ or Ctrl-K)';
takeToken();
if (sessionStorage.getItem(TOKEN)) enter();
else leave();
