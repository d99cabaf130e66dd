// Candidates: decisions that candidate rules would change.

import { copyable, count, el, every, percent, table, tile } from './parts.js';
import { ask } from './service.js';
import { quoted } from './entries.js';

const HOW = `CANDIDATE_RULES=next            # the folder or file of the candidates
CANDIDATE_SAMPLE=0.1            # the share of keys that is compared`;

export const candidates = {
  title: 'Candidates',
  make() {
    this.report = el('div');
    this.promote = el('div');
    this.text = null;
    this.version = null;
    return [el('h2', {}, 'Candidate rules'),
      el('p', {}, 'They see what clients ask, and deny nobody: what they would decide otherwise than the rules in force, to whom.'), this.report, this.promote];
  },
  show() { return every(5000, () => this.load()); },
  async load() {
    let report;
    try {
      report = await ask('/candidates');
    } catch (error) {
      const none = error.status === 404 ? [el('p', {}, 'There are none. The service takes them by these settings:'), copyable(HOW, 'the settings')] : [];
      return this.set(error.message, el('p', { class: none.length ? 'soft' : 'bad', role: none.length ? null : 'alert' }, error.message), ...none);
    }
    // Keeps the page unchanged if the report is the same, so that a selection survives.
    this.set(JSON.stringify(report), ...this.told(report));
    if (report.version === this.version) return;
    this.version = report.version;
    const files = report.files.map((file) => `--candidate-rules ${quoted(file)}`).join(' ');
    this.promote.replaceChildren(...(report.version ? [el('h3', {}, 'To put them in force'),
      el('p', {}, 'The service cannot write its own rules. Where their files are, with RULES as the service has it; it does nothing if the candidates are others by then:'),
      copyable(`tollgate promote ${files} --expect ${quoted(report.version)}`, 'the command')] : []));
  },
  set(text, ...children) {
    if (this.text === text) return;
    this.text = text;
    this.report.replaceChildren(...children);
  },
  told(report) {
    const files = el('p', {}, 'Where they are: ', report.files.flatMap((file, at) => [at ? ', ' : '', el('code', {}, file)]));
    const refused = report.refused ? el('div', { role: 'alert' }, el('p', { class: 'bad' }, 'As they are now they are refused; those before are compared on:'), el('pre', { tabindex: 0 }, report.refused)) : '';
    if (!report.version) return [files, refused, el('p', { class: 'soft' }, 'Nothing is compared yet.')];
    const less = report.sample_now < report.sample ? `, for which there is room, of ${count(report.sample * 100)} %` : '';
    const otherwise = (requests, keys) => [el('span', { class: requests ? 'warn' : null }, count(requests)), el('div', { class: 'soft' }, `${count(keys)} keys`)];
    return [
      files, refused,
      el('dl', { class: 'tiles' },
        tile('Requests compared', count(report.compared)),
        tile('Newly denied', `${count(report.newly_denied)} (${percent(report.newly_denied, report.compared)})`, report.newly_denied ? 'warn' : null),
        tile('No longer denied', `${count(report.newly_allowed)} (${percent(report.newly_allowed, report.compared)})`),
        tile('Of all keys', `${count(report.sample_now * 100)} %`)),
      el('p', { class: 'soft' }, `Compared since ${new Date(report.since).toLocaleString()} on ${count(report.sample_now * 100)} % of the keys${less}; version `, el('code', {}, report.version)),
      el('h3', {}, `What they change: ${report.changed}`),
      report.changes.length ? el('pre', { tabindex: 0 }, report.changes.join('\n')) : '',
      el('h3', {}, 'Whom it concerns'),
      table(`By rule, those first that differ most${report.more_rules ? `; ${count(report.more_rules)} more are left out` : ''}${report.more_keys ? '; there may be more keys' : ''}`,
        ['Rule', '#Newly denied', '#No longer denied', '#Decided alike', 'The last of them'],
        report.rules.map((line) => [
          [line.rule, el('br'), el('span', { class: 'soft' }, line.domain)],
          otherwise(line.newly_denied, line.keys_newly_denied), otherwise(line.newly_allowed, line.keys_newly_allowed), count(line.agreed),
          line.examples.length ? el('ul', { class: 'plain' }, line.examples.toReversed().map((example) => el('li', {},
            el('span', { class: 'soft time' }, new Date(example.at).toLocaleTimeString()), ' ', el('code', {}, example.asked)))) : '–',
        ]), 'No request has asked them yet.'),
    ];
  },
};
