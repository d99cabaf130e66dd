// What if: the effect of another number on recorded requests.

import { bar, copyable, count, el, field, percent, table, tile, tried, wait } from './parts.js';
import { ask, query } from './service.js';

const HOW = `WHAT_IF_REQUESTS=200000         # number of latest requests to record, 8 MiB at most
WHAT_IF_SAMPLE=0.1              # share of keys to record`;

const ALGORITHMS = ['sliding_window', 'sliding_log', 'token_bucket', 'leaky_bucket', 'fixed_window'];
const UNITS = [['second', 1000], ['minute', 60000], ['hour', 3600000], ['day', 86400000], ['week', 604800000], ['month', 2592000000], ['year', 31536000000]];
const STEPS = 1000;

const unit = (ms) => UNITS.find(([, length]) => length === ms)?.[0] ?? `${ms}ms`;
const option = (value, words) => el('option', { value }, words ?? value);

export const whatIf = {
  title: 'What if',
  make(asked) {
    this.asked = asked;
    this.rules = [];
    this.body = el('div', {}, el('p', { class: 'soft' }, 'Replaying …'));
    return [el('h2', {}, 'What would another limit do?'), this.body];
  },
  show() { this.load(); },
  async load() {
    let told;
    try {
      told = await ask('/what-if');
    } catch (error) {
      this.body.replaceChildren(...(error.status === 404
        ? [el('p', { class: 'soft' }, error.message), el('p', {}, 'To record the latest requests of some keys, start the service with these settings:'), copyable(HOW, 'the settings')]
        : [el('p', { class: 'bad', role: 'alert' }, error.message)]));
      return;
    }
    this.rules = told.rules;
    if (!told.rules.length) {
      this.body.replaceChildren(this.kept(told), el('p', {}, 'No request has reached a limit yet. ', el('button', { type: 'button', click: () => this.load() }, 'Reload')));
      return;
    }
    const line = (rule) => `${rule.domain}/${rule.rule}: ${rule.limit}; reached ${count(rule.decisions)} times, denies ${percent(rule.denied, rule.decisions)}`;
    this.rule = el('select', { change: () => this.choose() }, told.rules.map((rule, at) => option(at, line(rule))));
    const wanted = told.rules.findIndex((rule) => rule.domain === this.asked.get('domain') && rule.rule === this.asked.get('rule'));
    this.rule.value = Math.max(0, wanted);
    this.number = el('input', { type: 'number', min: 0, max: 4294967295, input: () => { this.slide(); this.changed(); } });
    this.slider = el('input', { type: 'range', min: 0, max: STEPS, input: () => { this.number.value = Math.round((this.most + 1) ** (this.slider.value / STEPS)) - 1; this.changed(); } });
    this.algorithm = el('select', { change: () => this.try() }, ALGORITHMS.map((name) => option(name)));
    this.period = el('select', { change: () => this.try() });
    this.share = el('input', { type: 'number', min: 0, max: 100, step: 'any', value: 0.1 });
    this.of = el('select', {}, option('users', 'of the keys'), option('requests', 'of the requests'));
    this.said = el('p', { 'aria-live': 'polite' });
    this.result = el('div');
    this.found = el('div', { 'aria-live': 'polite' });
    this.terminal = el('div');
    this.body.replaceChildren(
      this.kept(told),
      el('form', { submit: (event) => event.preventDefault() }, field('Limit', this.rule), field('Number', this.number), field('Slider', this.slider),
        field('Per', this.period), field('Algorithm', this.algorithm)),
      this.said, this.result,
      el('h3', {}, 'Find the smallest number that denies at most …'),
      el('form', { submit: (event) => { event.preventDefault(); this.search(); } }, field('Share, in percent', this.share), field('Of', this.of), el('button', {}, 'Search')),
      this.found, this.terminal);
    this.choose();
  },
  // Describes the replayed requests and the limits of the replay.
  kept(told) {
    const notes = [];
    if (told.sample_now < told.sample) notes.push(`memory for the counters is short: only ${count(told.sample_now * 100)} % of all keys are replayed`);
    if (told.replicas > 1) notes.push(`EXPECTED_REPLICAS is ${told.replicas}: this instance sees a part of each key's requests, so it replays them against the same part of each limit; the result is only right if ${told.replicas} instances share the traffic`);
    if (told.dropped) notes.push(`${count(told.dropped)} requests could not be recorded`);
    if (told.more_rules) notes.push(`${count(told.more_rules)} more limits were reached and are not listed`);
    const span = told.first ? `, from the ${wait(Date.parse(told.last) - Date.parse(told.first))} before ${new Date(told.last).toLocaleTimeString()}` : '';
    return el('div', {}, el('p', {}, `Replays the latest ${count(told.requests)} requests of ${count(told.sample * 100)} % of all keys${span} with the real algorithms, starting with empty counters. It counts nothing and denies no request.`),
      told.replicas > 1 ? '' : el('p', { class: 'soft' }, 'Assumes that this is the only instance: EXPECTED_REPLICAS is 1, or counters are in memory.'),
      notes.length ? el('ul', { class: 'plain' }, notes.map((note) => el('li', { class: 'warn' }, note))) : '');
  },
  choose() {
    const { domain, rule } = this.rules[this.rule.value];
    this.found.replaceChildren();
    this.most = 0;
    this.number.value = '';
    this.chosen = [['domain', domain], ['rule', rule]];
    this.terminal.replaceChildren(el('h3', {}, 'The same in a terminal'),
      el('p', {}, 'The recorded requests as a log that ', el('code', {}, 'tollgate replay'), ' reads, to compare any rules with those in force:'),
      copyable(`curl -s -H "Authorization: Bearer $ADMIN_TOKEN" ${location.origin}/what-if/log > requests.log\ntollgate replay --rules NEW --against OLD requests.log`, 'the commands'));
    this.try(true);
  },
  // Waits a moment: dragging changes the number many times, and only the last one counts.
  changed() {
    this.slider.setAttribute('aria-valuetext', this.number.value);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.try(), 200);
  },
  slide() {
    // There is no answer yet.
    if (!this.most) return;
    this.slider.value = Math.round((STEPS * Math.log(Number(this.number.value) + 1)) / Math.log(this.most + 1));
  },
  wanted(more = []) {
    return query([...this.chosen, ['number', this.number.value], ['algorithm', this.algorithm.value], ['period_ms', this.period.value], ...more]);
  },
  // Sends one request at a time, and then one for the last value chosen.
  async try(first = false) {
    clearTimeout(this.timer);
    if (this.busy) { this.again = first ? 'first' : (this.again ?? 'next'); return; }
    this.busy = true;
    const trial = await tried(this.result, () => ask(`/what-if?${first ? query(this.chosen) : this.wanted()}`));
    this.busy = false;
    const { again } = this;
    this.again = null;
    if (again) { this.try(again === 'first'); return; }
    if (!trial) { this.said.textContent = ''; return; }
    if (first) this.begin(trial);
    this.tell(trial);
  },
  // Fills the fields with the limit in force.
  begin({ in_force: limit, peaks }) {
    this.most = Math.max(10, limit.number * 2, peaks.at(-1)?.hits ?? 0);
    this.number.value = limit.number;
    this.algorithm.value = limit.algorithm;
    const units = UNITS.some(([, length]) => length === limit.period_ms) ? UNITS : [[unit(limit.period_ms), limit.period_ms], ...UNITS];
    this.period.replaceChildren(...units.map(([name, length]) => option(length, name)));
    this.period.value = limit.period_ms;
    this.slide();
  },
  tell(trial) {
    const { now, then, tried: limit, in_force: present, peaks } = trial;
    const part = (told) => `${percent(told.denied, told.decisions)} (${count(told.denied)} of ${count(told.decisions)})`;
    const keys = (told) => `${count(told.keys_denied)} of ${count(told.keys)}`;
    const before = new Map(now.most_denied.map((key) => [key.key, key.denied]));
    // Hidden values can make different keys look equal: these cannot be told apart.
    const alike = [now, then].flatMap((told) => told.most_denied.map((one) => one.key).filter((key, at, keys) => keys.indexOf(key) < at));
    const deniedNow = ({ key }) => {
      if (alike.includes(key)) return '–';
      return before.has(key) ? count(before.get(key)) : now.most_denied.length < 25 ? 0 : '–';
    };
    const all = peaks.reduce((sum, one) => sum + one.keys, 0);
    const most = Math.max(1, ...peaks.map((one) => one.keys));
    const beyond = (one, at) => (one.hits <= limit.number ? 'no' : (peaks[at - 1]?.hits ?? 0) >= limit.number ? 'yes' : 'some');
    const short = Date.parse(trial.last) - Date.parse(trial.first) < limit.period_ms;
    const lines = [`requests_per_unit: ${limit.number}`,
      ...(limit.period_ms === present.period_ms ? [] : [UNITS.some(([, length]) => length === limit.period_ms) ? `unit: ${unit(limit.period_ms)}` : `period: ${unit(limit.period_ms)}`]),
      ...(limit.algorithm === present.algorithm ? [] : [`algorithm: ${limit.algorithm}`])];
    const differs = limit.number !== present.number || lines.length > 1;
    this.said.textContent = `${then.limit} denies ${percent(then.denied, then.decisions)} of the requests and ${keys(then)} keys; now ${percent(now.denied, now.decisions)} and ${keys(now)} keys.`;
    this.result.replaceChildren(
      el('dl', { class: 'tiles' },
        tile(`Requests denied now, with ${now.limit}`, part(now)), tile(`Requests denied with ${then.limit}`, part(then), then.denied > now.denied ? 'warn' : null),
        tile('Keys denied now', keys(now)), tile('Keys denied with the new limit', keys(then), then.keys_denied > now.keys_denied ? 'warn' : null)),
      short ? el('p', { class: 'warn' }, 'The recorded requests cover less than one period of the limit: over a whole period it may deny more.') : '',
      differs ? el('div', {}, el('p', {}, 'To apply it, write into the rules', now.file ? [', at ', el('code', {}, `${now.file}${now.line ? `:${now.line}` : ''}`)] : '', ':'), copyable(lines.join('\n'), 'the lines')) : '',
      table('Most denied keys with the new limit', ['Key', '#Requests', '#Denied now', '#Denied with the new limit'],
        then.most_denied.map((key) => [el('code', {}, key.key), count(key.decisions), deniedNow(key), count(key.denied)]), 'It would deny no request.'),
      table(`Peak hits of each key per ${unit(limit.period_ms)}`, ['#Up to', '#Keys', '#Share', 'Distribution', 'Above the limit'],
        peaks.map((one, at) => [count(one.hits), count(one.keys), percent(one.keys, all), bar(one.keys / most), el('span', { class: beyond(one, at) === 'no' ? null : 'warn' }, beyond(one, at))])),
    );
  },
  async search() {
    this.found.replaceChildren(el('p', { class: 'soft' }, 'Trying numbers …'));
    const trial = await tried(this.found, () => ask(`/what-if?${this.wanted([['suggest', `deny at most ${this.share.value} % of ${this.of.value}`]])}`));
    if (!trial) return;
    const found = trial.suggestion;
    if (!found) { this.found.replaceChildren(el('p', {}, 'No recorded request has reached this limit.')); return; }
    const take = (number) => { this.number.value = number; this.slide(); this.changed(); this.number.focus(); };
    this.found.replaceChildren(
      el('p', {}, found.number == null ? 'Every number tried denies more.'
        : [el('b', {}, `${count(found.number)} ${found.per}`), ` is the smallest number that denies at most ${found.percent} % of the ${found.of}. `, el('button', { type: 'button', click: () => take(found.number) }, `Use ${count(found.number)}`)]),
      table('Denials by number, ignoring other limits of the same requests', ['#Number', '#Keys denied', '#of all', '#Requests denied', '#of all', 'Share of requests'],
        found.curve.map((point) => [count(point.number), count(point.keys_denied), percent(point.keys_denied, found.keys), count(point.requests_denied), percent(point.requests_denied, found.requests), bar(point.requests_denied / Math.max(1, found.requests))])));
  },
};
