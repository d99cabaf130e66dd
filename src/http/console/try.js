// Try: what a request would get, and why.

import { count, el, field, table, tried, wait } from './parts.js';
import { ask } from './service.js';
import { descriptors, given, quoted } from './entries.js';

export const attempt = {
  title: 'Try',
  make() {
    this.domain = el('input', { required: true, list: 'domains', autocomplete: 'off', spellcheck: 'false' });
    this.domains = el('datalist', { id: 'domains' });
    this.entries = el('textarea', { required: true, spellcheck: 'false', placeholder: 'user=ann\nbetween two descriptors a line with +' });
    this.times = el('input', { type: 'number', min: 1, max: 100, value: 10 });
    this.result = el('div', { 'aria-live': 'polite' });
    return [el('h2', {}, 'Try a request'),
      el('form', { submit: (event) => { event.preventDefault(); this.explain(); } },
        field('Domain', this.domain), this.domains, field('Entries of the descriptor, one a line', this.entries),
        el('button', {}, 'Explain: counts nothing'), field('Requests', this.times),
        el('button', { type: 'button', class: 'bad', click: () => this.send() }, 'Send them: counts')),
      this.result];
  },
  async show(asked) {
    this.domain.value = asked.get('domain') ?? '';
    this.entries.value = given(asked);
    const listing = await tried(this.result, () => ask('/rules?limit=0'));
    this.domains.replaceChildren(...(listing?.domains ?? []).map((line) => el('option', { value: line.domain })));
    if (this.entries.value) this.explain();
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
    const place = (at) => (at ? el('code', { class: 'soft' }, ` ${at.file}${at.line ? `:${at.line}` : ''}`) : null);
    const words = descriptors(this.entries.value).map((entries) => entries.map(({ key, value }) => quoted(`${key}=${value}`)).join(' ')).join(' + ');
    const kinds = { pass: 'good', deny: 'bad', fail: 'bad', unknown: 'warn' };
    this.result.replaceChildren(
      el('h3', {}, 'It would ', el('span', { class: kinds[told.answer] }, told.answer === 'unknown' ? 'get nobody knows what' : told.answer)), el('p', {}, told.because),
      ...told.descriptors.flatMap((descriptor) => [
        el('h3', { class: 'mono' }, descriptor.entries.join(' ')),
        el('ul', { class: 'plain' },
          descriptor.matched.map((matched) => el('li', {}, el('code', {}, matched.entry), ' matches ', el('code', {}, matched.node), place(matched.at))),
          descriptor.missed.slice(0, 3).map((missed) => el('li', { class: 'warn' }, missed.words, place(missed.at)))),
        descriptor.limits.length ? table('Its limits', ['Limit', 'Says', '#Remaining', 'Fresh after', 'Counter'],
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
    if (rows) this.result.replaceChildren(table(`${times} requests, each of which has counted`, ['#Request', 'Answer', 'Limit', '#Remaining', 'Reset'], rows));
  },
};
