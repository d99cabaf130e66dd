// Candidates: decisions that candidate rules would change.

import { copyable, count, el, every, percent, table, tile } from './parts.js';
import { ask } from './service.js';
import { quoted } from './entries.js';

const HOW = `CANDIDATE_RULES=next            # folder or file with the candidate rules
CANDIDATE_SAMPLE=0.1            # share of keys to compare`;

export const candidates = {
  title: 'Candidates',
  make() {
    this.report = el('div');
    this.promote = el('div');
    this.text = null;
    this.version = null;
    return [el('h2', {}, 'Candidate rules'),
      el('p', {}, 'Candidate rules are evaluated on real requests but deny none. This page shows where they would decide differently from the rules in force.'), this.report, this.promote];
  },
  show() { return every(5000, () => this.load()); },
  async load() {
    let report;
    try {
      report = await ask('/candidates');
    } catch (error) {
      const none = error.status === 404 ? [el('p', {}, 'There are none. To compare candidate rules, start the service with these settings:'), copyable(HOW, 'the settings')] : [];
      return this.set(error.message, el('p', { class: none.length ? 'soft' : 'bad', role: none.length ? null : 'alert' }, error.message), ...none);
    }
    // Keeps the page unchanged if the report is the same, so that a selection survives.
    this.set(JSON.stringify(report), ...this.told(report));
    if (report.version === this.version) return;
    this.version = report.version;
    const files = report.files.map((file) => `--candidate-rules ${quoted(file)}`).join(' ');
    this.promote.replaceChildren(...(report.version ? [el('h3', {}, 'To put them in force'),
      el('p', {}, 'The service cannot write its own rules. Run this command on the machine with the rules files, with the same RULES as the service. It changes nothing if the candidates have changed in the meantime:'),
      copyable(`tollgate promote ${files} --expect ${quoted(report.version)}`, 'the command')] : []));
  },
  set(text, ...children) {
    if (this.text === text) return;
    this.text = text;
    this.report.replaceChildren(...children);
  },
  told(report) {
    const files = el('p', {}, 'Files: ', report.files.flatMap((file, at) => [at ? ', ' : '', el('code', {}, file)]));
    const refused = report.refused ? el('div', { role: 'alert' }, el('p', { class: 'bad' }, 'The current files are invalid; the previous candidates are still compared:'), el('pre', { tabindex: 0 }, report.refused)) : '';
    if (!report.version) return [files, refused, el('p', { class: 'soft' }, 'Nothing is compared yet.')];
    const less = report.sample_now < report.sample ? `(CANDIDATE_SAMPLE is ${count(report.sample * 100)} %, but memory for the counters is short)` : '';
    const otherwise = (requests, keys) => [el('span', { class: requests ? 'warn' : null }, count(requests)), el('div', { class: 'soft' }, `${count(keys)} keys`)];
    return [
      files, refused,
      el('dl', { class: 'tiles' },
        tile('Requests compared', count(report.compared)),
        tile('Newly denied', `${count(report.newly_denied)} (${percent(report.newly_denied, report.compared)})`, report.newly_denied ? 'warn' : null),
        tile('No longer denied', `${count(report.newly_allowed)} (${percent(report.newly_allowed, report.compared)})`),
        tile('Share of keys', `${count(report.sample_now * 100)} %`)),
      el('p', { class: 'soft' }, `Compared since ${new Date(report.since).toLocaleString()} on ${count(report.sample_now * 100)} % of the keys${less}; version `, el('code', {}, report.version)),
      el('h3', {}, `Changes: ${report.changed}`),
      report.changes.length ? el('pre', { tabindex: 0 }, report.changes.join('\n')) : '',
      el('h3', {}, 'Different decisions'),
      table(`By rule, largest difference first${report.more_rules ? `; ${count(report.more_rules)} more rules are not shown` : ''}${report.more_keys ? '; the numbers of keys are lower bounds' : ''}`,
        ['Rule', '#Newly denied', '#No longer denied', '#Same decision', 'Latest examples'],
        report.rules.map((line) => [
          [line.rule, el('br'), el('span', { class: 'soft' }, line.domain)],
          otherwise(line.newly_denied, line.keys_newly_denied), otherwise(line.newly_allowed, line.keys_newly_allowed), count(line.agreed),
          line.examples.length ? el('ul', { class: 'plain' }, line.examples.toReversed().map((example) => el('li', {},
            el('span', { class: 'soft time' }, new Date(example.at).toLocaleTimeString()), ' ', el('code', {}, example.asked)))) : '–',
        ]), 'No request has reached them yet.'),
    ];
  },
};
