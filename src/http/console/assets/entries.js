// Entries of descriptors, as people write them.

// Splits `key=value`. Without a value there is only the key.
export function pair(text) {
	const at = text.indexOf('=');
	return at < 0 ? { key: text } : { key: text.slice(0, at), value: text.slice(at + 1) };
}

// Parses entries, one per line. Values with line breaks are written in JSON.
export function descriptors(text) {
	if (text.trim().startsWith('[')) {
		const given = JSON.parse(text);
		return Array.isArray(given[0]) ? given : [given];
	}
	const found = [[]];
	for (const line of text
		.split('\n')
		.map(one => one.trimStart())
		.filter(Boolean)) {
		if (line.trim() === '+') found.push([]);
		else if (line.indexOf('=') < 1) throw new Error(`${line} is not an entry: write key=value, for example user=ann`);
		else found.at(-1).push(pair(line));
	}
	if (found.some(entries => !entries.length)) {
		throw new Error('Write entries, for example user=ann. Separate two descriptors with a line +.');
	}
	return found;
}

const isPlain = ({ key, value }) => !/[\n\r]|^[\s[+]/.test(key + value) && !/[=]/.test(key) && !/^\s/.test(key);

// Writes the entries of descriptors as text, one per line.
export function lines(all) {
	if (!all.flat().every(isPlain)) return JSON.stringify(all.length > 1 ? all : all[0]);
	return all.map(entries => entries.map(({ key, value }) => `${key}=${value}`).join('\n')).join('\n+\n');
}

// Parses `key=value`, or `key~pattern` for all values that match: the first sign counts. Anything else is null.
function entryOrPattern(word) {
	const at = word.search(/[=~]/);
	if (at < 1) return null;
	const [key, text] = [word.slice(0, at), word.slice(at + 1)];
	return word[at] === '=' ? { key, value: text } : { key, pattern: text };
}

// Parses what people type into one line: `shop user=ann path="/a b" + user~acme_*`. Returns the words before the first
// entry, and the descriptors, which a `+` separates.
export function typed(text) {
	const words = text.match(/(?:[^\s"]+(?:"[^"]*"?)?|"[^"]*"?)+/g) ?? [];
	const plain = words.map(word => word.replace(/"([^"]*)"?/g, '$1'));
	const first = plain.findIndex(entryOrPattern);
	if (first < 0) return { words: plain, descriptors: [] };
	const all = [[]];
	for (const word of plain.slice(first)) {
		if (word === '+') all.push([]);
		else all.at(-1).push(entryOrPattern(word));
	}
	const isWhole = entries => entries.length > 0 && entries.every(Boolean);
	return { words: plain.slice(0, first), descriptors: all.every(isWhole) ? all : [] };
}

// Returns whether all entries are of one value each.
export const isExact = entries => entries.every(({ pattern }) => pattern == null);

const inQuotes = value => (/[\s"]/.test(value) ? `"${value.replaceAll('"', '')}"` : value);
export const oneLine = entries =>
	entries.map(({ key, value, pattern }) => (pattern == null ? `${key}=${inQuotes(value ?? '')}` : `${key}~${inQuotes(pattern)}`)).join(' ');

export const quoted = word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
