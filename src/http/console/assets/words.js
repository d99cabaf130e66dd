// Numbers, durations and times as text. Three digits at most carry meaning; a missing value is a dash.

const LANGUAGE = 'en-US';
export const NONE = '–';
const known = value => typeof value === 'number' && Number.isFinite(value);

const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(LANGUAGE, { maximumSignificantDigits: 3 });

// Writes a measured number: `3.71`, `1,240`, `41.2k`.
export function count(value) {
	if (!known(value)) return NONE;
	const size = Math.abs(value);
	if (size < 0.005) return '0';
	if (size < 10) return short.format(Number(value.toFixed(2)));
	if (size < 9995) return short.format(value);
	const power = Math.min(4, Math.floor(Math.log10(size * 1.0005) / 3));
	return `${short.format(value / 1000 ** power)}${['', 'k', 'M', 'G', 'T'][power]}`;
}

// Writes a number of something countable in full, such as that of a limit.
export const exact = value => (known(value) ? whole.format(value) : NONE);

export const rate = value => (known(value) ? `${count(value).replace(/(?=[kMGT]$)/, ' ')}/s` : NONE);

// Writes a share of one as a percentage.
export function share(value) {
	if (!known(value)) return NONE;
	if (value > 0 && value < 0.0001) return '< 0.01 %';
	const percent = value * 100;
	return `${Number(percent < 10 ? percent.toFixed(percent < 1 ? 2 : 1) : percent.toPrecision(3))} %`;
}

export const portion = (part, of) => (of ? share(part / of) : NONE);

// Writes a latency, always in milliseconds below a second.
export function latency(us) {
	if (!known(us)) return NONE;
	return us < 1e6 ? `${Number((us / 1000).toPrecision(us < 1000 ? 2 : 3))} ms` : duration(us / 1000);
}

const UNITS = [
	['d', 86400000],
	['h', 3600000],
	['m', 60000],
	['s', 1000]
];

// Writes a duration by its two largest units: `1m 30s`.
export function duration(ms) {
	if (!known(ms)) return NONE;
	if (ms < 1000) return ms <= 0 ? '0s' : `${Math.round(ms)} ms`;
	let rest = Math.round(ms / 1000) * 1000;
	const first = UNITS.findIndex(([, length]) => rest >= length);
	const parts = UNITS.slice(first, first + 2).map(([name, length]) => {
		const number = Math.floor(rest / length);
		rest -= number * length;
		return number ? `${number}${name}` : '';
	});
	return parts.filter(Boolean).join(' ');
}

export const ago = ms => duration(Math.max(1000, Date.now() - ms));

const pad = number => String(number).padStart(2, '0');
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

export const minute = ms => (at => `${pad(at.getHours())}:${pad(at.getMinutes())}`)(new Date(ms));
export const clock = ms => (known(ms) ? `${minute(ms)}:${pad(new Date(ms).getSeconds())}` : NONE);

// Writes a moment: today only its time, otherwise its day as well.
export function moment(value) {
	const ms = typeof value === 'string' ? Date.parse(value) : value;
	if (!known(ms)) return NONE;
	const at = new Date(ms);
	if (at.toDateString() === new Date().toDateString()) return minute(ms);
	return `${MONTHS[at.getMonth()]} ${at.getDate()} ${minute(ms)}`;
}

// Names the time zone of all times on the page.
export function zone() {
	const east = -new Date().getTimezoneOffset();
	const hours = Math.floor(Math.abs(east) / 60);
	const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
	const offset = `UTC${east ? `${east < 0 ? '−' : '+'}${hours}${east % 60 ? `:${pad(Math.abs(east) % 60)}` : ''}` : ''}`;
	return name && name !== 'UTC' ? `${name}, ${offset}` : offset;
}

export function bytes(value) {
	if (!known(value)) return NONE;
	const power = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10)));
	return `${short.format(value / 1024 ** power)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

export const plural = (number, one, many = `${one}s`) => `${exact(number)} ${number === 1 ? one : many}`;

// Writes the entries of a descriptor: `user=ann`. Hidden values leave only the key.
export const entriesText = entries => entries.map(({ key, value }) => (value == null ? key : `${key}=${value}`)).join(' ');

// Reads `5 per minute`, whatever follows it.
export const limitText = text => String(text ?? NONE).replace(/, (sliding|fixed|token|leaky|concurrency)\w*$/, '');
