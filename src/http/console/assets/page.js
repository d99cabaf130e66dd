// The console: the updates of every second, the pages, and the frame around them. Data of the service become text,
// never markup.

import { $, MOST_SECONDS, ago, bytes, chart, clock, count, el, every, field, table, tile, time, tried, wait } from './parts.js';
import { REFUSED, TOKEN, ask, authorized, may, query, seen } from './service.js';
import { descriptor, given } from './entries.js';
import { attempt } from './try.js';
import { candidates } from './candidates.js';
import { whatIf } from './what-if.js';

const UNKNOWN = 'The service does not accept this token.';

// ---- updates of every second

let watching = null;

async function watch() {
  watching?.abort();
  const stop = (watching = new AbortController());
  const after = [seen.seconds, seen.events].map((told) => told.at(-1)?.number ?? 0);
  try {
    const response = await fetch(`/console/live?after=${after}`, { headers: authorized(), signal: stop.signal });
    if (response.status === 401) return leave(UNKNOWN);
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n\n');
      rest = parts.pop();
      for (const part of parts) if (part.startsWith('data:')) take(JSON.parse(part.slice(5)));
    }
    // The stream has ended with its connection: opens the next one.
    if (watching === stop) watch();
  } catch (error) {
    if (stop.signal.aborted) return;
    $('standing').textContent = `no answer: ${error.message}`;
    $('standing').className = 'bad';
    // Another process may answer next, with its own counts.
    Object.assign(seen, { tick: null, seconds: [], events: [] });
    setTimeout(() => watching === stop && watch(), 1000);
  }
}

function take(tick) {
  seen.tick = tick;
  seen.seconds = seen.seconds.concat(tick.seconds).slice(-MOST_SECONDS);
  seen.events = seen.events.concat(tick.events).slice(-200);
  const standing = `${tick.version} · ${count(tick.rules)} rules · ${tick.store.name}`;
  $('standing').textContent = may() ? standing : `${standing} · read-only`;
  $('standing').className = '';
  warn(tick);
  shown?.tick?.();
}

// ---- warnings

let open = null;

async function warn(tick) {
  const { store } = tick;
  const lines = [];
  if (store.up < 1) {
    open ??= ask('/rules?failure_mode=open&limit=20').catch(() => { open = null; });
    const rules = await open;
    const names = rules?.limits.map((line) => `${line.domain}/${line.rule}`).join(', ');
    const more = rules && rules.total > rules.limits.length ? ` and ${rules.total - rules.limits.length} more` : '';
    const share = store.up === 0 ? 'is down' : `is down for ${count((1 - store.up) * 100)} % of its slots`;
    lines.push(['bad', `The store ${share} for ${ago(store.since_ms)}: ${store.cause}. Failure modes answer for it.\n`
      + (!rules ? 'Loading the rules with failure_mode open.' : rules.total ? `Not limited, because of failure_mode open: ${names}${more}.` : 'No rule has failure_mode open.')]);
  } else {
    open = null;
  }
  if (tick.not_serving) lines.push(['bad', `Not serving: ${tick.not_serving}.`]);
  if (tick.rules_refused) {
    const why = seen.events.findLast((event) => event.level === 'ERROR' && /^(changed|the) rules are rejected/.test(event.text));
    lines.push(['bad', why ? `${clock(why.at_ms)}: ${why.text}` : 'Changed rules are rejected, the previous ones stay in force: see the log.']);
  }
  // A rollout takes a while.
  if (tick.rules_differ_ms > 10000) lines.push(['warn', 'Instances of one release have had different rules for a while: see the list on Now.']);
  if (tick.shadow_mode) lines.push(['warn', 'SHADOW_MODE: no request is denied.']);
  if (tick.adjustments) lines.push(['warn', `Adjustments in force: ${tick.adjustments}. See Adjust.`]);
  const text = JSON.stringify(lines);
  if ($('banners').dataset.text === text) return;
  $('banners').dataset.text = text;
  $('banners').replaceChildren(...lines.map(([kind, line]) => el('p', { class: `banner ${kind}` }, line)));
}

// ---- Now

const now = {
  title: 'Now',
  make() {
    this.tiles = el('dl', { class: 'tiles' });
    this.charts = el('div', { class: 'charts' });
    this.events = el('div');
    this.replicas = el('div');
    return [el('h2', {}, 'Now'), this.tiles, el('h2', {}, 'The last fifteen minutes'), this.charts, el('h2', {}, 'Instances'), this.replicas, el('h2', {}, 'Events'), this.events];
  },
  show() { return every(3000, () => this.load()); },
  async load() {
    const told = await tried(this.replicas, () => ask('/replicas'));
    if (!told) return;
    const differ = told.rules_differ_ms == null ? '' : `; their rules have differed for at least ${wait(told.rules_differ_ms)}`;
    this.replicas.replaceChildren(
      told.unavailable ? el('p', { class: 'bad' }, `Cannot read the other instances from the store (${told.unavailable}): some may be missing.`) : '',
      table(`Instances that share the store: ${count(told.replicas.length)}${differ}`,
        ['Instance', 'Version', 'State', 'Rules', '#Rules age', 'Candidates', '#Uptime', '#Last heartbeat'], told.replicas.map((one) => [
          [el('code', {}, one.id), one.is_self ? ' (this instance)' : ''], one.version || 'unknown',
          el('span', { class: { ready: 'good', draining: 'warn' }[one.state] ?? 'bad' }, one.state.replace('_', ' ')),
          one.rules ? [el('code', {}, one.rules), one.differs ? el('span', { class: 'bad' }, ', differs from most') : ''] : 'none yet',
          one.rules ? wait(one.rules_age_ms) : '–', one.candidates ? el('code', {}, one.candidates) : '–', wait(one.uptime_ms),
          one.is_self ? '–' : `${wait(one.heard_ms)} ago`,
        ])));
  },
  tick() {
    const last = seen.seconds.at(-1);
    if (!last || !this.tiles) return;
    const { store } = seen.tick;
    const up = store.up === 1 ? `up for ${ago(store.since_ms)}` : store.up === 0 ? `down for ${ago(store.since_ms)}` : `${count(store.up * 100)} % up`;
    this.tiles.replaceChildren(
      tile('Decisions per second', count(last.passed + last.denied)),
      tile('Denied per second', count(last.denied), last.denied ? 'warn' : null),
      tile('Failed per second', count(last.failed), last.failed ? 'bad' : null),
      tile('Answered without the store per second', count(last.without_store), last.without_store ? 'bad' : null),
      tile('p50 of calls', time(last.p50_us)),
      tile('p99 of calls', time(last.p99_us)),
      tile('Store, p50', time(last.store_p50_us)),
      tile('Store, p99', time(last.store_p99_us)),
      tile('Store', up, store.up === 1 ? 'good' : 'bad'),
    );
    const of = (key) => seen.seconds.map((second) => second[key]);
    this.charts.replaceChildren(
      chart('Requests per second', [{ name: 'passed', values: of('passed') }, { name: 'denied', values: of('denied') }, { name: 'failed', values: of('failed') }], count),
      chart('p99', [{ name: 'calls', values: of('p99_us') }, { name: 'store', values: of('store_p99_us') }], time),
    );
    const kinds = { ERROR: 'bad', WARN: 'warn', INFO: 'soft' };
    const latest = seen.events.at(-1)?.number ?? 0;
    if (this.latest === latest && this.events.childElementCount) return;
    this.latest = latest;
    this.events.replaceChildren(table('Latest log lines, newest first', ['Time', 'Level', 'Message'],
      seen.events.toReversed().map((event) => [el('span', { class: 'time' }, clock(event.at_ms)), el('span', { class: kinds[event.level] }, event.level), el('span', { class: 'mono' }, event.text)])));
  },
};

// ---- Rules

const PAGE = 100;
const rules = {
  title: 'Rules',
  make() {
    this.domain = el('select', { change: () => this.from(0) }, el('option', { value: '' }, 'all'));
    this.search = el('input', { type: 'search', input: () => this.from(0), placeholder: 'a name or a path', 'data-search': true });
    this.sort = el('select', { change: () => this.from(0) }, el('option', { value: 'rules' }, 'as in the files'), el('option', { value: 'denials' }, 'the most denied first'));
    this.list = el('div');
    this.back = el('button', { type: 'button', click: () => this.from(this.offset - PAGE) }, 'Back');
    this.more = el('button', { type: 'button', click: () => this.from(this.offset + PAGE) }, 'More');
    this.place = el('span', { class: 'soft' });
    this.offset = 0;
    this.before = null;
    return [el('h2', {}, 'Rules'),
      el('form', { submit: (event) => event.preventDefault() }, field('Domain', this.domain), field('Search', this.search), field('Order', this.sort)),
      this.list, el('p', {}, this.back, ' ', this.more, ' ', this.place)];
  },
  show() { return every(2000, () => this.load()); },
  from(offset) { this.offset = Math.max(0, offset); this.before = null; this.load(); },
  async load() {
    const wanted = query([['domain', this.domain.value], ['search', this.search.value], ['sort', this.sort.value], ['offset', this.offset], ['limit', PAGE]]);
    const listing = await tried(this.list, () => ask(`/rules?${wanted}`));
    if (!listing) return;
    const options = listing.domains.map((line) => el('option', { value: line.domain }, `${line.domain} (${count(line.limits)})`));
    const chosen = this.domain.value;
    this.domain.replaceChildren(el('option', { value: '' }, 'all'), ...options);
    this.domain.value = chosen;
    const at = performance.now();
    const { before } = this;
    const rate = (line, key) => {
      const then = before?.counts.get(`${line.domain}\n${line.rule}`);
      if (!line.counted || !before) return line.counted ? '…' : '–';
      return count(((line.counted[key] - (then?.[key] ?? 0)) * 1000) / (at - before.at));
    };
    this.before = { at, counts: new Map(listing.limits.filter((line) => line.counted).map((line) => [`${line.domain}\n${line.rule}`, line.counted])) };
    this.list.replaceChildren(table(`${count(listing.total)} limits; hits per second, and total hits since the start`,
      ['Rule', 'Limit', 'Failure mode', 'Mode', 'File', '#Hits/s', '#Near/s', '#Over/s', '#Hits', '#Over'],
      listing.limits.map((line) => [
        [el('a', { href: `#who?${query([['domain', line.domain], ['rule', line.rule]])}` }, line.rule), el('br'), el('span', { class: 'soft' }, line.domain)],
        line.limit, line.failure_mode, line.role === 'enforced' ? 'enforced' : el('span', { class: 'warn' }, line.role.replace('_', ' ')), el('code', {}, line.at ?? '–'),
        rate(line, 'hits'), rate(line, 'near_limit'), rate(line, 'over_limit'),
        line.counted ? count(line.counted.hits) : 'never reached', line.counted ? count(line.counted.over_limit) : null,
      ]), 'No rule matches.'));
    this.back.disabled = this.offset === 0;
    this.more.disabled = this.offset + listing.limits.length >= listing.total;
    this.place.textContent = listing.total ? `${count(this.offset + 1)} to ${count(this.offset + listing.limits.length)}` : '';
  },
};

// ---- Top keys

const written = (entries) => entries.map(({ key, value }) => (value == null ? key : `${key}=${value}`)).join(' ');

const who = {
  title: 'Top keys',
  make(asked) {
    this.domain = el('input', { value: asked.get('domain') ?? '', autocomplete: 'off', spellcheck: 'false', input: () => this.load() });
    this.rule = el('input', { value: asked.get('rule') ?? '', autocomplete: 'off', spellcheck: 'false', input: () => this.load(), 'data-search': true });
    this.by = el('select', { change: () => this.load() }, ['denied', 'hits', 'near'].map((by) => el('option', { value: by }, { denied: 'denied hits', hits: 'hits', near: 'hits near the limit' }[by])));
    this.by.value = asked.get('by') ?? 'hits';
    this.list = el('div');
    this.said = el('div', { 'aria-live': 'polite' });
    return [el('h2', {}, 'Keys with the most hits'),
      el('form', { submit: (event) => event.preventDefault() }, field('Domain', this.domain), field('Rule, as named in metrics', this.rule), field('By', this.by)),
      this.said, this.list];
  },
  show() { return every(2000, () => this.load()); },
  async load() {
    // Keeps the table while a button waits to be pressed again.
    if (this.list.querySelector('[data-sure]')) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const wanted = query([['domain', this.domain.value], ['rule', this.rule.value], ['by', this.by.value], ['n', 50], ['remaining', 'true']]);
    const top = await tried(this.list, () => ask(`/top?${wanted}`));
    if (!top || turn !== this.turn) return;
    const rate = (value, key) => (value == null ? '–' : count((value * 1000) / Math.max(1000, key.window_ms)));
    this.list.replaceChildren(table(`Top keys of this instance; rules counted: ${count(top.rules)}`,
      ['Key', 'Rule', '#Hits/s', '#Denied/s', '#Near/s', '#Share', '#Remaining', 'Actions'],
      top.keys.map((key) => {
        const entries = key.descriptor ? written(key.descriptor) : null;
        const place = query([['domain', key.domain], ['entries', JSON.stringify(key.descriptor)]]);
        return [
          el('code', {}, entries ?? 'too long to store'), [key.rule, el('br'), el('span', { class: 'soft' }, key.domain)],
          rate(key.hits, key), el('span', { class: key.denied ? 'warn' : null }, rate(key.denied, key)), rate(key.near, key), `${count(key.share * 100)} %`,
          key.remaining == null ? '–' : [`${count(key.remaining)} of ${count(key.capacity)}`, key.banned_ms ? el('div', { class: 'bad' }, `banned for ${wait(key.banned_ms)}`) : ''],
          // Other keys are hidden or shortened, and cannot be used in a request.
          key.exact ? el('div', { class: 'actions' }, el('a', { href: `#try?${place}` }, 'Explain'),
            may() ? el('a', { href: `#steer?${place}` }, 'Adjust') : null,
            may() ? el('button', { type: 'button', class: 'bad', click: (event) => this.reset(event.target, key) }, key.banned_ms ? 'Reset, lift the ban' : 'Reset') : null) : '–',
        ];
      }), 'No key matches.'));
  },
  // Resets a counter when the button is pressed for the second time.
  async reset(button, key) {
    if (!button.dataset.sure) {
      button.dataset.sure = 'asked';
      button.textContent = 'Really? Click again';
      button.addEventListener('blur', () => { delete button.dataset.sure; button.textContent = 'Reset'; }, { once: true });
      return;
    }
    const pairs = [['domain', key.domain], ...key.descriptor.map((entry) => [entry.key, entry.value])];
    const counters = await tried(this.said, () => ask(`/counters?${new URLSearchParams(pairs)}`, { method: 'DELETE' }));
    delete button.dataset.sure;
    if (counters) this.said.replaceChildren(el('p', { class: 'good' }, `Reset: ${counters.map((counter) => `${counter.rule}, ${counter.remaining} remaining`).join('; ')}`));
    this.load();
  },
};

// ---- Adjust

const NAME = 'tollgate-who';

const steer = {
  title: 'Adjust',
  make(asked) {
    const text = (attributes = {}) => el('input', { autocomplete: 'off', spellcheck: 'false', ...attributes });
    this.effect = el('select', { change: () => this.fit() }, [
      ['scale', 'scale the numbers'], ['number', 'set another number'], ['pass', 'allow all requests'], ['block', 'deny all requests'],
      ['enforce', 'enforce'], ['shadow', 'shadow mode: deny no requests'],
    ].map(([value, words]) => el('option', { value }, words)));
    this.share = text({ value: '10%', size: 6 });
    this.number = text({ type: 'number', min: 1, value: 100 });
    this.domain = text({ value: asked.get('domain') ?? '', placeholder: 'all' });
    this.rule = text({ value: asked.get('rule') ?? '', placeholder: 'all' });
    this.entries = el('textarea', { spellcheck: 'false', placeholder: 'user=ann' });
    this.entries.value = given(asked);
    this.lasts = text({ value: '30m', required: true, size: 6 });
    this.by = text({ required: true, maxlength: 100, value: localStorage.getItem(NAME) ?? '' });
    this.why = text({ required: true, maxlength: 500, size: 36 });
    if (this.entries.value) this.effect.value = 'number';
    this.shareField = field('Share', this.share);
    this.numberField = field('Number', this.number);
    this.said = el('div', { 'aria-live': 'polite' });
    this.list = el('div');
    this.everything = el('input', { type: 'checkbox' });
    this.begin = el('button', { class: 'bad' }, 'Create');
    this.fit();
    return [el('h2', {}, 'Adjust limits for a time'),
      el('p', {}, 'An adjustment takes effect on all instances within a second, is logged with author and reason, and expires by itself.'),
      el('form', { submit: (event) => { event.preventDefault(); this.add(); } },
        field('Effect', this.effect), this.shareField, this.numberField, field('Domain', this.domain), field('Rule, by name', this.rule),
        field('Or one key: its entries, one per line', this.entries), field('All limits of all domains', this.everything), field('Duration', this.lasts), field('Author', this.by), field('Reason', this.why), this.begin),
      this.said, this.list];
  },
  fit() {
    this.shareField.hidden = this.effect.value !== 'scale';
    this.numberField.hidden = this.effect.value !== 'number';
  },
  tick() { this.begin.disabled = !may(); },
  show() { return every(2000, () => this.load()); },
  async add() {
    localStorage.setItem(NAME, this.by.value);
    const begun = await tried(this.said, () => ask('/adjustments', { method: 'POST', body: this.asked() }));
    if (begun) this.said.replaceChildren(el('p', { class: 'good' }, `${begun.id} is in force until ${new Date(begun.until).toLocaleString()}.`));
    this.load();
  },
  asked() {
    const { value: effect } = this.effect;
    const body = { effect, who: this.by.value, why: this.why.value, for: this.lasts.value };
    if (effect === 'scale') body.share = this.share.value;
    if (effect === 'number') body.number = Number(this.number.value);
    if (!this.domain.value && !this.everything.checked) throw new Error('Enter a domain, or select all limits of all domains.');
    if (!this.domain.value) body.everything = true;
    if (this.domain.value) body.domain = this.domain.value;
    if (this.rule.value) body.rule = this.rule.value;
    if (this.entries.value.trim()) body.entries = descriptor(this.entries.value);
    return body;
  },
  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const all = await tried(this.list, () => ask('/adjustments'));
    if (!all || turn !== this.turn) return;
    this.list.replaceChildren(table('In force', ['ID', 'Effect', 'Target', 'Author and reason', 'Since', 'Until', 'Action'], all.map((one) => [
      el('code', {}, one.id), [one.effect, ' ', one.share ?? one.number ?? ''],
      [one.domain ?? 'everything', one.rule ? `, ${one.rule}` : '', one.entries ? `: ${written(one.entries)}` : '', one.unmatched ? el('div', { class: 'warn' }, one.unmatched) : ''],
      [one.who, ': ', one.why], new Date(one.since).toLocaleString(), new Date(one.until).toLocaleString(),
      may() ? el('button', { type: 'button', 'aria-label': `End ${one.id}`, click: (event) => this.end(event.target, one.id) }, 'End') : '',
    ]), 'No adjustment is in force.'));
  },
  async end(button, id) {
    const said = [['who', this.by.value], ['why', this.why.value]];
    const ended = await tried(this.said, () => {
      if (said.some(([, value]) => !value.trim())) throw new Error('Enter your name and the reason for ending it in the form above.');
      return ask(`/adjustments/${encodeURIComponent(id)}?${new URLSearchParams(said)}`, { method: 'DELETE' });
    });
    if (ended) this.said.replaceChildren(el('p', { class: 'good' }, `Ended ${id}.`));
    this.load();
  },
};

// ---- Redis

const redis = {
  title: 'Redis',
  make() {
    this.result = el('div', { 'aria-live': 'polite' }, el('p', { class: 'soft' }, 'Loading …'));
    this.tiles = el('dl', { class: 'tiles' });
    this.charts = el('div', { class: 'charts' });
    this.past = el('div', { hidden: true }, el('h2', {}, 'The last fifteen minutes, seen from this instance'), this.tiles, this.charts);
    return [el('h2', {}, 'Redis servers'), this.result, this.past];
  },
  show() { return every(10000, async () => { if (await this.load()) await this.loadPast(); }); },
  async loadPast() {
    const past = await tried(this.charts, () => ask('/redis/history'));
    if (!past) return this.tiles.replaceChildren();
    const { steps, most, maxmemory } = past;
    const last = steps.at(-1) ?? {};
    const line = (name, key) => ({ name, values: steps.map((step) => step[key]) });
    const damaged = steps.reduce((sum, step) => sum + step.damaged, 0);
    const kinds = [...new Set(steps.flatMap((step) => Object.keys(step.errors)))].sort();
    const all = (kind) => steps.reduce((sum, step) => sum + (step.errors[kind] ?? 0), 0);
    const evicted = steps.reduce((sum, step) => sum + (step.evicted ?? 0), 0);
    this.tiles.replaceChildren(
      tile('Calls per second', count(last.calls)),
      tile('Requests per call', count(last.requests_per_call)),
      tile('Queued or in flight', count(last.in_flight)),
      tile('Damaged counters', count(damaged), damaged ? 'bad' : null),
      tile('Keys evicted', last.evicted == null && !evicted ? '–' : count(evicted), evicted ? 'bad' : null),
      tile('Memory', last.memory == null ? '–' : maxmemory ? `${bytes(last.memory)} of ${bytes(maxmemory)}` : bytes(last.memory)),
      tile('Clients', count(last.clients)),
      tile('CPU cores of Redis', count(last.cpu)),
    );
    if (!steps.length) return this.charts.replaceChildren(el('p', { class: 'soft' }, 'No data yet: the first values appear after ten seconds.'));
    const draw = (caption, lines, show) => chart(caption, lines, show, most);
    this.charts.replaceChildren(
      draw('Time of a decision in Redis', [line('p50', 'p50_us'), line('p99', 'p99_us')], time),
      draw('Requests per call', [line('requests', 'requests_per_call')], count),
      draw('Queued or in flight', [line('requests', 'in_flight')], count),
      draw('Per second', [line('calls of this instance', 'calls'), line('commands of Redis', 'commands')], count),
      draw('Memory', [line('used', 'memory')], bytes),
      draw('Keys evicted per ten seconds', [line('keys', 'evicted')], count),
      kinds.length ? draw('Undecided requests per ten seconds', kinds.slice(0, 3).map((kind) => ({ name: kind, values: steps.map((step) => step.errors[kind] ?? 0) })), count) : '',
      kinds.length ? table('Undecided requests in the last fifteen minutes, by reason', ['Reason', '#Requests'], kinds.map((kind) => [kind, count(all(kind))])) : '',
    );
  },
  // Detects whether there is a Redis. It may not answer.
  async load() {
    const found = await tried(this.result, () => ask('/redis').catch((error) => {
      if (error.status !== 404) throw error;
      return { none: error.message };
    }));
    this.past.hidden = Boolean(found?.none);
    if (found?.none) {
      if (this.result.textContent !== found.none) this.result.replaceChildren(el('p', { class: 'soft' }, found.none));
      return false;
    }
    if (!found) return true;
    const concerns = (one) => [...one.errors.map((line) => el('li', { class: 'bad' }, line)), ...one.warnings.map((line) => el('li', { class: 'warn' }, line))];
    const section = (one, title) => [
      el('h3', {}, `${title}: ${one.redis}, ${one.kind}`),
      el('ul', { class: 'plain' }, concerns(one), one.sentinels.map((line) => el('li', {}, `${line.sentinel} names ${line.master ?? 'none'}`))),
      table('Its servers', ['Server', 'Engine', 'Role', '#Replicas', '#Slots', 'Decision time', 'Eviction policy', 'Clock', 'Concerns'],
        one.servers.map((server) => [
          el('code', {}, server.server ?? '–'), server.engine, server.role, server.replicas, server.slots,
          server.decision_us ? `${time(server.decision_us.median)}, ${time(server.decision_us.most)} at most` : '–',
          server.maxmemory_policy === 'noeviction' ? 'noeviction' : el('span', { class: 'bad' }, server.maxmemory_policy ?? 'unknown'),
          server.clock_ahead_ms == null ? '–' : `${server.clock_ahead_ms} ms ahead`,
          el('ul', { class: 'plain' }, concerns(server)),
        ])),
    ];
    this.result.replaceChildren(...section(found, 'Counters'), ...(found.per_second ? section(found.per_second, 'Limits with a period below a minute') : []));
    return true;
  },
};

// ---- the frame

const PAGES = { now, rules, who, try: attempt, candidates, 'what-if': whatIf, steer, redis };
let shown = null;
let hide = null;

async function go() {
  const [name, given] = location.hash.slice(1).split('?');
  const page = PAGES[name] ?? now;
  hide?.();
  hide = null;
  shown = page;
  document.title = `${page.title} · Tollgate`;
  for (const link of $('nav').children) link.toggleAttribute('aria-current', PAGES[link.hash.slice(1)] === page);
  const asked = new URLSearchParams(given ?? '');
  $('main').replaceChildren(...page.make(asked));
  $('main').focus({ preventScroll: true });
  page.tick?.();
  const stop = page.show?.(asked);
  if (typeof stop === 'function') hide = stop;
}

function enter() {
  $('leave').hidden = false;
  $('nav').replaceChildren(...Object.entries(PAGES).map(([name, page]) => el('a', { href: `#${name}` }, page.title)));
  watch();
  go();
}

// Takes the token of a link that ends with #token=..., and removes it from the address. A browser sends this part of an
// address to no server.
function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  if (!token) return false;
  history.replaceState(null, '', location.pathname);
  sessionStorage.setItem(TOKEN, token);
  return true;
}

function leave(reason = '') {
  sessionStorage.removeItem(TOKEN);
  watching?.abort();
  watching = null;
  hide?.();
  hide = null;
  shown = null;
  $('leave').hidden = true;
  $('nav').replaceChildren();
  $('banners').replaceChildren();
  $('standing').textContent = '';
  const input = el('input', { type: 'password', required: true, autocomplete: 'off', minlength: 16 });
  $('main').replaceChildren(el('h2', {}, 'Sign in'),
    el('p', {}, 'Enter the ADMIN_TOKEN of the service, or its ADMIN_READ_TOKEN for read-only access. The browser keeps the token until you close this tab.'),
    el('form', { submit: (event) => { event.preventDefault(); sessionStorage.setItem(TOKEN, input.value); enter(); } }, field('Token', input), el('button', {}, 'Sign in')),
    el('p', { class: 'bad', role: 'alert' }, reason));
  input.focus();
}

addEventListener(REFUSED, () => leave(UNKNOWN));
addEventListener('hashchange', () => (takeToken() ? enter() : sessionStorage.getItem(TOKEN) && go()));
addEventListener('keydown', (event) => {
  if (event.key !== '/' || /INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName)) return;
  const search = document.querySelector('[data-search]');
  if (!search) return;
  event.preventDefault();
  search.focus();
});
$('leave').addEventListener('click', () => leave());
takeToken();
if (sessionStorage.getItem(TOKEN)) enter();
else leave();
