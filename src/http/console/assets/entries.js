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

// Parses what people type into one line: `shop user=ann path="/a b"`. Returns the words before the first entry, too.
export function typed(text) {
	const words = text.match(/(?:[^\s"]+(?:"[^"]*"?)?|"[^"]*"?)+/g) ?? [];
	const plain = words.map(word => word.replace(/"([^"]*)"?/g, '$1'));
	const first = plain.findIndex(word => word.indexOf('=') > 0);
	const entries = first < 0 ? [] : plain.slice(first).map(pair);
	return {
		words: first < 0 ? plain : plain.slice(0, first),
		entries: entries.every(({ key, value }) => key && value != null) ? entries : []
	};
}

const inQuotes = value => (/[\s"]/.test(value) ? `"${value.replaceAll('"', '')}"` : value);
export const oneLine = entries => entries.map(({ key, value }) => `${key}=${inQuotes(value ?? '')}`).join(' ');

export const quoted = word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
