// Requests to the service, its live stream, and the data received.

export const TOKEN = 'tollgate-token';
// Events of the window: the service rejects the token; a second has passed; the service does not answer.
export const REFUSED = 'tollgate-refused';
export const TICK = 'tollgate-tick';
export const SILENT = 'tollgate-silent';
const MOST_EVENTS = 200;

class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

const authorized = (headers = {}) => ({ ...headers, authorization: `Bearer ${sessionStorage.getItem(TOKEN)}` });

export async function ask(path, { method = 'GET', body, text } = {}) {
	const kind = body ? 'application/json' : text != null ? 'application/yaml' : null;
	let response;
	try {
		response = await fetch(path, {
			method,
			headers: authorized(kind ? { 'content-type': kind } : {}),
			body: body ? JSON.stringify(body) : text
		});
	} catch {
		throw new Refused(0, 'the service does not answer');
	}
	const said = await response.text();
	let answer = null;
	try {
		answer = said ? JSON.parse(said) : null;
	} catch {
		answer = { error: said.slice(0, 500) };
	}
	if (response.ok || (path === '/json' && response.status === 429)) return answer;
	if (response.status === 401) dispatchEvent(new Event(REFUSED));
	throw new Refused(response.status, answer?.error || `${response.status} ${response.statusText}`);
}

export const query = values => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== '' && value != null)).toString();

export const seen = { tick: null, second: 0, event: 0, events: [] };

// Returns whether the token permits adjustments, of this domain if one is given.
export function mayAdjust(domain) {
	const { tick } = seen;
	const may = tick?.may?.adjust ?? tick?.role === 'admin';
	const domains = tick?.may?.domains;
	return Boolean(may && (!domains || (domain ? domains.includes(domain) : domain === undefined)));
}
export const mayReset = () => Boolean(seen.tick?.may?.reset ?? seen.tick?.role === 'admin');

// Returns whether counters are in the memory of the process, so that there is no Redis to ask about.
export const inMemory = () => seen.tick?.store.name === 'memory';

let watching = null;

export function stop() {
	watching?.abort();
	watching = null;
	Object.assign(seen, { tick: null, second: 0, event: 0, events: [] });
}

// Follows the live stream, and opens it again when it ends.
export async function watch() {
	watching?.abort();
	const ends = (watching = new AbortController());
	try {
		const response = await fetch(`/console/live?after=${seen.second},${seen.event}`, { headers: authorized(), signal: ends.signal });
		if (response.status === 401) return void dispatchEvent(new Event(REFUSED));
		if (!response.ok) throw new Error((await response.json()).error);
		const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
		for (let rest = ''; ;) {
			const { value, done } = await reader.read();
			if (done) break;
			const parts = (rest + value).split('\n\n');
			rest = parts.pop();
			for (const part of parts) if (part.startsWith('data:')) take(JSON.parse(part.slice(5)));
		}
		if (watching === ends) setTimeout(() => watching === ends && watch(), 200);
	} catch (error) {
		if (ends.signal.aborted) return;
		// Another instance may answer next, with its own counts.
		Object.assign(seen, { second: 0, event: 0, events: [] });
		const why = error instanceof TypeError ? 'the service does not answer' : error.message;
		dispatchEvent(new CustomEvent(SILENT, { detail: why }));
		setTimeout(() => watching === ends && watch(), 1000);
	}
}

function take(tick) {
	seen.tick = tick;
	seen.second = tick.seconds.at(-1)?.number ?? seen.second;
	seen.event = tick.events.at(-1)?.number ?? seen.event;
	seen.events = seen.events.concat(tick.events).slice(-MOST_EVENTS);
	dispatchEvent(new Event(TICK));
}

// Repeats a request, and draws after each answer: `answer` with its time `at`, and `error`. An answer to an older question
// is dropped. After an error the last answer stays.
export function feed(every, load, draw) {
	let [turn, timer, ended] = [0, 0, false];
	const it = { answer: null, error: null, at: 0 };
	it.again = async () => {
		clearTimeout(timer);
		const mine = (turn += 1);
		let [answer, error] = [null, null];
		try {
			answer = await load();
		} catch (cause) {
			error = cause;
		}
		if (mine !== turn || ended) return;
		it.error = error;
		if (!error) Object.assign(it, { answer, at: Date.now() });
		draw();
		if (every) timer = setTimeout(() => (document.hidden ? (timer = 0) : it.again()), every);
	};
	const wake = () => !document.hidden && !timer && it.again();
	// Asks another question, after a moment: the old answer is no longer shown.
	it.afresh = (ms = 0) => {
		clearTimeout(timer);
		turn += 1;
		Object.assign(it, { answer: null, error: null, at: 0 });
		draw();
		timer = setTimeout(it.again, ms);
	};
	it.end = () => {
		ended = true;
		clearTimeout(timer);
		document.removeEventListener('visibilitychange', wake);
	};
	document.addEventListener('visibilitychange', wake);
	it.again();
	return it;
}

// Answers a short-lived question once, for several who ask it.
const kept = new Map();
export function once(path, ms = 10000) {
	const known = kept.get(path);
	if (known && Date.now() - known.at < ms) return known.answer;
	const answer = ask(path).catch(error => {
		kept.delete(path);
		throw error;
	});
	kept.set(path, { at: Date.now(), answer });
	return answer;
}
