// Try: the answer that a request would get, and the reasons.

import { copyable, count, el, field, table, tried, wait } from './parts.js';
import { ask, query } from './service.js';
import { descriptors, given, quoted } from './entries.js';

// Entries with an action of Envoy for each.
const ACTIONS = ['remote_address', 'source_cluster', 'destination_cluster'];
// Headers that usually provide these entries.
const HEADERS = { path: ':path', method: ':method', host: ':authority', authority: ':authority' };

// Returns actions of Envoy's rate_limits for these descriptors, guessed from their keys.
function actions(all) {
  const yaml = (text) => (/^[A-Za-z_][\w-]*$/.test(text) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(text) ? text : JSON.stringify(text));
  const action = ({ key, value }) => {
    if (ACTIONS.includes(key)) return `${key}: {}`;
    if (key === 'generic_key') return `generic_key: {descriptor_value: ${yaml(value)}}`;
    return `request_headers: {header_name: ${yaml(HEADERS[key] ?? `x-${key.toLowerCase().replace(/[^a-z0-9-]/g, '-')}`)}, descriptor_key: ${yaml(key)}}`;
  };
  return `rate_limits:\n${all.map((entries) => `- actions:\n${entries.map((entry) => `  - ${action(entry)}`).join('\n')}`).join('\n')}`;
}

export const attempt = {
  title: 'Try',
  make() {
    this.service = null;
    this.domain = el('input', { input: () => this.complete(), required: true, list: 'domains', autocomplete: 'off', spellcheck: 'false' });
    this.domains = el('datalist', { id: 'domains' });
    this.entries = el('textarea', { input: () => this.complete(), required: true, spellcheck: 'false', placeholder: 'user=ann\nseparate descriptors with a line +' });
    this.next = el('div', { class: 'actions', role: 'group', 'aria-label': 'Entries that the rules suggest' });
    this.copies = el('div');
    this.times = el('input', { type: 'number', min: 1, max: 100, value: 10 });
    this.result = el('div', { 'aria-live': 'polite' });
    return [el('h2', {}, 'Try a request'),
      el('form', { submit: (event) => { event.preventDefault(); this.explain(); } },
        field('Domain', this.domain), this.domains, field('Entries of the descriptor, one per line', this.entries),
        this.next, el('button', {}, 'Explain without counting'), field('Requests', this.times),
        el('button', { type: 'button', class: 'bad', click: () => this.send() }, 'Send and count')),
      this.result, this.copies];
  },
  async show(asked) {
    this.domain.value = asked.get('domain') ?? '';
    this.entries.value = given(asked);
    const listing = await tried(this.result, () => ask('/rules?limit=0'));
    this.domains.replaceChildren(...(listing?.domains ?? []).map((line) => el('option', { value: line.domain })));
    this.complete();
    if (this.entries.value) this.explain();
  },
  // Suggests entries of the rules at the cursor, shortly after the last key press.
  complete() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.offer(), 150);
  },
  async offer() {
    const { value: domain } = this.domain;
    const text = this.entries.value;
    if (text.trim().startsWith('[')) { this.next.replaceChildren(); return; }
    const lines = text.slice(text.lastIndexOf('\n+') + 1).replace(/^\+\n?/, '').split('\n').map((line) => line.trimStart());
    const last = lines.at(-1);
    const before = lines.filter((line) => line.indexOf('=') > 0).map((line) => ({ key: line.slice(0, line.indexOf('=')), value: line.slice(line.indexOf('=') + 1) }));
    const next = (begin, entries) => ask(`/console/entries?${query([['domain', domain], ['begin', begin], ['entries', JSON.stringify(entries)]])}`).catch(() => null);
    // A last line with a value may be complete or not.
    const [begun, behind] = await Promise.all(last.indexOf('=') > 0
      ? [next(last, before.slice(0, -1)), next('', before)]
      : [next(last, before), { next: [], more: false }]);
    if (!begun || !behind || domain !== this.domain.value || text !== this.entries.value) return;
    const words = ({ key, value }) => `${key}=${value ?? ''}`;
    // Keeps the text typed since then.
    const take = (entry, goesOn) => {
      const { value } = this.entries;
      const line = value.slice(value.lastIndexOf('\n') + 1).trimStart();
      const completes = words(entry).startsWith(line) && (goesOn || !line.includes('='));
      this.entries.value = `${completes ? value.slice(0, value.length - line.length) : `${value}\n`}${words(entry)}`;
      this.entries.focus();
      this.complete();
    };
    const offers = (entries, goesOn) => entries.slice(0, 12).map((entry) => el('button', { type: 'button', click: () => take(entry, goesOn) }, entry.value == null ? `${entry.key}=…` : words(entry)));
    const longer = begun.next.filter((entry) => words(entry) !== last);
    this.next.replaceChildren(...offers(longer, true), ...offers(behind.next, false),
      ...(begun.more || behind.more || longer.length > 12 || behind.next.length > 12 ? [el('span', { class: 'soft' }, 'and more')] : []));
  },
  // Shows commands that send the same request.
  async copy(all) {
    this.service ??= await ask('/console/entries').catch(() => null);
    const request = JSON.stringify({ domain: this.domain.value, descriptors: all.map((entries) => ({ entries })) });
    const { grpc = '', grpc_tls: tls } = this.service ?? {};
    const flags = `${tls ? '-cacert FILE' : '-plaintext'}${grpc.startsWith('unix:') ? ' -unix' : ''}`;
    const address = grpc.startsWith('unix:') ? quoted(grpc.slice(5)) : `${location.hostname}:${grpc.split(':').at(-1) || 8081}`;
    this.copies.replaceChildren(
      el('h3', {}, 'To send it from elsewhere (counts)'),
      copyable(`curl -s ${location.origin}/json -d ${quoted(request)}`, 'the curl command'),
      copyable(`grpcurl ${flags} -d ${quoted(request)} ${address} envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`, 'the grpcurl command'),
      el('h3', {}, 'For a route of Envoy'),
      el('p', { class: 'soft' }, 'If a value comes from another header, change the header name. For a constant value use generic_key: {descriptor_key: plan, descriptor_value: gold}.'),
      copyable(actions(all), 'the actions for Envoy'));
  },
  async explain() {
    const told = await tried(this.result, () => {
      const pairs = [['domain', this.domain.value]];
      descriptors(this.entries.value).forEach((entries, at) => {
        if (at) pairs.push(['+', '']);
        entries.forEach(({ key, value }) => pairs.push([key, value]));
      });
      return ask(`/explain?${new URLSearchParams(pairs)}`);
    });
    if (!told) return;
    this.copy(descriptors(this.entries.value));
    const place = (at) => (at ? el('code', { class: 'soft' }, ` ${at.file}${at.line ? `:${at.line}` : ''}`) : null);
    const words = descriptors(this.entries.value).map((entries) => entries.map(({ key, value }) => quoted(`${key}=${value}`)).join(' ')).join(' + ');
    const kinds = { pass: 'good', deny: 'bad', fail: 'bad', unknown: 'warn' };
    this.result.replaceChildren(
      el('h3', {}, 'Result: ', el('span', { class: kinds[told.answer] }, told.answer)), el('p', {}, told.because),
      ...told.descriptors.flatMap((descriptor) => [
        el('h3', { class: 'mono' }, descriptor.entries.join(' ')),
        el('ul', { class: 'plain' },
          descriptor.matched.map((matched) => el('li', {}, el('code', {}, matched.entry), ' matches ', el('code', {}, matched.node), place(matched.at))),
          descriptor.missed.slice(0, 3).map((missed) => el('li', { class: 'warn' }, missed.words, place(missed.at)))),
        descriptor.limits.length ? table('Its limits', ['Limit', 'Options', '#Remaining', 'Resets in', 'Counter'],
          descriptor.limits.map((limit) => [
            [limit.name, el('br'), place(limit.at) ?? ''],
            limit.parts.map((part) => el('div', {}, `${part.key}: ${part.value} `, el('span', { class: 'soft' }, part.setting ?? (part.from === 'limit' ? '' : part.from.replace('_', ' '))))),
            limit.state ? `${count(limit.state.remaining)} of ${count(limit.state.capacity)}` : (limit.no_state ?? '–'),
            limit.state ? [wait(limit.state.reset_after_ms), limit.state.banned_ms ? el('span', { class: 'bad' }, `, banned for ${wait(limit.state.banned_ms)}`) : ''] : '–',
            limit.counter ? el('code', {}, limit.counter) : (limit.replaced_by ? `replaced by ${limit.replaced_by}` : '–'),
          ])) : null,
      ]),
      el('h3', {}, 'The same in a terminal'), el('pre', { tabindex: 0 }, `tollgate explain --address ${location.origin} --domain ${quoted(this.domain.value)} ${words}`),
    );
  },
  async send() {
    const times = Math.min(100, Math.max(1, Number(this.times.value) || 1));
    const rows = await tried(this.result, async () => {
      const body = { domain: this.domain.value, descriptors: descriptors(this.entries.value).map((entries) => ({ entries })) };
      const answers = [];
      for (let turn = 1; turn <= times; turn += 1) {
        const answer = await ask('/json', { method: 'POST', body });
        const first = answer.statuses?.find((status) => status.code === answer.overallCode) ?? answer.statuses?.[0];
        const passed = answer.overallCode === 'OK';
        answers.push([turn, el('span', { class: passed ? 'good' : 'bad' }, passed ? 'passed' : 'denied'), first?.currentLimit?.name || '–',
          first?.limitRemaining ?? (first?.currentLimit ? 0 : '–'), first?.durationUntilReset ?? '–']);
      }
      return answers;
    });
    if (rows) this.result.replaceChildren(table(`${times} requests sent and counted`, ['#Request', 'Answer', 'Limit', '#Remaining', 'Reset'], rows));
  },
};
