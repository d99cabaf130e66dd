// Entries of descriptors, as people write them.

// Parses entries, one per line. Values with line breaks are written in JSON.
export function descriptors(text) {
  if (text.trim().startsWith('[')) {
    const given = JSON.parse(text);
    return Array.isArray(given[0]) ? given : [given];
  }
  const found = [[]];
  for (const line of text.split('\n').map((one) => one.trimStart()).filter(Boolean)) {
    const at = line.indexOf('=');
    if (line.trim() === '+') found.push([]);
    else if (at < 1) throw new Error(`${line} is not an entry: write key=value, for example user=ann`);
    else found.at(-1).push({ key: line.slice(0, at), value: line.slice(at + 1) });
  }
  if (found.some((entries) => !entries.length)) throw new Error('Write entries, for example user=ann. Separate two descriptors with a line +.');
  return found;
}

// Parses a single descriptor.
export function descriptor(text) {
  const [entries, ...others] = descriptors(text);
  if (others.length) throw new Error('Write the entries of one descriptor.');
  return entries;
}

// Writes the entries of a descriptor as text.
function lines(entries) {
  const plain = entries.every(({ key, value }) => !/[\n\r]|^[\s[+]/.test(key + value) && !/[=]/.test(key) && !/^\s/.test(key));
  return plain ? entries.map(({ key, value }) => `${key}=${value}`).join('\n') : JSON.stringify(entries);
}

export const given = (query) => (query.get('entries') ? lines(JSON.parse(query.get('entries'))) : '');

export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
